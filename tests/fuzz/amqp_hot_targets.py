"""AMQP 0.9.1's parser for fuzzing: bytes of a hostile client in, what its handler was given out.

The first byte chooses the size of the receive buffer and where the bytes are cut. After every input the handler has
what a naive reading of the frames gives, and the connection keeps no more than a publish that is not whole.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Final

from tests.props.amqp_streams import meaning
from tests.unit.protocols.amqp091.line import (
    FRAME_MAX,
    HEARTBEAT,
    Line,
    ack,
    content_header,
    frame,
    method,
    publish,
    publish_method,
)

OUTSTANDING: Final = 20
"""Deliveries that wait for an acknowledgement on each of two channels."""
KEPT_MAX: Final = 3 * FRAME_MAX
"""Bytes of a publish that is not whole: three frames, and the method's is far from being so large."""


def fuzz_parser(data: bytes) -> Hashable:
    """Choice byte, bytes of the client."""
    if not data:
        return "short"
    random = Random(data[0] // 3)
    stream = data[1:]
    line = Line(receive_bytes=(16, 100, 65_536)[data[0] % 3])
    try:
        ledgers = {number: line.ledger(number) for number in (1, 2)}
        for ledger in ledgers.values():
            ledger.given("consumer", OUTSTANDING, 1)
        line.send(*_pieces(random, stream))
        outstanding = {number: set(range(1, OUTSTANDING + 1)) for number in ledgers}
        expected = meaning(stream, outstanding)
        events = [event[:2] if event[0] == "broken" else event for event in line.events]
        assert events == expected
        for number, ledger in ledgers.items():
            assert ledger.unsettled == len(outstanding[number])
        connection = line.connection
        assert len(connection.tail or b"") + connection.gathered <= KEPT_MAX
        return _outcome(line, events, connection.tail is not None)
    finally:
        line.close()


def _pieces(random: Random, data: bytes) -> list[bytes]:
    """The bytes cut; an even choice sends them at once."""
    if random.randrange(2):
        return [data]
    pieces = []
    at = 0
    while at < len(data):
        size = random.choice((1, 2, 7, 20, 100))
        pieces.append(data[at : at + size])
        at += size
    return pieces


def _outcome(line: Line, events: list[tuple[object, ...]], kept: bool) -> Hashable:
    kinds = tuple(dict.fromkeys(event[:2] for event in events))
    return kinds, tuple(min(count, 9) for count in line.runs)[:3], kept


def corpus() -> list[bytes]:
    """What ordinary clients send."""
    small = publish(b"x")
    streams = [
        small * 3,
        small * 9 + publish(b"yy"),
        publish(b"", exchange=b"e") + publish(b"x", key=b"k", bits=3),
        publish(b"0123456789", piece=4) + small,
        publish(b"x", channel=3),
        publish_method(1, b"", b"q") + content_header(2, 1) + frame(3, 1, b"x"),
        ack(1) + ack(3) + ack(9, multiple=True) + ack(0, multiple=True),
        ack(5, channel=2) * 2,
        HEARTBEAT + small + HEARTBEAT,
        method(0, 10, 11, bytes(8)) + method(1, 20, 10),
        frame(2, 1, b"") + frame(3, 2, b"body"),
        frame(4, 1, b""),
        small[:-3],
    ]
    return [bytes((choice,)) + stream for stream in streams for choice in (0, 1, 2, 7)]
