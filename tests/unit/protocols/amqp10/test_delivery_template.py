"""Deliveries written straight from a batch: the same transfers as those of each message by itself."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.model.amqp10_sections import Body
from fluxmq.model.batch_format import ATTRIBUTE_REDELIVERED, Batch, parse
from fluxmq.model.batches import BatchMessage, encode
from fluxmq.model.properties import Item, PropertyKind
from fluxmq.model.properties import encode as encode_block
from fluxmq.protocols.amqp10.codec import encode as encode_value
from fluxmq.protocols.amqp10.delivery import (
    FIRST_BYTES,
    DeliveryTemplate,
    TransferForm,
    transfer_frames,
)
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.message_template import template_of
from fluxmq.protocols.amqp10.types import Milliseconds, Symbol, ULong
from tests.unit.protocols.amqp10.sections import encoded

KEY = b"q"
FRAME_MAX = 4096
FORM = TransferForm(1, 2, False, FRAME_MAX)


def stored(*sent: bytes, **columns: Any) -> Batch:
    """A batch of messages that came by AMQP 1.0."""
    found = []
    for data in sent:
        message = from_sections(data)
        block = message.block("", "guest")
        found.append(BatchMessage(KEY, block, message.payload, 1000, **columns))
    return parse(encode(found, 70))


def template(batch: Batch, index: int = 0, **said: Any) -> DeliveryTemplate:
    """The template of a message's deliveries."""
    block, key = batch.properties(index), batch.key(index)
    made = template_of(block, key).delivery(block, key, **said)
    assert made is not None
    return made


def singly(batch: Batch, first: int, count: int, number: int, **said: Any) -> bytes:
    """The transfers of messages, each by itself."""
    return b"".join(
        b"".join(
            transfer_frames(
                *(1, 2, (number + index - first) & 0xFFFFFFFF, False),
                template_of(batch.properties(index), batch.key(index)).message(
                    batch.payload(index), **said
                ),
                FRAME_MAX,
            )
        )
        for index in range(first, first + count)
    )


def message(payload: bytes, *fields: Any, annotated: bool = True) -> bytes:
    """A durable message with these properties."""
    annotations = encoded(0x72, {Symbol("x-opt-a"): "kept"}) if annotated else b""
    return (
        encoded(0x70, [True]) + annotations + encoded(0x73, list(fields)) + encoded(0x75, payload)
    )


def test_equal_messages_and_such_with_other_properties_are_written_at_once() -> None:
    batch = stored(
        message(b"a", "id-1", None, None, None, None, None, None, None, None, Milliseconds(5)),
        message(b"bb", "id-22"),
        message(b"", None, None, None, "subject"),
        message(b"c" * 300, "i" * 400),
        encoded(0x72, {Symbol("x-opt-a"): "kept"}) + encoded(0x73, []) + encoded(0x75, b"last"),
    )
    made = template(batch)
    data = made.encode(batch, 0, 4, FORM, 0xFFFFFFFE, 1 << 20)
    assert made.count == 4
    assert data == singly(batch, 0, 4, 0xFFFFFFFE)
    # The last one is not durable.
    assert made.encode(batch, 4, 1, FORM, 9, 1 << 20) == b""
    assert (made.count, made.matches(batch, 3), made.matches(batch, 4)) == (0, True, False)


@pytest.mark.parametrize("annotated", [True, False])
def test_all_with_one_block(annotated: bool) -> None:
    batch = stored(*[message(b"p%d" % index, "one", annotated=annotated) for index in range(5)])
    made = template(batch, delivery_count=2, first_acquirer=False)
    data = made.encode(batch, 1, 3, FORM, 11, 1 << 20)
    assert data == singly(batch, 1, 3, 11, delivery_count=2, first_acquirer=False)


def test_settled_deliveries_say_so() -> None:
    batch = stored(message(b"x"))
    made = template(batch)
    sent = template_of(batch.properties(0), KEY).message(b"x")
    assert made.encode(batch, 0, 1, TransferForm(1, 2, True, FRAME_MAX), 3, 100) == b"".join(
        transfer_frames(1, 2, 3, True, sent, FRAME_MAX)
    )


def test_room_and_frames_bound_what_is_written() -> None:
    batch = stored(*[message(b"x" * 10)] * 6)
    made = template(batch)
    one = len(made.encode(batch, 0, 1, FORM, 1, 1))
    assert made.count == 1
    made.encode(batch, 0, 6, FORM, 1, 2 * one + 1)
    assert made.count == 3
    made.encode(batch, 0, 6, TransferForm(1, 2, False, one), 1, 1 << 20)
    assert made.count == 6
    assert made.encode(batch, 0, 6, TransferForm(1, 2, False, one - 1), 1, 1 << 20) == b""
    assert one > FIRST_BYTES
    with pytest.raises(IndexError):
        made.encode(batch, 4, 3, FORM, 1, 1 << 20)


def test_another_mark_expiry_or_key_is_another_template() -> None:
    marked = stored(message(b"x"), attributes=ATTRIBUTE_REDELIVERED)
    expiring = stored(message(b"x"), expiry_us=10**15)
    plain = stored(message(b"x"))
    made = template(plain)
    assert [made.matches(each, 0) for each in (plain, marked, expiring)] == [True, False, False]
    made.redelivered = True
    assert [made.matches(each, 0) for each in (plain, marked, expiring)] == [False, True, False]
    made.redelivered, made.expiry = False, 10**15
    assert [made.matches(each, 0) for each in (plain, marked, expiring)] == [False, False, True]
    other = parse(encode([BatchMessage(b"k", plain.properties(0), b"x", 1000)]))
    assert not template(plain).matches(other, 0)


def test_messages_of_other_kinds_are_of_other_templates() -> None:
    data = message(b"x", "id")
    made = template(stored(data))
    others = [
        data + encoded(0x78, {"f": 1}),
        encoded(0x70, [True]) + encoded(0x73, ["id"]) + encoded(0x75, b"x"),
        encoded(0x70, [True])
        + encoded(0x72, {Symbol("x-opt-a"): "kept"})
        + encoded(0x73, ["id"])
        + encoded(0x77, "text"),
    ]
    assert [made.matches(stored(other), 0) for other in others] == [False] * 3
    block = from_sections(data).block("", "guest")
    dead = block + encode_block([Item(PropertyKind.DEAD_REASON, b"expired")])
    assert not made.matches(parse(encode([BatchMessage(KEY, dead, b"x", 1000)])), 0)


@pytest.mark.parametrize("body", [Body.TEXT, Body.SEVERAL, Body.VALUE])
def test_other_bodies(body: Body) -> None:
    bodies = {
        Body.TEXT: encoded(0x77, "text"),
        Body.SEVERAL: encoded(0x75, b"a") + encoded(0x75, b"b"),
        Body.VALUE: encoded(0x77, [1, 2]),
    }
    sent = encoded(0x73, ["id"]) + bodies[body]
    batch = stored(sent, sent, sent + encoded(0x78, {"f": 1}))
    made = template(batch)
    assert made.encode(batch, 0, 3, FORM, 1, 1 << 20) == singly(batch, 0, 2, 1)
    footer = template(batch, 2)
    assert footer.encode(batch, 2, 1, FORM, 1, 1 << 20) == singly(batch, 2, 1, 1)


def test_messages_of_other_protocols() -> None:
    block = encode_block(
        [
            Item(PropertyKind.PROTOCOL, 2),
            Item(PropertyKind.EXCHANGE, b"amq.direct"),
            Item(PropertyKind.MESSAGE_ID, b"m"),
            Item(PropertyKind.DELIVERY_MODE, 2),
        ]
    )
    batch = parse(
        encode([BatchMessage(KEY, block, each, 1000) for each in (b"a", b"", b"c" * 256)])
    )
    made = template(batch)
    assert made.encode(batch, 0, 3, FORM, 1, 1 << 20) == singly(batch, 0, 3, 1)
    text = encode_block([Item(PropertyKind.PROTOCOL, 1), Item(PropertyKind.PAYLOAD_FORMAT, 1)])
    assert template_of(text, KEY).delivery(text, KEY) is None


def test_offsets_of_a_stream_are_put_in_their_place() -> None:
    batch = stored(message(b"a", "1"), message(b"b", "2"))
    block = batch.properties(0)
    annotations = {"x-stream-offset": ULong(1 << 63)}
    made = template_of(block, KEY, annotations).delivery(block, KEY, numbered=True)
    assert made is not None
    data = made.encode(batch, 0, 2, FORM, 1, 1 << 20)
    expected = [
        frame
        for index in range(2)
        for frame in transfer_frames(
            *(1, 2, 1 + index, False),
            template_of(batch.properties(index), KEY, annotations).message(
                batch.payload(index), number=70 + index
            ),
            FRAME_MAX,
        )
    ]
    assert data == b"".join(expected)
    offset = encode_value(Symbol("x-stream-offset")) + b"\x80" + (70).to_bytes(8, "big")
    assert offset in expected[0]
