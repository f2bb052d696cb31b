"""Schedules a shard's garbage collection: Python's own rule would stop the hot path at high
allocation rates.

Reference counting frees nearly everything; only cycles need the collector. Even while its own
collection is off, Python counts objects allocated and not freed since the last one, so a check
costs next to nothing, and traffic that leaves nothing behind is never stopped.

A bounded number of objects is collected at a time. Survivors are frozen, with everything that
existed at the start, so that no collection grows with the heap. Frozen objects that end in a cycle
stay until the shard is quiet or as much again has been frozen; then everything is thawed and
collected. From then on the modules that the supervisor has loaded are no longer shared with other
processes: some 25 MB more. Knows no clock but its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

YOUNG_OBJECTS = 10_000
"""Objects allocated and not freed that trigger a collection: those of 200 queues. It takes 1 to 2.5
ms, as often as every two seconds if 50 objects are left in cycles a hundred times a second."""
YOUNG_LOOKS = 2
"""Number of such collections before survivors are collected together and frozen: 30,000 objects at
most, 5 to 20 ms."""
FROZEN_OBJECTS_MIN = 1_000_000
"""Objects frozen since the last thaw that trigger another, traffic or not; more if more is held, so
that it happens once per doubling. It takes 260 ms with 10,000 queues (400,000 objects beside those
of the start). Garbage in cycles by then is some 100 MB at most, or as much as is held."""
QUIET_OBJECTS_MIN = 2_000
"""Objects allocated and not freed that make a quiet shard collect: its own timers make a few."""
QUIET_SHARE = 8
"""A quiet shard thaws everything once this fraction (one part in so many) of the held objects was
frozen since: the pause may bother nobody, but it would keep a core busy."""

_YOUNG, _ALL = 0, 2


class Collector(Protocol):
    """The functions of the module `gc` in use."""

    def get_count(self) -> tuple[int, int, int]:
        """Return objects allocated and not freed, and collections of each generation since the next
        older."""

    def collect(self, generation: int = 2) -> int:
        """Collect a generation and the younger ones; return the number of garbage objects."""

    def freeze(self) -> None:
        """Exempt all present objects from further collections."""

    def unfreeze(self) -> None:
        """Include frozen objects in collections again."""

    def get_freeze_count(self) -> int:
        """Return the number of frozen objects."""


class Garbage:
    """Decides what to collect, and when. ``observe`` gets the seconds of ``clock`` per
    collection."""

    def __init__(
        self, collector: Collector, observe: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._collector = collector
        self._observe = observe
        self._clock = clock
        self._looks = 0
        self._survivors = 0
        """Number of objects that survived a collection and are not frozen."""
        self._frozen = 0
        """Number of objects frozen since the last thaw. Some may have been freed since."""
        self._held = 0
        """Number of objects frozen at the last thaw."""

    def begin(self) -> None:
        """Collect and freeze the objects that exist at the start; no collection scans them until a
        thaw.

        Objects that the supervisor froze before its fork stay untouched: a collection marks every
        object that it looks at, and each page with a mark is no longer shared between the
        processes.
        """
        self._collector.collect(_ALL)
        self._collector.freeze()
        self._held = self._collector.get_freeze_count()

    def look(self, *, quiet: bool) -> None:
        """Run due collections. ``quiet``: there is hardly any traffic, so that pauses do not
        matter."""
        young = self._collector.get_count()[0]
        due = young >= YOUNG_OBJECTS
        if not (due or quiet):
            return
        begun = self._clock()
        if quiet:
            enough = max(QUIET_OBJECTS_MIN, self._held // QUIET_SHARE)
        else:
            enough = max(FROZEN_OBJECTS_MIN, self._held)
        if self._frozen + self._survivors + young >= enough:
            self._thaw()
        elif self._looks >= YOUNG_LOOKS or (quiet and young + self._survivors >= QUIET_OBJECTS_MIN):
            self._freeze(young)
        elif due:
            self._survivors += max(0, young - self._collector.collect(_YOUNG))
            self._looks += 1
        else:
            return
        self._observe(self._clock() - begun)

    def _freeze(self, young: int) -> None:
        found = self._collector.collect(_ALL)
        self._collector.freeze()
        self._frozen += max(0, self._survivors + young - found)
        self._survivors = self._looks = 0

    def _thaw(self) -> None:
        self._collector.unfreeze()
        self._collector.collect(_ALL)
        self._collector.freeze()
        self._held = self._collector.get_freeze_count()
        self._frozen = self._survivors = self._looks = 0
