"""Entry points of the AMQP 1.0 parsers for fuzzing: bytes in, an outcome out, errors are findings.

What is read must also be written and read again, to the same bytes the second time.

Longer than 500 lines because it has a target for each of the parsers, with what it begins from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from contextlib import suppress
from random import Random
from typing import Final
from zlib import crc32

from fluxmq.model.amqp10_readers import SectionReader, expanded, header_value, topic_of_address
from fluxmq.model.amqp10_sections import (
    BROKERS_ANNOTATIONS,
    read_fields,
    scan,
    without_annotations,
)
from fluxmq.model.amqp10_values import AmqpValueError, end_of, read_value
from fluxmq.model.properties import Item, PropertyError, PropertyKind
from fluxmq.model.properties import decode as decode_block
from fluxmq.model.properties import encode as encode_block
from fluxmq.protocols.amqp091 import message_properties as amqp091
from fluxmq.protocols.amqp10 import codec
from fluxmq.protocols.amqp10.addresses import (
    NAME_BYTES_MAX,
    AddressError,
    exchange_address,
    jms_address,
    queue_address,
    source_of,
    target_of,
    target_of_message,
)
from fluxmq.protocols.amqp10.codec import MalformedError
from fluxmq.protocols.amqp10.conditions import ConditionError
from fluxmq.protocols.amqp10.filters import (
    FilterError,
    StoredMessage,
    jms_name,
    read_filters,
    sql_name,
)
from fluxmq.protocols.amqp10.frames import FRAME_SASL, frame
from fluxmq.protocols.amqp10.http_requests import (
    StatusError,
    decoded,
    read_request,
    write_response,
)
from fluxmq.protocols.amqp10.message import from_sections, hashed_properties, routing_headers
from fluxmq.protocols.amqp10.message_template import sections_of, template_of
from fluxmq.protocols.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    CoordinatorTerminus,
    DeclareBody,
    DeclaredState,
    DetachFrame,
    DischargeBody,
    DispositionFrame,
    EndFrame,
    ErrorCondition,
    FlowFrame,
    ModifiedState,
    OpenFrame,
    ReceivedState,
    RejectedState,
    ReleasedState,
    SaslChallengeFrame,
    SaslInitFrame,
    SaslMechanismsFrame,
    SaslOutcomeFrame,
    SaslResponseFrame,
    SourceTerminus,
    TargetTerminus,
    TransactionalState,
    TransferFrame,
    read,
    write,
)
from fluxmq.protocols.amqp10.selectors import SelectorError, compile_selector
from fluxmq.protocols.amqp10.transfers import read_transfer
from fluxmq.protocols.amqp10.types import (
    Array,
    Byte,
    Char,
    DecimalBits,
    Described,
    Float,
    Int,
    Milliseconds,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
    symbols,
)
from fluxmq.protocols.mqtt import message_properties as mqtt
from fluxmq.sessions.amqp10.management_bodies import arguments_hash, entries_of, map_of_table
from tests.fuzz.amqp091_targets import BLOCKS
from tests.props.amqp10_streams import BEGINNING, cut, outcome
from tests.unit.protocols.amqp10.sections import encoded

NOW_US: Final = 1_700_000_000_000_000


def _kind(error: object) -> str:
    """A text without what is only this input's."""
    return re.sub(r"0x[0-9a-f]+|'.*|\".*|\d+|descriptor .*|: .*", "", str(error), flags=re.DOTALL)


def fuzz_body(data: bytes) -> Hashable:
    """The body of a frame: a performative, or one of SASL."""
    short = read_transfer(data)
    try:
        body, at = read(data)
    except MalformedError as error:
        assert short is None
        return _kind(error)
    assert at <= len(data)
    assert short in (None, (body, at))
    # Bytes, because a NaN is not equal to itself.
    raw = write(body)
    again, end = read(raw)
    assert (write(again), end) == (raw, len(raw))
    return type(body).__name__, short is None


def fuzz_value(data: bytes) -> Hashable:
    """One value, by both of its readers."""
    stored: Hashable
    try:
        value, end = read_value(data, 0, len(data))
        assert end <= len(data)
        with suppress(AmqpValueError):  # a descriptor that is described is not walked over
            assert end_of(data, 0, len(data)) == end
        item = Item(PropertyKind.HEADER, header_value(value), b"n")
        stored = value.type
        with suppress(PropertyError):
            assert encode_block(decode_block(encode_block([item]))) == encode_block([item])
    except AmqpValueError as error:
        stored = _kind(error)
    try:
        found, at = codec.decode(data)
    except MalformedError as error:
        return stored, _kind(error)
    with suppress(MalformedError):
        assert codec.skip(data, 0, len(data)) == at
    raw = codec.encode(found)
    assert codec.encode(codec.decode_whole(raw)) == raw
    return stored, type(found).__name__


def _leaves(block: bytes, payload: bytes) -> bytes:
    """Return a stored message as AMQP 1.0 has it, once the other protocols' readers have read it."""
    mqtt.from_block(block, reserved=True)
    amqp091.from_block(block, extra={"x-delivery-count": 1})
    amqp091.block_headers(block)
    items = decode_block(block)
    for reader in SectionReader:
        with suppress(PropertyError):
            expanded(items, reader)
    made = StoredMessage(block)
    hash((made.filter_value, tuple(made.values)))
    return sections_of(block, b"key", payload, ttl_ms=7, delivery_count=2)


def fuzz_message(data: bytes) -> Hashable:
    """The content of a transfer, in and out of a queue."""
    try:
        message = from_sections(data)
    except AmqpValueError as error:
        return type(error).__name__, _kind(error)
    columns = message.columns
    assert 0 <= columns.expiry_us(NOW_US) < 1 << 63
    assert 0 <= columns.delay_us(NOW_US) < 1 << 63
    routing_headers(message.content)
    hashed_properties(message.content)
    block = message.block("orders", "me")
    assert encode_block(decode_block(block)) == block
    sent = _leaves(block, message.payload)
    again = from_sections(sent)
    assert (again.payload, again.content[:1]) == (message.payload, message.content[:1])
    assert from_sections(_leaves(again.block("orders", "me"), again.payload)) == again
    codes = tuple(sorted({section.code for section in scan(data, 0, len(data))}))
    return message.content[0], codes


def fuzz_stored(data: bytes) -> Hashable:
    """The sections of a message from a damaged disk."""
    try:
        fields = read_fields(data)
        routing_headers(data)
        hashed_properties(data)
        without_annotations(data, BROKERS_ANNOTATIONS)
        block = encode_block([Item(PropertyKind.AMQP10, data)])
        _leaves(block, b"payload")
        made = template_of(block, b"key")
    except PropertyError as error:
        return _kind(error)
    made.message(b"payload", number=1)
    made.delivery(block, b"key")
    return (
        len(fields.annotations),
        len(fields.application),
        tuple(each.type for each in fields.properties if each.type != "null"),
    )


def fuzz_foreign(data: bytes) -> Hashable:
    """A block of another protocol, or from a damaged disk, as a receiver of AMQP 1.0 gets it."""
    try:
        sent = _leaves(data, b"payload")
    except PropertyError as error:
        return _kind(error)
    try:
        message = from_sections(sent)
    except AmqpValueError as error:
        # Sections as they are on a damaged disk may be wrong; those that the broker makes, never.
        if not any(item.kind is PropertyKind.AMQP10 for item in decode_block(data)):
            raise
        return "sections", _kind(error)
    return message.content[0], tuple(sorted({s.code for s in scan(sent, 0, len(sent))}))


def fuzz_stream(data: bytes) -> Hashable:
    """Frames behind an opened session and link, whole and in two random cuts."""
    whole = outcome([BEGINNING + data])
    random = Random(crc32(data))
    for _ in range(2):
        places = [
            len(BEGINNING) + random.randint(0, len(data)) for _ in range(random.randint(1, 6))
        ]
        assert outcome(cut(BEGINNING + data, places)) == whole
    frames, kept, settled, _, closed, closing = whole
    kinds = tuple(dict.fromkeys(re.sub(r"\(.*", "", body) for _, body, _ in frames[3:]))
    errors = tuple(re.findall(r"condition='([^']*)'", repr(frames)))
    return kinds, errors, bool(kept), bool(settled), bool(closed), closing


def _stored_messages() -> list[StoredMessage]:
    found = [StoredMessage(from_sections(data).block("", "u")) for data in MESSAGES]
    return [*found, *(StoredMessage(block) for block in BLOCKS)]


def fuzz_selector(data: bytes) -> Hashable:
    """The text of a selector, in both dialects."""
    text = data.decode("utf-8", "replace")
    answers: list[Hashable] = []
    for names in (sql_name, jms_name):
        try:
            selector = compile_selector(text, names)
        except SelectorError as error:
            answers.append(_kind(error))
            continue
        found = [selector.matches(message.values, 5) for message in STORED]
        answers.append((any(found), all(found), selector.uses_clock))
    return tuple(answers)


def fuzz_filters(data: bytes) -> Hashable:
    """The filter-set of a source."""
    try:
        value = codec.decode_whole(data)
    except MalformedError:
        return "no value"
    if not isinstance(value, dict):
        return "no map"
    try:
        filters = read_filters(value)
    except FilterError as error:
        return _kind(error)
    codec.encode(filters.effective)
    messages = filters.messages
    if messages is not None:
        for block in BLOCKS:
            assert messages.matches(block, 5) in (True, False)
    kinds = tuple(
        str(each.descriptor) if isinstance(each, Described) else "-"
        for each in filters.effective.values()
    )
    return type(filters.offset).__name__, messages is None, kinds


def fuzz_address(data: bytes) -> Hashable:
    """The address of a terminus, and a message's ``to``."""
    text = data.decode("utf-8", "replace")
    answers: list[Hashable] = []
    topic_of_address(data)
    for address in (text, jms_address(text, ("topic",))):
        for version_1 in (True, False):
            try:
                target = target_of(address, version_1=version_1)
                assert len(target.exchange.encode()) <= NAME_BYTES_MAX
                assert len(target.routing_key.encode()) <= NAME_BYTES_MAX
                _returns(target.exchange, target.routing_key, target.queue)
                answers.append((bool(target.exchange), bool(target.queue), target.missing.name))
            except AddressError as error:
                answers.append((error.condition, _kind(error)))
            try:
                source = source_of(address, version_1=version_1)
                assert len(source.queue.encode()) <= NAME_BYTES_MAX
                answers.append((bool(source.exchange), bool(source.queue), source.declare))
            except AddressError as error:
                answers.append((error.condition, _kind(error)))
    try:
        answers.append(target_of_message(data).queue != "")
    except AddressError as error:
        answers.append((error.condition, _kind(error)))
    return tuple(answers)


def _returns(exchange: str, key: str, queue: str) -> None:
    """Assert that names come back from the address that the broker makes of them."""
    if queue:
        assert target_of(queue_address(queue), version_1=False).queue == queue
    elif exchange and "/" not in exchange + key:
        again = target_of(exchange_address(exchange, key), version_1=False)
        assert (again.exchange, again.routing_key) == (exchange, key)


_FLAGS: Final = ("durable", "exclusive", "auto_delete")


def fuzz_request(data: bytes) -> Hashable:
    """A request to the management node, its body and its answer."""
    try:
        request = read_request(data)
    except ConditionError as error:
        return str(error.condition), _kind(error.text)
    answer: Hashable
    body: object = None
    try:
        parts = [decoded(segment) for segment in request.path]
        entries = entries_of(request.body, "queue", _FLAGS, ("type",))
        arguments = entries.get("arguments", {})
        arguments_hash(arguments)
        body = map_of_table(arguments)
        answer = len(parts), len(request.query), tuple(entries)
        status = 200
    except StatusError as error:
        answer, status = _kind(error.text), error.status
        body = error.text
    scan(write_response(request.message_id, status, body), 0, 0)
    codec.decode(write_response(request.message_id, status, body))
    return status, answer


# --- corpora ---

_ERROR: Final = ErrorCondition(Symbol("amqp:not-found"), "text", {Symbol("k"): 1})
_SOURCE: Final = SourceTerminus(
    "/queues/q",
    dynamic_node_properties={Symbol("lifetime-policy"): Described(ULong(0x2B), [])},
    distribution_mode=Symbol("move"),
    filter={Symbol("f"): Described(Symbol("amqp:sql-filter"), "a = 1")},
    default_outcome=ModifiedState(True),
    outcomes=symbols("amqp:accepted:list"),
    capabilities=Symbol("queue"),
)
_FRAMES: Final[list[object]] = [
    OpenFrame("c", "h", 4096, 9, 60, symbols("en"), Symbol("en"), None, symbols("a"), {"p": 1}),
    BeginFrame(None, 0, 100, 100, 7, symbols("a", "b"), None, {Symbol("k"): None}),
    AttachFrame("r", 1, True, 1, 0, _SOURCE, TargetTerminus("t"), properties={Symbol("p"): 1}),
    AttachFrame("s", 2, False, target=TargetTerminus("/queues/q"), initial_delivery_count=0),
    AttachFrame("t", 3, False, target=CoordinatorTerminus(symbols("amqp:local-transactions"))),
    AttachFrame("u", 4, False, unsettled={b"t": None}, incomplete_unsettled=True),
    FlowFrame(0, 100, 0, 100, 1, 0, 20, 3, True, True, {Symbol("k"): 1}),
    FlowFrame(None, 1, 2, 3),
    TransferFrame(0, 0, b"t", 0, False),
    TransferFrame(0, 1, b"u", 0, True, state=TransactionalState(b"x", AcceptedState())),
    TransferFrame(0, 300, b"u", 0, None, True, aborted=True, batchable=True),
    DispositionFrame(True, 0, 3, True, AcceptedState()),
    DispositionFrame(True, 1, None, True, RejectedState(_ERROR)),
    DispositionFrame(False, 1, 2, False, ModifiedState(True, True, {Symbol("x-a"): "b"})),
    DispositionFrame(True, 0, state=ReleasedState()),
    DispositionFrame(True, 0, state=ReceivedState(1, 2)),
    DispositionFrame(True, 0, state=DeclaredState(b"x")),
    DetachFrame(1, True, _ERROR),
    EndFrame(_ERROR),
    CloseFrame(_ERROR),
    DeclareBody(),
    DischargeBody(b"x", True),
    SaslMechanismsFrame(symbols("PLAIN", "EXTERNAL")),
    SaslInitFrame(Symbol("PLAIN"), b"\0guest\0guest", "h"),
    SaslChallengeFrame(b"c"),
    SaslResponseFrame(b"r"),
    SaslOutcomeFrame(0, b"d"),
]
BODIES: Final = [write(each) for each in _FRAMES]
_VALUES: Final[list[object]] = [
    *(None, True, 7, 1 << 40, 1.5, "text", b"bytes", Symbol("symbol"), Float(0.5), Char("é")),
    *(UByte(1), UShort(2), UInt(3), UInt(1 << 30), ULong(4), ULong(1 << 60), Byte(-1), Short(-2)),
    *(Int(-3), Int(1 << 30), Milliseconds(5), Uuid(bytes(16)), "y" * 300, b"z" * 300),
    *(DecimalBits(bytes(4)), DecimalBits(bytes(8)), DecimalBits(bytes(16))),
    [],
    [1, [2, ["three"]], {}],
    {"a": 1, Symbol("b"): [2], ULong(3): {"c": None}},
    {Described(ULong(1), [1]): 1, symbols("k"): 2},
    Described(Symbol("d"), {"k": Described(ULong(5), [])}),
    symbols("a", "b"),
    Array(0x56, [True, False]),
    Array(0x40, [None, None]),
    Array(0xD0, [[], [1]]),
    Array(0xD1, [{"a": 1}]),
    Array(0xF0, [Array(0x60, [1, 2]), symbols("z")]),
    Array(0x80, [1, 2], Symbol("d")),
    Array(0x73, [Char("a")]),
]
VALUES: Final = [
    *map(codec.encode, _VALUES),
    *(b"\xe0\x02\x05" + bytes((code,)) for code in range(0x40, 0x46)),
    b"\xd0\0\0\0\x08\0\0\0\1\xb1\0\0\0",
    b"\xc1\x07\x04\x00\x45\x40\x40\xa1\x00\x41",
    b"\xf0\0\0\0\x05\xff\xff\xff\xff\x45",
]
_PROPERTY_LIST: Final[list[object]] = [
    *("id", b"guest", "/queues/q", "subject", "/queues/a%2Fb", ULong(7), Symbol("text/plain")),
    *(Symbol("gzip"), Milliseconds(NOW_US // 1000), Milliseconds(5), "group", UInt(3), "reply"),
]
_ANNOTATIONS: Final[dict[object, object]] = {
    Symbol("x-exchange"): "e",
    Symbol("x-opt-delivery-delay"): 60_000,
    Symbol("x-opt-delivery-time"): Milliseconds(NOW_US // 1000 + 5),
    Symbol("x-cc"): ["a", "b"],
    Symbol("x-stream-filter-value"): "v",
    Symbol("x-opt-deaths"): Array(
        0xD1, [{Symbol("count"): ULong(1), Symbol("routing-keys"): Array(0xB1, ["k"])}]
    ),
    ULong(5): {"map": [1, Described(ULong(1), "d")]},
}
_APPLICATION: Final[dict[object, object]] = {
    **{f"a{number}": value for number, value in enumerate(_VALUES[:16])},
    "uuid": Uuid(bytes(16)),
    "time": Milliseconds(-1),
}
_HEADER: Final = encoded(0x70, [True, UByte(5), UInt(1000), False, UInt(1)])
_SECTIONS: Final = (
    encoded(0x72, _ANNOTATIONS) + encoded(0x73, _PROPERTY_LIST, 2) + encoded(0x74, _APPLICATION, 1)
)
MESSAGES: Final = [
    encoded(0x75, b"data"),
    encoded(0x75, b"d" * 300, 3),
    encoded(0x77, "text"),
    encoded(0x77, {"a": [1]}),
    encoded(0x76, [1]) + encoded(0x76, [2]),
    encoded(0x75, b"a") + encoded(0x75, b"b"),
    _HEADER + encoded(0x75, b"x"),
    _HEADER + encoded(0x71, _ANNOTATIONS) + encoded(0x75, b"x") + encoded(0x78, {Symbol("f"): 1}),
    encoded(0x72, {b"x-\xff": 1, Symbol("x-b"): "c"}) + encoded(0x75, b"x"),
    encoded(0x73, [Uuid(bytes(16)), None, None, None, None, b"c"]) + encoded(0x75, b"x"),
    encoded(0x73, [ULong(1), None, None, "s"]) + encoded(0x74, {"n": 1}) + encoded(0x77, "t"),
    encoded(0x72, {Symbol("x-deduplication-id"): "i"}) + encoded(0x77, None),
    encoded(0x72, _ANNOTATIONS) + encoded(0x75, b"x"),
    encoded(0x73, _PROPERTY_LIST) + encoded(0x75, b"x"),
    encoded(0x74, _APPLICATION) + encoded(0x75, b"x"),
]
STORED_SECTIONS: Final = [
    *(from_sections(data).content for data in MESSAGES),
    b"\0" + _SECTIONS[:400],
]
STORED: Final = _stored_messages()

_EACH: Final = [frame(0, body) for body in _FRAMES[:20]]
_MESSAGE: Final = encoded(0x75, b"data")


def _transfers(*numbers: int) -> bytes:
    return b"".join(frame(0, TransferFrame(0, n, b"t", 0, n > 5), _MESSAGE) for n in numbers)


STREAMS: Final = [
    *_EACH,
    _transfers(0, 1, 2),
    _transfers(0, 1) + frame(0, TransferFrame(0, 2, b"t", 0, more=True), _MESSAGE[:3]),
    _transfers(6, 7) + frame(0, DetachFrame(0, True)),
    frame(0, AttachFrame("r", 1, True, source=SourceTerminus("/queues/q")))
    + frame(0, FlowFrame(0, 100, 0, 100, 1, 0, 20))
    + _transfers(0, 1)
    + frame(0, DispositionFrame(True, 0, 1, True, AcceptedState())),
    frame(1, BeginFrame(None, 0, 10, 10)) + frame(0, EndFrame()) + frame(0, CloseFrame()),
    _EACH[4] + frame(0, TransferFrame(3, 0, b"t", 0), encoded(0x77, Described(ULong(0x31), []))),
    b"\0\0\0\x08\x02\0\0\0" * 3 + frame(0, SaslResponseFrame(b"x"), kind=FRAME_SASL),
]
SELECTORS: Final = [
    b"a1 = 1 AND NOT (a2 <> 'x' OR a3 IS NULL)",
    b"properties.subject LIKE 'a%_b' ESCAPE '!' OR header.priority BETWEEN 1 AND 5",
    b"p.message_id IN ('a', 'b') AND a4 NOT IN (1, 2.5, 0xFF)",
    b"JMSPriority >= 4 AND JMSType = 'subject' AND amqp.priority < 9",
    b"UTC() - properties.creation_time < 60000 AND -a5 * 2 + 3 / 0 % 2 > 1e3",
    b'[a b] = "text" OR TRUE AND FALSE OR application-properties.n = 1',
    b"a6 IS NOT NULL AND 9223372036854775807 * 9223372036854775807 / 1e308 > .5f",
]


def _filter(name: str, value: object) -> Described:
    return Described(Symbol(name), value)


_FILTERS: Final[list[dict[object, object]]] = [
    {Symbol("o"): _filter("rabbitmq:stream-offset-spec", "first")},
    {Symbol("o"): _filter("rabbitmq:stream-offset-spec", Milliseconds(5))},
    {Symbol("rabbitmq:stream-offset-spec"): ULong(7)},
    {
        Symbol("f"): _filter("rabbitmq:stream-filter", ["v", "w"]),
        Symbol("u"): _filter("rabbitmq:stream-match-unfiltered", True),
    },
    {Symbol("f"): _filter("rabbitmq:stream-filter", Array(0xB1, ["v"]))},
    {
        Symbol("p"): _filter(
            "amqp:properties-filter", {Symbol("subject"): "&p:s", Symbol("message-id"): ULong(7)}
        ),
        Symbol("a"): _filter("amqp:application-properties-filter", {"a0": None, "a2": 7}),
    },
    {Symbol("s"): Described(ULong(0x120), "a1 = 1 OR properties.subject LIKE 's%'")},
    {Symbol("j"): Described(ULong(0x468C_0000_0004), "JMSPriority > 1")},
]
ADDRESSES: Final = [
    *(b"/queues/q", b"/queues/a%2Fb%C3%A9", b"/exchanges/amq.topic/a.b%25", b"/exchanges/e"),
    *(b"q", b"/queue/q", b"/amq/queue/q", b"/exchange/e/k", b"/exchange/amq.default", b"/topic/k"),
    *(b"queue://q", b"topic://a/b", b"/queues/" + b"%41" * 120, b"/queue", b"/exchange/e", b""),
]


def _request(method: str, path: str, body: object, message_id: object = "id") -> bytes:
    fields = [message_id, None, path, method, "$me"]
    return encoded(0x73, fields) + encoded(0x77, body)


REQUESTS: Final = [
    _request("PUT", "/queues/q%2F", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
    _request("GET", "/bindings?src=e&dstq=q&key=", None, ULong(1)),
    _request("POST", "/bindings", {"arguments": {"a": [1, {"b": 1.5}], "t": Milliseconds(5)}}),
    _request("DELETE", "/exchanges/e", {"type": "topic", "auto_delete": False}, Uuid(bytes(16))),
    _request("PUT", "/auth/tokens", b"token", symbols("a")),
    _request("PUT", "/queues/q", {"arguments": {"n": None, "s": symbols("a"), "x": UByte(1)}}),
]

TARGETS: Final[dict[str, tuple[Callable[[bytes], Hashable], list[bytes]]]] = {
    "body": (fuzz_body, BODIES),
    "value": (fuzz_value, VALUES),
    "message": (fuzz_message, MESSAGES),
    "stored": (fuzz_stored, STORED_SECTIONS),
    "foreign": (fuzz_foreign, BLOCKS),
    "stream": (fuzz_stream, STREAMS),
    "selector": (fuzz_selector, SELECTORS),
    "filters": (fuzz_filters, [codec.encode(each) for each in _FILTERS]),
    "address": (fuzz_address, ADDRESSES),
    "request": (fuzz_request, REQUESTS),
}
