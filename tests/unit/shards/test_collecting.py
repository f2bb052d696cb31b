"""When a shard looks for garbage, and through what."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fluxmq.shards.garbage import (
    FROZEN_OBJECTS_MIN,
    QUIET_OBJECTS_MIN,
    YOUNG_LOOKS,
    YOUNG_OBJECTS,
    Garbage,
)

SECONDS = 0.002
YOUNG, ALL, EVERYTHING = "young", "all that is not frozen", "everything"


class Interpreter:
    """Counts as Python does while it does not collect by itself. ``garbage``: what is made is found to be that."""

    def __init__(self) -> None:
        self.young = self.old = self.frozen = 0
        self.garbage = False
        self.ran: list[str] = []
        self.most = 0
        """Objects that one look went through at most, unless it went through everything."""
        self.told: list[float] = []
        self.time = 0.0
        self.shard = Garbage(self, self.told.append, lambda: self.time)
        self.shard.begin()
        assert EVERYTHING not in self.ran, "the supervisor's image is shared"
        self.ran.clear()

    def get_count(self) -> tuple[int, int, int]:
        """Only the first is of interest."""
        return self.young, 0, 0

    def collect(self, generation: int = 2) -> int:
        """Look through the young, or everything that is not frozen."""
        self.time += SECONDS
        if not self.ran or self.ran[-1] != EVERYTHING or self.frozen:
            self.ran.append(ALL if generation else YOUNG)
            self.most = max(self.most, self.young + (self.old if generation else 0))
        found = self.young if self.garbage else 0
        self.old += self.young - found
        self.young = 0
        return found

    def freeze(self) -> None:
        """Nothing looks at it any more."""
        self.frozen += self.old
        self.old = 0

    def unfreeze(self) -> None:
        """Everything is looked through."""
        self.ran.append(EVERYTHING)
        self.old += self.frozen
        self.frozen = 0

    def get_freeze_count(self) -> int:
        """What is frozen."""
        return self.frozen

    def make(self, objects: int, quiet: bool = False) -> None:
        """Objects are made; the shard's timer comes."""
        self.young += objects
        self.shard.look(quiet=quiet)


@pytest.fixture
def python() -> Interpreter:
    """An interpreter whose shard is ready."""
    return Interpreter()


def test_traffic_that_leaves_nothing_is_never_stopped(python: Interpreter) -> None:
    """Review finding 17: nor is a shard that has nothing to do kept busy."""
    for _ in range(1000):
        python.make(0)
    for _ in range(1000):
        python.make(1, quiet=True)
    assert python.ran == []


def test_what_is_left_behind_is_looked_through_while_there_is_traffic(python: Interpreter) -> None:
    """Review finding 17: some 50 objects in cycles for each queue, a hundred queues a second."""
    python.garbage = True
    for _ in range(600):
        python.make(500)
    assert python.ran == ([YOUNG] * YOUNG_LOOKS + [ALL]) * (30 // (YOUNG_LOOKS + 1))
    assert python.young + python.old + python.frozen == 0
    assert python.told == pytest.approx([SECONDS] * len(python.ran))


def test_a_look_goes_through_no_more_however_much_there_is(python: Interpreter) -> None:
    for _ in range(2 * FROZEN_OBJECTS_MIN // YOUNG_OBJECTS - 1):
        python.make(YOUNG_OBJECTS)
    assert python.most == (YOUNG_LOOKS + 1) * YOUNG_OBJECTS
    assert python.ran.count(EVERYTHING) == 1
    python.ran.clear()
    for _ in range(32 * FROZEN_OBJECTS_MIN // YOUNG_OBJECTS):
        python.make(YOUNG_OBJECTS)
    assert 4 <= python.ran.count(EVERYTHING) <= 6, "once for every doubling"
    assert python.most == (YOUNG_LOOKS + 1) * YOUNG_OBJECTS


def test_a_quiet_shard_looks_through_everything_if_much_was_made(python: Interpreter) -> None:
    python.make(QUIET_OBJECTS_MIN - 1, quiet=True)
    assert python.ran == []
    python.make(1, quiet=True)
    assert python.ran == [EVERYTHING]
    for _ in range(10):
        python.make(YOUNG_OBJECTS)
    python.ran.clear()
    python.make(0, quiet=True)
    assert python.ran == [EVERYTHING]
    for _ in range(4):
        python.make(QUIET_OBJECTS_MIN, quiet=True)
    assert python.ran == [EVERYTHING] + [ALL] * 4, "it is little beside what is held"
    python.make(0, quiet=True)
    assert len(python.ran) == 5


class Link:
    """Names another object."""

    def __init__(self) -> None:
        self.other: Link | None = None


@pytest.fixture
def collecting_off() -> Iterator[None]:
    """As in a shard."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collecting_off")
def test_cycles_are_freed_though_the_interpreter_does_not_collect() -> None:
    """Review finding 17: with the real collector, and what it says of the objects there are."""
    garbage = Garbage(gc, lambda _: None, lambda: 0.0)
    most = 0
    for _ in range(20 * YOUNG_OBJECTS // 100):
        for _ in range(50):
            one, other = Link(), Link()
            one.other, other.other = other, one
        garbage.look(quiet=False)
        most = max(most, gc.get_count()[0])
    assert most < 2 * YOUNG_OBJECTS
    kept = sum(isinstance(each, Link) for each in gc.get_objects())
    assert kept <= YOUNG_OBJECTS
