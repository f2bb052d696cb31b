"""``python -m tests.damage --cases 2000 --seed 1``: damaged directories, and what recovery made of them."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.damage.campaign import run


def main() -> int:
    """Run the campaign; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="tests.damage", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="where to write the table")
    arguments = parser.parse_args()
    logging.disable()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        results = run(Path(directory), arguments.cases, arguments.seed)
    seconds = time.monotonic() - begun
    text = "\n".join(
        (
            f"{results.cases} cases, seed {arguments.seed}, {seconds:.0f} s, slowest recovery"
            f" {results.slowest:.2f} s; directories: "
            + ", ".join(f"{count} {how}" for how, count in sorted(results.ends.items())),
            "",
            results.table(),
            "",
        )
    )
    print(text)
    for each in results.wrong[:40]:
        print("wrong:", each)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return 1 if results.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
