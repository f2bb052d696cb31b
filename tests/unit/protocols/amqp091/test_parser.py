"""Frames of AMQP 0.9.1: which publishes make a run, what comes one by one, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluxmq.net.reactor import PAUSED_STEP
from fluxmq.protocols.amqp091.parser import UNIFORM_RUN_MIN
from tests.unit.protocols.amqp091.line import (
    FRAME_MAX,
    HEADER,
    HEARTBEAT,
    NO_PROPERTIES,
    Line,
    ack,
    content_header,
    frame,
    method,
    publish,
    publish_method,
    short,
)

OPEN_OK = b"\x00\x14\x00\x0b\x00\x00\x00\x00"


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    """Make connections."""
    made: list[Line] = []

    def make(**arguments: Any) -> Line:
        made.append(Line(**arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


def published(payload: bytes, channel: int = 1, **changes: Any) -> tuple[Any, ...]:
    """The event of one message."""
    values = {"exchange": b"", "key": b"q", "bits": 0, "properties": NO_PROPERTIES, **changes}
    return ("publish", channel, *values.values(), payload)


def frames(data: bytes) -> list[tuple[Any, ...]]:
    """The events of bytes whose frames come one by one."""
    found = []
    while data:
        size = int.from_bytes(data[3:7], "big")
        found.append(("frame", data[0], int.from_bytes(data[1:3], "big"), data[7 : 7 + size]))
        data = data[size + 8 :]
    return found


def test_equal_publishes_are_one_run(line: Callable[..., Line]) -> None:
    one = line()
    one.ledger()
    payloads = [b"%03d" % number for number in range(100)]
    assert one.send(b"".join(map(publish, payloads))) == list(map(published, payloads))
    assert one.runs == [100]


def test_what_a_run_says(line: Callable[..., Line]) -> None:
    one = line()
    one.ledger(300)
    properties = b"\x80\x00\x04text"
    wire: dict[str, Any] = {"exchange": b"ex", "key": b"a.b", "bits": 1, "properties": properties}
    assert one.send(publish(b"x", channel=300, **wire)) == [published(b"x", 300, **wire)]
    other = {**wire, "bits": 2}
    assert one.send(publish(b"", channel=300, **other))[1:] == [published(b"", 300, **other)]


@pytest.mark.parametrize(
    "other",
    [
        publish(b"x", exchange=b"e"),
        publish(b"x", key=b"r"),
        publish(b"x", key=b""),
        publish(b"x", bits=1),
        publish(b"x", channel=2),
        publish(b"x", properties=b"\x10\x00\x01"),
        publish(b"x", properties=b"\x00\x01"),
        publish(b"yy", properties=b"\x00\x01"),
    ],
)
@pytest.mark.parametrize("count", [1, UNIFORM_RUN_MIN + 1])
def test_what_differs_ends_a_run(line: Callable[..., Line], other: bytes, count: int) -> None:
    one = line()
    one.ledger(1)
    one.ledger(2)
    same = publish(b"x")
    one.send(same * count + other + same)
    assert one.runs[0] == count
    assert len([event for event in one.events if event == published(b"x")]) >= count + 1


def test_sizes_may_differ_within_a_run(line: Callable[..., Line]) -> None:
    one = line()
    one.ledger()
    sizes = [0, 5, 0, 0, 300, 1, 4088, 3]
    assert one.send(b"".join(publish(bytes(size)) for size in sizes)) == [
        published(bytes(size)) for size in sizes
    ]
    assert one.runs == [len(sizes)]


def test_many_of_one_size_keep_their_run_to_themselves(line: Callable[..., Line]) -> None:
    for count, runs in ((UNIFORM_RUN_MIN - 1, [8]), (UNIFORM_RUN_MIN, [8, 1])):
        one = line()
        one.ledger()
        one.send(publish(b"x") * count + publish(b"yy"))
        assert one.runs == runs


@pytest.mark.parametrize("piece", [1, 3, 8, 29, 60])
def test_what_is_not_whole_is_waited_for(line: Callable[..., Line], piece: int) -> None:
    one = line(receive_bytes=128)
    one.ledger()
    payloads = [b"a" * 20, b"", b"b" * 300, b"c"]
    data = b"".join(map(publish, payloads))
    one.send(*(data[at : at + piece] for at in range(0, len(data), piece)))
    assert one.events == list(map(published, payloads))


def test_a_body_larger_than_the_receive_buffer_is_still_a_run(line: Callable[..., Line]) -> None:
    one = line(receive_bytes=512)
    one.connection.frame_max = 1 << 17
    one.ledger()
    large = bytes(range(256)) * 400
    assert one.send(publish(large, piece=1 << 17) + publish(b"x")) == [
        published(large),
        published(b"x"),
    ]


@pytest.mark.parametrize("receive_bytes", [16, 64, 65536])
def test_a_stream_filter_may_yield_more_than_was_waited_for(
    line: Callable[..., Line], receive_bytes: int
) -> None:
    one = line(receive_bytes=receive_bytes, filtered=True)
    one.ledger()
    payloads = [b"a" * 200, b"", b"b" * 5000, b"c"]
    one.connection.frame_max = 1 << 17
    data = b"".join(publish(payload, piece=1 << 17) for payload in payloads)
    one.send(data[:10], data[10:220], data[220:])
    assert one.events == list(map(published, payloads))


SPLIT = publish(b"0123456789", piece=4)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(SPLIT, id="several body frames"),
        pytest.param(publish(b"x", channel=7), id="an unknown channel"),
        pytest.param(
            publish_method(1, b"", b"q")
            + publish_method(2, b"", b"r")
            + content_header(1, 1)
            + content_header(2, 2)
            + frame(3, 2, b"yy")
            + frame(3, 1, b"x"),
            id="interleaved channels",
        ),
        pytest.param(
            publish_method(1, b"", b"q") + content_header(1, 2) + ack(1, channel=9),
            id="an ack between",
        ),
        pytest.param(
            publish_method(1, b"", b"q") + content_header(2, 0), id="another channel's header"
        ),
        pytest.param(
            publish_method(1, b"", b"q") + content_header(257, 0), id="a far channel's header"
        ),
        pytest.param(
            publish_method(1, b"", b"q") + content_header(1, 1) + frame(3, 2, b"x"),
            id="another channel's body",
        ),
        pytest.param(content_header(1, 0), id="a header alone"),
        pytest.param(frame(3, 1, b"x"), id="a body alone"),
        pytest.param(publish_method(1, b"", b"q") + method(1, 60, 70), id="no content"),
        pytest.param(method(1, 60, 40, b"\x00\x00" + short(b"x")), id="a method cut short"),
        pytest.param(method(1, 60, 40, b"\x00\x00\xff\x00\x00"), id="a name too long"),
        pytest.param(method(1, 60, 40, b"\x00\x00\x00\x01\x00"), id="a key too long"),
        pytest.param(
            publish_method(1, b"", b"q") + frame(2, 1, bytes(13)) + frame(3, 1, b"x"),
            id="header cut",
        ),
        pytest.param(
            publish_method(1, b"", b"q") + frame(2, 1, b"\x00\x32" + bytes(12)), id="another class"
        ),
        pytest.param(
            publish_method(1, b"", b"q") + frame(2, 1, b"\x00\x3c\x00\x01" + bytes(10)),
            id="a weight",
        ),
        pytest.param(
            publish_method(1, b"", b"q") + content_header(1, 1 << 63) + frame(3, 1, b"x"), id="size"
        ),
        pytest.param(
            publish_method(1, b"", b"q") + content_header(1, 1) + frame(3, 1, b"xy"), id="too much"
        ),
        pytest.param(frame(1, 0, b"\x00\x0a\x00\x0b"), id="a method on channel 0"),
        pytest.param(frame(1, 1, b""), id="no method at all"),
        pytest.param(ack(1), id="an ack of nothing"),
        pytest.param(method(1, 60, 80, bytes(8)), id="an ack cut short"),
    ],
)
def test_frames_that_come_one_by_one(line: Callable[..., Line], data: bytes) -> None:
    whole = line()
    whole.ledger(1)
    whole.ledger(2)
    assert whole.send(data) == frames(data)
    pieces = line()
    pieces.ledger(1)
    pieces.ledger(2)
    assert pieces.send(*(data[at : at + 1] for at in range(len(data)))) == frames(data)


def test_a_method_instead_of_content_comes_before_the_run_behind_it(
    line: Callable[..., Line],
) -> None:
    one = line()
    one.ledger()
    begun = publish_method(1, b"", b"q")
    assert one.send(begun + publish(b"x")) == [*frames(begun), published(b"x")]


def test_after_a_split_content_runs_go_on(line: Callable[..., Line]) -> None:
    one = line()
    one.ledger()
    assert one.send(publish(b"a") + SPLIT + publish(b"b")) == [
        published(b"a"),
        *frames(SPLIT),
        published(b"b"),
    ]


def test_a_publish_that_another_channel_interrupts_is_not_held_back(
    line: Callable[..., Line],
) -> None:
    one = line()
    one.ledger()
    begun = publish_method(1, b"", b"q") + content_header(1, 3)
    assert one.send(begun) == []
    other = method(2, 50, 10)
    assert one.send(other) == frames(begun + other)


def test_a_channel_may_want_every_frame(line: Callable[..., Line]) -> None:
    one = line()
    ledger = one.ledger()
    ledger.given("consumer", 2, 0)
    ledger.publishing = False
    data = publish(b"x")
    assert one.send(data + ack(1)) == frames(data)
    assert ledger.unsettled == 1
    ledger.direct = False
    ledger.publishing = True
    assert one.send(data + ack(2))[3:] == frames(data + ack(2))
    assert ledger.unsettled == 1


def test_a_channel_opened_by_a_frame_gets_runs_at_once(line: Callable[..., Line]) -> None:
    one = line()
    opened = frame(1, 1, OPEN_OK)
    one.on_frame = lambda kind, channel, payload: (
        one.ledger(channel) if payload == OPEN_OK else one.connection.ledgers.clear()
    )
    closed = method(1, 20, 40)
    assert one.send(opened + publish(b"x") + closed + publish(b"y")) == [
        *frames(opened),
        published(b"x"),
        *frames(closed + publish(b"y")),
    ]


def test_acknowledgements_are_settled_without_the_handler(line: Callable[..., Line]) -> None:
    marks: list[int] = []
    one = line()
    ledger = one.ledger(1, lambda: marks.append(1))
    other = one.ledger(2)
    assert ledger.given("c", 100, 1000) == 1
    other.given("d", 5, 7)
    data = ack(1) + ack(2) + ack(5, channel=2, multiple=True) + ack(50, True) + ack(60)
    assert one.send(data) == []
    assert ledger.take_acknowledged() == [("c", 1000, 1049), ("c", 1059, 1059)]
    assert other.take_acknowledged() == [("d", 7, 11)]
    assert marks == [1]
    assert one.send(ack(60)) == frames(ack(60))
    assert one.send(ack(0, True)) == frames(ack(60))
    assert ledger.unsettled == 0


def test_heartbeats_are_for_nobody(line: Callable[..., Line]) -> None:
    one = line()
    one.ledger()
    assert one.send(HEARTBEAT * 3 + publish(b"x") + HEARTBEAT) == [published(b"x")]


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (frame(4, 1, b"ab"), 501, 'type 4, all octets = <<"ab">>: unknown_frame'),
        (frame(4, 1, b"ab\x7f"), 501, "type 4, all octets = <<97,98,127>>: unknown_frame"),
        (frame(4, 1, b"\xc8b"), 501, "type 4, all octets = <<200,98>>: unknown_frame"),
        (
            frame(4, 1, b'a"b\\c\n\t~'),
            501,
            r'type 4, all octets = <<"a\"b\\c\n\t~">>: unknown_frame',
        ),
        (
            frame(4, 1, b"GET / HTTP/1.1\r\nHost: x"),
            501,
            r'type 4, first 16 octets = <<"GET / HTTP/1.1\r\n">>: unknown_frame',
        ),
        (frame(0, 1, b""), 501, "type 0, all octets = <<>>: unknown_frame"),
        (frame(8, 0, b"\x01"), 501, "type 8, all octets = <<1>>: unknown_frame"),
        (frame(8, 5, b""), 505, "type 8, all octets = <<>>"),
        (
            frame(1, 0, bytes(20))[:-1] + b"\x00",
            501,
            "type 1, first 16 octets = <<0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0>>: {invalid_frame_end_marker,0}",
        ),
        (
            b"\x03\x00\x01" + (FRAME_MAX + 1).to_bytes(4, "big"),
            501,
            "type 3, all octets = <<>>: {frame_too_large,4097,4088}",
        ),
        (
            b"\x01\x00\x01\xff\xff\xff\xff",
            501,
            "type 1, all octets = <<>>: {frame_too_large,4294967295,4088}",
        ),
    ],
)
def test_frames_that_cannot_be(
    line: Callable[..., Line], data: bytes, code: int, text: str
) -> None:
    one = line()
    one.ledger()
    assert one.send(publish(b"x") + data + publish(b"y")) == [
        published(b"x"),
        ("broken", code, text),
    ]


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_publish_with_a_bad_end_is_refused_where_it_is(
    line: Callable[..., Line], count: int
) -> None:
    good = publish(b"x")
    for place in (len(publish_method(1, b"", b"q")) - 1, len(good) - 10, len(good) - 1):
        assert good[place] == 0xCE
        bad = good[:place] + b"\x00" + good[place + 1 :]
        one = line()
        one.ledger()
        one.send(good * count + bad + good)
        assert one.events[:count] == [published(b"x")] * count
        *whole, last = one.events[count:]
        assert last[:2] == ("broken", 501)
        assert whole == frames(good)[: len(whole)]


def test_a_frame_is_as_large_as_agreed(line: Callable[..., Line]) -> None:
    for size, accepted in ((FRAME_MAX, True), (FRAME_MAX + 1, False)):
        one = line()
        one.ledger()
        small = publish(b"x")
        one.send(small + publish(bytes(size), piece=size) + small)
        assert (one.events[1:] == [published(bytes(size)), published(b"x")]) is accepted
        if not accepted:
            assert one.events[-1][:2] == ("broken", 501)


@pytest.mark.parametrize("piece", [1, 5, 8, 100])
def test_the_protocol_header_comes_first(line: Callable[..., Line], piece: int) -> None:
    one = line(header=True)
    one.ledger()
    data = HEADER + publish(b"x")
    one.send(*(data[at : at + piece] for at in range(0, len(data), piece)))
    assert one.events == [("header", HEADER), published(b"x")]


def test_what_follows_a_pause_is_handled_after_it_in_order(line: Callable[..., Line]) -> None:
    one = line(header=True)
    one.ledger()
    stop = method(1, 50, 10)
    one.on_frame = lambda *_: one.reactor.pause(one.connection, PAUSED_STEP)
    assert one.send(HEADER + publish(b"a") + stop + publish(b"b")) == [
        ("header", HEADER),
        published(b"a"),
        *frames(stop),
    ]
    one.reactor.resume(one.connection, PAUSED_STEP)
    assert one.events[3:] == [published(b"b")]


def test_a_run_outlives_the_buffer_when_it_is_detached(line: Callable[..., Line]) -> None:
    one = line()
    one.ledger()
    kept: list[Any] = []

    def publish_run(connection: Any, channel: int, run: Any) -> None:
        run.payload(run.count - 1)
        run.detach()
        run.detach()
        kept.append(run)

    one.publish_run = publish_run  # type: ignore[method-assign]
    one.send(HEARTBEAT + b"".join(publish(b"%d" % n * n) for n in range(5)))
    one.send(publish(b"\xff" * 500))
    assert kept[0].payloads() == [b"%d" % n * n for n in range(5)]
    assert kept[0].payload(2) == b"22"


def test_a_lost_connection_leaves_nothing(line: Callable[..., Line]) -> None:
    one = line()
    one.ledger()
    one.send(publish(b"x")[:-1])
    assert one.connection.tail is not None
    one.client.close()
    one.reactor.tick()
    assert one.ended
    assert (one.connection.ledgers, one.connection.tail, one.connection.handler) == (
        None,
        None,
        None,
    )
