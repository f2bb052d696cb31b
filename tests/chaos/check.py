"""``python -m tests.chaos.check HISTORY``: hold a recorded history against every rule. Exit 0: all held; 1: not; 2: unreadable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.records import HistoryError, read
from tests.chaos.report import Report, examine


def check_file(path: Path) -> Report:
    """The report on a recorded history. Raises ``OSError``, ``HistoryError``."""
    with path.open("rb") as lines:
        return examine(read(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Report on each history; the last line is the last one's tally."""
    options = argparse.ArgumentParser(prog="python -m tests.chaos.check", description=__doc__)
    options.add_argument("history", nargs="+", type=Path)
    clean = True
    for path in options.parse_args(arguments).history:
        try:
            report = check_file(path)
        except (OSError, HistoryError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        clean = clean and report.clean
        print("\n".join(report.lines()))
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
