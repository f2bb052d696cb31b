"""When a shard's garbage is collected: Python's own rule would stop the hot path whenever it allocates much.

Nearly everything is freed by its last reference; only objects that name each other need the collector. Python counts the
objects made and not freed since the last collection also while the collector is off, so looking costs next to nothing, and
traffic that leaves nothing behind is never stopped. What is left behind is looked through while there is traffic as well,
a bounded number of new objects at a time; all that is older when as much again has been added, or when the shard is quiet.

What is there at the start is frozen: no collection looks at it. Knows neither the interpreter nor a clock: both are arguments.
"""

from __future__ import annotations

from collections.abc import Callable

YOUNG_OBJECTS = 10_000
"""Objects made and not freed after which they are looked through: 190 queues' worth. It takes 0.3 to 1 ms; a program that leaves
52 objects in cycles a hundred times a second would have it happen every two seconds."""
YOUNG_LOOKS = 5
"""Looks at new objects after which those that outlived them are looked through together: 50,000 at most, 3 to 8 ms."""
OLD_OBJECTS_MIN = 200_000
"""Objects that outlived their looks after which everything is looked through; more when there is more, so that it happens once
for every doubling. With 10,000 queues held (0.9 million objects) it takes about 150 ms. Whatever stays of what has
ended is 25 MB at most, or half of what is held."""
QUIET_OBJECTS_MIN = 2_000
"""Objects that nobody has looked through since everything was; a shard that is quiet looks only then. Its timers make a few."""

_ALL = 2


class Garbage:
    """Decides which generation is collected, and when.

    ``count`` gives what `gc.get_count` does, ``collect`` does what `gc.collect` does, ``held`` counts the objects of the oldest
    generation, which takes a while; ``observe`` is told how many seconds of ``clock`` a collection took.
    """

    def __init__(
        self,
        count: Callable[[], tuple[int, int, int]],
        collect: Callable[[int], int],
        held: Callable[[], int],
        observe: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._count = count
        self._collect = collect
        self._count_held = held
        self._observe = observe
        self._clock = clock
        self._survivors = 0
        """Objects that outlived a look since everything was looked through."""
        self._held = 0
        """Objects that were left when everything was looked through."""

    def look(self, *, quiet: bool) -> None:
        """Collect what is due. ``quiet``: there is hardly any traffic, and nobody feels a pause."""
        young, looks, _ = self._count()
        if quiet and young + self._survivors >= QUIET_OBJECTS_MIN:
            self._run(_ALL, young)
        elif young < YOUNG_OBJECTS:
            return
        elif self._survivors + young >= max(OLD_OBJECTS_MIN, self._held):
            self._run(_ALL, young)
        else:
            self._run(1 if looks >= YOUNG_LOOKS else 0, young)

    def _run(self, generation: int, young: int) -> None:
        begun = self._clock()
        found = self._collect(generation)
        if generation == _ALL:
            self._held = self._count_held()
            self._survivors = 0
        else:
            self._survivors = max(0, self._survivors + young - found)
        self._observe(self._clock() - begun)
