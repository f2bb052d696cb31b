"""Which shards of two nodes have a stream between them, for each kind of traffic. Pure.

A function of this module answers for one shard; asked from the other side it gives the same pairs.
Before another node has said how many shards it has, 0 stands for their number, and the answer is
the shards that are paired whatever the number turns out to be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

Pairs = Callable[[int, int, int], Collection[int]]
"""Returns the shards of another node that a shard has a stream with, from its own number, the
number of its node's shards, and the number of the other node's."""


def every_shard(shard: int, shards: int, others: int) -> Collection[int]:
    """Pair each shard with all of the other node's: a queue's clients and its group may be on any
    two."""
    return range(max(others, 1))


def counterparts(shard: int, shards: int, others: int) -> Collection[int]:
    """Pair each shard with as few as possible, but at least one: where one node has more shards,
    they are dealt to the other's in turn."""
    if others == 0:
        return (0,) if shard == 0 else ()
    return tuple(
        other for other in range(others) if other == shard % others or shard == other % shards
    )


def first_shard(shard: int, shards: int, others: int) -> Collection[int]:
    """Pair each shard with the first one of the other node."""
    return range(max(others, 1)) if shard == 0 else (0,)
