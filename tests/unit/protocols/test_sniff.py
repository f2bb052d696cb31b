"""Recognising a protocol by its first bytes."""

import ssl
import struct
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.sniff import (
    CONNECT_BYTES_MAX,
    NEED_MORE,
    Sniffed,
    SniffRefusal,
    WireProtocol,
    shard_of,
    sniff,
)


def variable_integer(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        encoded.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(encoded)


def connect(
    client_id: bytes,
    level: int = 4,
    properties: bytes = b"",
    tail: bytes = b"",
    name: bytes = b"MQTT",
) -> bytes:
    body = struct.pack(">H", len(name)) + name + bytes([level, 2, 0, 60])
    if level == 5:
        body += variable_integer(len(properties)) + properties
    body += struct.pack(">H", len(client_id)) + client_id + tail
    return b"\x10" + variable_integer(len(body)) + body


def client_hello(server_name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server_name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@given(
    client_id=st.binary(max_size=60),
    level=st.sampled_from([3, 4, 5]),
    properties=st.binary(max_size=300),
    tail=st.binary(max_size=200),
    following=st.binary(max_size=30),
)
def test_connect_in_any_split(
    client_id: bytes, level: int, properties: bytes, tail: bytes, following: bytes
) -> None:
    name = b"MQIsdp" if level == 3 else b"MQTT"
    packet = connect(client_id, level, properties, tail, name)
    for cut in range(len(packet)):
        assert sniff(packet[:cut]) is NEED_MORE
    assert sniff(packet + following) == Sniffed(WireProtocol.MQTT, client_id=client_id, level=level)


def test_an_oversized_connect_is_passed_on_once_its_client_id_is_known() -> None:
    packet = connect(b"big", 5, tail=bytes(CONNECT_BYTES_MAX))
    for cut in range(18):
        assert sniff(packet[:cut]) is NEED_MORE, cut
    assert sniff(packet[:20]) == Sniffed(
        WireProtocol.MQTT, client_id=b"big", level=5, oversized=True
    )


def test_an_oversized_connect_whose_client_id_lies_beyond_the_limit_goes_anywhere() -> None:
    """The shard reads on; the client's session comes to it."""
    packet = connect(b"late", 5, properties=bytes(CONNECT_BYTES_MAX))
    assert sniff(packet[: CONNECT_BYTES_MAX - 1]) is NEED_MORE
    assert sniff(packet[:CONNECT_BYTES_MAX]) == Sniffed(WireProtocol.MQTT, oversized=True)


def test_the_limit_is_the_callers() -> None:
    packet = connect(b"id", tail=bytes(100))
    assert sniff(packet, limit=64) == Sniffed(
        WireProtocol.MQTT, client_id=b"id", level=4, oversized=True
    )
    assert sniff(packet, limit=len(packet)) == Sniffed(WireProtocol.MQTT, client_id=b"id", level=4)


def test_an_unknown_level_is_passed_on_for_the_shard_to_answer() -> None:
    assert sniff(connect(b"x", level=9)) == Sniffed(WireProtocol.MQTT, level=9)


@pytest.mark.parametrize(
    "packet",
    [
        b"\x10\x00",  # nothing at all
        b"\x10\x06\x00\x04MQTT",  # ends before the level
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x09",  # client id longer than the packet
        b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\xff\xff\xff",  # property length does not end
        b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\xff\xff\xff\xff",  # five-byte property length
    ],
)
def test_a_complete_but_malformed_connect_is_passed_on(packet: bytes) -> None:
    verdict = sniff(packet + bytes(4 if packet.endswith(b"\xff\xff\xff\xff") else 0))
    assert isinstance(verdict, Sniffed)
    assert (verdict.wire, verdict.client_id) == (WireProtocol.MQTT, None)


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"\x11\x00", SniffRefusal.MALFORMED),  # reserved flags
        (b"\x10\xff\xff\xff\xff", SniffRefusal.MALFORMED),  # remaining length of five bytes
        (b"\x10\x20\x00\x05", SniffRefusal.UNKNOWN_PROTOCOL),
        (b"\x10\x20\x00\x04MQTX", SniffRefusal.UNKNOWN_PROTOCOL),
        (b"\x30\x05", SniffRefusal.UNKNOWN_PROTOCOL),  # PUBLISH before CONNECT
        (b"\x00", SniffRefusal.UNKNOWN_PROTOCOL),
        (b"POST / HTTP/1.1\r\n", SniffRefusal.UNKNOWN_PROTOCOL),
        (b"GEX", SniffRefusal.UNKNOWN_PROTOCOL),
        (b"AMQX", SniffRefusal.UNKNOWN_PROTOCOL),
        (b"AMQP\x00\x00\x09\x00", SniffRefusal.AMQP_VERSION),
        (b"AMQP\x01\x01\x08\x00", SniffRefusal.AMQP_VERSION),
        (b"\x16\x02", SniffRefusal.UNKNOWN_PROTOCOL),
        (b"\x16\x03\x01\x00\x05\x02", SniffRefusal.UNKNOWN_PROTOCOL),  # a server hello
    ],
)
def test_refusals(data: bytes, refusal: SniffRefusal) -> None:
    assert sniff(data) is refusal


@pytest.mark.parametrize(
    ("header", "wire"),
    [
        (b"AMQP\x00\x00\x09\x01", WireProtocol.AMQP091),
        (b"AMQP\x00\x01\x00\x00", WireProtocol.AMQP10),
        (b"AMQP\x03\x01\x00\x00", WireProtocol.AMQP10),
        (b"AMQP\x02\x01\x00\x00", WireProtocol.AMQP10),
    ],
)
def test_amqp_headers(header: bytes, wire: WireProtocol) -> None:
    for cut in range(8):
        assert sniff(header[:cut]) is NEED_MORE
    assert sniff(header + b"following") == Sniffed(wire)


def test_http_waits_for_the_end_of_the_header() -> None:
    request = b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n"
    for cut in range(len(request)):
        assert sniff(request[:cut], seen=max(0, cut - 1)) is NEED_MORE
    assert sniff(request, seen=len(request) - 1) == Sniffed(WireProtocol.HTTP)
    assert sniff(b"GET " + bytes(CONNECT_BYTES_MAX)) is SniffRefusal.TOO_LARGE


@pytest.mark.parametrize("name", ["broker.example.test", None])
def test_client_hello(name: str | None) -> None:
    hello = client_hello(name)
    for cut in range(6):
        assert sniff(hello[:cut]) is NEED_MORE
    assert sniff(hello) == Sniffed(WireProtocol.TLS, server_name=name.encode() if name else None)
    assert sniff(hello[:60]) == Sniffed(WireProtocol.TLS)  # SNI not there yet: not waited for


@given(
    prefix=st.sampled_from(
        [b"", b"\x10", b"\x16\x03\x01", b"GET ", b"AMQP", b"\x10\x20\x00\x04MQTT\x05"]
    ),
    data=st.binary(max_size=400),
)
def test_any_bytes_get_an_answer(prefix: bytes, data: bytes) -> None:
    verdict = sniff(prefix + data)
    assert verdict is NEED_MORE or isinstance(verdict, Sniffed | SniffRefusal)


@given(data=st.binary(min_size=1, max_size=6))
def test_need_more_ends_at_the_limit(data: bytes) -> None:
    assert sniff((data * CONNECT_BYTES_MAX)[:CONNECT_BYTES_MAX]) is not NEED_MORE


@given(data=st.binary(max_size=300))
def test_hello_mutations_never_raise(data: bytes) -> None:
    hello = bytearray(client_hello_cached())
    for index, value in enumerate(data):
        hello[6 + (index * 7919 + value * 31) % (len(hello) - 6)] ^= value
    verdict = sniff(bytes(hello))
    assert isinstance(verdict, Sniffed | SniffRefusal)


_HELLO: list[bytes] = []


def client_hello_cached() -> bytes:
    if not _HELLO:
        _HELLO.append(client_hello("broker.example.test"))
    return _HELLO[0]


def test_dribbled_bytes_cost_linear_time() -> None:
    """A request of the full 8 KiB arriving byte by byte; rescanning it each time would touch 32 MiB."""
    request = b"GET " + b"\r" * (CONNECT_BYTES_MAX - 4)
    started = time.process_time()
    for cut in range(1, len(request)):
        assert sniff(request[:cut], seen=cut - 1) is NEED_MORE
    assert time.process_time() - started < 2.0


def test_shard_of_is_stable_and_even() -> None:
    assert shard_of(b"", 4) is None
    assert shard_of(b"client-1", 1) == 0
    assert shard_of(b"client-1", 4) == 2  # fixed: sessions must be found again after an upgrade
    counts = Counter(shard_of(f"sensor-{number}".encode(), 3) for number in range(30_000))
    assert sorted(counts) == [0, 1, 2]  # type: ignore[type-var]
    assert min(counts.values()) > 9_000
