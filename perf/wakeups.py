"""``python -m perf wakeups PID ...``: what wakes the processes of running nodes, one line for each process.

The arguments are the process ids of supervisors. Times are those of the scheduler, exact to the nanosecond, and wake-ups are
the voluntary switches of all threads, so that the figures of an idle node hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from perf import processes

SECONDS = 20.0


class Activity(NamedTuple):
    """Milliseconds of processor time, and number of times that a process has slept and was woken."""

    milliseconds: float
    wakeups: int


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("pids", type=int, nargs="+", metavar="PID", help="of a supervisor")
    command.add_argument("--seconds", type=float, default=SECONDS)


def activity(pid: int) -> Activity:
    """Return what a process has done so far, all its threads together; nothing if it is gone."""
    nanoseconds, wakeups = 0, 0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
            status = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        lines = (line.partition(":") for line in status.splitlines())
        wakeups += sum(int(value) for key, _, value in lines if key == "voluntary_ctxt_switches")
    return Activity(nanoseconds / 1e6, wakeups)


def name_of(pid: int) -> str:
    """Return the name of a node's process."""
    name = (processes.PROC / str(pid) / "comm").read_text().strip()
    return name if name.startswith(("fluxmq-", "etcd")) else "supervisor"


def rows(
    before: Mapping[int, Activity], after: Mapping[int, Activity], seconds: float
) -> list[tuple[int, float, float]]:
    """Return each process with its milliseconds and wake-ups per second."""
    return [
        (
            pid,
            (after[pid].milliseconds - each.milliseconds) / seconds,
            (after[pid].wakeups - each.wakeups) / seconds,
        )
        for pid, each in before.items()
    ]


def main(options: argparse.Namespace) -> int:
    """Measure and print."""
    pids = sorted(processes.tree(options.pids))
    before, began = {pid: activity(pid) for pid in pids}, time.monotonic()
    time.sleep(options.seconds)
    after, took = {pid: activity(pid) for pid in pids}, time.monotonic() - began
    print(f"{'process':24} {'ms/s':>8} {'wake-ups/s':>11}")
    nodes = etcd = 0.0
    for pid, milliseconds, wakeups in rows(before, after, took):
        name = name_of(pid)
        print(f"{name:24} {milliseconds:8.2f} {wakeups:11.1f}")
        if name == "etcd":
            etcd += milliseconds
        else:
            nodes += milliseconds
    print(f"nodes {nodes:.2f} ms/s, members of etcd {etcd:.2f} ms/s")
    return 0
