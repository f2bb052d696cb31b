"""Soak a node: `python -m tests.soak --minutes 30`. Ends with 1 when one of its processes grows."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.soak.run import Plan, soak


def main() -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=1, help="shards of the node")
    parser.add_argument("--queues", type=float, default=100.0, help="reply queues a second")
    parser.add_argument("--messages", type=float, default=100.0, help="MQTT messages a second")
    options = parser.parse_args()
    plan = Plan(options.minutes * 60, options.workers, options.queues, options.messages)
    with tempfile.TemporaryDirectory(prefix="fluxmq-soak-") as directory:
        report = soak(Path(directory), plan)
    print("\n".join(report.lines()))
    return 0 if report.fine else 1


if __name__ == "__main__":
    sys.exit(main())
