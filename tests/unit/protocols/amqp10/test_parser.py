"""Frames and protocol headers as they come: whole, in pieces, and wrong."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.net import sockets
from fluxmq.protocols.amqp10.delivery import FIRST_BYTES, NEXT_BYTES, transfer_frames
from fluxmq.protocols.amqp10.frames import AMQP_HEADER, SASL_HEADER, TLS_HEADER, frame
from fluxmq.protocols.amqp10.parser import Amqp10Parser, begins_amqp10
from fluxmq.protocols.amqp10.performatives import (
    AcceptedState,
    CloseFrame,
    DispositionFrame,
    ErrorCondition,
    RejectedState,
    ReleasedState,
    TransactionalState,
    TransferFrame,
    read,
)
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.protocols.connection import Connection, Tally


class Log:
    """A handler that notes what it gets. ``most``: transfers of a run that it takes at a time;
    ``accepts``: it takes ranges of accepted deliveries."""

    def __init__(self, most: int = 0, accepts: bool = False) -> None:
        self.seen: list[Any] = []
        self.most = most
        self.accepts = accepts

    def protocol_header(self, connection: Connection, header: bytes) -> None:
        self.seen.append(header)

    def frame(self, connection: Connection, kind: int, channel: int, body: bytes) -> None:
        self.seen.append((kind, channel, body))

    def transfers(self, connection: Connection, run: TransferRun, index: int) -> int:
        taken = min(run.count - index, self.most)
        if taken:
            self.seen.append((run.channel, run.first + index, taken))
        return taken

    def accepted(self, connection: Connection, channel: int, first: int, last: int) -> bool:
        if self.accepts:
            self.seen.append((channel, first, last))
        return self.accepts

    def processed(self, connection: Connection) -> None:
        self.seen.append("processed")

    def broken(self, connection: Connection, text: str) -> None:
        self.seen.append(text)


def parsed(
    data: bytes, version: int = 1, most: int = 0, accepts: bool = False
) -> tuple[list[Any], Connection]:
    """What a handler gets of these bytes."""
    connection = Connection(0, Tally(), [], 1 << 20, sockets.send)
    connection.version = version
    log = connection.handler = Log(most, accepts)
    Amqp10Parser(1 << 16).process(connection, bytearray(data), len(data))
    return log.seen, connection


def test_a_header_and_frames_are_passed_on_and_the_rest_is_kept() -> None:
    close = frame(3, CloseFrame())
    seen, connection = parsed(AMQP_HEADER + close + close[:5], version=0)
    assert seen == [AMQP_HEADER, (0, 3, close[8:]), "processed"]
    assert connection.tail == close[:5]
    assert connection.version == 1


def test_an_extended_header_is_passed_over_and_an_empty_body_is_a_heartbeat() -> None:
    seen, _ = parsed(b"\0\0\0\x0e\x03\0\0\x01extrab" + b"\0\0\0\x08\x02\0\0\0")
    assert seen == [(0, 1, b"ab"), (0, 0, b""), "processed"]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"\0\1\0\0\x02\0\0\0", "a frame of 65536 bytes, the maximum is 4096"),
        (b"\0\0\0\x08\x01\0\0\0", "a frame of 8 bytes with its body at 4"),
        (b"\0\0\0\x07\x02\0\0\0", "a frame of 7 bytes with its body at 8"),
        (b"\0\0\0\x08\x03\0\0\0", "a frame of 8 bytes with its body at 12"),
        (b"\0\0\0\x08\x02\x02\0\0", "a frame of the unknown type 2"),
    ],
)
def test_what_is_no_frame_is_told_at_once(header: bytes, text: str) -> None:
    seen, connection = parsed(header)
    assert seen == [text]
    assert connection.tail is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (AMQP_HEADER, True),
        (SASL_HEADER + b"more", True),
        (TLS_HEADER, True),
        (b"AMQP\0\0\x09\1", False),
        (AMQP_HEADER[:7], False),
    ],
)
def test_first_bytes_of_amqp_1_0(data: bytes, expected: bool) -> None:
    assert begins_amqp10(bytearray(data), len(data)) is expected


@pytest.mark.parametrize("size", [0, 1, 512 - FIRST_BYTES, 513 - FIRST_BYTES, 5000])
def test_a_message_becomes_frames_of_the_size_agreed_on(size: int) -> None:
    message = bytes(index % 251 for index in range(size))
    frames = transfer_frames(2, 7, 0xFFFFFFFF, True, message, 512)
    assert all(len(each) <= 512 for each in frames)
    assert all(len(each) == 512 for each in frames[:-1])
    found = [read(each, 8) for each in frames]
    assert b"".join(each[end:] for each, (_, end) in zip(frames, found, strict=True)) == message
    first, *others = [body for body, _ in found]
    more = len(frames) > 1
    tag = b"\xff\xff\xff\xff"
    assert first == TransferFrame(7, 0xFFFFFFFF, tag, 0, True, more)
    assert [each.more for each in others] == [True] * (len(others) - 1) + [False] * more
    assert NEXT_BYTES < FIRST_BYTES


def transfer(number: int, more: bool = False) -> bytes:
    """A frame with a transfer on channel 2."""
    return frame(2, TransferFrame(0, number, b"t", 0, more=more), b"\0\x53\x75\xa0\1x")


def accept(first: int, last: int | None = None, channel: int = 2, **fields: Any) -> bytes:
    """A frame with a receiver's disposition."""
    said = {"settled": True, "state": AcceptedState(), **fields}
    return frame(channel, DispositionFrame(True, first, last, **said))


def test_transfers_are_handed_over_as_runs_and_what_is_not_taken_as_frames() -> None:
    data = b"".join(transfer(number, more=number == 5) for number in range(7))
    frames = [(0, 2, transfer(number, number == 5)[8:]) for number in range(7)]
    runs = [(2, 0, 3), (2, 3, 2), frames[5], (2, 6, 1), "processed"]
    assert parsed(data, most=3)[0] == runs
    assert parsed(data)[0] == [*frames, "processed"]
    seen, connection = parsed(data[:-1], most=9)
    assert seen == [(2, 0, 5), frames[5], "processed"]
    assert connection.tail == transfer(6)[:-1]


def test_accepted_deliveries_are_handed_over_as_ranges() -> None:
    parts = [accept(5), accept(6, 9), accept(10), accept(12), accept(13, channel=3), accept(3, 3)]
    frames = [(0, each[7], each[8:]) for each in parts]
    data = b"".join(parts)
    ranges = [(2, 5, 10), (2, 12, 12), (3, 13, 13), (2, 3, 3), "processed"]
    assert parsed(data, accepts=True)[0] == ranges
    assert parsed(data)[0] == [*frames, "processed"]
    wraps = accept(0xFFFFFFFF) + accept(0, 1, batchable=True)
    assert parsed(wraps, accepts=True)[0] == [(2, 0xFFFFFFFF, 1), "processed"]
    half = 1 << 31
    wide = accept(0, half - 1) + accept(half, half + 5)
    seen = [(2, 0, half - 1), (2, half, half + 5), "processed"]
    assert parsed(wide, accepts=True)[0] == seen, "serials tell no more than half of them apart"


@pytest.mark.parametrize(
    "other",
    [
        accept(5, settled=False),
        accept(5, state=ReleasedState()),
        accept(5, state=None),
        accept(5, state=RejectedState(ErrorCondition(Symbol("amqp:internal-error")))),
        accept(5, state=TransactionalState(b"t", AcceptedState())),
        accept(6, 5),
        frame(2, DispositionFrame(False, 5, 5, True, AcceptedState())),
        accept(5)[:-2] + b"\xd0" + accept(5)[-1:],
        accept(5)[:14] + b"\x42" + accept(5)[15:],
    ],
)
def test_other_outcomes_are_handed_over_as_frames(other: bytes) -> None:
    seen, _ = parsed(accept(4) + other + accept(6), accepts=True)
    assert seen == [(2, 4, 4), (0, 2, other[8:]), (2, 6, 6), "processed"]
