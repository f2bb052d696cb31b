"""``python -m tests.powercut --rounds 200``: the campaign. Exit 0: every rule held; 1: not; 77: not permitted here."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from tests.powercut.campaign import FRESH_ROUNDS, Campaign, Plan
from tests.powercut.image import NotPermittedError

SKIPPED = 77
"""The exit code by which automake's test driver knows a skipped test."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m tests.powercut", description=__doc__)
    found.add_argument("--rounds", type=int, default=25)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--workers", type=int, default=0, help="shards; 0: one or two by chance")
    found.add_argument("--fresh", type=int, default=FRESH_ROUNDS, help="rounds per image")
    found.add_argument("--no-amqp", action="store_true", help="clients of MQTT alone")
    found.add_argument(
        "--failpoints",
        action="store_true",
        help="die by SIGKILL at named places of the storage layer",
    )
    found.add_argument(
        "--control",
        action="store_true",
        help="acknowledge without syncing: the campaign must find losses, and fails when it finds none",
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; the last line of the output is the tally."""
    options = parser().parse_args(arguments)
    # Told to stop, it leaves neither a node nor a mounted image behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    plan = Plan(
        rounds=options.rounds,
        seed=options.seed,
        failpoints=options.failpoints,
        buffered=options.control,
        workers=options.workers,
        fresh=options.fresh,
        amqp=not options.no_amqp,
    )
    try:
        tally = Campaign(plan, lambda line: print(line, flush=True)).run()
    except NotPermittedError as error:
        print(f"skipped: {error}")
        return SKIPPED
    if tally.reached:
        print("killed at: " + ", ".join(f"{k} {v}" for k, v in sorted(tally.reached.items())))
    print(tally.line())
    if options.control:
        return 0 if tally.lost else 1
    return 0 if tally.clean else 1


if __name__ == "__main__":
    sys.exit(main())
