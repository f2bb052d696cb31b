"""A whole broker under hostile input: it serves on, says nothing unseemly, and its memory stays bounded.

Whatever a test does to the broker, an honest client afterwards connects, subscribes and gets its message within a
second, and no process has died or written a traceback.
"""

from __future__ import annotations

import base64
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import psutil
import pytest

from tests.broker import Broker, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, tcp

SERVED_WITHIN = 1.0
HALF_OPEN = 5000
SLOW_PAYLOAD = 1000
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two shards with default limits; only passwords are cheap, so that their memory does not blur the picture."""
    settings = {"auth": {"argon2": {"time_cost": 1, "memory_cost": "8KiB"}}}
    directory = tmp_path_factory.mktemp("hostile")
    with running_broker(directory, workers=2, settings=settings) as found:
        yield found


@pytest.fixture(scope="module")
def processes(broker: Broker) -> dict[str, psutil.Process]:
    """The processes that the broker began with."""
    return {name: psutil.Process(pid) for name, pid in broker.pids().items()}


@pytest.fixture(autouse=True)
def serves_on(broker: Broker, processes: dict[str, psutil.Process]) -> Iterator[None]:
    """After every test: still there, still quick, nothing but its own words in the log."""
    since = len(broker.output.read_bytes())
    yield
    assert serves(broker)
    log = broker.log(since)
    dead = [name for name, process in processes.items() if not process.is_running()]
    assert not dead, f"{dead} died:\n{log}"
    assert "Traceback" not in log, log
    assert "Error" not in log, log


def exchange(broker: Broker, name: str = "honest") -> float:
    """Seconds that an honest client needs to connect, subscribe and get its own message."""
    begun = time.monotonic()
    with Client(tcp(broker.host, broker.port), 5) as client:
        assert client.connect(name).reason == 0
        client.subscribe("honest", qos=1)
        client.publish("honest", b"x", qos=1)
        assert client.receive().payload == b"x"
    return time.monotonic() - begun


def serves(broker: Broker) -> bool:
    """Whether an honest client is served in time; the best of three, for a busy machine only makes it longer."""
    return any(exchange(broker, f"honest{number}") < SERVED_WITHIN for number in range(3))


def connect(broker: Broker) -> socket.socket:
    """A bare connection."""
    return socket.create_connection((broker.host, broker.port), timeout=10)


def send(sock: socket.socket, data: bytes) -> None:
    """Send; the broker may have closed already."""
    with suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(data)


@pytest.fixture
def resident(processes: dict[str, psutil.Process]) -> Callable[[], int]:
    """Bytes that all shards hold in memory of their own; the rings between them are as large as they are."""
    shards = [process for name, process in processes.items() if name.startswith("shard")]

    def measure() -> int:
        found = [process.memory_info() for process in shards]
        return sum(each.rss - each.shared for each in found)

    return measure


def test_random_bytes(broker: Broker) -> None:
    chance = random.Random(1)
    for _ in range(300):
        with closing(connect(broker)) as sock:
            send(sock, chance.randbytes(chance.choice((1, 2, 10, 100, 5000))))


def test_random_bytes_behind_a_connect(broker: Broker) -> None:
    chance = random.Random(2)
    for number in range(300):
        version = chance.choice((4, 5))
        with closing(connect(broker)) as sock:
            data = wire.connect(version, f"r{number}")
            send(sock, data + chance.randbytes(chance.choice((1, 2, 10, 100, 5000))))


def packets(version: int) -> list[bytes]:
    """One of everything a client sends."""
    return [
        wire.publish(version, "a/b", b"payload"),
        wire.publish(version, "a/b", b"payload", qos=1, packet_id=1, retain=True),
        wire.publish(version, "a/b", b"payload", qos=2, packet_id=2),
        wire.acknowledge(wire.PUBACK, 1),
        wire.acknowledge(wire.PUBREC, 1),
        wire.acknowledge(wire.PUBREL, 2),
        wire.acknowledge(wire.PUBCOMP, 1),
        wire.subscribe(version, 3, [wire.Filter("a/#", 1), wire.Filter("$share/g/a", 2)]),
        wire.unsubscribe(version, 4, ["a/#"]),
        wire.pingreq(),
        wire.auth(0x18, ((wire.AUTHENTICATION_METHOD, "SCRAM-SHA-256"),)),
        wire.disconnect(),
    ]


def mutated(chance: random.Random, packet: bytes) -> bytes:
    """A packet with something changed, cut, doubled or put in."""
    data = bytearray(packet)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(4)
        if what == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif what == 1:
            del data[at : at + chance.randint(1, 4)]
        elif what == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 4))
        else:
            data += data[at : at + 8]
    return bytes(data)


@pytest.mark.parametrize("version", [4, 5])
def test_mutated_packets(broker: Broker, version: int) -> None:
    chance = random.Random(version)
    connects = [wire.connect(version, "m"), wire.connect(version, "m", username="u", password=b"p")]
    for _ in range(400):
        with closing(connect(broker)) as sock:
            first = chance.choice(connects)
            send(sock, mutated(chance, first) if chance.random() < 0.3 else first)
            for _ in range(5):
                send(sock, mutated(chance, chance.choice(packets(version))))


def test_a_connect_byte_by_byte(broker: Broker) -> None:
    """Slow, but in time: it is served like any other."""
    with Client(tcp(broker.host, broker.port), 5) as client:
        for byte in wire.connect(5, "slow"):
            client.send(bytes((byte,)))
            time.sleep(0.005)
        assert client.next().kind == wire.CONNACK


def test_huge_lengths(broker: Broker, resident: Callable[[], int]) -> None:
    """Announcing a large packet takes no memory: before CONNECT 8 KiB, then the broker's maximum."""
    before = resident()
    with ExitStack() as stack:
        for number in range(200):
            sock = stack.enter_context(closing(connect(broker)))
            if number % 2:
                send(sock, wire.connect(4, f"h{number}"))
                send(sock, b"\x30" + wire.variable(MEBIBYTE - 100) + b"\0\1t")
            else:
                send(sock, b"\x10\xff\xff\xff\x7f")
        assert serves(broker)
        assert resident() - before < 20 * MEBIBYTE


def test_connections_that_are_never_completed(broker: Broker) -> None:
    """Five thousand of them do not keep a client out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * HALF_OPEN + 2000:
        pytest.skip(f"{hard} descriptors are too few for {HALF_OPEN} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with ExitStack() as stack:
            for number in range(HALF_OPEN):
                sock = stack.enter_context(closing(connect(broker)))
                if number % 3 == 1:
                    sock.send(b"\x10")
                elif number % 3 == 2:
                    sock.send(wire.connect(5, f"half{number}")[:-1])
            assert serves(broker)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_connections_from_one_address(broker: Broker) -> None:
    """Opened and closed as fast as it goes."""
    for number in range(1000):
        with closing(connect(broker)) as sock:
            if number % 2:
                send(sock, wire.connect(4, f"q{number % 7}"))


def test_garbage_over_websocket(broker: Broker) -> None:
    """Behind a good upgrade: frames of any kind, unmasked, fragmented, of every length, and MQTT nonsense."""
    chance = random.Random(4)
    key = base64.b64encode(b"k" * 16).decode()
    upgrade = (
        f"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()
    for number in range(200):
        address = (broker.host, broker.ws_port)
        with closing(socket.create_connection(address, timeout=10)) as sock:
            send(sock, upgrade)
            assert sock.recv(4096).startswith(b"HTTP/1.1 101")
            payload = chance.randbytes(chance.randrange(200))
            if number % 4 == 0:
                send(sock, chance.randbytes(500))
            elif number % 4 == 1:
                send(sock, b"\x82\xff" + b"\xff" * 8 + payload)
            else:
                first = bytes((chance.randrange(256), 0x80 | chance.randrange(128)))
                send(sock, first + bytes(4) + payload)


def test_a_client_that_asks_and_never_reads(broker: Broker, resident: Callable[[], int]) -> None:
    """PINGREQs whose answers nobody takes: what waits for the client is bounded."""
    before = resident()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(tcp(broker.host, broker.port), 4)) for _ in range(4)]
        for number, client in enumerate(clients):
            client.connect(f"asks{number}")
        for client in clients:
            client.stream.settimeout(0.2)
            with suppress(TimeoutError):
                client.stream.sendall(wire.pingreq() * (MEBIBYTE // 2))
                client.stream.sendall(wire.pingreq() * (8 * MEBIBYTE))
        assert serves(broker)
        assert resident() - before < len(clients) * 6 * MEBIBYTE


def dropped(broker: Broker) -> float:
    """QoS 0 messages given up for slow subscribers, on all shards."""
    found = broker.metrics("fluxmq_messages_dropped_total")
    return sum(
        number for labels, number in found.items() if ("reason", "slow_subscriber") in labels
    )


def test_subscribers_that_never_read(broker: Broker, resident: Callable[[], int]) -> None:
    """Their QoS 0 messages are dropped and counted, their QoS 1 messages wait; the others get everything."""
    before, lost = resident(), dropped(broker)
    count = 30_000
    with ExitStack() as stack:

        def client(name: str) -> Client:
            found = stack.enter_context(Client(tcp(broker.host, broker.port), 4))
            assert found.connect(name).reason == 0
            return found

        for number in range(6):
            client(f"deaf{number}").subscribe("flood", qos=number % 2)
        reader, publisher = client("reader"), client("publisher")
        reader.subscribe("flood", qos=0)
        reader.subscribe("end")
        run = wire.publish(4, "flood", b"x" * SLOW_PAYLOAD) * 500
        received = 0
        for _ in range(count // 500):
            publisher.send(run)
            for _ in range(500):
                assert reader.next().topic == "flood"
                received += 1
        publisher.publish("end", b"x")
        assert reader.next().topic == "end"
        assert received == count
        grown = resident() - before
        # Each of them may hold a mebibyte of output, besides what the kernel holds.
        assert grown < 40 * MEBIBYTE, f"grown by {grown >> 20} MiB"
        assert serves(broker)
        end = time.monotonic() + 15
        while dropped(broker) - lost < 3 * (count - 20 * 1000):
            assert time.monotonic() < end, f"{dropped(broker) - lost} dropped"
            time.sleep(0.1)


def test_ten_thousand_comings_and_goings(broker: Broker, resident: Callable[[], int]) -> None:
    """Each with a session, subscriptions, a will, a keep-alive and a message: memory does not follow them."""

    def come_and_go(names: range) -> None:
        socks = [connect(broker) for _ in names]
        for number, sock in zip(names, socks, strict=True):
            topic = f"c/{number % 100}"
            sock.sendall(
                wire.connect(5, f"churn{number}", keep_alive=600, will=wire.Will(topic, b"x"))
                + wire.subscribe(5, 1, [wire.Filter(topic, 1), wire.Filter(f"c/+/{number}")])
                + wire.publish(5, topic, b"x" * 50, qos=1, packet_id=1)
                + (wire.disconnect() if number % 4 else b"\0\0")
            )
        for sock in socks:
            with suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
            sock.close()

    sizes = []
    for number in range(0, 10_000, 50):
        come_and_go(range(number, number + 50))
        if number % 1000 == 0:
            sizes.append(resident())
    assert sizes[-1] - sizes[3] < 2 * MEBIBYTE, [size >> 10 for size in sizes]
