"""``python -m tests.capacity --queues 100000 --limit 4096``: many durable queues on a node with few descriptors."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.capacity.queues import run


def main() -> int:
    """Run it and print the figures; 1 if something was lost or has failed."""
    parser = argparse.ArgumentParser(prog="tests.capacity", description=__doc__)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--limit", type=int, default=4_096, help="open files of each process")
    parser.add_argument("--messages", type=int, default=20_000, help="queues that get a message")
    parser.add_argument("--sample", type=int, default=2_000, help="messages fetched in the end")
    parser.add_argument("--kill", action="store_true", help="end the node by SIGKILL in between")
    parser.add_argument("--directory", type=Path, help="where the data is to be, on a real disk")
    asked = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
        figures = run(
            Path(directory),
            asked.queues,
            asked.limit,
            asked.messages,
            asked.sample,
            kill=asked.kill,
            say=say,
        )
    print("\n".join(figures.lines()))
    return 1 if figures.problems else 0


if __name__ == "__main__":
    sys.exit(main())
