"""Run the simulator: `python -m tests.sim --seed 7`, or `--seeds 1..20000`.

One seed says what it was and ends with its digest: the same seed gives the same digest on every machine. `--trace`
prints every event of it. Several seeds end with one line; the exit code is 1 when a promise was broken, and the seeds
that broke it are named. `--record` keeps the sum after every hundred seeds, and `--from` goes on with a campaign that
was interrupted: the seed after the last one that the file tells of, which is said when the rest is run. `--stock` runs the positive control instead, which is expected to break promises.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.sim.campaign import Summary, recorded, run_many
from tests.sim.swarm import draw
from tests.sim.world import EVENTS, World


def seed_range(text: str) -> tuple[int, int]:
    """`A..B`, both included."""
    first, dots, last = text.partition("..")
    if not dots or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise argparse.ArgumentTypeError(f"{text}: expected FIRST..LAST, for one 1..1000")
    return int(first), int(last)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="simulate Raft groups")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and tell about it")
    which.add_argument("--seeds", type=seed_range, metavar="A..B", help="run many, B included")
    parser.add_argument("--nodes", type=int, choices=range(1, 8), help="voters; a seed has its own")
    parser.add_argument("--events", type=int, default=EVENTS, help="before the faults stop")
    parser.add_argument("--trace", action="store_true", help="print every event of the one seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a summary as JSON")
    parser.add_argument("--from", type=int, metavar="SEED", dest="following", help="go on there")
    parser.add_argument("--stock", action="store_true", help="the positive control: pysyncobj")
    return parser.parse_args(given)


def one(seed: int, voters: int | None, events: int, *, trace: bool) -> int:
    """Run one seed and print what it was."""
    world = World(seed, voters=voters, trace=print if trace else None)
    kept = world.run(events)
    print(f"seed {seed}: {draw(seed, voters)}")
    print(f"{world.now_us / 1e6:.3f} virtual seconds, {world.events} events, {dict(world.seen)}")
    for violation in world.history.violations:
        print(violation)
    print(
        f"seed {seed} digest {world.digest & 0xFFFFFFFFFFFFFFFF:016x}", "ok" if kept else "BROKEN"
    )
    return 0 if kept else 1


def many(options: argparse.Namespace) -> int:
    """Run many seeds and print what is broken, and the sum; keep it as it grows."""
    first, last = options.seeds
    total, begin = Summary(), first
    command = f"python -m tests.sim --seeds {first}..{last} --events {options.events}"
    command += f" --nodes {options.nodes}" if options.nodes else ""
    command += " --stock" if options.stock else ""
    if options.following is not None:
        total, recorded_first, recorded_command = recorded(options.record, options.following)
        begin = options.following
        if (recorded_first, recorded_command) != (first, command):
            raise ValueError(f"{options.record} is of {recorded_command}")
    if options.stock:
        from tests.sim.stock import run_stock_seeds

        chunks = run_stock_seeds(begin, last)
    else:
        chunks = run_many(begin, last, options.nodes, options.events, options.processes)
    title = "positive control: stock pysyncobj 0.3.17" if options.stock else "fluxmq.raft"
    before, began = total.wall_seconds, time.monotonic()
    for chunk in chunks:
        total.add(chunk)
        begin += chunk.seeds
        total.wall_seconds = before + time.monotonic() - began
        for seed, what in chunk.violations:
            print(f"seed {seed}: {what}", flush=True)
        if options.record is not None:
            total.record(options.record, title, first, begin - 1, command)
    print(total.line())
    return 1 if total.violations else 0


def main(given: list[str] | None = None) -> int:
    """Run what was asked for."""
    options = arguments(given)
    if options.following is not None and (options.record is None or options.seeds is None):
        raise SystemExit("--from goes on with a campaign: give its --seeds and --record")
    if options.seeds is not None:
        return many(options)
    if options.stock:
        options.seeds = (options.seed, options.seed)
        return many(options)
    return one(options.seed, options.nodes, options.events, trace=options.trace)


if __name__ == "__main__":
    raise SystemExit(main())
