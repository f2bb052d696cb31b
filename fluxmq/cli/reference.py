"""Keeps the table of metrics in ``docs/operations.md`` in step with the registry.

    python -m fluxmq.cli.reference docs/operations.md

replaces the text between the two marks and leaves the rest alone. Nothing else uses this module.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from fluxmq.metrics.metric import Metric, Scope
from fluxmq.metrics.registry import METRICS

BEGIN: Final = "<!-- metrics: written by `make docs` -->"
END: Final = "<!-- end of metrics -->"

_TITLES: Final = {
    Scope.SHARD: "Of each shard, with the label `shard`",
    Scope.ACCEPTOR: "Of the acceptor",
    Scope.NODE: "Of the node and its processes",
}


def metrics_tables() -> str:
    """Return one Markdown table per kind of process, in declaration order."""
    parts = []
    for scope, title in _TITLES.items():
        rows = [_row(metric) for metric in METRICS.values() if metric.scope is scope]
        head = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([f"### {title}", "", *head, *rows]))
    return "\n\n".join(parts)


def _row(metric: Metric) -> str:
    labels = " ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |"


def renewed(page: str) -> str:
    """Return the page with fresh tables between the marks.

    Raises ValueError when the marks are missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no markers for the metrics")
    return f"{before}{BEGIN}\n\n{metrics_tables()}\n\n{END}{after}"


def main() -> None:
    """Rewrite the page named on the command line."""
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
