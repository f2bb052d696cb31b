"""When a shard looks for garbage, and through what."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fluxmq.shards.garbage import (
    OLD_OBJECTS_MIN,
    QUIET_OBJECTS_MIN,
    YOUNG_LOOKS,
    YOUNG_OBJECTS,
    Garbage,
)

SECONDS = 0.002


class Interpreter:
    """Counts as Python does while its own collecting is off. ``kept``: of what is looked through nothing is garbage."""

    def __init__(self) -> None:
        self.young = self.looks = self.middle = self.old = 0
        self.kept = True
        self.ran: list[int] = []
        self.told: list[float] = []
        self.time = 0.0
        self.garbage = Garbage(
            lambda: (self.young, self.looks, self.middle),
            self.collect,
            lambda: self.old,
            self.told.append,
            lambda: self.time,
        )

    def collect(self, generation: int) -> int:
        """Look through the young, those that outlived one look too, or all."""
        self.ran.append(generation)
        self.time += SECONDS
        found = 0 if self.kept else self.young
        self.old += self.young - found
        self.looks = 0 if generation else self.looks + 1
        self.young = 0
        return found

    def make(self, objects: int, quiet: bool = False) -> None:
        """Objects are made; the shard's timer comes."""
        self.young += objects
        self.garbage.look(quiet=quiet)


@pytest.fixture
def python() -> Iterator[Interpreter]:
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
    python.kept = False
    for _ in range(600):
        python.make(500)
    assert len(python.ran) == 600 * 500 // YOUNG_OBJECTS
    assert python.young < YOUNG_OBJECTS
    assert set(python.ran) == {0, 1}, "what was found at once gives no reason to look at the old"
    assert python.told == pytest.approx([SECONDS] * len(python.ran))


def test_what_outlives_its_looks_is_looked_through_less_and_less_often(python: Interpreter) -> None:
    python.make(YOUNG_OBJECTS - 1)
    assert python.ran == []
    python.make(1)
    for _ in range(YOUNG_LOOKS):
        python.make(YOUNG_OBJECTS)
    assert python.ran == [0] * YOUNG_LOOKS + [1]
    python.ran.clear()
    for _ in range(100 * OLD_OBJECTS_MIN // YOUNG_OBJECTS):
        python.make(YOUNG_OBJECTS)
    assert 6 <= python.ran.count(2) <= 8, "once for every doubling"


def test_a_quiet_shard_looks_through_everything_if_something_was_made(python: Interpreter) -> None:
    python.make(QUIET_OBJECTS_MIN - 1, quiet=True)
    assert python.ran == []
    python.make(1, quiet=True)
    assert python.ran == [2]
    python.make(YOUNG_OBJECTS)
    python.make(0, quiet=True)
    assert python.ran == [2, 0, 2]
    python.make(0, quiet=True)
    assert python.ran == [2, 0, 2]


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
    gc.unfreeze()


@pytest.mark.usefixtures("collecting_off")
def test_cycles_are_freed_though_the_interpreter_does_not_collect() -> None:
    """Review finding 17: with the real collector, and what it says of the objects there are."""
    garbage = Garbage(
        gc.get_count, gc.collect, lambda: len(gc.get_objects(2)), lambda _: None, lambda: 0.0
    )
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
