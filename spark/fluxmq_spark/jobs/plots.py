"""The jobs' pictures: rates over time, sizes, lag. PNG of 1200 x 700 points, without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fluxmq_spark.jobs.sizes import Sizes, cell_top

INCHES: Final = (12, 7)
DPI: Final = 100

SERIES_MAX: Final = 8
"""Queues with a line of their own, the busiest; the rest share one line, since nobody tells more
colours apart."""

BARS_MAX: Final = 24
BARS_MIN: Final = 6
"""Minimum places for bars in a picture."""

NAME_WIDTH_MAX: Final = 28


def _axes(rows: int = 1) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, rows)


def short(name: str) -> str:
    """Return a name short enough for a legend; a dollar sign would begin a formula."""
    cut = name if len(name) <= NAME_WIDTH_MAX else name[: NAME_WIDTH_MAX - 1] + "…"
    return cut.replace("$", r"\$")


def busiest(series: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Return at most `SERIES_MAX` of several series, and the sum of the others."""
    order = sorted(series, key=lambda name: (-sum(series[name].values()), name))
    kept = {name: dict(series[name]) for name in order[:SERIES_MAX]}
    rest = order[SERIES_MAX:]
    if rest:
        total: dict[int, float] = {}
        for name in rest:
            for at, value in series[name].items():
                total[at] = total.get(at, 0) + value
        kept[f"{len(rest)} others"] = total
    return kept


def rates(path: Path, series: Mapping[str, Mapping[int, float]], step_s: int) -> None:
    """Plot messages per second by queue; the keys of a series are µs since the epoch, `step_s`
    apart."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    figure, axes = _axes()
    moments = [at for values in series.values() for at in values]
    low, high = min(moments), max(moments)
    ticks = range(low, high + step_s * 1_000_000, step_s * 1_000_000)
    edges = [
        datetime.fromtimestamp(at / 1e6, UTC) for at in (*ticks, ticks[-1] + step_s * 1_000_000)
    ]
    for name, values in busiest(series).items():
        axes.stairs([values.get(at, 0) for at in ticks], edges, label=short(name), linewidth=1.6)
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.set_xlabel("time of storage by the broker, UTC")
    axes.set_ylabel("messages per second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(f"Messages per second, mean of {step_s:,} s")
    _finish(figure, axes, path)


def sizes(path: Path, found: Sequence[Sizes]) -> None:
    """Plot the cumulative distribution of message sizes, by queue."""
    figure, axes = _axes()
    for each in sorted(found, key=lambda one: (-one.messages, one.queue))[:SERIES_MAX]:
        across, up, seen = [], [], 0
        for cell in sorted(each.cells):
            seen += each.cells[cell]
            across.append(max(1, min(cell_top(cell), each.largest)))
            up.append(100 * seen / each.messages)
        axes.step(
            [across[0], *across], [0, *up], where="post", label=short(each.queue), linewidth=1.6
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: _bytes(value))
    axes.set_xlabel("payload, at most")
    axes.set_ylabel("of messages, %")
    axes.set_title("Sizes of messages")
    _finish(figure, axes, path)


def lag(path: Path, groups: Sequence[tuple[str, int, float]]) -> None:
    """Plot the lag of consumer groups: (name, messages, seconds)."""
    figure, both = _axes(2)
    shown = sorted(groups, key=lambda each: (-each[1], each[0]))[:BARS_MAX]
    names = [each[0] for each in shown]
    _bars(both[0], names, [each[1] for each in shown], "unsettled messages")
    _bars(both[1], names, [each[2] for each in shown], "seconds behind")
    both[1].set_yticklabels([])
    figure.suptitle("Lag of consumer groups")
    figure.savefig(path)


def deaths(path: Path, causes: Sequence[tuple[str, int]]) -> None:
    """Plot dead letters by cause."""
    figure, axes = _axes()
    shown = sorted(causes, key=lambda each: (-each[1], each[0]))[:BARS_MAX]
    _bars(axes, [each[0] for each in shown], [each[1] for each in shown], "dead letters")
    axes.set_title("Why messages died, and in which queue")
    figure.savefig(path)


def _bars(axes: Any, names: Sequence[str], values: Sequence[float], text: str) -> None:
    """Draw bars with their numbers, the first on top; a few bars are not made thicker."""
    bars = axes.barh([short(each) for each in names], values, height=0.6, color="#4878a8")
    axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=4)
    axes.set_ylim(max(len(names), BARS_MIN) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * max(1, *values))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(text)
    axes.grid(True, axis="x", alpha=0.3)


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:g} {unit}"
        value /= 1024
    raise AssertionError("units end with GiB")


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(True, alpha=0.3)
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", framealpha=0.9)
    figure.savefig(path)
