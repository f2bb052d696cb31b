"""Queues that deliver before the sync: consumers first, publishers and files once the log is synced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxmq.model.segments import HEAD_NAME
from fluxmq.storage.files import Files
from fluxmq.storage.head import read_head
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.received import Packet
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode, consume, drain, fill, offsets, said

EARLY = {"name": "work", "deliver_before_sync": True}


def send(client: Client, payload: bytes, queue: str = "work") -> int:
    """Publish without waiting for the answer; the packet's identifier."""
    packet_id = client.packet_id()
    client.send(
        wire.publish(wire.V5, f"$queue/{queue}", payload, qos=1, packet_id=packet_id)
    )
    return packet_id


def consumer(node: QueueNode, queue: str = "work", shard: int = 0) -> Client:
    """A member of a group of a queue."""
    client = node.connect(shard, f"consumer-of-{queue}-{shard}")
    client.subscribe(f"$share/g/$queue/{queue}", qos=1)
    return client


def payloads(packets: list[Packet]) -> list[bytes]:
    """What came."""
    return [packet.payload for packet in packets]


def test_a_message_is_delivered_before_its_sync_and_confirmed_after_it(
    make_queues: MakeQueues,
) -> None:
    node = make_queues(EARLY, {"name": "other"})
    taker, other = consumer(node), consumer(node, "other")
    publisher = node.connect(0, "publisher")
    node.advance(1)
    node.hold_syncs()
    ids = [send(publisher, b"1"), send(publisher, b"2")]
    assert payloads(drain(taker)) == [b"1", b"2"]
    send(publisher, b"3", "other")
    ids.append(send(publisher, b"4"))
    node.advance(0.5)
    assert drain(other) == []
    assert drain(publisher) == []
    node.hold_syncs(False)
    node.advance(0.5)
    assert [packet.packet_id for packet in drain(publisher)][:2] == ids[:2]
    assert payloads(drain(other)) == [b"3"]
