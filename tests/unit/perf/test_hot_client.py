"""The generator's inner loop: true counts for any split of the stream, equal compiled and uncompiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt import codec as broker_codec
from fluxmq.protocols.mqtt.packets import Connect, Publish, Subscribe
from perf import codec
from perf.codec import HEAD_BYTES, Histogram, NatsReceiver, Receiver, Sender
from perf.percentiles import quantile, sparse

SOURCE = Path(codec.__file__).with_name("_hot_client.py")


def uncompiled() -> ModuleType:
    spec = importlib.util.spec_from_file_location("uncompiled_hot_client", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = uncompiled()


def sender(
    qos: int = 1, version: int = 4, size: int = 32, window: int = 10, publisher: int = 0
) -> Sender:
    template = codec.publish_template("a/b", size, qos, version)
    return Sender(*template, 10, window, publisher, Histogram())


def messages(source: Sender, count: int, stamp: int = 1000) -> bytes:
    return bytes(source.chunk[: source.prepare(count, stamp, 0)])


def feed_all(receiver: Any, data: bytes, cuts: list[int], now: int = 5000) -> bytes:
    """Feed a stream cut at these places, as a socket would give it; the replies."""
    replies, tail, at = b"", b"", 0
    for cut in [*sorted(cuts), len(data)]:
        part = tail + data[at:cut]
        at = max(at, cut)
        receiver.inbound[: len(part)] = part
        done = receiver.feed(len(part), now, True)
        replies += bytes(receiver.outbound[: receiver.out_length])
        tail = part[done:]
    assert not tail
    return replies


def receiver(kind: type[Receiver] = Receiver, version: int = 4, publishers: int = 1) -> Receiver:
    return kind(bytearray(65_536), bytearray(65_536), version, None, Histogram(), publishers)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_broker_reads_what_the_generator_writes(qos: int, version: int) -> None:
    source = sender(qos, version)
    whole = messages(source, 3)
    for index in range(3):
        one = whole[index * source.stride : (index + 1) * source.stride]
        packet = broker_codec.decode(one[0], one[2:], version)
        assert isinstance(packet, Publish)
        assert packet.topic == b"a/b"
        assert packet.qos == qos
        assert len(packet.payload) == 32
        assert int.from_bytes(packet.payload[:8], "little") == 1000
        assert int.from_bytes(packet.payload[12:16], "little") == index
        if qos:
            assert packet.packet_id == index + 1


@pytest.mark.parametrize("version", [4, 5])
def test_the_broker_reads_the_greetings(version: int) -> None:
    greeting = codec.connect("client", version)
    packet = broker_codec.decode(greeting[0], greeting[2:], version)
    assert isinstance(packet, Connect)
    assert packet.client_id == "client"
    assert packet.clean_start
    subscription = codec.subscribe("a/+", 2, version)
    decoded = broker_codec.decode(subscription[0], subscription[2:], version)
    assert isinstance(decoded, Subscribe)
    assert decoded.subscriptions[0].filter == b"a/+"
    assert decoded.subscriptions[0].qos == 2


@given(
    qos=st.integers(0, 2),
    version=st.sampled_from([4, 5]),
    size=st.integers(HEAD_BYTES, 300),
    cuts=st.lists(st.integers(0, 3000), max_size=8),
)
def test_any_split_counts_the_same_compiled_and_not(
    qos: int, version: int, size: int, cuts: list[int]
) -> None:
    data = messages(sender(qos, version, size), 10)
    seen = []
    for kind, histogram in ((Receiver, Histogram()), (PLAIN.Receiver, PLAIN.Histogram())):
        each = kind(bytearray(65_536), bytearray(65_536), version, None, histogram, 1)
        replies = feed_all(each, data, [cut for cut in cuts if cut <= len(data)])
        counts = (each.publishes, each.payload_bytes, each.lost, each.reordered, each.malformed)
        seen.append((replies, counts, sparse(histogram.counts)))
    assert seen[0] == seen[1]
    replies, counts, cells = seen[0]
    assert counts == (10, 10 * size, 0, 0, 0)
    assert sum(cells.values()) == 10
    assert len(replies) == (40 if qos else 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived_and_judged_equally(data: bytes) -> None:
    seen = []
    for kind, histogram in ((Receiver, Histogram()), (PLAIN.Receiver, PLAIN.Histogram())):
        each = kind(bytearray(256), bytearray(256), 5, None, histogram, 1)
        each.inbound[: len(data)] = data
        done = each.feed(len(data), 1, False)
        assert 0 <= done <= len(data)
        seen.append((done, each.publishes, each.malformed, each.unexpected, each.out_length))
    assert seen[0] == seen[1]


@given(st.binary(max_size=200).map(lambda rest: b"MSG a 1 20\r\n" + rest))
def test_any_nats_bytes_are_survived_and_judged_equally(data: bytes) -> None:
    seen = []
    for module in (codec, PLAIN):
        histogram = module.Histogram()
        each = module.NatsReceiver(bytearray(256), bytearray(512), 4, None, histogram, 1)
        each.inbound[: len(data)] = data
        done = each.feed(len(data), 1, False)
        assert 0 <= done <= len(data)
        seen.append((done, each.publishes, each.unexpected, each.out_length))
    assert seen[0] == seen[1]


@given(
    size=st.integers(HEAD_BYTES, 1200),
    cuts=st.lists(st.integers(0, 4000), max_size=8),
    noise=st.sampled_from([b"", b"PING\r\n", b"+OK\r\n", b"PONG\r\n"]),
)
def test_nats_messages_are_counted_over_any_split(size: int, cuts: list[int], noise: bytes) -> None:
    source = Sender(*codec.nats_template("a.b", size), 3, 1, 0, Histogram())
    sent = messages(source, 3).replace(b"PUB a.b ", noise + b"MSG a.b 1 ")
    each = receiver(NatsReceiver)
    replies = feed_all(each, sent, [cut for cut in cuts if cut <= len(sent)])
    assert (each.publishes, each.payload_bytes, each.lost) == (3, 3 * size, 0)
    assert replies == (b"PONG\r\n" * 3 if noise == b"PING\r\n" else b"")


def test_a_gap_is_a_loss_and_a_step_back_a_reordering() -> None:
    source = sender(0)
    whole = messages(source, 6)
    parts = [whole[at * source.stride : (at + 1) * source.stride] for at in range(6)]
    each = receiver()
    feed_all(each, parts[0] + parts[3] + parts[1] + parts[4], [])
    assert (each.publishes, each.lost, each.reordered) == (4, 2, 1)


def test_publishers_are_followed_apart() -> None:
    first, second = sender(0, publisher=0), sender(0, publisher=1)
    each = receiver(publishers=2)
    feed_all(each, messages(first, 2) + messages(second, 3) + messages(first, 2), [])
    assert (each.publishes, each.lost, each.reordered) == (7, 0, 0)


def test_acknowledgements_free_the_window_and_are_timed() -> None:
    source = sender(1, window=4)
    source.prepare(4, 1000, 10)
    assert source.in_flight == 4
    each = Receiver(bytearray(64), bytearray(64), 4, source, Histogram(), 0)
    feed_all(each, b"\x40\x02\x00\x01" + b"\x40\x02\x00\x02", [3], now=2000)
    assert (source.in_flight, source.acknowledged) == (2, 2)
    assert source.latency.total == 2
    assert source.latency.largest == 1000


def test_an_acknowledgement_nobody_waits_for_is_spurious() -> None:
    source = sender(1)
    source.prepare(1, 1000, 0)
    each = Receiver(bytearray(64), bytearray(64), 4, source, Histogram(), 0)
    feed_all(each, b"\x40\x02\x00\x01" * 2 + b"\x40\x02\xff\xff", [])
    assert (source.acknowledged, source.spurious, source.in_flight) == (1, 2, 0)


def test_a_refusal_is_counted_and_frees_the_window() -> None:
    source = sender(1, version=5)
    source.prepare(1, 1000, 0)
    each = Receiver(bytearray(64), bytearray(64), 5, source, Histogram(), 0)
    feed_all(each, b"\x40\x03\x00\x01\x97", [])
    assert (source.refused, source.in_flight) == (1, 0)


def test_qos_2_runs_through_all_four_packets() -> None:
    source = sender(2)
    whole = messages(source, 1)
    publishing = Receiver(bytearray(64), bytearray(64), 4, source, Histogram(), 0)
    subscribing = receiver()
    assert feed_all(subscribing, whole, []) == b"\x50\x02\x00\x01"
    assert feed_all(publishing, b"\x50\x02\x00\x01", []) == b"\x62\x02\x00\x01"
    assert source.acknowledged == 0
    assert feed_all(subscribing, b"\x62\x02\x00\x01", []) == b"\x70\x02\x00\x01"
    assert feed_all(publishing, b"\x70\x02\x00\x01", []) == b""
    assert source.acknowledged == 1


def test_packet_identifiers_go_round_within_the_ring() -> None:
    source = sender(1, window=2)
    seen = []
    for _ in range(6):
        whole = messages(source, 1)
        pid = int.from_bytes(whole[source.pid_at : source.pid_at + 2], "big")
        seen.append(pid)
        each = Receiver(bytearray(64), bytearray(64), 4, source, Histogram(), 0)
        feed_all(each, b"\x40\x02" + pid.to_bytes(2, "big"), [])
    assert seen == [1, 2, 3, 4, 1, 2]


@given(st.lists(st.integers(-5, 2**42), min_size=1, max_size=50))
def test_histograms_keep_values_within_one_percent(values: list[int]) -> None:
    for histogram in (Histogram(), PLAIN.Histogram()):
        for value in values:
            histogram.record(value, 1)
        cells = sparse(histogram.counts)
        assert sum(cells.values()) == histogram.total == len(values)
        largest = max(0, *values) if len(values) > 1 else max(0, values[0])
        found = quantile(cells, 1.0)
        if largest < 2**41:
            assert largest <= found <= largest * 1.01


def test_wrong_sizes_are_refused() -> None:
    template = codec.publish_template("a", 16, 1, 4)
    with pytest.raises(ValueError, match="window"):
        Sender(*template, 1, 0, 0, Histogram())
    with pytest.raises(ValueError, match="payload"):
        Sender(template[0], template[1] + 1, template[2], 1, 1, 0, Histogram())
    with pytest.raises(ValueError, match="replies"):
        Receiver(bytearray(10), bytearray(9), 4, None, Histogram(), 1)
    with pytest.raises(ValueError, match="16 bytes"):
        codec.payload(15)
