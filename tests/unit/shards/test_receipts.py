"""Receipts of numbered runs: which of those that come again a session has."""

from __future__ import annotations

from fluxmq.shards.durable.receipts import Receipts
from fluxmq.shards.run_numbers import RunNumbers, RunOrigin
from tests.unit.shards.disk import Disk, MemoryStore

LINK = 513 << 16
"""To a shard of another node; shard 0 of this one receives."""


def after_a_restart(former: Receipts) -> Receipts:
    found = Receipts(MemoryStore(Disk()), "c", RunNumbers(), shard=0)
    found.restore(dict(former.rows))
    return found


def receipts() -> Receipts:
    """Of the runs 5 to 7 of one life, 6 of which was refused."""
    made = Receipts(MemoryStore(Disk()), "c", RunNumbers(), shard=0)
    for number, refused in ((5, False), (6, True), (7, False)):
        made.note(RunOrigin(LINK, 99, number), refused)
    return made


def test_runs_behind_the_last_refused_one_are_here() -> None:
    found = after_a_restart(receipts())
    assert [found.has(RunOrigin(LINK, 99, number)) for number in range(4, 9)] == [
        *(False, False, False),
        *(True, False),
    ]
    assert not found.has(RunOrigin(LINK, 98, 7)), "of another life"
    assert not found.has(RunOrigin(LINK | 1, 99, 7)), "another shard received that one"


def test_other_nodes_may_have_other_numbers_after_a_restart() -> None:
    found = after_a_restart(receipts())
    assert found.has(RunOrigin(257 << 16, 99, 7))


def test_receipts_of_this_life_do_not_count() -> None:
    assert not receipts().has(RunOrigin(LINK, 99, 7))
