"""Pictures of results, as PNG. Without matplotlib there are none, which is said and is no error.

Latency is drawn the way HdrHistogram draws it: over the percentile on a scale that stretches the tail. Ratios
are bars with the range of the rounds, on a logarithmic scale, with marks for the least and the aim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.compare import CaseResult
from perf.percentiles import cell_top
from perf.run import Measurement

DPI = 110
TAIL_TICKS = ((2, "50 %"), (10, "90 %"), (100, "99 %"), (1000, "99.9 %"), (10_000, "99.99 %"))


def _pyplot() -> Any | None:
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def curve(cells: Mapping[int, int]) -> tuple[list[float], list[float]]:
    """1 / (1 - quantile) and microseconds, for every cell in use."""
    total = sum(cells.values())
    seen = 0
    across: list[float] = []
    up: list[float] = []
    for cell in sorted(cells):
        above = total - seen
        across.append(total / above)
        up.append(cell_top(cell) / 1000)
        seen += cells[cell]
    return across, up


def latency(path: Path, title: str, runs: Sequence[Measurement]) -> bool:
    """Delivery and acknowledgement latency of some runs; False when there is no matplotlib."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for number, run in enumerate(runs, 1):
        kinds = (("delivery", run.delivery_cells), ("ack", run.acknowledgement_cells))
        for name, cells in kinds:
            if cells:
                axes.plot(*curve(cells), label=f"{run.target}, round {number}: {name}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([tick for tick, _ in TAIL_TICKS], [name for _, name in TAIL_TICKS])
    axes.minorticks_off()
    axes.set_xlabel("of messages")
    axes.set_ylabel("at most, µs")
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    _save(pyplot, figure, path)
    return True


def ratios(path: Path, results: Sequence[CaseResult]) -> bool:
    """A bar for each goal; False when there is no matplotlib or nothing to draw."""
    pyplot = _pyplot()
    rows = [
        (result.case.name, ratio)
        for result in results
        for ratio in result.ratios
        if ratio.goal is not None and ratio.against is not None
    ]
    if pyplot is None or not rows:
        return False
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.45 * len(rows)))
    colours = {"aim": "tab:green", "pass": "tab:olive", "fail": "tab:red"}
    for place, (_, ratio) in enumerate(rows):
        goal = ratio.goal
        assert goal is not None
        error = [[ratio.middle - ratio.low], [ratio.high - ratio.middle]]
        axes.barh(place, ratio.middle, xerr=error, color=colours[ratio.verdict], height=0.6)
        axes.plot([goal.least, goal.least], [place - 0.4, place + 0.4], color="black")
        axes.plot([goal.aim, goal.aim], [place - 0.4, place + 0.4], color="black", linestyle=":")
    labels = [f"{name}: {ratio.metric} / {ratio.against}" for name, ratio in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(left=min(0.1, *(ratio.low / 2 for _, ratio in rows)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1.0, color="gray", linewidth=0.8)
    axes.set_xlabel("ratio; solid mark: at least (or at most), dotted: aim")
    axes.grid(True, axis="x", alpha=0.3)
    _save(pyplot, figure, path)
    return True


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
