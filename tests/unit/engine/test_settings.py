"""Every setting of queues has an effect that clients or the disk can see.

Keys of `queues[]`: here. `queue_manager`: here, `cache_bytes` in `tests/unit/storage/test_batch_cache.py`,
`local_groups` in `test_groups_of_queues`. `storage` and `cluster`: `test_settings_storage.py`, `wal_file_bytes` and the segments' in `tests/unit/storage`,
`min_free_bytes` in `test_disks.py`. `replication` on a node of its own: the group, and when snapshots are taken.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fluxmq.settings.queues import QueueManager, QueueSettings
from fluxmq.settings.schema import Storage
from fluxmq.settings.section import Section
from tests.conformance import wire
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import consume, drain, fill, offsets, said, user

QUOTA_EXCEEDED = 0x97


def order(client: Any, queue: str, verb: str, offset: int, **more: str) -> int:
    """Settle one message as its client orders."""
    named = user(
        ("message-id", f"{queue}:{offset}"),
        ("group-id", client.client_id),
        *((key, value) for key, value in more.items()),
    )
    return int(client.publish(f"$queue/{queue}/${verb}", qos=1, props=named))


def explicit(node: Any, client_id: str, queue: str = "work", **more: str) -> Any:
    """A consumer that settles by orders."""
    client = node.connect(0, client_id)
    props = user(("ack-mode", "explicit"), *more.items())
    client.subscribe(f"$queue/{queue}", qos=1, props=props)
    return client


def published(node: Any, queue: str, *sizes: int) -> list[int]:
    """Publish messages of some sizes; the reason codes."""
    client = node.connect(0, "publisher")
    return [client.publish(f"$queue/{queue}", b"x" * size, qos=1) for size in sizes]


# Limits


def test_max_message_size(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "limits": {"max_message_size": 10}})
    assert published(node, "work", 10, 11) == [0, QUOTA_EXCEEDED]


def test_max_depth(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "limits": {"max_depth": 2}})
    explicit(node, "consumer")
    assert published(node, "work", 1, 1, 1) == [0, 0, QUOTA_EXCEEDED]


@pytest.mark.parametrize("key", ["max_length", "max_length_bytes"])
def test_overflow_refuses(make_queues: MakeQueues, key: str) -> None:
    value = {"max_length": 2, "max_length_bytes": 2500}[key]
    node = make_queues({"name": "work", "limits": {key: value, "overflow": "reject-publish"}})
    assert published(node, "work", 1000, 1000, 1000) == [0, 0, QUOTA_EXCEEDED]


@pytest.mark.parametrize("key", ["max_length", "max_length_bytes"])
def test_overflow_drops(make_queues: MakeQueues, key: str) -> None:
    value = {"max_length": 2, "max_length_bytes": 2500}[key]
    node = make_queues({"name": "work", "limits": {key: value}, "dlq": {"enabled": True}})
    assert published(node, "work", 1000, 1000, 1000) == [0, 0, 0]
    node.advance(0.1)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [1, 2]
    dead = node.connect(0, "dead")
    dead.subscribe("$dlq/work", qos=1)
    assert [said(packet)["_dlq_reason"] for packet in consume(dead)] == ["max_length"]


def test_message_ttl(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "limits": {"message_ttl": "10s"}, "dlq": {"enabled": True}})
    published(node, "work", 1)
    node.advance(9)
    published(node, "work", 1)
    node.advance(5)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    assert offsets(consume(client)) == [1]
    dead = node.connect(0, "dead")
    dead.subscribe("$dlq/work", qos=1)
    (letter,) = consume(dead)
    assert said(letter)["_dlq_reason"] == "expired"
    assert "_dlq_first_delivered_at" not in said(letter)  # it never was


# Retention


@pytest.mark.parametrize("key", ["max_age", "max_length_bytes", "max_length_messages"])
def test_retention(make_queues: MakeQueues, key: str) -> None:
    value = {"max_age": "10s", "max_length_bytes": 70_000, "max_length_messages": 3}[key]
    node = make_queues(
        {"name": "log", "type": "stream", "retention": {key: value}},
        storage={"segment_bytes": 1 << 16},
    )
    for _ in range(5):
        published(node, "log", 40_000)
        node.advance(0.1)
    if key == "max_age":
        node.advance(12)
        published(node, "log", 40_000)
    node.advance(2)
    state = node.machine("log")
    assert 0 < state.start < state.next_offset
    client = node.connect(0, "client")
    client.subscribe("$queue/log", qos=0, props=user(("start", "first")))
    assert offsets(drain(client)) == list(range(state.start, state.next_offset))


def test_age_leaves_nothing_on_the_disk(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream", "retention": {"max_age": "10s"}})
    published(node, "log", 40_000)
    log = node.group("log").logs[node.machine("log").id]
    assert log.bytes > 40_000
    node.advance(13)
    assert node.machine("log").start == 1
    assert log.bytes < 40_000
    node.restart()
    published(node, "log", 1)
    client = node.connect(0, "client")
    client.subscribe("$queue/log", qos=0, props=user(("start", "first")))
    assert offsets(drain(client)) == [1]


# Retry, dead letters, consumers


def test_backoff_grows_to_its_limit(make_queues: MakeQueues) -> None:
    retry = {"initial_backoff": "2s", "max_backoff": "5s", "multiplier": 2.0}
    node = make_queues({"name": "work", "retry": retry, "consumer": {"delivery_limit": -1}})
    client = explicit(node, "consumer")
    published(node, "work", 1)
    for seconds in (2, 4, 5, 5):
        drain(client)
        assert order(client, "work", "nack", 0) == 0
        node.advance(seconds - 0.5)
        assert drain(client) == []
        node.advance(1)
        (again,) = drain(client)
        client._packets.append(again)
    assert said(again)["x-delivery-count"] == "4"


def test_max_retries(make_queues: MakeQueues) -> None:
    node = make_queues(
        {
            "name": "work",
            "retry": {"max_retries": 1, "initial_backoff": "1s"},
            "dlq": {"enabled": True},
        }
    )
    client = explicit(node, "consumer")
    published(node, "work", 1)
    for _ in range(2):
        assert len(drain(client)) == 1
        assert order(client, "work", "nack", 0, delay="0") == 0
        node.advance(0.2)
    dead = node.connect(0, "dead")
    dead.subscribe("$dlq/work", qos=1)
    assert [said(packet)["_dlq_reason"] for packet in consume(dead)] == ["max_retries"]


def test_delivery_limit_and_visibility_timeout(make_queues: MakeQueues) -> None:
    consumer = {"delivery_limit": 2, "visibility_timeout": "5s"}
    node = make_queues({"name": "work", "consumer": consumer, "dlq": {"enabled": True}})
    client = explicit(node, "consumer")
    published(node, "work", 1)
    assert len(drain(client)) == 1
    node.advance(4)
    assert drain(client) == []
    node.advance(2)
    assert len(drain(client)) == 1
    node.advance(6)
    assert drain(client) == []
    dead = node.connect(0, "dead")
    dead.subscribe("$dlq/work", qos=1)
    assert [said(packet)["_dlq_reason"] for packet in consume(dead)] == ["delivery_limit"]


@pytest.mark.parametrize("target", [None, "$dlq/elsewhere", "$queue/other"])
def test_dead_letter_topic(make_queues: MakeQueues, target: str | None) -> None:
    dlq = {"enabled": True} if target is None else {"enabled": True, "topic": target}
    node = make_queues({"name": "work", "dlq": dlq}, {"name": "other"})
    client = explicit(node, "consumer")
    published(node, "work", 1)
    drain(client)
    assert order(client, "work", "reject", 0, reason="unusable") == 0
    node.advance(0.1)
    dead = node.connect(0, "dead")
    dead.subscribe(target or "$dlq/work", qos=1)
    (letter,) = consume(dead)
    assert said(letter)["_dlq_reason"] == "unusable"
    assert said(letter)["_dlq_original_queue"] == "work"
    node.advance(0.1)
    assert node.machine("work").start == 1


def test_without_dead_letters_what_is_rejected_goes(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    client = explicit(node, "consumer")
    published(node, "work", 1)
    drain(client)
    assert order(client, "work", "reject", 0) == 0
    node.advance(0.1)
    assert node.machine("work").start == 1
    assert node.machine("$dlq/work") is None


def test_claim_batch(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "consumer": {"claim_batch": 2}})
    props = user(("consumer-group", "group"))
    clients = [node.connect(0, name) for name in ("a", "b")]
    for client in clients:
        client.subscribe("$queue/work", qos=1, props=props)
    publisher = node.connect(0, "publisher")
    publisher.send(
        b"".join(
            wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=number + 1)
            for number in range(8)
        )
    )
    node.run()
    got = [offsets(drain(client)) for client in clients]
    assert sorted(got) == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_max_unsettled_bounds_prefetch(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "consumer": {"max_unsettled": 3}})
    published(node, "work", *[1] * 5)
    assert len(drain(explicit(node, "one"))) == 3
    assert len(drain(explicit(node, "two", prefetch="2"))) == 2
    assert len(drain(explicit(node, "three", prefetch="4"))) == 3


# Deduplication


def repeated(node: Any, producer: str, *sequences: int) -> None:
    """Publish messages of a producer; all are acknowledged."""
    client = node.connect(0, "publisher")
    for sequence in sequences:
        props = user(("producer-id", producer), ("sequence", str(sequence)))
        assert client.publish("$queue/work", b"", qos=1, props=props) == 0


def test_deduplication_window(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "deduplication": {"window": 2}})
    repeated(node, "p", 1, 2, 3, 3, 2)
    assert node.machine("work").next_offset == 3
    repeated(node, "p", 1)  # forgotten
    assert node.machine("work").next_offset == 4
    node.restart()
    repeated(node, "p", 3)
    assert node.machine("work").next_offset == 4


def test_deduplication_of_nothing(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "deduplication": {"window": 0}})
    repeated(node, "p", 1, 1)
    assert node.machine("work").next_offset == 2


def test_deduplication_max_producers(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "deduplication": {"max_producers": 2}})
    repeated(node, "a", 1)
    repeated(node, "b", 1)
    repeated(node, "a", 1)
    assert node.machine("work").next_offset == 2
    repeated(node, "c", 1)
    repeated(node, "a", 1)  # the longest silent: its repeat was not stored, so it did not count
    assert node.machine("work").next_offset == 4


# The queue itself


def test_primary_group(make_queues: MakeQueues) -> None:
    node = make_queues(
        {"name": "log", "type": "stream", "primary_group": "main"},
        queue_manager={"auto_commit_interval": 0},
    )
    fill(node.connect(0, "publisher"), "log", 3)
    reader = node.connect(0, "reader")
    reader.subscribe("$queue/log", qos=0)
    assert {said(packet)["x-work-committed-offset"] for packet in drain(reader)} == {"0"}
    main = node.connect(0, "main")
    main.subscribe("$queue/log", qos=1)
    assert len(consume(main)) == 3
    node.advance(1)
    fill(node.connect(0, "publisher"), "log", 1)
    (packet,) = drain(reader)
    assert said(packet)["x-work-group"] == "main"
    assert said(packet)["x-work-committed-offset"] == "3"


def test_primary_group_on_another_shard(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream", "primary_group": "main"}, workers=2)
    for shard in (0, 1):
        reader = node.connect(shard, f"reader{shard}")
        reader.subscribe("$queue/log", qos=0)
        fill(node.connect(0, "publisher"), "log", 1)
        (packet, *_) = drain(reader)
        assert said(packet)["x-work-group"] == "main"
        assert said(packet)["x-work-committed-offset"] == "0"


def test_work_queues_have_no_primary_group(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"})
    fill(node.connect(0, "publisher"), "log", 1)
    reader = node.connect(0, "reader")
    reader.subscribe("$queue/log", qos=0)
    (packet,) = drain(reader)
    assert "x-work-group" not in said(packet)


def test_expires(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "expires": "10s"})
    fill(node.connect(0, "publisher"), "work", 1)
    group, paths = node.group("work").name, node[0].queues.paths
    assert os.path.exists(paths.queue(group, "work"))
    node.advance(12)
    assert node.machine("work") is None
    assert not os.path.exists(paths.queue(group, "work"))


def test_topics(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "topics": ("shop/+/orders",)})
    publisher = node.connect(0, "publisher")
    assert publisher.publish("shop/7/orders", b"", qos=1) == 0
    assert publisher.publish("shop/7/other", b"", qos=1) == 0
    assert node.machine("work").next_offset == 1


def test_reserved_reaches_the_state(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work", "reserved": True}, {"name": "free"})
    assert node.machine("work").config.reserved
    assert not node.machine("free").config.reserved


@pytest.mark.parametrize("where", ["queue", "storage"])
def test_buffered_answers_before_the_disk(make_queues: MakeQueues, where: str) -> None:
    own = {"ack_durability": "buffered"} if where == "queue" else {}
    common = {"queue_ack_durability": "buffered"} if where == "storage" else {}
    node = make_queues({"name": "work", **own}, storage={**common, "queue_sync_interval": 1.0})
    node.hold_syncs()
    assert node.connect(0, "publisher").publish("$queue/work", b"", qos=1) == 0
    (syncer,) = [each for each in node[0].queues.service.logs.syncers if hasattr(each, "dirty")]
    assert syncer.dirty
    node.advance(1.5)
    node[0].queues.service.executor.submit(lambda: None).result()
    assert not syncer.dirty


# queue_manager


def test_auto_commit_interval(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"}, queue_manager={"auto_commit_interval": 5})
    fill(node.connect(0, "publisher"), "log", 2)
    reader = node.connect(0, "reader")
    reader.subscribe("$queue/log", qos=1)
    assert len(consume(reader)) == 2
    node.advance(3)
    assert node.machine("log").group("reader").cursor == 0
    node.advance(3)
    assert node.machine("log").group("reader").cursor == 2


def test_capture_bounds(make_queues: MakeQueues) -> None:
    node = make_queues(
        {"name": "work"}, queue_manager={"capture_workers": 1, "capture_queue_depth": 2}
    )
    node.hold_syncs()
    publisher = node.connect(0, "publisher")
    for number in range(4):
        publisher.publish(f"$queue/work/{number}", b"")
        node.run()
    node.hold_syncs(False)
    assert node.machine("work").next_offset == 2
    assert node[0].broker.counts.drops["capture_full"] == 2


def test_ephemeral_queues(make_queues: MakeQueues) -> None:
    node = make_queues(
        queue_manager={
            "ephemeral_expiry": "10s",
            "max_ephemeral_queues": 2,
            "ephemeral_max_bytes": 1 << 16,
        }
    )
    publisher = node.connect(0, "publisher")
    assert [publisher.publish(f"$queue/{name}", b"", qos=1) for name in "aabc"] == [
        *(0, 0, 0, QUOTA_EXCEEDED)
    ]
    for _ in range(4):
        assert publisher.publish("$queue/a", b"x" * 30_000, qos=1) == 0
    node.advance(1)
    state = node.machine("a")
    assert state.start > 0
    node.advance(12)
    assert node.machine("a") is None
    assert publisher.publish("$queue/c", b"", qos=1) == 0


def test_no_ephemeral_queues(make_queues: MakeQueues) -> None:
    node = make_queues(queue_manager={"max_ephemeral_queues": 0})
    client = node.connect(0, "client")
    suback = client.subscribe("$queue/a", qos=1, granted=False)
    assert suback.reasons == [QUOTA_EXCEEDED]
    client.send(wire.publish(wire.V5, "$queue/a", b"", qos=1, packet_id=1))
    client.expect_error(0x90)


def test_uncommitted_bytes(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, queue_manager={"uncommitted_bytes": 1 << 16})
    node.hold_syncs()
    publisher = node.connect(0, "publisher")
    for number in range(1, 5):
        publisher.send(wire.publish(wire.V5, "$queue/work", b"x" * 40_000, qos=1, packet_id=number))
        node.run()
    assert node.group("work").uncommitted < 100_000  # two of them: the others are not read
    node.hold_syncs(False)
    node.advance(0.2)
    assert len(drain(publisher)) == 4


def test_an_end_waits_for_appends_under_way(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    node.hold_syncs()
    publisher = node.connect(0, "publisher")
    publisher.send(wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=1))
    node.run()
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 3:
            node.hold_syncs(False)
        node.run()

    node.loop.run_until_complete(node[0].queues.drain(tick))
    assert ticks == 3
    assert [packet.kind for packet in drain(publisher)] == [wire.PUBACK]


def test_local_groups(make_queues: MakeQueues) -> None:
    names = [f"q{number}" for number in range(20)]
    node = make_queues(*({"name": name} for name in names), queue_manager={"local_groups": 2})
    assert {node.group(name).name for name in names} == {"local-0", "local-1"}


def test_capture_drain_timeout(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, queue_manager={"capture_drain_timeout": 0.05})
    node.hold_syncs()
    publisher = node.connect(0, "publisher")
    publisher.send(wire.publish(wire.V5, "$queue/work", b"", qos=1, packet_id=1))
    node.run()
    queues = node[0].queues
    node.loop.run_until_complete(queues.drain(node.turn))
    assert not queues.service.idle  # it was not waited for longer
    node.hold_syncs(False)
    assert queues.service.idle


def test_every_key_is_tested_somewhere() -> None:
    files = Path(__file__).parent.glob("test_settings*.py")
    here = "".join(file.read_text("utf-8") for file in files)
    elsewhere = {
        *("name", "type", "enabled", "group"),  # used by every test
        *("data_dir", "wal_file_bytes", "segment_bytes", "segment_age", "index_bytes"),
        *("min_free_bytes", "cache_bytes", "queue_leader_locator", "queue_master_locator"),
        # Of more than one node, which this version has not:
        *("replication_factor", "mode", "min_in_sync_replicas", "ack_timeout"),
        *("heartbeat_timeout", "election_timeout", "distribution_mode"),
    }
    missing = []
    sections: list[type[Section]] = [QueueSettings, QueueManager, Storage]
    for section in sections:
        for key, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                sections.append(field.annotation)
            elif key not in elsewhere and f'"{key}"' not in here:
                missing.append(f"{section.__name__}.{key}")
    assert missing == []
