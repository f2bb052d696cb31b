"""Results for people: tables on a terminal and in Markdown, JSON for everything else.

The Markdown table has one row per goal and the whole record stands in the JSON beside it, so that any figure
can be taken up later without measuring again.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from perf import brokers, cases, codec
from perf.compare import CaseResult, Plan, Ratio
from perf.idle import IdleMeasurement
from perf.run import Measurement

RESULTS = Path(__file__).resolve().parent / "results"
"""Default directory of results."""

SIGNS = {"aim": "aim reached", "pass": "pass", "fail": "FAIL", "": ""}


def machine(peers: Sequence[str] = ("mosquitto", "nats")) -> dict[str, Any]:
    """Describe the machine and the interpreter that the figures were measured with, and the peers' versions."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_optimised": brokers.optimised(),
        "generator_compiled": codec.COMPILED,
        "peers": {name: brokers.version(name) for name in peers},
    }


def number(value: float) -> str:
    """A figure with three significant digits or all of its whole ones."""
    if value >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def row(result: CaseResult, ratio: Ratio) -> list[str]:
    """A ratio as table cells: case, metric, against, median, range, at least, aim, verdict."""
    goal = ratio.goal
    sign = "≤" if ratio.metric in cases.AT_MOST else "≥"
    return [
        result.case.title,
        ratio.metric,
        ratio.against or "-",
        number(ratio.middle),
        f"{number(ratio.low)} to {number(ratio.high)}",
        f"{sign} {number(goal.least)}" if goal else "",
        f"{sign} {number(goal.aim)}" if goal else "",
        SIGNS[ratio.verdict],
    ]


def goal_rows(results: Sequence[CaseResult]) -> list[list[str]]:
    """A row for each goal of each case, also where it could not be judged."""
    rows = []
    for result in results:
        judged = {(ratio.metric, ratio.against): ratio for ratio in result.ratios}
        for goal in result.case.goals:
            ratio = judged.get((goal.metric, goal.against))
            if ratio is not None:
                rows.append(row(result, ratio))
            else:
                against = goal.against or "-"
                rows.append([result.case.title, goal.metric, against, *[""] * 4, "not measured"])
    return rows


RATIO_HEAD = ["case", "metric", "against", "ratio", "range", "at least", "aim", "verdict"]
ABSOLUTE_HEAD = [
    "case",
    "broker",
    "msg/s",
    "CPU µs/msg",
    "delivery p50 / p99 µs",
    "ack p50 / p99 µs",
    "cores broker / generator",
    "lost",
]


def absolute_rows(result: CaseResult) -> list[list[str]]:
    """Median absolute figures of each broker of a case."""
    rows = []
    for name, rounds in result.results.items():
        runs = [run for run in rounds if isinstance(run, Measurement)]
        for idle in (run for run in rounds if isinstance(run, IdleMeasurement)):
            memory = f"{number(idle.pss_per_connection)} B per connection"
            kernel = f"kernel {number(idle.kernel_slab_per_connection)} B, both ends"
            rows.append([result.case.title, name, memory, kernel, "", "", "", ""])
        if not runs:
            continue

        def pair(kind: str, first: str, second: str, runs: list[Measurement] = runs) -> str:
            values = [getattr(run, kind) for run in runs]
            if not any(value["count"] for value in values):
                return "-"
            return " / ".join(
                number(median(value[quantile] for value in values)) for quantile in (first, second)
            )

        cores = (
            median(run.broker_cores for run in runs),
            median(run.generator_cores for run in runs),
        )
        rows.append(
            [
                result.case.title,
                brokers.labelled(name),
                number(median(run.messages_per_s for run in runs)),
                number(median(run.broker_cpu_us for run in runs)),
                pair("delivery_us", "p50", "p99"),
                pair("acknowledgement_us", "p50", "p99"),
                f"{cores[0]:.2f} / {cores[1]:.2f}",
                str(sum(run.lost for run in runs)),
            ]
        )
    return rows


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(lines)


def heading(plan: Plan, about: dict[str, Any]) -> str:
    """Say where, with which programs and how a comparison was measured."""
    kind = "compiled" if about["generator_compiled"] else "uncompiled"
    built = "with" if about["python_optimised"] else "without"
    peers = ", ".join(version for version in about["peers"].values() if version)
    return (
        f"{about['time']}; {about['processor']}, {about['cores']} cores, kernel {about['kernel']},"
        f" Python {about['python']} built {built} profile-guided optimisation, generator {kind};"
        f" peers: {peers or 'none'}; {plan.rounds} rounds of"
        f" {plan.timing.duration_s:g} s after {plan.timing.warmup_s:g} s of warm-up,"
        f" {'pinned' if plan.pin else 'not pinned'}. Medians of ratios paired by round."
    )


def markdown(results: Sequence[CaseResult], plan: Plan, about: dict[str, Any]) -> str:
    """The whole comparison as one page."""
    asked = goal_rows(results)
    others = [row(r, ratio)[:5] for r in results for ratio in r.ratios if not ratio.goal]
    absolutes = [cells for r in results for cells in absolute_rows(r)]
    notes = [f"* {r.case.title}: {r.case.note}" for r in results if r.case.note]
    notes += [
        f"* {r.case.title}: {r.case.subject} {fault}" for r in results for fault in r.faults()
    ]
    notes += [
        f"* {r.case.title}: {name} is missing: {reason.splitlines()[-1]}"
        for r in results
        for name, reason in r.missing.items()
    ]
    parts = [
        "# Comparison",
        heading(plan, about),
        "## What was asked",
        markdown_table(RATIO_HEAD, asked),
        "## Other ratios",
        markdown_table(RATIO_HEAD[:5], others),
        "## Absolute figures (medians)",
        markdown_table(ABSOLUTE_HEAD, absolutes),
    ]
    if notes:
        parts += ["## Notes", "\n".join(notes)]
    return "\n\n".join(parts) + "\n"


def now() -> str:
    """The time of a record, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a record whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".json.tmp")
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    scratch.replace(path)


def write_comparison(
    results: Sequence[CaseResult], plan: Plan, folder: Path, name: str
) -> list[Path]:
    """JSON and Markdown of a comparison; the paths written."""
    about = {"time": now(), **machine()}
    record = {
        "about": about,
        "rounds": plan.rounds,
        "warmup_s": plan.timing.warmup_s,
        "duration_s": plan.timing.duration_s,
        "pinned": plan.pin,
        "cases": [result.plain() for result in results],
    }
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    write_json(paths[0], record)
    paths[1].write_text(markdown(results, plan, about))
    return paths


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: with rich on a terminal where it is installed, else in Markdown."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table(*head)
            for cells in rows:
                table.add_row(*cells)
            Console().print(table)
            return
    print(markdown_table(head, rows))
