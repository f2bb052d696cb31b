"""Directories made by a workload, damaged in one place each, and started upon."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.damage.damages import Target, damage, kind_of
from tests.damage.shard import Clock, Shard, Tracked
from tests.damage.verdict import Promise, note_state, promise_of, recover
from tests.damage.workload import Workload, settings_of

CASES_PER_DIRECTORY = 50
SECONDS_MAX = 10.0
"""A recovery that takes longer than this is stuck."""
KINDS = (
    *("wal", "wal.key", "wal.synced", "seg", "idx", "head", "groups", "snap"),
    *("placement.json", "VERSION"),
)
WEIGHTS = (30, 4, 4, 20, 8, 6, 3, 14, 5, 3)


@dataclass
class Made:
    """A directory as a crash or an orderly end left it."""

    path: Path
    older: dict[str, bytes]
    promise: Promise
    clock_us: int
    ended: str


@dataclass
class Results:
    """Outcomes by kind of file, and what was wrong."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    cases: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def table(self) -> str:
        """Markdown: for each kind of file what became of the damaged directories."""
        lines = [
            "| file | cases | recovered whole | refused | prefix | wrong |",
            "|---|---|---|---|---|---|",
        ]
        totals: Counter[str] = Counter()
        for kind in KINDS:
            counts = [self.outcomes[kind, each] for each in ("whole", "refused", "prefix", "wrong")]
            totals.update(dict(zip(("whole", "refused", "prefix", "wrong"), counts, strict=True)))
            lines.append(f"| {kind} | {sum(counts)} | " + " | ".join(map(str, counts)) + " |")
        total = [totals[each] for each in ("whole", "refused", "prefix", "wrong")]
        lines.append(f"| all | {sum(total)} | " + " | ".join(map(str, total)) + " |")
        return "\n".join(lines)


def make(base: Path, random: Random, runner: asyncio.Runner) -> Made:
    """Run a workload in a new directory and end it in one of three ways: killed at rest, killed with entries that
    nobody was told of on their way, or closed in order."""
    data = base / "made"
    data.mkdir()
    settings = settings_of(str(data))
    clock = Clock()
    promise = Promise(None)  # type: ignore[arg-type]
    workload = Workload(random)
    promise.record = workload.record
    older: dict[str, bytes] = {}
    ended = ""
    for life in range(random.randint(1, 3)):
        shard = Shard(settings, clock, runner, Tracked())
        shard.recover()
        workload.forget_consumers()
        for _ in range(random.randint(3, 12)):
            workload.run(shard, random.randint(5, 40))
            shard.come_to_rest()
            note_state(promise, shard)
            if random.random() < 0.3:
                older = contents(data)
        if life == 0 and not older:
            older = contents(data)
        ended = random.choice(("killed", "killed", "under way", "closed"))
        shard.come_to_rest()
        promise_of(promise, shard)
        if ended == "closed":
            shard.end_checkpoints()
            shard.stop()
            promise_of_closed(promise, shard)
            continue
        if ended == "under way":
            for _ in range(random.randint(1, 6)):
                workload.step(shard)
            shard.finish()
            shutil.copytree(data, base / "left")
            while shard.sync():  # a write that goes on in the next file takes several
                pass
            promise_of(promise, shard, told=False)
            shard.kill()
            shutil.rmtree(data)
            (base / "left").rename(data)
            continue
        shard.kill()
    assert not workload.record.problems, workload.record.problems
    return Made(data, older, promise, clock.now_us, ended)


def promise_of_closed(promise: Promise, shard: Shard) -> None:
    """Closing applies nothing more."""
    for name, hosted in shard.hosted.items():
        assert promise.applied[name] == hosted.group.applied_index


def contents(data: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {
        str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()
    }


def cases(made: Made, random: Random, count: int) -> Iterator[tuple[str, Path, Random]]:
    """Files to damage: kinds by weight."""
    by_kind: dict[str, list[str]] = {}
    for path in sorted(made.path.rglob("*")):
        if path.is_file():
            by_kind.setdefault(kind_of(path.name), []).append(str(path.relative_to(made.path)))
    assert by_kind.keys() <= set(KINDS), by_kind.keys()
    present = [kind for kind in KINDS if kind in by_kind]
    weights = [WEIGHTS[KINDS.index(kind)] for kind in present]
    for _ in range(count):
        kind = random.choices(present, weights)[0]
        yield kind, Path(random.choice(by_kind[kind])), random


def run(base: Path, count: int, seed: int, per_directory: int = CASES_PER_DIRECTORY) -> Results:
    """So many cases. `base` is a directory to work in."""
    results = Results()
    with asyncio.Runner() as runner:
        while results.cases < count:
            number = results.cases // per_directory
            random = Random(f"{seed} {number}")
            made = make(base, random, runner)
            results.ends[made.ended] += 1
            wanted = min(per_directory, count - results.cases)
            for at, (kind, path, each) in enumerate(cases(made, random, wanted)):
                _case(base, made, kind, path, each, results, f"{seed} {number} {at}", runner)
            shutil.rmtree(made.path)
    return results


def _case(
    base: Path,
    made: Made,
    kind: str,
    path: Path,
    random: Random,
    results: Results,
    name: str,
    runner: asyncio.Runner,
) -> None:
    data = base / "damaged"
    shutil.copytree(made.path, data)
    settings = settings_of(str(data))
    how = damage(Target(data / path, made.older.get(str(path)), random))
    begun = time.monotonic()
    try:
        verdict = recover(settings, Clock(made.clock_us), runner, made.promise)
        outcome, why = verdict.outcome, verdict.why
        if outcome == "prefix":
            outcome, why = "wrong", "what was acknowledged is not there"
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the result)
        outcome, why = "wrong", f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - begun
    if seconds > SECONDS_MAX:
        outcome, why = "wrong", f"{seconds:.1f} seconds"
    results.cases += 1
    results.slowest = max(results.slowest, seconds)
    results.outcomes[kind, outcome] += 1
    if outcome == "wrong":
        results.wrong.append(f"{name} ({made.ended}) {path}: {how}: {why}")
    if os.environ.get("DAMAGE_TRACE"):
        print(name, made.ended, path, how, outcome, why)
    shutil.rmtree(data)
