"""Which groups periodic work looks at: a group that rests is left out when nothing is left to do, until it wakes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.replication.heartbeat_links import ATTENDED_SECONDS
from fluxmq.replication.heartbeats import Lease
from tests.unit.replication.member import GROUP, LoneMember


@pytest.fixture
def member(tmp_path: Path) -> Iterator[LoneMember]:
    """A member of a group with some entries and a checkpoint."""
    with asyncio.Runner() as runner:
        made = LoneMember(tmp_path / "node1", runner)
        made.append(3)
        made.checkpoint()
        yield made
        made.kill()


def rest(member: LoneMember) -> None:
    """Let the group rest, as far as the shard's periodic work is concerned, for long enough."""
    heartbeats = member.cluster.heartbeats
    group = heartbeats._groups[GROUP]
    group.leases = {1: Lease(0, 0)}
    member.within(group.slept)
    member.replica.settled = True
    member.within(member.queues.service.housekeeping)  # writes what readers of the disk see
    member.now += ATTENDED_SECONDS
    heartbeats._dismiss(member.now)


def attended(member: LoneMember) -> list[str]:
    return [name for name in member.queues.durable.attended.groups if name == GROUP]


def test_a_group_that_has_rested_for_a_while_is_left_out_until_it_wakes(
    member: LoneMember,
) -> None:
    assert attended(member)
    rest(member)
    assert not attended(member)
    assert GROUP in member.queues.durable.groups
    member.within(lambda: member.cluster.heartbeats._groups[GROUP].woke({}))
    assert attended(member)


def test_a_group_without_a_checkpoint_of_its_last_entry_is_looked_at(member: LoneMember) -> None:
    member.append(1)
    rest(member)
    assert attended(member)
    member.checkpoint()
    rest(member)
    assert not attended(member)


def test_a_group_that_has_to_tell_somebody_is_looked_at(member: LoneMember) -> None:
    rest(member)
    member.within(lambda: member.cluster.heartbeats._groups[GROUP].woke({}))
    member.cluster.heartbeats._groups[GROUP].leases = {1: Lease(0, 0)}
    member.within(member.cluster.heartbeats._groups[GROUP].slept)
    member.cluster.heartbeats._dismiss(member.now + 2 * ATTENDED_SECONDS)
    assert attended(member), "its members were not looked at since"


def test_a_group_that_is_released_is_not_attended_to(member: LoneMember) -> None:
    member.within(lambda: member.queues.durable.release(GROUP))
    assert not attended(member)
