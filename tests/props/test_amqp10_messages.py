"""Messages of AMQP 1.0 in a queue: they leave as they came, and any bytes get only the standard's errors."""

from __future__ import annotations

from contextlib import suppress

import proton
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.amqp10_sections import MESSAGE_ANNOTATIONS, PROPERTIES, read_fields, scan
from fluxmq.model.amqp10_values import AmqpValueError, end_of, read_value
from fluxmq.model.properties import Item, PropertyError, PropertyKind, decode, encode
from fluxmq.protocols.amqp091 import message_properties as amqp091
from fluxmq.protocols.amqp10 import codec
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.message_template import sections_of, template_of
from fluxmq.protocols.mqtt import message_properties as mqtt
from tests.props.amqp10_messages import TRANSFERS
from tests.props.amqp10_values import VALUES


def bare(data: bytes) -> bytes:
    """The bytes of properties, application properties, body and footer."""
    return b"".join(
        data[section.start : section.end]
        for section in scan(data, 0, len(data))
        if section.code >= PROPERTIES
    )


@given(TRANSFERS)
def test_the_bare_message_leaves_byte_for_byte(data: bytes) -> None:
    message = from_sections(data)
    block = message.block("orders", "me")
    sent = sections_of(block, b"key", message.payload)
    assert bare(sent) == bare(data)
    again = from_sections(sent)
    assert (again.payload, again.content[:1]) == (message.payload, message.content[:1])
    assert encode(decode(block)) == block


@given(TRANSFERS)
def test_annotations_leave_with_the_broker_s_own(data: bytes) -> None:
    message = from_sections(data)
    sent = sections_of(message.block("orders", "me"), b"key", message.payload)
    (section,) = [each for each in scan(sent, 0, len(sent)) if each.code == MESSAGE_ANNOTATIONS]
    found = codec.decode(sent, section.value, section.end)[0]
    assert found.pop("x-exchange") == "orders"
    assert found.pop("x-routing-key") == "key"
    given_ = [each for each in scan(data, 0, len(data)) if each.code == MESSAGE_ANNOTATIONS]
    before = codec.decode(data, given_[0].value, given_[0].end)[0] if given_ else {}
    ours = ("x-exchange", "x-opt-dlq-reason")
    assert repr(found) == repr({key: value for key, value in before.items() if key not in ours})


@given(TRANSFERS)
def test_every_other_protocol_has_properties_for_it(data: bytes) -> None:
    message = from_sections(data)
    block = message.block("orders", "me")
    items = decode(block)
    for reader in SectionReader:
        for item in expanded(items, reader):
            assert item.kind is not PropertyKind.AMQP10 or reader is SectionReader.TABLE
    mqtt.from_block(block, reserved=True)
    amqp091.from_block(block, extra={"x-delivery-count": 1})
    amqp091.block_headers(block)


@given(TRANSFERS)
def test_proton_reads_what_a_consumer_gets(data: bytes) -> None:
    message = from_sections(data)
    sent = sections_of(message.block("orders", "me"), b"key", message.payload, delivery_count=3)
    received = proton.Message()
    received.decode(sent)
    assert received.delivery_count == 3
    # Proton knows descriptors as numbers only.
    if message.columns.subject is not None and b"amqp:" not in data:
        assert received.subject == message.columns.subject.decode()


@given(VALUES)
def test_values_are_read_as_the_codec_reads_them(value: object) -> None:
    raw = codec.encode(value)
    assert end_of(raw, 0, len(raw)) == len(raw)
    assert read_value(raw, 0, len(raw))[1] == len(raw)


@given(
    st.binary(max_size=60)
    | st.tuples(TRANSFERS, st.integers(0, 1 << 16), st.integers(0, 255)).map(
        lambda each: _changed(*each)
    )
    | st.tuples(TRANSFERS, st.integers(0, 1 << 16)).map(lambda each: each[0][: each[1]])
)
def test_only_decode_errors_escape(data: bytes) -> None:
    with suppress(AmqpValueError):
        message = from_sections(data)
        block = message.block("", "me")
        sections_of(block, b"", message.payload)
        mqtt.from_block(block)
        amqp091.from_block(block)


def _changed(data: bytes, at: int, byte: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes((byte,)) + data[at + 1 :]


@given(st.binary(max_size=40))
def test_a_stored_item_of_any_bytes(content: bytes) -> None:
    try:
        read_fields(content)
    except PropertyError:
        return
    items = [Item(PropertyKind.AMQP10, content)]
    for reader in SectionReader:
        expanded(items, reader)
    template_of(encode(items), b"key").message(b"payload")
