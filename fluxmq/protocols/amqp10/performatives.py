"""Performatives, termini, delivery states and SASL's frame bodies: the standard's composite types.

One class for each, its fields in the standard's order, and `LAYOUTS` with the rules for decoding
them. `read` and `write` do both directions for all.

Longer than 500 lines because it is the standard's tables of composite types, written down.

Source: OASIS AMQP 1.0 part 2, section 2.7 (performatives), 2.8.14 (error); part 3, sections 3.4
(delivery states) and 3.5 (termini); part 4, section 4.5 (coordination); part 5, section 5.3.3
(SASL).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fluxmq.protocols.amqp10.codec import MalformedError, decode, put
from fluxmq.protocols.amqp10.types import (
    Array,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
)

UINT_MAX: Final = 0xFFFFFFFF
SENDER: Final = False
RECEIVER: Final = True
"""A link endpoint's role."""


class FieldRule(NamedTuple):
    """A field's name, the types it may have (none: any), and whether it must be there or may be an
    array of its type. ``attribute``: its name in the class."""

    name: str
    kinds: tuple[type, ...] = ()
    mandatory: bool = False
    multiple: bool = False
    attribute: str = ""


class Layout(NamedTuple):
    """How a composite type is encoded: descriptor as number and symbol, class, fields."""

    code: int
    name: str
    kind: type
    fields: tuple[FieldRule, ...]


# --- part 2: transport ---


@dataclass(slots=True)
class ErrorCondition:
    """error (2.8.14)."""

    condition: Symbol
    description: str | None = None
    info: dict[object, object] | None = None


@dataclass(slots=True)
class OpenFrame:
    """open (2.7.1)."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = UINT_MAX
    channel_max: int = 65535
    idle_time_out: int | None = None
    outgoing_locales: object = None
    incoming_locales: object = None
    offered_capabilities: object = None
    desired_capabilities: object = None
    properties: dict[object, object] | None = None


@dataclass(slots=True)
class BeginFrame:
    """begin (2.7.2)."""

    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = UINT_MAX
    offered_capabilities: object = None
    desired_capabilities: object = None
    properties: dict[object, object] | None = None


@dataclass(slots=True)
class AttachFrame:
    """attach (2.7.3)."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int = 2
    rcv_settle_mode: int = 0
    source: object = None
    target: object = None
    unsettled: dict[object, object] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: object = None
    desired_capabilities: object = None
    properties: dict[object, object] | None = None


@dataclass(slots=True)
class FlowFrame:
    """flow (2.7.4)."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: dict[object, object] | None = None


@dataclass(slots=True)
class TransferFrame:
    """transfer (2.7.5)."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: object = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@dataclass(slots=True)
class DispositionFrame:
    """disposition (2.7.6)."""

    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: object = None
    batchable: bool = False


@dataclass(slots=True)
class DetachFrame:
    """detach (2.7.7)."""

    handle: int
    closed: bool = False
    error: ErrorCondition | None = None


@dataclass(slots=True)
class EndFrame:
    """end (2.7.8)."""

    error: ErrorCondition | None = None


@dataclass(slots=True)
class CloseFrame:
    """close (2.7.9)."""

    error: ErrorCondition | None = None


# --- part 3: messaging ---


@dataclass(slots=True)
class ReceivedState:
    """received (3.4.1)."""

    section_number: int
    section_offset: int


@dataclass(slots=True)
class AcceptedState:
    """accepted (3.4.2)."""


@dataclass(slots=True)
class RejectedState:
    """rejected (3.4.3)."""

    error: ErrorCondition | None = None


@dataclass(slots=True)
class ReleasedState:
    """released (3.4.4)."""


@dataclass(slots=True)
class ModifiedState:
    """modified (3.4.5)."""

    delivery_failed: bool = False
    undeliverable_here: bool = False
    message_annotations: dict[object, object] | None = None


@dataclass(slots=True)
class SourceTerminus:
    """source (3.5.3)."""

    address: object = None
    durable: int = 0
    expiry_policy: Symbol = Symbol("session-end")  # noqa: RUF009 - it is immutable
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[object, object] | None = None
    distribution_mode: Symbol | None = None
    filter: dict[object, object] | None = None
    default_outcome: object = None
    outcomes: object = None
    capabilities: object = None


@dataclass(slots=True)
class TargetTerminus:
    """target (3.5.4)."""

    address: object = None
    durable: int = 0
    expiry_policy: Symbol = Symbol("session-end")  # noqa: RUF009 - it is immutable
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[object, object] | None = None
    capabilities: object = None


# --- part 4: transactions ---


@dataclass(slots=True)
class CoordinatorTerminus:
    """coordinator (4.5.1)."""

    capabilities: object = None


@dataclass(slots=True)
class DeclareBody:
    """declare (4.5.2)."""

    global_id: object = None


@dataclass(slots=True)
class DischargeBody:
    """discharge (4.5.3)."""

    txn_id: bytes
    fail: bool = False


@dataclass(slots=True)
class DeclaredState:
    """declared (4.5.5)."""

    txn_id: bytes


@dataclass(slots=True)
class TransactionalState:
    """transactional-state (4.5.6)."""

    txn_id: bytes
    outcome: object = None


# --- part 5: security ---


@dataclass(slots=True)
class SaslMechanismsFrame:
    """sasl-mechanisms (5.3.3.1)."""

    sasl_server_mechanisms: object


@dataclass(slots=True)
class SaslInitFrame:
    """sasl-init (5.3.3.2)."""

    mechanism: Symbol
    initial_response: bytes | None = field(default=None, repr=False)
    hostname: str | None = None


@dataclass(slots=True)
class SaslChallengeFrame:
    """sasl-challenge (5.3.3.3)."""

    challenge: bytes


@dataclass(slots=True)
class SaslResponseFrame:
    """sasl-response (5.3.3.4)."""

    response: bytes = field(repr=False)


@dataclass(slots=True)
class SaslOutcomeFrame:
    """sasl-outcome (5.3.3.6)."""

    code: int
    additional_data: bytes | None = None


_STATES: Final = (
    ReceivedState,
    AcceptedState,
    RejectedState,
    ReleasedState,
    ModifiedState,
    DeclaredState,
    TransactionalState,
)
_HANDLE: Final = FieldRule("handle", (UInt,), mandatory=True)
_CAPABILITIES: Final = (
    FieldRule("offered-capabilities", (Symbol,), multiple=True),
    FieldRule("desired-capabilities", (Symbol,), multiple=True),
    FieldRule("properties", (dict,)),
)
_ERROR: Final = FieldRule("error", (ErrorCondition,))
_TERMINUS: Final = (
    FieldRule("address"),
    FieldRule("durable", (UInt,)),
    FieldRule("expiry-policy", (Symbol,)),
    FieldRule("timeout", (UInt,)),
    FieldRule("dynamic", (bool,)),
    FieldRule("dynamic-node-properties", (dict,)),
)

_ALL: Final = (
    Layout(
        0x10,
        "amqp:open:list",
        OpenFrame,
        (
            FieldRule("container-id", (str,), mandatory=True),
            FieldRule("hostname", (str,)),
            FieldRule("max-frame-size", (UInt,)),
            FieldRule("channel-max", (UShort,)),
            FieldRule("idle-time-out", (UInt,)),
            FieldRule("outgoing-locales", (Symbol,), multiple=True),
            FieldRule("incoming-locales", (Symbol,), multiple=True),
            *_CAPABILITIES,
        ),
    ),
    Layout(
        0x11,
        "amqp:begin:list",
        BeginFrame,
        (
            FieldRule("remote-channel", (UShort,)),
            FieldRule("next-outgoing-id", (UInt,), mandatory=True),
            FieldRule("incoming-window", (UInt,), mandatory=True),
            FieldRule("outgoing-window", (UInt,), mandatory=True),
            FieldRule("handle-max", (UInt,)),
            *_CAPABILITIES,
        ),
    ),
    Layout(
        0x12,
        "amqp:attach:list",
        AttachFrame,
        (
            FieldRule("name", (str,), mandatory=True),
            _HANDLE,
            FieldRule("role", (bool,), mandatory=True),
            FieldRule("snd-settle-mode", (UByte,)),
            FieldRule("rcv-settle-mode", (UByte,)),
            FieldRule("source", (SourceTerminus,)),
            FieldRule("target", (TargetTerminus, CoordinatorTerminus)),
            FieldRule("unsettled", (dict,)),
            FieldRule("incomplete-unsettled", (bool,)),
            FieldRule("initial-delivery-count", (UInt,)),
            FieldRule("max-message-size", (ULong,)),
            *_CAPABILITIES,
        ),
    ),
    Layout(
        0x13,
        "amqp:flow:list",
        FlowFrame,
        (
            FieldRule("next-incoming-id", (UInt,)),
            FieldRule("incoming-window", (UInt,), mandatory=True),
            FieldRule("next-outgoing-id", (UInt,), mandatory=True),
            FieldRule("outgoing-window", (UInt,), mandatory=True),
            FieldRule("handle", (UInt,)),
            FieldRule("delivery-count", (UInt,)),
            FieldRule("link-credit", (UInt,)),
            FieldRule("available", (UInt,)),
            FieldRule("drain", (bool,)),
            FieldRule("echo", (bool,)),
            FieldRule("properties", (dict,)),
        ),
    ),
    Layout(
        0x14,
        "amqp:transfer:list",
        TransferFrame,
        (
            _HANDLE,
            FieldRule("delivery-id", (UInt,)),
            FieldRule("delivery-tag", (bytes,)),
            FieldRule("message-format", (UInt,)),
            FieldRule("settled", (bool,)),
            FieldRule("more", (bool,)),
            FieldRule("rcv-settle-mode", (UByte,)),
            FieldRule("state", _STATES),
            FieldRule("resume", (bool,)),
            FieldRule("aborted", (bool,)),
            FieldRule("batchable", (bool,)),
        ),
    ),
    Layout(
        0x15,
        "amqp:disposition:list",
        DispositionFrame,
        (
            FieldRule("role", (bool,), mandatory=True),
            FieldRule("first", (UInt,), mandatory=True),
            FieldRule("last", (UInt,)),
            FieldRule("settled", (bool,)),
            FieldRule("state", _STATES),
            FieldRule("batchable", (bool,)),
        ),
    ),
    Layout(
        0x16,
        "amqp:detach:list",
        DetachFrame,
        (_HANDLE, FieldRule("closed", (bool,)), _ERROR),
    ),
    Layout(0x17, "amqp:end:list", EndFrame, (_ERROR,)),
    Layout(0x18, "amqp:close:list", CloseFrame, (_ERROR,)),
    Layout(
        0x1D,
        "amqp:error:list",
        ErrorCondition,
        (
            FieldRule("condition", (Symbol,), mandatory=True),
            FieldRule("description", (str,)),
            FieldRule("info", (dict,)),
        ),
    ),
    Layout(
        0x23,
        "amqp:received:list",
        ReceivedState,
        (
            FieldRule("section-number", (UInt,), mandatory=True),
            FieldRule("section-offset", (ULong,), mandatory=True),
        ),
    ),
    Layout(0x24, "amqp:accepted:list", AcceptedState, ()),
    Layout(0x25, "amqp:rejected:list", RejectedState, (_ERROR,)),
    Layout(0x26, "amqp:released:list", ReleasedState, ()),
    Layout(
        0x27,
        "amqp:modified:list",
        ModifiedState,
        (
            FieldRule("delivery-failed", (bool,)),
            FieldRule("undeliverable-here", (bool,)),
            FieldRule("message-annotations", (dict,)),
        ),
    ),
    Layout(
        0x28,
        "amqp:source:list",
        SourceTerminus,
        (
            *_TERMINUS,
            FieldRule("distribution-mode", (Symbol,)),
            FieldRule("filter", (dict,)),
            FieldRule("default-outcome", _STATES),
            FieldRule("outcomes", (Symbol,), multiple=True),
            FieldRule("capabilities", (Symbol,), multiple=True),
        ),
    ),
    Layout(
        0x29,
        "amqp:target:list",
        TargetTerminus,
        (*_TERMINUS, FieldRule("capabilities", (Symbol,), multiple=True)),
    ),
    Layout(
        0x30,
        "amqp:coordinator:list",
        CoordinatorTerminus,
        (FieldRule("capabilities", (Symbol,), multiple=True),),
    ),
    Layout(0x31, "amqp:declare:list", DeclareBody, (FieldRule("global-id"),)),
    Layout(
        0x32,
        "amqp:discharge:list",
        DischargeBody,
        (FieldRule("txn-id", (bytes,), mandatory=True), FieldRule("fail", (bool,))),
    ),
    Layout(
        0x33,
        "amqp:declared:list",
        DeclaredState,
        (FieldRule("txn-id", (bytes,), mandatory=True),),
    ),
    Layout(
        0x34,
        "amqp:transactional-state:list",
        TransactionalState,
        (FieldRule("txn-id", (bytes,), mandatory=True), FieldRule("outcome", _STATES)),
    ),
    Layout(
        0x40,
        "amqp:sasl-mechanisms:list",
        SaslMechanismsFrame,
        (FieldRule("sasl-server-mechanisms", (Symbol,), mandatory=True, multiple=True),),
    ),
    Layout(
        0x41,
        "amqp:sasl-init:list",
        SaslInitFrame,
        (
            FieldRule("mechanism", (Symbol,), mandatory=True),
            FieldRule("initial-response", (bytes,)),
            FieldRule("hostname", (str,)),
        ),
    ),
    Layout(
        0x42,
        "amqp:sasl-challenge:list",
        SaslChallengeFrame,
        (FieldRule("challenge", (bytes,), mandatory=True),),
    ),
    Layout(
        0x43,
        "amqp:sasl-response:list",
        SaslResponseFrame,
        (FieldRule("response", (bytes,), mandatory=True),),
    ),
    Layout(
        0x44,
        "amqp:sasl-outcome:list",
        SaslOutcomeFrame,
        (FieldRule("code", (UByte,), mandatory=True), FieldRule("additional-data", (bytes,))),
    ),
)
LAYOUTS: Final = {
    layout.kind: layout._replace(
        fields=tuple(rule._replace(attribute=rule.name.replace("-", "_")) for rule in layout.fields)
    )
    for layout in _ALL
}
"""Layouts by class."""
_BY_DESCRIPTOR: Final[dict[object, Layout]] = {
    **{layout.code: layout for layout in LAYOUTS.values()},
    **{layout.name: layout for layout in LAYOUTS.values()},
}


def read(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Return the composite value that begins at ``at``, and where it ends.

    Raises `MalformedError` for bytes that are none, or break the rules of its fields.
    """
    value, at = decode(data, at)
    if not isinstance(value, Described):
        raise MalformedError("a frame body without descriptor")
    return composite(value), at


def composite(value: Described) -> Any:
    """Return a described list as the class of its descriptor. Raises `MalformedError`."""
    descriptor = value.descriptor
    known = isinstance(descriptor, (ULong, Symbol))
    layout = _BY_DESCRIPTOR.get(descriptor) if known else None
    if layout is None:
        raise MalformedError(f"the unknown descriptor {descriptor!r}")
    items = value.value
    name = layout.name
    if not isinstance(items, list):
        raise MalformedError(f"{name} is not a list")
    if len(items) > len(layout.fields):
        raise MalformedError(f"{name} with too many fields")
    found: dict[str, Any] = {}
    for rule, item in zip(layout.fields, items, strict=False):
        if item is not None:
            found[rule.attribute] = _checked(name, rule, item)
    for rule in layout.fields:
        if rule.mandatory and rule.attribute not in found:
            raise MalformedError(f"{name} without {rule.name}")
    if layout.kind is BeginFrame:
        found.setdefault("remote_channel", None)
    elif layout.kind is FlowFrame:
        found.setdefault("next_incoming_id", None)
    return layout.kind(**found)


def _checked(name: str, rule: FieldRule, item: object) -> object:
    """Return a field's value, of one of its types. Raises `MalformedError`."""
    if isinstance(item, Described) and rule.kinds and rule.kinds[0] in LAYOUTS:
        item = composite(item)
    if not rule.kinds or type(item) in rule.kinds:
        return item
    listed = item.items if rule.multiple and isinstance(item, Array) else None
    if listed is not None and all(type(each) in rule.kinds for each in listed):
        return item
    raise MalformedError(f"{name} with a {rule.name} of type {type(item).__name__}")


def described(value: object) -> Described:
    """Return an object of a class of `LAYOUTS` as a described list."""
    layout = LAYOUTS[type(value)]
    items: list[object] = []
    for rule in layout.fields:
        item = getattr(value, rule.attribute)
        if item is not None and type(item) in LAYOUTS:
            item = described(item)
        elif rule.kinds and type(item) is int:
            item = rule.kinds[0](item)
        items.append(item)
    while items and items[-1] is None:
        items.pop()
    return Described(ULong(layout.code), items)


def write(value: object) -> bytes:
    """Return the encoding of an object of a class of `LAYOUTS`."""
    out = bytearray()
    put(out, described(value))
    return bytes(out)


def names(value: object) -> tuple[str, ...]:
    """Return the symbols of a field that may have one or an array of them."""
    if isinstance(value, Array):
        return tuple(str(each) for each in value.items)
    return (value,) if isinstance(value, str) else ()
