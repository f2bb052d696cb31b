"""Runs of transfers: which messages need no check of their own, and what is published of them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fluxmq.model.batch_format import PROPERTIES, Batch, parse, verify
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.performatives import TransferFrame
from fluxmq.protocols.amqp10.transfer_run import RUN_MAX, MessageShape, TransferRun
from fluxmq.protocols.amqp10.types import Milliseconds, Symbol, ULong, Uuid
from tests.unit.protocols.amqp10.sections import encoded

FRAME_MAX = 1 << 17
EXCHANGE, KEY = "", b"q"
IDS: tuple[Any, ...] = (
    *("m-1", "m-22", "", "x" * 90, None, ULong(0), ULong(7), ULong(1 << 40)),
    *(Uuid(bytes(range(16))), b"binary", b"b" * 80),
)


def transfers(*messages: bytes, first: int = 5, **fields: Any) -> bytes:
    """Frames with these messages on handle 3 of channel 2."""
    return b"".join(
        frame(2, TransferFrame(3, (first + index) & 0xFFFFFFFF, b"t%d" % index, 0, **fields), each)
        for index, each in enumerate(messages)
    )


def read(data: bytes, at: int = 0) -> TransferRun:
    """The run that begins the bytes."""
    run = TransferRun()
    run.read(bytearray(data), at, len(data), FRAME_MAX)
    return run


def message(payload: bytes, *fields: Any, before: bytes = b"", behind: bytes = b"") -> bytes:
    """A message with these properties."""
    return before + encoded(0x73, list(fields)) + behind + encoded(0x75, payload)


def shape_of(data: bytes) -> MessageShape:
    """The shape of a plain message, as the sessions make it."""
    checked = from_sections(data)
    size = len(checked.payload)
    front = data[: len(data) - size - (1 if size <= 0xFF else 4)]
    at = front.index(b"\0\x53\x73")
    tail = front[at:-4]
    block = checked.block(EXCHANGE, "guest")
    lead = checked.content[: len(checked.content) - len(tail)]
    width = 1 if len(checked.content) < 0x80 else 2
    return MessageShape(front, block[: len(block) - len(checked.content) - width], lead, at)


def published(shape: MessageShape, run: TransferRun) -> AmqpPublishRun:
    """All of a run, which is of one shape, as it is published."""
    assert shape.extent(run, 0, run.count) == run.count
    buffer = shape.framed(run, 0, run.count)
    made = AmqpPublishRun(buffer, 0, len(buffer), run.channel, b"", KEY, 0, b"\0\0")
    made.count, made.header_size, made.stride = run.count, 19, shape.stride
    made.payload_bytes, made.largest, made.kept = shape.payload_bytes, shape.largest, True
    made.blocks = shape.blocks(run, 0, run.count) if shape.varied else None
    return made


def stored(shape: MessageShape, made: AmqpPublishRun, common: bytes = b"") -> list[Batch]:
    """The batches of a run."""
    batches = [
        parse(each) for each in build_amqp_batches(made, KEY, common, 1000, 0, 0, 0, 0, 0x300)
    ]
    for batch in batches:
        verify(batch)
    return batches


def test_successive_transfers_of_a_link_are_a_run() -> None:
    data = transfers(message(b"a"), message(b"bb"), message(b"ccc"), first=0xFFFFFFFE)
    run = read(b"xx" + data + data[:20], 2)
    assert (run.count, run.channel, run.handle, run.first) == (3, 2, 3, 0xFFFFFFFE)
    assert (run.settled, run.largest) == (False, len(message(b"ccc")))
    assert [run.message(index) for index in range(3)] == [
        message(b"a"),
        message(b"bb"),
        message(b"ccc"),
    ]
    assert (run.begin(0), run.end(2)) == (2, 2 + len(data))
    assert run.begin(1) == run.end(0)


@pytest.mark.parametrize(
    "other",
    [
        frame(2, TransferFrame(3, 7, b"t", 0), message(b"x")),
        frame(2, TransferFrame(4, 6, b"t", 0), message(b"x")),
        frame(3, TransferFrame(3, 6, b"t", 0), message(b"x")),
        frame(2, TransferFrame(3, 6, b"t", 0, True), message(b"x")),
        frame(2, TransferFrame(3, 6, b"t", 0, more=True), message(b"x")),
        frame(2, TransferFrame(3, 6, b"t", 0, aborted=True), message(b"x")),
        frame(2, TransferFrame(3, 6, b"t", 0, resume=True), message(b"x")),
        frame(2, TransferFrame(3, 6, b"t", 0, rcv_settle_mode=1), message(b"x")),
        frame(2, TransferFrame(3, 6, b"t", 1), message(b"x")),
        frame(2, TransferFrame(3, None, None, 0), message(b"x")),
        frame(2, TransferFrame(3, 6, b"t" * 300, 0), message(b"x")),
        b"\0\0\0\x08\x02\0\0\0",
    ],
)
def test_what_ends_a_run(other: bytes) -> None:
    assert read(transfers(message(b"a")) + other).count == 1


@pytest.mark.parametrize("fields", [{"settled": True}, {"batchable": True}, {"settled": None}])
def test_forms_of_transfers_in_a_run(fields: dict[str, Any]) -> None:
    run = read(transfers(message(b"a"), message(b"b"), **fields))
    assert (run.count, run.settled) == (2, fields.get("settled") is True)
    assert read(frame(2, TransferFrame(3, 5, b"t"), message(b"a"))).count == 1


def test_a_run_has_as_many_transfers_as_a_batch() -> None:
    small = b"\0\x53\x75\xa0\0"
    data = transfers(*[small] * (RUN_MAX + 1), first=0)
    assert read(data).count == RUN_MAX


def test_no_cut_or_changed_byte_is_read_beyond() -> None:
    data = transfers(message(b"a", "id"), message(b"b", "id"))
    shape = shape_of(message(b"a", "id"))
    for end in range(len(data)):
        run = TransferRun()
        count = run.read(bytearray(data[:end]), 0, end, FRAME_MAX)
        assert shape.extent(run, 0, count) == count
    for at in range(len(data)):
        for value in (0, 0x43, 0x70, 0xD0, 0xFF, data[at] ^ 1):
            changed = bytearray(data)
            changed[at] = value
            run = TransferRun()
            count = run.read(changed, 0, len(changed), FRAME_MAX)
            assert 0 <= shape.extent(run, 0, count) <= count <= 2


def test_equal_messages_have_no_blocks_of_their_own() -> None:
    first = message(b"a", None, None, None, "subject", before=encoded(0x70, [True]))
    run = read(transfers(first, first[:-2] + b"\0", first[:-2] + b"\2bb"))
    shape = shape_of(first)
    made = published(shape, run)
    assert (made.count, made.payloads(), made.blocks) == (3, [b"a", b"", b"bb"], None)
    assert (made.largest, made.payload_bytes, made.stride) == (2, 3, 0)
    block = from_sections(first).block(EXCHANGE, "guest")
    (batch,) = stored(shape, made, block)
    assert not batch.flags & PROPERTIES
    assert batch.properties(2) == block
    assert batch.attributes(0) == 0x300


def test_ids_and_creation_times_are_put_into_blocks_as_they_came() -> None:
    annotations = encoded(0x72, {Symbol("x-a"): "kept", Symbol("x-exchange"): "dropped"})
    before = encoded(0x70, [True, None]) + annotations
    behind = encoded(0x74, {"n": 1})
    sent = [
        message(
            b"payload %d" % index,
            *(name, None, None, "s", "/queues/r", IDS[-1 - index], Symbol("t"), None, None),
            *(Milliseconds(index - 3), "group"),
            before=before,
            behind=behind,
        )
        for index, name in enumerate(IDS)
    ]
    shape = shape_of(sent[0])
    made = published(shape, read(transfers(*sent)))
    (batch,) = stored(shape, made)
    checked = [from_sections(each) for each in sent]
    assert [batch.properties(index) for index in range(len(sent))] == [
        each.block(EXCHANGE, "guest") for each in checked
    ]
    assert [batch.payload(index) for index in range(len(sent))] == [
        each.payload for each in checked
    ]
    assert batch.flags & PROPERTIES
    assert made.block(1, b"") == batch.properties(1)
    single = made.single(1)
    (alone,) = stored(shape, single)
    assert (alone.properties(0), alone.payload(0)) == (batch.properties(1), batch.payload(1))
    assert not alone.flags & PROPERTIES


def test_a_run_of_many_batches_has_the_right_blocks_in_each() -> None:
    sent = [message(bytes(60_000), f"id-{index}") for index in range(40)]
    shape = shape_of(sent[0])
    made = published(shape, read(transfers(*sent)))
    batches = stored(shape, made)
    assert len(batches) > 2
    found = [batch.properties(index) for batch in batches for index in range(batch.count)]
    assert found == [from_sections(each).block(EXCHANGE, "guest") for each in sent]


@pytest.mark.parametrize(
    "other",
    [
        message(b"x", "id", None, None, "other"),
        message(b"x", "id", None, None, "subject", None),
        message(b"x", "id", None, None, "subject", None, "text"),
        message(b"x", "id", None, None, "subject", None, 5),
        message(b"x", "ä", None, None, "subject"),
        message(b"x", Symbol("id"), None, None, "subject"),
        message(b"x", 7, None, None, "subject"),
        message(b"x", True, None, None, "subject"),
        message(b"x" * 256, "id", None, None, "subject"),
        message(b"x", "id", None, None, "subject", behind=encoded(0x74, {"a": 1})),
        message(b"x", "id", None, None, "subject", before=encoded(0x70, [True])),
        message(b"x", "id", None, None, "subject") + encoded(0x78, {}),
        message(b"x", "id", None, None, "subject") + encoded(0x75, b"y"),
        encoded(0x73, ["id", None, None, "subject"]) + encoded(0x77, "text"),
        encoded(0x73, ["id", None, None, "subject"], 1) + encoded(0x75, b"x"),
    ],
)
def test_messages_of_another_shape_are_checked(other: bytes) -> None:
    first = message(b"a", "first", None, None, "subject")
    run = read(transfers(first, other))
    assert run.count == 2
    assert shape_of(first).extent(run, 0, 2) == 1


@pytest.mark.parametrize("created", ["text", ULong(1), True])
def test_a_creation_time_is_a_timestamp(created: object) -> None:
    nulls = [None] * 8
    first = message(b"a", "id", *nulls, Milliseconds(1))
    run = read(
        transfers(first, message(b"a", "id", *nulls, None), message(b"a", "id", *nulls, created))
    )
    assert shape_of(first).extent(run, 0, 3) == 2


def test_without_variation_others_have_to_be_equal() -> None:
    first, second = message(b"a", "one"), message(b"b", "two")
    run = read(transfers(first, message(b"c", "one"), second))
    front = first[: len(first) - 2]
    assert MessageShape(front).extent(run, 0, 3) == 2
    assert MessageShape(front, b"head", b"lead", 0).extent(run, 0, 3) == 3


def test_a_length_in_the_other_form_is_another_shape() -> None:
    long = b"\0\x53\x75\xb0" + struct.pack(">I", 5) + b"short"
    run = read(transfers(encoded(0x75, b"y" * 300), long))
    front = b"\0\x53\x75\xb0"
    assert MessageShape(front).extent(run, 0, 2) == 1
