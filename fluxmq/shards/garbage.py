"""When a shard's garbage is collected: Python's own rule would stop the hot path whenever it allocates much.

Nearly everything is freed by its last reference; only objects that name each other need the collector. Python counts the
objects made and not freed since the last collection also while it does not collect by itself, so looking costs next to nothing,
and traffic that leaves nothing behind is never stopped.

What is left behind is looked through a bounded number of objects at a time. What outlives that is frozen, with all that was
there at the start: no further look costs the more the more there is. So what is frozen and ends in a cycle stays, until the
shard is quiet or as much again has been frozen; then everything is thawed and looked through. Knows no clock but its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

YOUNG_OBJECTS = 10_000
"""Objects made and not freed after which they are looked through: those of 200 queues. It takes 1 to 2.5 ms, as often as every
two seconds where 50 objects are left in cycles a hundred times a second."""
YOUNG_LOOKS = 2
"""Such looks after which what outlived them is looked through together, and frozen: 30,000 objects at most, 5 to 20 ms."""
FROZEN_OBJECTS_MIN = 1_000_000
"""Objects frozen since everything was thawed after which it is thawed again, traffic or not; more when more is held, so that
it happens once for every doubling. It takes 260 ms where 10,000 queues are held (400,000 objects beside those of the start). What
has ended in cycles meanwhile is some 100 MB at most, or as much as is held."""
QUIET_OBJECTS_MIN = 2_000
"""Objects made and not freed for which a quiet shard collects: its own timers make a few."""
QUIET_SHARE = 8
"""A quiet shard thaws everything when one part in so many of what was held has been frozen since: nobody may be there to feel
the pause, but it would keep a core busy."""

_YOUNG, _ALL = 0, 2


class Collector(Protocol):
    """What the module `gc` can do."""

    def get_count(self) -> tuple[int, int, int]:
        """Objects made and not freed, and how often each generation was looked through, since the next older was."""

    def collect(self, generation: int = 2) -> int:
        """Look through a generation and those before it; how many objects were garbage."""

    def freeze(self) -> None:
        """Have no further collection look at what there is."""

    def unfreeze(self) -> None:
        """Have collections look at it again."""

    def get_freeze_count(self) -> int:
        """How many objects that is."""


class Garbage:
    """Decides what is looked through, and when. ``observe`` is told how many seconds of ``clock`` a look took."""

    def __init__(
        self, collector: Collector, observe: Callable[[float], None], clock: Callable[[], float]
    ) -> None:
        self._collector = collector
        self._observe = observe
        self._clock = clock
        self._looks = 0
        self._survivors = 0
        """Objects that outlived a look, and are not frozen."""
        self._frozen = 0
        """Objects that were frozen since everything was thawed. Some may have been freed since."""
        self._held = 0
        """Objects that were frozen then."""

    def begin(self) -> None:
        """What is there now stays: nothing looks at it before everything is thawed."""
        self._thaw()

    def look(self, *, quiet: bool) -> None:
        """Collect what is due. ``quiet``: there is hardly any traffic, and nobody feels a pause."""
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
