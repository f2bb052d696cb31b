"""Run the simulator: `python -m tests.sim --seed 7`, or `--seeds 1..20000`.

Simulates Raft alone; with `--queues` the engine's queues, its Raft driver and its storage as well; with `--sessions`
whole nodes and etcd, between which clients roam. One seed prints what
it drew and its digest: the same seed gives the same digest on every machine. `--trace` prints every event of it. Several
seeds end with one line; the exit code is 1 when a promise was broken, and the seeds that broke it are named. `--record`
keeps the sum after every hundred seeds, and `--from` goes on with a campaign that was interrupted: give the seed after
the last one in the file. `--stock` runs the positive control instead, which is expected to break promises.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path

from tests.sim.campaign import KINDS, QUEUES, RAFT, SESSIONS, Summary, recorded, run_many


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
    parser.add_argument("--events", type=int, help="before the faults stop")
    parser.add_argument("--trace", action="store_true", help="print every event of the one seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a summary as JSON")
    parser.add_argument("--from", type=int, metavar="SEED", dest="following", help="go on there")
    what = parser.add_mutually_exclusive_group()
    for kind, text in ((QUEUES, "with queues and storage"), (SESSIONS, "clients that roam")):
        what.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=text)
    what.add_argument("--stock", action="store_true", help="the positive control: pysyncobj")
    parser.set_defaults(kind=RAFT)
    options = parser.parse_args(given)
    if options.events is None:
        options.events = KINDS[options.kind][1]
    return options


def one(options: argparse.Namespace) -> int:
    """Run one seed and print what it was."""
    seed, voters = options.seed, options.nodes
    trace: Callable[[str], None] | None = print if options.trace else None
    world = KINDS[options.kind][0](seed, voters=voters, trace=trace)
    kept = world.run(options.events)
    print(f"seed {seed}: {world.swarm}")
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
    command += " --stock" if options.stock else "" if options.kind == RAFT else f" --{options.kind}"
    if options.following is not None:
        total, recorded_first, recorded_command = recorded(options.record, options.following)
        begin = options.following
        if (recorded_first, recorded_command) != (first, command):
            raise ValueError(f"{options.record} is of {recorded_command}")
    if options.stock:
        from tests.sim.stock import run_stock_seeds

        chunks = run_stock_seeds(begin, last)
    else:
        chunks = run_many(
            *(begin, last, options.nodes, options.events, options.processes),
            kind=options.kind,
        )
    title = "positive control: stock pysyncobj 0.3.17" if options.stock else KINDS[options.kind][2]
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
    # What simulated nodes log of simulated faults is of no use here.
    logs = logging.getLogger("fluxmq")
    if not logs.handlers:
        logs.addHandler(logging.NullHandler())
    if options.following is not None and (options.record is None or options.seeds is None):
        raise SystemExit("--from goes on with a campaign: give its --seeds and --record")
    if options.seeds is not None:
        return many(options)
    if options.stock:
        options.seeds = (options.seed, options.seed)
        return many(options)
    return one(options)


if __name__ == "__main__":
    raise SystemExit(main())
