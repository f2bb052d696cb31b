"""Many seeds, and what came of them, as a summary that can be kept.

Responsible for running seeds in one process or several and adding up: events, violations with the seed that shows
each, and how often what matters happened at all (elections, cuts, snapshots, restarts), for a run in which nothing
happens violates nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import fluxmq
from tests.sim.history import History
from tests.sim.queues.world import EVENTS as QUEUE_EVENTS
from tests.sim.queues.world import World as QueueWorld
from tests.sim.sessions.world import STEPS
from tests.sim.sessions.world import World as SessionWorld
from tests.sim.world import EVENTS, World

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 100
"""Seeds that a process is given at a time."""
TESTED = 50
"""Seeds of one test."""


def seeds_of_tests(count: int) -> list[range]:
    """Return the first `count` seeds, a test's at a time; uncompiled, the next `count`."""
    first = 1 + count * (os.environ.get("FLUXMQ_PURE") != "1")
    return [range(at, at + TESTED) for at in range(first, first + count, TESTED)]


class Simulated(Protocol):
    """One run of one seed."""

    history: History
    events: int
    seen: Counter[str]
    digest: int

    @property
    def now_us(self) -> int:
        """The virtual clock in microseconds."""

    @property
    def swarm(self) -> object:
        """The options that the seed drew."""

    def run(self, events: int) -> bool:
        """Run it; whether all promises were kept."""


RAFT, QUEUES, SESSIONS = "raft", "queues", "sessions"
KINDS: dict[str, tuple[Callable[..., Simulated], int, str]] = {
    RAFT: (World, EVENTS, "fluxmq.raft"),
    QUEUES: (QueueWorld, QUEUE_EVENTS, "fluxmq.raft with queues and storage"),
    SESSIONS: (SessionWorld, STEPS, "sessions of clients that roam"),
}
"""The world that a seed runs, the default number of events of its first part, and a title."""


@dataclass
class Summary:
    """What many seeds amount to. `seconds` are of processor time, added up over the processes, `wall_seconds` of all."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    violations: list[tuple[int, str]] = field(default_factory=list)
    """Seed and its first violation."""
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Events per second of one core."""
        return self.events / self.seconds if self.seconds else 0.0

    def add(self, other: Summary) -> None:
        """Take in what other seeds amounted to."""
        self.seeds += other.seeds
        self.events += other.events
        self.seconds += other.seconds
        self.violations += other.violations
        self.seen += other.seen

    def line(self) -> str:
        """All in one line."""
        return (
            f"{self.seeds} seeds, {self.events} events, {len(self.violations)} violations,"
            f" {self.rate:.0f} events/s per core"
        )

    def record(self, path: Path, title: str, first: int, last: int, command: str) -> None:
        """Write the summary to a JSON file."""
        content = {
            "what": title,
            "command": command,
            "date": time.strftime("%Y-%m-%d"),
            "fluxmq": fluxmq.__version__,
            "python": platform.python_version(),
            "first_seed": first,
            "last_seed": last,
            "seeds": self.seeds,
            "events": self.events,
            "events_per_second_and_core": round(self.rate),
            "cpu_seconds": round(self.seconds, 1),
            "wall_seconds": round(self.wall_seconds, 1),
            "violations": [{"seed": seed, "what": what} for seed, what in self.violations],
            "seen": dict(sorted(self.seen.items())),
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        new.replace(path)


def recorded(path: Path, following: int) -> tuple[Summary, int, str]:
    """What a file says of the seeds before `following`: the summary, the first seed and the command.

    Raises ValueError when its last seed is another one: a campaign has no gaps.
    """
    content = json.loads(path.read_text("utf-8"))
    if content["last_seed"] != following - 1:
        raise ValueError(f"{path} ends with seed {content['last_seed']}")
    summary = Summary(
        content["seeds"],
        content["events"],
        content["cpu_seconds"],
        content["wall_seconds"],
        [(each["seed"], each["what"]) for each in content["violations"]],
        Counter(content["seen"]),
    )
    return summary, content["first_seed"], content["command"]


def run_seeds(
    seeds: Iterable[int],
    voters: int | None = None,
    events: int = EVENTS,
    make: Callable[..., Simulated] = World,
) -> Summary:
    """Run seeds one after the other in this process."""
    summary = Summary()
    began = time.process_time()
    for seed in seeds:
        world = make(seed, voters=voters)
        if not world.run(events):
            summary.violations.append((seed, str(world.history.violations[0])))
        summary.seeds += 1
        summary.events += world.events
        summary.seen += world.seen
    summary.seconds = time.process_time() - began
    return summary


def check_seeds(
    seeds: Iterable[int],
    happens: Iterable[str],
    events: int = EVENTS,
    make: Callable[..., Simulated] = World,
) -> None:
    """Assert that seeds keep every promise and that each of `happens` occurs in some of them."""
    summary = run_seeds(seeds, events=events, make=make)
    assert summary.violations == []
    for each in happens:
        assert summary.seen[each] > 0, f"{each}: seeds in which nothing happens prove nothing"


def outputs_under_other_hashes(command: Sequence[str]) -> list[bytes]:
    """Return what `python -m tests.sim` prints under two seeds of Python's hashes."""
    return [
        subprocess.run(
            [sys.executable, "-m", "tests.sim", *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]


def _chunk(task: tuple[range, int | None, int, str]) -> Summary:
    seeds, voters, events, kind = task
    return run_seeds(seeds, voters, events, KINDS[kind][0])


def run_many(
    first: int,
    last: int,
    voters: int | None,
    events: int,
    processes: int,
    kind: str = RAFT,
) -> Iterator[Summary]:
    """Run seeds `first` to `last`, both included; a summary per chunk, in order."""
    tasks = [
        (range(start, min(start + CHUNK, last + 1)), voters, events, kind)
        for start in range(first, last + 1, CHUNK)
    ]
    if processes == 1:
        yield from map(_chunk, tasks)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap(_chunk, tasks)
