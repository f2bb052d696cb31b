"""Addresses of AMQP 1.0: from the text of a target or source to exchanges, routing keys and queues.

Version 2, as in RabbitMQ 4: ``/exchanges/:exchange/:routing-key``, ``/exchanges/:exchange``,
``/queues/:queue``, each part percent-encoded UTF-8; a target without an address takes that of each
message's ``to``. Version 1, as in RabbitMQ 3 and JMS: a bare name, ``/queue/:name``,
``/amq/queue/:name``, ``/exchange/:name[/:key]``, ``/topic/:key``, ``queue://:name``,
``topic://:key``, or a name that a capability says is a topic's; a setting turns it off. Knows
neither which queues exist nor who may use them.

Errors carry the standard's condition, as RabbitMQ chooses it.

Source: RabbitMQ's documentation of AMQP 1.0 addresses; OASIS AMQP anonymous terminus 1.0;
RFC 3986 section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote

from fluxmq.model.amqp10_readers import EXCHANGES, QUEUES, unquoted

ADDRESS_BYTES_MAX: Final = 4096
"""Bytes of an address: an exchange's name and a routing key of 255 bytes, each byte encoded as
three, take 1 543."""
NAME_BYTES_MAX: Final = 255
"""Bytes of a queue's or an exchange's name, and of a routing key: AMQP 0.9.1's short strings."""
TOPIC_EXCHANGE: Final = "amq.topic"
TOPIC_SCHEME: Final = "topic://"
TEMPORARY_TOPIC: Final = "temporary-topic"
TOPIC_CAPABILITIES: Final = frozenset(("topic", TEMPORARY_TOPIC))
"""Capabilities by which JMS says that a name is a topic's."""

INVALID_FIELD: Final = "amqp:invalid-field"
NOT_ALLOWED: Final = "amqp:not-allowed"
PRECONDITION_FAILED: Final = "amqp:precondition-failed"
"""Conditions of errors (part 2, section 2.8.15)."""

_DEFAULT_NAMES: Final = ("", "amq.default")


class AddressError(ValueError):
    """An address that names nothing; the text says why. ``condition``: the standard's symbol."""

    def __init__(self, text: str, condition: str = INVALID_FIELD) -> None:
        super().__init__(text)
        self.condition = condition


class Missing(Enum):
    """Where a version 1 target takes from each message what its address does not say."""

    NOTHING = 0
    SUBJECT = 1
    """The routing key is the message's subject."""


@dataclass(frozen=True, slots=True)
class AddressTarget:
    """Where messages go: an exchange and a routing key; of the default exchange, a queue.

    ``queue``: the queue's name if the address names one, else empty. ``declare``: the queue is
    declared if it does not exist (version 1). ``missing``: what each message adds. ``topic``: it is a
    topic of JMS, which takes messages that nobody has subscribed to.
    """

    exchange: str
    routing_key: str
    queue: str = ""
    declare: bool = False
    missing: Missing = Missing.NOTHING
    topic: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Where messages come from: a queue, or (version 1) an exchange to which a queue of the link's
    own is bound with ``binding_key``. ``declare``: the queue is declared if it does not exist."""

    queue: str = ""
    exchange: str = ""
    binding_key: str = ""
    declare: bool = False


def target_of(address: str, *, version_1: bool = True) -> AddressTarget:
    """Return the target that an address names. Raises `AddressError`.

    ``version_1``: whether addresses of version 1 are allowed.
    """
    _check_length(address)
    if address.startswith(_VERSION_2):
        return _target_2(address)
    if not version_1:
        raise _refused(address)
    return _target_1(address)


def target_of_message(to: bytes | None) -> AddressTarget:
    """Return the target of one message of a link without an address, by its property ``to``.

    Raises `AddressError` (amqp:precondition-failed): the message is rejected, the link stays.
    """
    if to is None:
        raise AddressError(
            "anonymous terminus requires 'to' address to be set", PRECONDITION_FAILED
        )
    text = to.decode("utf-8", "replace")
    try:
        _check_length(text)
        if text.startswith(_VERSION_2):
            return _target_2(text)
    except AddressError:
        pass  # the same error for all that is no address of version 2
    raise AddressError(f"bad 'to' address string: {text[:NAME_BYTES_MAX]}", PRECONDITION_FAILED)


def source_of(address: str, *, version_1: bool = True) -> Source:
    """Return the source that an address names. Raises `AddressError`."""
    _check_length(address)
    if address.startswith(_QUEUES):
        return Source(queue=_name(address[len(_QUEUES) :], address))
    if not version_1:
        raise _refused(address)
    return _source_1(address)


def jms_address(address: str, capabilities: Sequence[str]) -> str:
    """Return the address of a node that JMS may mean as a topic: its name alone, with a capability."""
    topic = not TOPIC_CAPABILITIES.isdisjoint(capabilities)
    if not topic or address.startswith(("/", *_JMS)):
        return address
    return TOPIC_SCHEME + address


def queue_address(queue: str) -> str:
    """Return the address of a queue, version 2."""
    return _QUEUES + quote(queue, safe="")


def exchange_address(exchange: str, routing_key: str = "") -> str:
    """Return the address of an exchange, version 2, with a routing key unless it is empty."""
    address = _EXCHANGES + quote(exchange, safe="")
    return f"{address}/{quote(routing_key, safe='')}" if routing_key else address


_QUEUES: Final = QUEUES.decode()
_EXCHANGES: Final = EXCHANGES.decode()
_VERSION_2: Final = (_QUEUES, _EXCHANGES)


def _check_length(address: str) -> None:
    if len(address.encode("utf-8", "surrogatepass")) > ADDRESS_BYTES_MAX:
        raise AddressError(f"an address of more than {ADDRESS_BYTES_MAX} bytes")


def _bad(address: str) -> AddressError:
    return AddressError(f"bad address string: {address[:NAME_BYTES_MAX]}")


def _refused(address: str) -> AddressError:
    return AddressError(
        f"address {address[:NAME_BYTES_MAX]!r} is of version 1, which is turned off: "
        "/queues/:queue and /exchanges/:exchange/:routing-key are of version 2",
        NOT_ALLOWED,
    )


def _decoded(part: str, address: str) -> str:
    """Return a percent-encoded part of an address, of at most 255 bytes."""
    found = unquoted(part.encode("utf-8", "surrogatepass"))
    if found is None or len(found) > NAME_BYTES_MAX:
        raise _bad(address)
    return found.decode()


def _name(part: str, address: str) -> str:
    """Return a name, which is not empty."""
    found = _decoded(part, address)
    if not found:
        raise _bad(address)
    return found


def _target_2(address: str) -> AddressTarget:
    if address.startswith(_QUEUES):
        queue = _name(address[len(_QUEUES) :], address)
        return AddressTarget("", queue, queue)
    parts = address[len(_EXCHANGES) :].split("/")
    if len(parts) > 2:
        raise _bad(address)
    exchange = _name(parts[0], address)
    if exchange in _DEFAULT_NAMES:
        raise _bad(address)
    return AddressTarget(exchange, _decoded(parts[1], address) if len(parts) == 2 else "")


def _target_1(address: str) -> AddressTarget:
    kind, parts = _parts_1(address)
    if kind == "exchange":
        name = _plain(parts[0], address)
        exchange = "" if name in _DEFAULT_NAMES else name
        if len(parts) == 1:
            return AddressTarget(exchange, "", missing=Missing.SUBJECT)
        key = _plain(parts[1], address)
        return AddressTarget(exchange, key, missing=Missing.NOTHING if key else Missing.SUBJECT)
    if kind == "topic":
        by_jms = address.startswith(TOPIC_SCHEME)
        return AddressTarget(TOPIC_EXCHANGE, _plain(parts[0], address), topic=by_jms)
    if not parts:
        return AddressTarget("", "", missing=Missing.SUBJECT)
    queue = _plain(parts[0], address)
    return AddressTarget("", queue, queue, declare=kind == "queue")


def _source_1(address: str) -> Source:
    kind, parts = _parts_1(address)
    if kind == "exchange":
        name = _plain(parts[0], address)
        if name in _DEFAULT_NAMES:
            raise _bad(address)
        return Source(exchange=name, binding_key=_plain("/".join(parts[1:]), address))
    if kind == "topic":
        return Source(exchange=TOPIC_EXCHANGE, binding_key=_plain(parts[0], address))
    if not parts:
        raise _bad(address)
    return Source(queue=_plain(parts[0], address), declare=kind == "queue")


_JMS: Final = {"queue://": "queue", TOPIC_SCHEME: "topic"}


def _parts_1(address: str) -> tuple[str, list[str]]:
    """Return the kind of an address of version 1 (``queue``, ``existing``, ``exchange`` or
    ``topic``) and its parts, percent-encoded; a queue may have none."""
    for scheme, kind in _JMS.items():
        if address.startswith(scheme):
            return kind, [_some(address[len(scheme) :].replace("/", "%2F"), address)]
    if "/" not in address:
        return "queue", [_some(address, address)]
    first, *rest = address.split("/")
    if first or not rest:
        raise _bad(address)
    kind, *parts = rest
    if kind == "amq" and parts[:1] == ["queue"]:
        return "existing", [_one(parts[1:], address)]
    if kind in ("queue", "topic"):
        return kind, [_one(parts, address)] if parts or kind == "topic" else []
    if kind == "exchange" and 1 <= len(parts) <= 2 and parts[0]:
        return kind, parts
    raise _bad(address)


def _one(parts: list[str], address: str) -> str:
    if len(parts) != 1:
        raise _bad(address)
    return _some(parts[0], address)


def _some(part: str, address: str) -> str:
    if not part:
        raise _bad(address)
    return part


def _plain(part: str, address: str) -> str:
    """Return a part of an address of version 1, in which only a slash is encoded."""
    found = part.replace("%2F", "/")
    if len(found.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise _bad(address)
    return found
