"""A node that may open few files: connections leave storage what it needs, and queues are not limited by it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.broker import Broker, start_broker
from tests.capacity.queues import run
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp

IDLE = 264
PAYLOAD_BYTES = 20_000
SETTINGS: dict[str, Any] = {
    "queues": [{"name": "orders"}],
    "auth": {"anonymous": {"publish": ["$queue/#"], "subscribe": ["$queue/#"]}},
    "broker": {"max_packet_size": "32KiB"},
    "queue_manager": {"uncommitted_bytes": "256KiB"},
    "storage": {"segment_bytes": "64KiB", "wal_file_bytes": "1MiB", "min_free_bytes": 0},
}
REFUSED = (("reason", "descriptors"),)
QUOTA_EXCEEDED = 0x97


@contextmanager
def limited_broker(folder: Path, open_files: int) -> Iterator[Broker]:
    """A broker of one shard that may open so many files."""
    broker = start_broker(folder, settings=SETTINGS, open_files=open_files)
    try:
        yield broker
        assert broker.stop() == 0
        assert "has failed" not in broker.log()
    finally:
        broker.stop(check=False)


def connected(broker: Broker, name: str) -> Client:
    """A client."""
    client = Client(tcp(broker.host, broker.port), wire.V5)
    client.connect(name)
    return client


def is_served(broker: Broker) -> bool:
    """Whether a client is let in: the acceptor learns a moment later which connections have ended."""
    with Client(tcp(broker.host, broker.port), wire.V5) as client:
        client.send(wire.connect(wire.V5, "later") + wire.pingreq())
        try:
            client.take(wire.PINGRESP)
        except AssertionError:
            return False
        return True


def fill(client: Client, first: int, count: int = 60) -> list[int]:
    """Publish so much that segments roll and the log needs further files; the reasons it was answered with."""
    reasons = []
    for number in range(first, first + count):
        packet_id = client.packet_id()
        body = b"%06d" % number + bytes(PAYLOAD_BYTES)
        client.send(wire.publish(wire.V5, "$queue/orders", body, qos=1, packet_id=packet_id))
        reasons.append(client.take(wire.PUBACK, packet_id).reason or 0)
    return reasons


def consumed(broker: Broker, count: int) -> list[int]:
    """The numbers of what a queue holds."""
    with connected(broker, "consumer") as client:
        client.subscribe("$queue/orders", qos=1)
        found: list[int] = []
        while len(found) < count:
            message = client.receive()
            found.append(int(message.payload[:6]))
            client.acknowledge(message)
        return found


@pytest.mark.timeout(180)
def test_idle_connections_leave_storage_its_descriptors(tmp_path: Path) -> None:
    """Review finding 4: 264 idle connections with a limit of 300, then segments roll: the group failed until a restart."""
    with limited_broker(tmp_path, 300) as broker, ExitStack() as idle:
        assert "connections 145, storage 75, reserve 80" in broker.log()
        assert "allows 145 connections" in broker.log()
        publisher = idle.enter_context(connected(broker, "publisher"))
        for number in range(IDLE):
            client = idle.enter_context(Client(tcp(broker.host, broker.port), wire.V5))
            client.send(wire.connect(wire.V5, f"idle {number}"))
        eventually(
            # What the acceptor knows can be behind by a batch of 60: that much of the reserve is for it.
            lambda: broker.metrics("fluxmq_acceptor_refused_total")[REFUSED] >= IDLE - 144 - 60,
            "those that there is no descriptor for are closed",
        )
        assert fill(publisher, 0) == [0] * 60
        idle.close()
        eventually(lambda: is_served(broker), "there are places again")
        with connected(broker, "publisher") as again:
            assert fill(again, 60) == [0] * 60
        assert consumed(broker, 120) == list(range(120))


@pytest.mark.timeout(180)
def test_a_shard_without_descriptors_waits_for_them(tmp_path: Path) -> None:
    """Review finding 4: "Too many open files" is waited for like a full disk, and needs no restart."""
    with limited_broker(tmp_path, 1024) as broker, connected(broker, "publisher") as publisher:
        stored = [number for number, reason in enumerate(fill(publisher, 0)) if reason == 0]
        assert len(stored) == 60
        shard = psutil.Process(broker.pids()["shard 0"])
        shard.rlimit(resource.RLIMIT_NOFILE, (4, 1024))
        first = 60
        refused = False
        while not refused:
            reasons = fill(publisher, first, 1)
            refused = reasons == [QUOTA_EXCEEDED]
            stored += [] if refused else [first]
            first += 1
            assert first < 2_000, "nothing ever needs a descriptor"
        eventually(lambda: "appends are refused" in broker.log(), "the log says so")
        assert "raise the limit of open files" in broker.log()
        shard.rlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        eventually(lambda: fill(publisher, 999_999, 1) == [0], "appends are accepted again")
        assert fill(publisher, 500_000, 10) == [0] * 10
        found = consumed(broker, len(stored) + 11)
        assert [number for number in found if number < 500_000] == stored
        assert broker.ready()


@pytest.mark.timeout(300)
def test_more_queues_than_descriptors(tmp_path: Path) -> None:
    """Review finding 4: with a limit of 600 the 286th queue ended all groups, and the node did not start again."""
    figures = run(tmp_path, queues=700, limit=300, messages=700, sample=100, kill=True)
    assert figures.problems == []
    assert figures.open_max < 300
