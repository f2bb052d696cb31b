"""Batches: what they hold is what was put in, every damage is seen, and packets made of them are MQTT.

The golden bytes hold the layout still, and both forms of the hot path to the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import (
    MESSAGES_MAX,
    PAYLOAD_BYTES_MAX,
    Batch,
    BatchError,
    parse,
    verify,
)
from fluxmq.model.message_batch import build_message
from fluxmq.protocols.mqtt.batch_delivery import OffsetProperties, delivery_runs
from fluxmq.protocols.mqtt.batches import build_batches
from fluxmq.protocols.mqtt.packets import Packet, Publish
from fluxmq.protocols.mqtt.run import PublishRun, append_numbered
from tests.unit.protocols.mqtt.lines import scanned
from tests.unit.protocols.mqtt.wire import publish, read_all

GOLDEN = bytes.fromhex(
    # Header: magic, check, length, version, codec and flags, offset, time, payload check, sizes.
    "464c5842e88a5aeca0000000010058000000000000000000d202964900000000"
    "9fbf446728dc9544030000000300000004000000070000000000000000000000"
    "2a000000000000002a000000000000002a000000000000002b00000000000000"
    "2b000000000000002b0000000000000001010000010100000101000000000000"
    "030000000300000007000000612f620201780061626364656667000000000000"
)


def run_of(payloads: Sequence[bytes], qos: int = 1) -> PublishRun:
    """One run on topic ``a/b``."""
    packets = [publish(b"a/b", each, qos, 1 if qos else 0) for each in payloads]
    return scanned(b"".join(packets))


def batch_of(*payloads: bytes, base_offset: int = 0) -> Batch:
    (data,) = build_batches(run_of(payloads), b"a/b", b"pp", 7)
    batch = parse(data)
    batch.stamp(base_offset, 7, 1)
    return batch


def payloads_of(batch: Batch) -> list[bytes]:
    return [batch.payload(index) for index in range(batch.count)]


def reseal(data: bytes, at: int, code: str, number: int) -> bytes:
    """A batch with one field changed and both checks made right again: damage that only looking at lengths finds."""
    out = bytearray(data)
    struct.pack_into("<" + code, out, at, number)
    struct.pack_into("<Q", out, 32, xxh3_64_intdigest(bytes(out[64:])))
    struct.pack_into("<I", out, 4, 0)
    struct.pack_into("<I", out, 4, xxh3_64_intdigest(bytes(out[:64])) & 0xFFFFFFFF)
    return bytes(out)


# Building


def test_golden_bytes() -> None:
    (data,) = build_batches(
        run_of([b"abc", b"", b"defg"]), b"a/b", b"\x02\x01x\x00", 1234567890, 42, 43, 0x101
    )
    assert data == GOLDEN


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "payloads",
    [[b""], [b"x"], [b"x" * 256] * 240, [b"x" * size for size in range(300)], [b"", b"a", b""]],
)
def test_a_run_becomes_a_batch(payloads: list[bytes], qos: int) -> None:
    (data,) = build_batches(run_of(payloads, qos), b"key", b"props", 99)
    assert len(data) % 8 == 0
    batch = parse(data)
    verify(batch)
    assert payloads_of(batch) == payloads
    assert [batch.payload_length(index) for index in range(batch.count)] == [
        len(each) for each in payloads
    ]
    last = batch.count - 1
    assert (batch.key(0), batch.key(last)) == (b"key", b"key")
    assert (batch.properties(0), batch.properties(last)) == (b"props", b"props")
    assert batch.uniform_key
    assert batch.uniform_properties
    assert (batch.flags, batch.length, batch.start) == (0, len(data), 0)
    assert (batch.base_offset, batch.base_time, batch.term, batch.time(last)) == (0, 99, 0, 99)
    assert (batch.expiry(last), batch.delay(last), batch.attributes(last)) == (0, 0, 0)
    assert (batch.producer(last), batch.sequence(last)) == (0, 0)


def test_what_all_messages_have_stands_in_columns() -> None:
    (data,) = build_batches(run_of([b"a", b"bc"]), b"k", b"", 1, 2, 3, 0xFFFFFFFF)
    batch = parse(data)
    for index in range(2):
        assert batch.expiry(index) == 2
        assert batch.delay(index) == 3
        assert batch.attributes(index) == 0xFFFFFFFF
    assert payloads_of(batch) == [b"a", b"bc"]


def test_a_run_is_copied_out_of_a_buffer_that_changes() -> None:
    run = run_of([b"before"])
    assert isinstance(run.buffer, bytearray)
    (data,) = build_batches(run, b"k", b"", 1)
    run.buffer[:] = bytes(len(run.buffer))
    assert payloads_of(parse(data)) == [b"before"]


@pytest.mark.parametrize("differ", [False, True], ids=["equal sizes", "sizes that differ"])
def test_at_most_so_many_messages_in_a_batch(differ: bool) -> None:
    payloads = [b"x"] * (2 * MESSAGES_MAX + 1)
    if differ:
        payloads[0] = b""
    built = [parse(each) for each in build_batches(run_of(payloads), b"k", b"", 1)]
    assert [batch.count for batch in built] == [MESSAGES_MAX, MESSAGES_MAX, 1]
    assert [each for batch in built for each in payloads_of(batch)] == payloads


@pytest.mark.parametrize("differ", [0, 1], ids=["equal sizes", "sizes that differ"])
def test_at_most_so_much_payload_in_a_batch(differ: int) -> None:
    size = PAYLOAD_BYTES_MAX // 4
    payloads = [bytes(size)] * 4 + [bytes(size - differ)] * 2
    built = [parse(each) for each in build_batches(run_of(payloads), b"k", b"", 1)]
    assert [batch.count for batch in built] == [4, 2]
    assert [each for batch in built for each in payloads_of(batch)] == payloads


@pytest.mark.parametrize("count", [1, 2])
def test_a_larger_message_is_alone(count: int) -> None:
    payloads = [bytes(PAYLOAD_BYTES_MAX + 1)] * count + [b"x"]
    built = [parse(each) for each in build_batches(run_of(payloads), b"k", b"", 1)]
    assert [batch.count for batch in built] == [1] * (count + 1)
    assert [each for batch in built for each in payloads_of(batch)] == payloads


def test_one_message() -> None:
    batch = parse(build_message(b"k", b"p", b"payload", 1, 2, 3, 4, 2**64 - 1, -6))
    verify(batch)
    assert batch.count == 1
    assert (batch.key(0), batch.properties(0), batch.payload(0)) == (b"k", b"p", b"payload")
    assert (batch.time(0), batch.expiry(0), batch.delay(0), batch.attributes(0)) == (1, 2, 3, 4)
    assert (batch.producer(0), batch.sequence(0)) == (2**64 - 1, -6)


def test_one_message_is_a_run_of_one() -> None:
    (data,) = build_batches(run_of([b"payload"]), b"k", b"p", 1, 2, 3, 4)
    assert build_message(b"k", b"p", b"payload", 1, 2, 3, 4) == data
    assert build_message(b"k", b"p", b"", 1) == build_batches(run_of([b""]), b"k", b"p", 1)[0]


# Stamping


def test_a_stamp_changes_the_header_only() -> None:
    data = b"before" + build_message(b"k", b"p", b"payload", 1) + b"behind"
    batch = parse(data, 6)
    batch.stamp(2**63, -5, 7)
    assert (batch.base_offset, batch.last_offset) == (2**63, 2**63)
    assert (batch.base_time, batch.last_time, batch.time(0)) == (-5, -5, -5)
    stamped = batch.header() + bytes(batch.body())
    assert len(stamped) == batch.length
    again = parse(stamped)
    verify(again)
    assert (again.base_offset, again.base_time, again.term) == (2**63, -5, 7)
    assert again.payload(0) == b"payload"
    assert parse(data, 6).base_offset == 0


def test_last_offset() -> None:
    assert batch_of(b"a", b"b", b"c", base_offset=9).last_offset == 11


# Damage


def test_every_flipped_bit_is_noticed() -> None:
    data = build_message(b"key", b"pp", b"payload", 1, 2, 3, 4, 5, 6)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BatchError):
            verify(parse(bytes(flipped)))


def test_every_cut_is_noticed() -> None:
    data = build_message(b"key", b"pp", b"payload", 1)
    for size in range(len(data)):
        with pytest.raises(BatchError):
            parse(data[:size])
    assert parse(data + b"more").payload(0) == b"payload"
    with pytest.raises(BatchError, match="shorter than a header"):
        parse(data, -1)
    with pytest.raises(BatchError, match="shorter than a header"):
        parse(data, len(data))


DAMAGE: dict[str, tuple[int, str, int, str]] = {
    "magic": (0, "I", 1, "no batch begins here"),
    "length": (8, "I", 112, "a length that differs from the sum of its parts"),
    "version": (12, "B", 2, "an unknown version or codec"),
    "codec": (13, "B", 1, "an unknown version or codec"),
    "flag": (14, "H", 0x80, "an unknown flag"),
    "column": (14, "H", 8, "a length that differs from the sum of its parts"),
    "no message": (40, "I", 0, "an invalid message count"),
    "many messages": (40, "I", MESSAGES_MAX + 1, "an invalid message count"),
    "most messages": (40, "I", 2**32 - 1, "an invalid message count"),
    "offset": (16, "Q", 2**64 - 2, "offsets above the maximum"),
    "time": (24, "q", 2**62 + 1, "a time out of range"),
    "earliest time": (24, "q", -(2**63), "a time out of range"),
    "keys": (44, "I", 2**32 - 1, "a length that differs from the sum of its parts"),
    "payloads": (52, "I", 2**32 - 1, "a length that differs from the sum of its parts"),
    "last time": (60, "i", 1, "a last time that differs from the last message's"),
    "first end": (64, "i", 1, "payloads whose ends are not ascending"),
    "end that goes back": (72, "i", 1, "payloads whose ends are not ascending"),
    "negative end": (68, "i", -1, "payloads whose ends are not ascending"),
    "end past the area": (76, "i", 2**31 - 1, "payloads whose ends are not ascending"),
    "last end": (76, "i", 5, "payloads whose ends are not ascending"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_field_that_makes_no_sense(name: str) -> None:
    at, code, number, complaint = DAMAGE[name]
    (data,) = build_batches(run_of([b"ab", b"cd", b"ef"]), b"key", b"p", 1)
    with pytest.raises(BatchError, match=complaint):
        parse(reseal(data, at, code, number))


@pytest.mark.parametrize("flag", [2, 4], ids=["keys", "properties"])
def test_keys_and_properties_that_do_not_end_in_order(flag: int) -> None:
    data = bytearray(build_message(b"", b"", b"", 1))
    # The two ends of the payload and eight zero bytes more: with the flag, two empty columns of ends.
    data = bytearray(reseal(bytes(data[:64] + bytes(16)), 8, "I", 80))
    struct.pack_into("<H", data, 14, flag)
    assert parse(reseal(bytes(data), 0, "I", 0x42584C46)).payload(0) == b""
    with pytest.raises(BatchError, match="whose ends are not ascending"):
        parse(reseal(bytes(data), 64, "i", 1))
    with pytest.raises(BatchError, match="whose ends are not ascending"):
        parse(reseal(bytes(data), 68, "i", -1))


def test_an_index_of_no_message() -> None:
    batch = batch_of(b"a", b"b")
    readers: list[Callable[[int], object]] = [
        batch.key,
        batch.properties,
        batch.payload,
        batch.payload_length,
        batch.expiry,
        batch.delay,
        batch.producer,
        batch.sequence,
        batch.attributes,
        batch.time,
    ]
    for read in readers:
        for index in (-1, 2, 2**40):
            with pytest.raises(IndexError):
                read(index)


# Delivery


def packets_of(run: PublishRun) -> list[Packet]:
    return read_all(bytearray(run.buffer), run.version)


def identifiers(packets: list[Packet]) -> list[int]:
    return [packet.packet_id for packet in packets if isinstance(packet, Publish)]


def checked(run: PublishRun) -> PublishRun:
    """What everyone who is handed a run relies on."""
    assert run.kept
    assert run.verbatim
    assert (run.start, run.end) == (0, len(run.buffer))
    packets = packets_of(run)
    assert len(packets) == run.count
    sizes = []
    at = 0
    for _ in range(run.count):
        following = run.skip(at, 1)
        sizes.append(following - at)
        at = following
    assert at == run.end
    assert run.largest == max(sizes)
    assert run.stride == (sizes[0] if len(set(sizes)) == 1 else 0)
    return run


@pytest.mark.parametrize("payloads", [[b"x" * 256] * 5, [b"", b"x" * 300, b"y"]])
@pytest.mark.parametrize("version", [4, 5])
def test_packets_of_a_batch(payloads: list[bytes], version: int) -> None:
    batch = batch_of(*payloads)
    (run,) = delivery_runs(batch, 0, batch.count, version, b"$queue/q/a", b"\x01\x01")
    checked(run)
    assert not run.fixed
    assert run.payloads() == payloads
    assert (run.qos, run.topic) == (1, b"$queue/q/a")
    assert run.properties == (b"\x01\x01" if version == 5 else b"")
    for packet in packets_of(run):
        assert isinstance(packet, Publish)
        assert (packet.topic, packet.qos, packet.retain) == (b"$queue/q/a", 1, False)
        assert packet.properties.payload_format_indicator == (1 if version == 5 else None)
    out = bytearray()
    append_numbered(out, run, 0, run.count, 0x32, 11)
    assert identifiers(read_all(out, version)) == list(range(11, 11 + batch.count))


def test_part_of_a_batch() -> None:
    batch = batch_of(b"a", b"bb", b"ccc", b"dddd")
    (run,) = delivery_runs(batch, 1, 2, 4, b"t", b"")
    assert checked(run).payloads() == [b"bb", b"ccc"]


def test_without_acknowledgement() -> None:
    batch = batch_of(b"a", b"bb")
    (run,) = delivery_runs(batch, 0, 2, 5, b"t", b"", OffsetProperties(b"q"), 0)
    assert (checked(run).qos, run.pid_at) == (0, 0)
    assert identifiers(packets_of(run)) == [0, 0]
    assert run.payloads() == [b"a", b"bb"]


def test_what_is_left_of_a_messages_life() -> None:
    batch = batch_of(b"a")
    for version, expected in ((5, 30), (4, None)):
        (run,) = delivery_runs(batch, 0, 1, version, b"t", b"\x03\x00\x01c", expiry_seconds=30)
        (packet,) = packets_of(checked(run))
        assert isinstance(packet, Publish)
        assert packet.properties.message_expiry_interval == expected


@pytest.mark.parametrize(
    ("base", "sizes"),
    [(0, [3]), (8, [2, 1]), (9, [1, 2]), (999_998, [2, 1]), (2**64 - 4, [3])],
)
def test_every_message_says_where_it_stands(base: int, sizes: list[int]) -> None:
    batch = batch_of(b"a", b"bb", b"ccc", base_offset=base)
    runs = delivery_runs(batch, 0, 3, 5, b"t", b"\x01\x01", OffsetProperties(b"orders"))
    assert [checked(run).count for run in runs] == sizes
    offset = base
    for run in runs:
        assert run.fixed
        for packet in packets_of(run):
            assert isinstance(packet, Publish)
            assert packet.properties.user_properties == [
                ("message-id", f"orders:{offset}"),
                ("offset", str(offset)),
            ]
            assert packet.properties.payload_format_indicator == 1
            offset += 1
    assert offset == base + 3
    assert [each for run in runs for each in run.payloads()] == [b"a", b"bb", b"ccc"]


def test_offsets_are_counted_over_every_digit() -> None:
    (data,) = build_batches(run_of([b"x"] * 4096), b"k", b"", 1)
    batch = parse(data)
    batch.stamp(998, 1, 1)
    runs = delivery_runs(batch, 0, 4096, 5, b"t", b"", OffsetProperties(b""))
    assert [run.count for run in runs] == [2, 4094]
    found = [
        packet.properties.user_properties
        for run in runs
        for packet in packets_of(run)
        if isinstance(packet, Publish)
    ]
    assert found == [
        [("message-id", f":{offset}"), ("offset", str(offset))] for offset in range(998, 998 + 4096)
    ]


def test_3_1_1_has_no_properties() -> None:
    (run,) = delivery_runs(batch_of(b"a"), 0, 1, 4, b"t", b"\x01\x01", OffsetProperties(b"q"))
    assert bytes(run.buffer) == publish(b"t", b"a", 1, 1)
    assert not run.fixed


def test_deliveries_that_cannot_be() -> None:
    batch = batch_of(b"a", b"b")
    for first, count in ((-1, 1), (0, 0), (0, -1), (0, 3), (2, 1), (1, 2), (0, 2**62)):
        with pytest.raises(IndexError):
            delivery_runs(batch, first, count, 4, b"t", b"")
    with pytest.raises(ValueError, match="QoS"):
        delivery_runs(batch, 0, 1, 4, b"t", b"", qos=2)
    with pytest.raises(ValueError, match="topic"):
        delivery_runs(batch, 0, 1, 4, bytes(65_536), b"")
    with pytest.raises(ValueError, match="queue name"):
        OffsetProperties(bytes(65_515))
    with pytest.raises(ValueError, match="no packet can hold"):
        delivery_runs(batch, 0, 1, 5, b"t", bytes(268_435_455))
    assert OffsetProperties(bytes(65_514)).queue == bytes(65_514)
