"""A queue is declared by connections on different shards: in turn, at once, and used from the one that came second."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from pika.exceptions import ChannelClosedByBroker  # type: ignore[import-untyped]

from tests.broker import HOST, Broker, free_ports, start_broker
from tests.conformance.client import eventually

WORKERS = 2
DEADLINE = 20.0
AT_ONCE = 5.0
"""Seconds within which a declaration is answered: half of what one took that waited in vain, and never needed."""
ROUNDS = 10
KINDS: dict[str, dict[str, Any]] = {
    "transient": {},
    "auto-delete": {"auto_delete": True},
    "expiring": {"arguments": {"x-expires": 600_000}},
    "durable": {"durable": True},
    "durable auto-delete": {"durable": True, "auto_delete": True},
    "durable expiring": {"durable": True, "arguments": {"x-expires": 600_000}},
    "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    "stream": {"durable": True, "arguments": {"x-queue-type": "stream"}},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BOTH_WAYS = pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])


class Shards:
    """A connection to each shard of a node."""

    def __init__(self, broker: Broker, port: int) -> None:
        self._broker = broker
        self._port = port
        self._names = (f"q{number}" for number in itertools.count())
        self._connections: dict[int, Any] = {}
        for _ in range(WORKERS):
            # The acceptor puts each next connection on the shard with the fewest.
            made = pika.BlockingConnection(
                pika.ConnectionParameters(HOST, port, blocked_connection_timeout=DEADLINE)
            )
            self._connections[self._shard_of(made)] = made
        assert sorted(self._connections) == list(range(WORKERS))

    def _shard_of(self, connection: Any) -> int:
        local = connection._impl._transport._sock.getsockname()[1]
        listed = self._broker.control("list_connections", "pid", "peer_port", "--no-table-headers")
        (pid,) = [
            line.split("\t")[0] for line in listed.splitlines() if line.endswith(f"\t{local}")
        ]
        return int(pid.partition(".")[0])

    def channel(self, shard: int) -> Any:
        """A new channel on a shard."""
        return self._connections[shard].channel()

    def name(self) -> str:
        """A name that no other test uses."""
        return next(self._names)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    """A node of two shards."""
    (port,) = free_ports(1)
    settings = {
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
        "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
    }
    folder: Path = tmp_path_factory.mktemp("declaring")
    broker = start_broker(folder, workers=WORKERS, settings=settings)
    made = Shards(broker, port)
    yield made
    made.close()
    print(broker.log())
    broker.stop()


def refused(ask: Callable[[], object]) -> int:
    """The reply code with which a channel is closed."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        ask()
    return int(caught.value.reply_code)


def is_gone(channel: Any, name: str) -> bool:
    """Whether a queue is not there any more."""
    try:
        channel.queue_declare(name, passive=True)
    except ChannelClosedByBroker as closed:
        return bool(closed.reply_code == 404)
    channel.close()
    return False


def declare(channel: Any, name: str, **values: Any) -> Any:
    """Declare a queue, which is answered at once."""
    began = time.monotonic()
    answer = channel.queue_declare(name, **values)
    assert time.monotonic() - began < AT_ONCE
    return answer.method


@EVERY_KIND
@BOTH_WAYS
def test_a_queue_is_declared_and_used_from_another_shard(
    shards: Shards, kind: str, here: int, there: int
) -> None:
    """F1: in every kind of queue, and everything that is done with one."""
    first, second, name = shards.channel(here), shards.channel(there), shards.name()
    declare(first, name, **KINDS[kind])
    assert declare(second, name, **KINDS[kind]).message_count == 0
    assert declare(second, name, passive=True).message_count == 0
    second.queue_bind(name, "amq.direct", name)
    second.confirm_delivery()
    second.basic_publish("amq.direct", name, b"1", mandatory=True)
    second.basic_publish("", name, b"2", mandatory=True)
    for channel in (first, second):
        assert declare(channel, name, **KINDS[kind]).message_count == 2
    if kind != "stream":
        assert second.basic_get(name, auto_ack=True)[2] == b"1"
        assert second.queue_purge(name).method.message_count == 1
        second.basic_publish("", name, b"1", mandatory=True)
    second.basic_qos(prefetch_count=10)
    got: list[bytes] = []

    def receive(channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)

    tag = second.basic_consume(name, receive, arguments={"x-stream-offset": "first"})
    eventually(lambda: second.connection.process_data_events(0.05) or got, "a delivery")
    assert got[0] == b"1"
    assert declare(first, name, **KINDS[kind]).consumer_count == 1
    second.basic_cancel(tag)
    if "auto_delete" not in KINDS[kind]:
        second.queue_delete(name)
    eventually(lambda: is_gone(shards.channel(here), name), f"{name} is gone")


def holds(channel: Any, name: str, count: int) -> bool:
    """Whether there are so many messages in a queue."""
    return bool(declare(channel, name, passive=True).message_count == count)


@EVERY_KIND
def test_both_shards_declare_a_queue_at_once(shards: Shards, kind: str) -> None:
    """F1: whoever comes second gets the first one's queue, and both use it."""
    channels = [shards.channel(shard) for shard in range(WORKERS)]
    for _ in range(ROUNDS):
        name = shards.name()
        together = threading.Barrier(WORKERS)
        found: list[Any] = []

        def ask(
            channel: Any, name: str = name, together: Any = together, found: Any = found
        ) -> None:
            together.wait(DEADLINE)
            found.append(declare(channel, name, **KINDS[kind]))

        threads = [threading.Thread(target=ask, args=(channel,)) for channel in channels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert [each.queue for each in found] == [name] * WORKERS
        for channel in channels:
            channel.basic_publish("", name, b"m", mandatory=True)
        eventually(partial(holds, channels[0], name, WORKERS), "both messages")
        channels[1].queue_delete(name)


@BOTH_WAYS
def test_exclusive_and_server_named_queues(shards: Shards, here: int, there: int) -> None:
    """F1: an exclusive queue is its connection's alone; a server-named one that is not is everybody's."""
    first, name = shards.channel(here), shards.name()
    declare(first, name, exclusive=True)
    for ask in (
        lambda channel: channel.queue_declare(name, exclusive=True),
        lambda channel: channel.queue_declare(name),
        lambda channel: channel.queue_declare(name, passive=True),
        lambda channel: channel.basic_get(name),
        lambda channel: channel.queue_purge(name),
        lambda channel: channel.queue_bind(name, "amq.direct", name),
        lambda channel: channel.queue_delete(name),
    ):
        assert refused(partial(ask, shards.channel(there))) == 405
    assert declare(first, name, exclusive=True).message_count == 0
    first.queue_delete(name)
    named = declare(first, "", auto_delete=True).queue
    second = shards.channel(there)
    assert declare(second, named, passive=True).queue == named
    second.confirm_delivery()
    second.basic_publish("", named, b"m")
    assert first.connection.channel().queue_purge(named).method.message_count == 1
    second.queue_delete(named)


@BOTH_WAYS
def test_a_queue_in_another_way_is_refused_from_both_shards(
    shards: Shards, here: int, there: int
) -> None:
    """F1: equal is what is accepted; where it lives makes no difference."""
    first, name = shards.channel(here), shards.name()
    declare(first, name, auto_delete=True)
    for channel in (shards.channel(there), shards.channel(here)):
        assert refused(partial(channel.queue_declare, name)) == 406
    first.queue_delete(name)
