"""How long a consumer may keep what it is given: as its queue says, or as it says itself."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.queues import commands
from fluxmq.queues.commands import COMMAND, COMMAND_VERSION, COMMAND_VERSION_MAX, Verb
from fluxmq.queues.limits import CLAIM_GRANULE
from fluxmq.queues.machine import Machine
from tests.unit.queues.support import SECOND, Host, group_of, pending


@pytest.mark.parametrize(("own", "wait"), [(0, 30), (5, 5), (120, 120)])
def test_what_is_not_settled_in_time_is_given_to_others(own: int, wait: int) -> None:
    host = Host()
    queue = host.declare(visibility_timeout=30 * SECOND)
    host.publish(queue, 2)
    late = host.attach(queue, "late", timeout=own * SECOND)
    assert host.run() == [("late", 0, 1), ("late", 1, 1)]
    host.settle(late, Verb.ACK, (0, 0))
    host.do(*host.dispatch.consumers.stop(late))
    host.attach(queue, "other")
    host.pass_time(wait * SECOND - CLAIM_GRANULE)
    assert host.run() == []
    host.pass_time(2 * CLAIM_GRANULE)
    assert host.run() == [("other", 1, 2)]
    assert host.settle(late, Verb.ACK, (1, 1)) == (0, 1)


def test_each_consumer_has_its_own_time() -> None:
    host = Host()
    queue = host.declare(visibility_timeout=30 * SECOND)
    host.publish(queue, 3)
    for member, timeout in (("a", 10 * SECOND), ("b", 0), ("c", 50 * SECOND)):
        host.attach(queue, member, limit=1, timeout=timeout)
    assert len(host.run()) == 3
    given = host.now - host.now % CLAIM_GRANULE + CLAIM_GRANULE
    waits = [each.state.due - given for each in group_of(queue).pending]
    assert waits == [10 * SECOND, 30 * SECOND, 50 * SECOND]


def test_what_comes_again_has_the_time_of_who_has_it_now() -> None:
    host = Host()
    queue = host.declare(visibility_timeout=30 * SECOND)
    host.publish(queue, 1)
    first = host.attach(queue, "a", timeout=5 * SECOND)
    host.run()
    second = host.attach(queue, "b", timeout=60 * SECOND)
    host.settle(first, Verb.RELEASE, (0, 0))
    host.do(*host.dispatch.consumers.detach(first))
    assert host.run() == [("b", 0, 2)]
    host.do(*host.dispatch.consumers.stop(second))
    host.attach(queue, "c")
    host.pass_time(59 * SECOND)
    assert host.run() == []
    host.pass_time(2 * SECOND)
    assert host.run() == [("c", 0, 3)]
    assert host.settle(second, Verb.ACK, (0, 0)) == (0, 1)


def test_the_configuration_changes_the_time_of_what_is_given_later() -> None:
    host = Host()
    queue = host.declare(visibility_timeout=30 * SECOND)
    host.publish(queue, 1)
    host.attach(queue, "a", limit=1)
    host.run()
    host.declare(visibility_timeout=10 * SECOND)
    host.publish(queue, 1)
    host.attach(queue, "b", limit=1)
    assert host.run() == [("b", 1, 1)]
    host.attach(queue, "c")
    host.pass_time(11 * SECOND)
    assert host.run() == [("c", 1, 2)]


def test_a_consumer_that_stops_keeps_its_time() -> None:
    host = Host()
    queue = host.declare(visibility_timeout=30 * SECOND)
    host.publish(queue, 1)
    first = host.attach(queue, "a", timeout=60 * SECOND)
    host.do(*host.dispatch.consumers.stop(first))
    assert group_of(queue).timeouts == {first.holder: 60 * SECOND}
    host.do(*host.dispatch.consumers.detach(first))
    assert group_of(queue).timeouts == {}


def test_a_snapshot_has_the_times_of_consumers() -> None:
    host = Host()
    queue = host.declare()
    one = host.attach(queue, "a", timeout=60 * SECOND)
    two = host.attach(queue, "b", timeout=7 * SECOND)
    host.do(*host.dispatch.consumers.stop(two))
    host.attach(queue, "c")
    restored = Machine()
    restored.restore(host.machine.snapshot())
    assert restored.snapshot() == host.machine.snapshot()
    group = group_of(restored.queues[queue.id])
    assert group.timeouts == {one.holder: 60 * SECOND, two.holder: 7 * SECOND}
    assert group.visiting == {two.holder}
    assert list(group.members.values()) == ["a", "b", "c"]


@pytest.mark.parametrize("version", [1, 2])
def test_snapshots_from_before_are_read(version: int) -> None:
    host = Host()
    queue = host.declare()
    host.publish(queue, 1)
    host.attach(queue, "a")
    host.run()
    fields = msgpack.unpackb(host.machine.snapshot())
    fields[0] = version
    restored = Machine()
    restored.restore(msgpack.packb(fields))
    assert pending(group_of(restored.queues[queue.id])) == pending(group_of(queue))
    assert group_of(restored.queues[queue.id]).timeouts == {}


def test_only_a_time_of_its_own_makes_a_command_of_the_newer_version() -> None:
    versions = {
        COMMAND.unpack_from(commands.join(1, "g", 7, "m", visiting, timeout))[1]: timeout
        for visiting in (False, True)
        for timeout in (0, SECOND)
    }
    assert versions == {COMMAND_VERSION: 0, COMMAND_VERSION_MAX: SECOND}


def test_a_changed_configuration_is_told() -> None:
    host = Host()
    queue = host.declare()
    entry = commands.encode_entry(
        host.now, [commands.declare(queue.config), commands.touch(queue.id)]
    )
    applied = host.machine.apply(host.machine.applied + 1, 1, entry)
    assert (applied.declared, applied.configured) == ([], [queue.id])
