"""What queues do when the disk is full, fails, or comes back after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.replication.checkpoints import trim
from fluxmq.storage.errors import OutOfDescriptors, WriteFailed
from tests.conformance import wire
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode, consume, drain, fill, offsets, user

IMPLEMENTATION_SPECIFIC = 0x83
QUOTA_EXCEEDED = 0x97


def wait_on(node: QueueNode, seconds: float = 2.0) -> None:
    """Long enough for whatever is looked at now and then."""
    node.advance(seconds)


def without_space(node: QueueNode) -> tuple[Any, Callable[[], None]]:
    """Let the disk have no space for the queue's segment, while the log of entries has its own; log and cure."""
    log = node.group("work").logs[node.machine("work").id]
    full = node.failing[0]
    usual = log.flush

    def flush() -> None:
        full.fail_always("pwritev", errno.ENOSPC)
        try:
            usual()
        finally:
            full.work_again()

    log.flush = flush
    return log, usual


def test_nothing_is_acknowledged_before_it_is_durable(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    node.hold_syncs()
    client = node.connect(0, "client")
    client.send(wire.publish(wire.V5, "$queue/work", b"one", qos=1, packet_id=1))
    client.send(wire.publish(wire.V5, "$queue/work", b"two", qos=2, packet_id=2))
    assert drain(client) == []
    node.hold_syncs(False)
    assert [(packet.kind, packet.packet_id) for packet in drain(client)] == [
        (wire.PUBACK, 1),
        (wire.PUBREC, 2),
    ]


def test_answers_keep_the_order_of_the_publishes(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    node.hold_syncs()
    client = node.connect(0, "client")
    client.send(wire.publish(wire.V5, "$queue/work", b"one", qos=1, packet_id=1))
    client.send(wire.publish(wire.V5, "plain/topic", b"two", qos=1, packet_id=2))
    assert drain(client) == []
    node.hold_syncs(False)
    assert [packet.packet_id for packet in drain(client)] == [1, 2]


def test_a_kill_keeps_what_was_acknowledged(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 3)
    node.restart()
    fill(node.connect(0, "publisher"), "work", 2, first=3)
    node.checkpoint()
    fill(node.connect(0, "publisher"), "work", 2, first=5)
    node.restart()
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    got = consume(client)
    assert [packet.payload for packet in got] == [b"%d" % number for number in range(7)]
    assert offsets(got) == list(range(7))


def test_an_orderly_end_keeps_what_was_acknowledged(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 3)
    node.restart(kill=False)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [0, 1, 2]
    wait_on(node)
    node.restart(kill=False)
    again = node.connect(0, "client")
    again.subscribe("$queue/work", qos=1)
    assert consume(again) == []


def test_what_is_settled_and_not_durable_comes_again(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 2)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    node.hold_syncs()
    assert offsets(consume(client)) == [0, 1]
    node.restart()
    again = node.connect(0, "client")
    again.subscribe("$queue/work", qos=1)
    assert offsets(consume(again)) == [0, 1]


def test_a_failed_sync_ends_all_acknowledgements(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    client = node.connect(0, "client")
    fill(client, "work", 1)
    node.hold_syncs()
    client.send(wire.publish(wire.V5, "$queue/work", b"lost", qos=1, packet_id=77))
    node.run()
    node.syncers[0].sync(errno.EIO)
    node.run()
    (answer,) = drain(client)
    assert answer.reason == IMPLEMENTATION_SPECIFIC
    assert client.publish("$queue/work", b"after", qos=1) == IMPLEMENTATION_SPECIFIC
    assert client.publish("plain/topic", b"goes on", qos=1) == 0
    wait_on(node)
    node.restart()
    fill(node.connect(0, "client"), "work", 1)


@pytest.mark.uncompiled
def test_a_full_disk_refuses_publishers_and_consumers_go_on(make_queues: MakeQueues) -> None:
    """S2-26: what is on the way to consumers does not wait for what is on the way to the disk."""
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    fill(publisher, "work", 3)
    log, flush = without_space(node)
    assert publisher.publish("$queue/work", b"3", qos=1) == 0  # it is in the log, durably
    wait_on(node)
    assert publisher.publish("$queue/work", b"no", qos=1) == QUOTA_EXCEEDED
    wait_on(node)
    assert publisher.publish("$queue/work", b"no", qos=1) == QUOTA_EXCEEDED
    node.checkpoint()  # takes none: the log of entries is all there is
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [0, 1, 2, 3]
    log.flush = flush
    wait_on(node)
    fill(publisher, "work", 1, first=4)
    assert offsets(consume(client)) == [4]


@pytest.mark.uncompiled
def test_a_segment_that_had_no_space_is_whole_after_a_crash(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    publisher = node.connect(0, "publisher")
    fill(publisher, "work", 2)
    without_space(node)
    assert publisher.publish("$queue/work", b"2", qos=1) == 0
    wait_on(node)
    assert node.group("work").full
    node.checkpoint()
    node.restart()
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [0, 1, 2]


@pytest.mark.uncompiled
def test_a_log_without_space_waits_and_goes_on(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, queue_manager={"uncommitted_bytes": 1 << 16})
    publisher = node.connect(0, "publisher")
    fill(publisher, "work", 1)
    wait_on(node)
    full = node.failing[0]
    full.fail_always("create", errno.ENOSPC)
    full.fail_always("allocate", errno.ENOSPC)
    full.fail_always("rename", errno.ENOSPC)
    payload = b"x" * 50_000
    number = 0
    while not node.group("work").full:
        number += 1
        assert number < 200, "the log never fills up"
        publisher.send(
            wire.publish(wire.V5, "$queue/work", payload, qos=1, packet_id=number % 65535 + 1)
        )
        wait_on(node, 1.0)
    assert publisher.publish("$queue/in-memory", b"", qos=1) == 0
    full.work_again()
    wait_on(node, 5.0)
    assert not node.group("work").failed
    assert not node.group("work").full
    drain(publisher)
    fill(publisher, "work", 1)


def test_a_queue_deleted_before_a_crash_is_gone(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 1)
    paths = node[0].queues.paths
    group = node.group("work").name
    leftover = paths.queue(group, "leftover")
    os.makedirs(leftover)
    with open(f"{leftover}/head", "wb") as file:
        file.write(b"of a queue that was deleted")
    node.restart()
    assert not os.path.exists(leftover)
    assert os.path.exists(paths.queue(group, "work"))


@pytest.mark.uncompiled
def test_low_space_refuses_publishes_to_durable_queues(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, storage={"min_free_bytes": 1 << 50})
    wait_on(node)
    publisher = node.connect(0, "publisher")
    assert publisher.publish("$queue/work", b"", qos=1) == QUOTA_EXCEEDED
    assert publisher.publish("$queue/in-memory", b"", qos=1) == 0
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1, props=user(("start", "first")))


@pytest.mark.uncompiled
def test_a_failing_segment_ends_its_group_and_answers_everybody(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, {"name": "orders"})
    assert node.group("work") is not node.group("orders")
    publisher = node.connect(0, "publisher")
    fill(publisher, "work", 1)
    consumer = node.connect(0, "consumer")
    consumer.subscribe("$queue/work", qos=1)
    log = node.group("work").logs[node.machine("work").id]

    def fail(*_: object) -> None:
        raise WriteFailed("the disk has failed")

    log.append = fail
    node.hold_syncs()
    for number in (1, 2):
        publisher.send(wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=number))
        node.run()
    node.hold_syncs(False)
    answers = [(packet.packet_id, packet.reason) for packet in drain(publisher)]
    assert answers == [(1, IMPLEMENTATION_SPECIFIC), (2, IMPLEMENTATION_SPECIFIC)]
    assert node.group("work").failed
    assert node.group("work").uncommitted == 0
    fill(publisher, "orders", 1)
    wait_on(node)
    node.restart()
    client = node.connect(0, "consumer")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client))[0] == 0


def test_a_dead_letter_waits_for_space(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "dlq": {"enabled": True}})
    fill(node.connect(0, "publisher"), "work", 1)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    (packet,) = drain(client)
    node.group("work").full = True
    client.send(wire.acknowledge(wire.PUBACK, packet.packet_id, 0x80))
    node.advance(0.5)
    assert node.machine("work").kept == 0
    assert node.machine("$dlq/work").next_offset == 0
    wait_on(node, 3)
    assert node.machine("work").kept == 1
    assert node.machine("$dlq/work").next_offset == 1


def test_a_group_without_descriptors_waits_and_goes_on(make_queues: MakeQueues) -> None:
    """Review finding 4: with all descriptors taken by connections the group failed, and stayed so when they were gone."""
    node = make_queues({"name": "work"}, {"name": "other"})
    client = node.connect(0, "client")
    fill(client, "work", 3)
    wait_on(node)
    node.checkpoint()
    group = node.group("work")
    none = node.failing[0]
    for operation in ("create", "open", "open directory", "listdir"):
        none.fail_always(operation, errno.EMFILE)
    table = node[0].queues.service.durable.open_files
    while table.make_room():  # they have been taken, too
        pass
    assert client.publish("$queue/work", b"taken", qos=1) == 0
    wait_on(node)
    assert group.full
    assert isinstance(group.writes.problem, OutOfDescriptors)
    assert client.publish("$queue/work", b"refused", qos=1) == QUOTA_EXCEEDED
    assert not group.failed
    none.work_again()
    wait_on(node)
    assert not group.full
    fill(client, "work", 1)
    node.restart()
    client = node.connect(0, "again")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [0, 1, 2, 3, 4]


def test_more_queues_than_places(make_queues: MakeQueues) -> None:
    """Review finding 4: queues are not limited by descriptors; what is written to many at once waits for syncs, unnoticed."""
    names = [f"q{number}" for number in range(30)]
    node = make_queues(*({"name": name} for name in names))
    service = node[0].queues.service
    table = service.durable.open_files
    table.places = 16
    client = node.connect(0, "client")
    for name in names:
        fill(client, name, 1)
    assert not any(hosted.group.full for hosted in service.groups.values())
    settled = 0
    for _ in range(30):

        async def relieve() -> None:
            service.housekeeping()
            await service.durable.checkpoints.drain()

        node.loop.run_until_complete(relieve())
        node.run()
        assert table.unsynced <= 12
        assert len(table) <= 16
        settled = sum(hosted.group.writes.waiting for hosted in service.groups.values())
        if not settled:
            break
    assert settled == 0
    for name in names:
        group = node.group(name)
        assert group.logs[node.machine(name).id].pending_bytes == 0
    node.checkpoint()
    node.restart()
    client = node.connect(0, "again")
    for name in names:
        client.subscribe(f"$queue/{name}", qos=1)
    assert len(consume(client)) == len(names)


@pytest.mark.uncompiled
def test_a_log_that_fails_while_it_is_trimmed_fails_for_its_groups_only(
    make_queues: MakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed log ended the task that trimmed it: a checkpoint's, or the housekeeping."""
    node = make_queues({"name": "work"})
    client = node.connect(0, "client")
    fill(client, "work", 2)
    opened = node[0].queues.service.groups["local-0"]
    opened.keep_behind = 1  # the checkpoint leaves entries to trim
    node.checkpoint()
    opened.keep_behind = 0
    tried = []

    def fail(until: int) -> None:
        tried.append(until)
        raise WriteFailed("the next file cannot be made")

    monkeypatch.setattr(opened.log, "compact", fail)
    trim(opened)
    assert tried == [opened.snapshot_index]
    drain(client)
    assert client.publish("plain/topic", b"goes on", qos=1) == 0
