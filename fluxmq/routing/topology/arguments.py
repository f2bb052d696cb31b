"""Valid arguments of queues, exchanges and bindings, and refusals with RabbitMQ 3.10's texts.

Unknown keys are kept and ignored, as there, but for ``ha-mode`` and the like, which mirror a classic
queue as a policy would. Stricter than there in three places, each of which is an internal error or a
silent surprise in RabbitMQ: ``x-delivery-limit`` has to be a number; an invalid ``x-max-age`` and an
unknown ``x-queue-master-locator`` are refused instead of closing the connection with 541.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fluxmq.model.properties import Timestamp
from fluxmq.routing.topology.mirror_keys import mirror_problem
from fluxmq.routing.topology.records import Binding, Exchange, QueueRecord
from fluxmq.routing.topology.refusals import COMMAND_INVALID, Refusal, named, precondition
from fluxmq.routing.topology.values import TABLE_BYTES_MAX, canonical, shown, type_name

CLASSIC, QUORUM, STREAM = "classic", "quorum", "stream"
QUEUE_TYPES: Final = (CLASSIC, QUORUM, STREAM)
QUEUE_TYPE_KEY: Final = "x-queue-type"
GROUP_KEY: Final = "x-fluxmq-group"
"""Replication group to hold the queue; our own argument."""
BEFORE_SYNC_KEY: Final = "x-deliver-before-sync"
"""Whether consumers may get messages before they are synced; our own argument."""
CONSUMER_TIMEOUT_KEY: Final = "x-consumer-timeout"
ALTERNATE_KEY: Final = "alternate-exchange"
DELAYED_TYPE_KEY: Final = "x-delayed-type"

DIRECT, FANOUT, TOPIC, HEADERS = "direct", "fanout", "topic", "headers"
CONSISTENT_HASH: Final = "x-consistent-hash"
DELAYED: Final = "x-delayed-message"
PLAIN_TYPES: Final = (DIRECT, FANOUT, TOPIC, HEADERS, CONSISTENT_HASH)
EXCHANGE_TYPES: Final = (*PLAIN_TYPES, DELAYED)
HASH_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
X_MATCH: Final = ("all", "any", "all-with-x", "any-with-x")

MILLISECONDS_MAX: Final = 315_360_000_000
"""Longest x-message-ttl and x-expires: a hundred years, RabbitMQ's bound."""
PRIORITY_MAX: Final = 255
"""Highest x-max-priority: the priority of a message is one byte."""
SEGMENT_BYTES_MAX: Final = 3_000_000_000
"""Highest x-stream-max-segment-size-bytes, RabbitMQ's bound."""
LENGTH_MAX: Final = (1 << 63) - 1
"""Highest count or number of bytes: the maximum of a field table's integers."""
WEIGHT_MAX: Final = 1_000_000
"""Highest weight of a binding to a consistent hash exchange: finer shares than a millionth are
useless."""
_AGE: Final = re.compile(r"([0-9]{1,9})([YMDhms])\Z")
_AGE_SECONDS: Final = {
    "Y": 365 * 86_400,
    "M": 30 * 86_400,
    "D": 86_400,
    "h": 3600,
    "m": 60,
    "s": 1,
}


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """Known arguments of a queue; None where one is not given.

    Times are milliseconds as given, ``max_age`` seconds.
    """

    expires: int | None = None
    message_ttl: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: str | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    max_in_memory_length: int | None = None
    max_in_memory_bytes: int | None = None
    max_priority: int | None = None
    overflow: str | None = None
    queue_mode: str | None = None
    queue_version: int | None = None
    single_active_consumer: bool | None = None
    quorum_initial_group_size: int | None = None
    max_age: int | None = None
    stream_max_segment_size_bytes: int | None = None
    initial_cluster_size: int | None = None
    queue_leader_locator: str | None = None
    queue_master_locator: str | None = None
    delivery_limit: int | None = None
    consumer_timeout: int | None = None
    deduplication_header: str | None = None
    deliver_before_sync: bool | None = None
    fluxmq_group: str | None = None


class _Invalid(Exception):  # noqa: N818 - never leaves this module
    """Reason for rejecting a value: the text after ``invalid arg ...:``."""


def _integer(value: Any) -> int:
    if isinstance(value, bool | Timestamp) or not isinstance(value, int):
        raise _Invalid(f'"expected integer, got {type_name(value)}"')
    return value


def _count(value: Any) -> int:
    if _integer(value) < 0:
        raise _Invalid(f"{{value_negative,{value}}}")
    if value > LENGTH_MAX:
        raise _Invalid(f"{{value_too_large,{value}}}")
    return int(value)


def _positive(value: Any) -> int:
    if _integer(value) == 0:
        raise _Invalid("{value_zero,0}")
    return _count(value)


def _milliseconds(value: Any) -> int:
    if _integer(value) > MILLISECONDS_MAX:
        raise _Invalid(f"{{value_too_large,{value}}}")
    return _count(value)


def _expiry(value: Any) -> int:
    if _integer(value) == 0:
        raise _Invalid("{value_zero,0}")
    return _milliseconds(value)


def _delivery_limit(value: Any) -> int:
    return -1 if _integer(value) == -1 else _count(value)


def _max_priority(value: Any) -> int:
    if _count(value) > PRIORITY_MAX:
        raise _Invalid(f"{{max_value_exceeded,{value}}}")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Invalid(f"{{unacceptable_type,{type_name(value)}}}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Invalid(f"{{unacceptable_type,{type_name(value)}}}")
    return value


def _choice(wrong: str, *choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if _text(value) not in choices:
            raise _Invalid(wrong.format(value))
        return str(value)

    return check


def _version(value: Any) -> int:
    if _integer(value) not in (1, 2):
        raise _Invalid(f"\"unsupported queue version '{value}'\"")
    return int(value)


def _age(value: Any) -> int:
    seconds = age_seconds(_text(value))
    if not seconds:
        raise _Invalid("invalid_max_age")
    return seconds


def age_seconds(text: str) -> int:
    """Return the seconds of an age like ``7D`` (units Y, M, D, h, m, s; a month has 30 days); 0 if
    invalid."""
    found = _AGE.match(text)
    return int(found[1]) * _AGE_SECONDS[found[2]] if found else 0


class _Argument(NamedTuple):
    """Valid values of a key, and the types of queue it applies to."""

    check: Callable[[Any], Any]
    types: tuple[str, ...]


_WORK: Final = (CLASSIC, QUORUM)
_ARGUMENTS: Final[dict[str, _Argument]] = {
    "x-expires": _Argument(_expiry, _WORK),
    "x-message-ttl": _Argument(_milliseconds, _WORK),
    "x-dead-letter-exchange": _Argument(_text, _WORK),
    "x-dead-letter-routing-key": _Argument(_text, _WORK),
    "x-dead-letter-strategy": _Argument(
        _choice("invalid_dlx_strategy", "at-most-once", "at-least-once"), (QUORUM,)
    ),
    "x-max-length": _Argument(_count, _WORK),
    "x-max-length-bytes": _Argument(_count, QUEUE_TYPES),
    "x-max-in-memory-length": _Argument(_count, (QUORUM,)),
    "x-max-in-memory-bytes": _Argument(_count, (QUORUM,)),
    "x-max-priority": _Argument(_max_priority, (CLASSIC,)),
    "x-overflow": _Argument(
        _choice("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx"), _WORK
    ),
    "x-queue-mode": _Argument(
        _choice("\"unsupported queue mode '{}'\"", "default", "lazy"), (CLASSIC,)
    ),
    "x-queue-version": _Argument(_version, (CLASSIC,)),
    "x-single-active-consumer": _Argument(_flag, _WORK),
    "x-quorum-initial-group-size": _Argument(_positive, (QUORUM,)),
    "x-max-age": _Argument(_age, (STREAM,)),
    "x-stream-max-segment-size-bytes": _Argument(_count, (STREAM,)),
    "x-initial-cluster-size": _Argument(_positive, (STREAM,)),
    "x-queue-leader-locator": _Argument(
        _choice("invalid_queue_locator_arg", "client-local", "balanced", "random", "least-leaders"),
        (QUORUM, STREAM),
    ),
    "x-queue-master-locator": _Argument(
        _choice("invalid_queue_locator_arg", "client-local", "min-masters", "random"), (CLASSIC,)
    ),
    "x-delivery-limit": _Argument(_delivery_limit, (QUORUM,)),
    CONSUMER_TIMEOUT_KEY: _Argument(_expiry, _WORK),
    "x-deduplication-header": _Argument(_text, QUEUE_TYPES),
    BEFORE_SYNC_KEY: _Argument(_flag, (CLASSIC,)),
    GROUP_KEY: _Argument(_text, QUEUE_TYPES),
}
"""Keys in the order in which RabbitMQ checks them; it has two of the last in later versions, or by
a plugin."""
COMPARED_KEYS: Final = (*_ARGUMENTS, QUEUE_TYPE_KEY)
"""Arguments that must be equal when a queue is redeclared; the type is the last."""


QUEUE_KEYS: Final = tuple(_ARGUMENTS)
"""Known arguments of queues other than the type."""


def applies_to_type(key: str, kind: str) -> bool:
    """Return whether a queue of this type may have an argument."""
    return key in _ARGUMENTS and kind in _ARGUMENTS[key].types


def queue_type(arguments: Mapping[str, Any], default: str = CLASSIC) -> str:
    """Return the type of a queue with these arguments; `check_queue` rejects an invalid one."""
    wanted = arguments.get(QUEUE_TYPE_KEY, default)
    return wanted if isinstance(wanted, str) else default


def parse_queue(arguments: Mapping[str, Any]) -> QueueArguments:
    """Return arguments that passed `check_queue`, by name."""
    return QueueArguments(
        **{
            key.removeprefix("x-").replace("-", "_"): argument.check(arguments[key])
            for key, argument in _ARGUMENTS.items()
            if key in arguments
        }
    )


def check_queue(queue: QueueRecord) -> QueueArguments:
    """Return the arguments of a new queue. Raises `Refusal` 406 for unsupported ones."""
    arguments = queue.arguments
    name = named("queue", queue.name, queue.vhost)
    _check_size(arguments, name)
    _check_type(queue, name)
    for key, argument in _ARGUMENTS.items():
        if key in arguments and queue.type not in argument.types:
            raise precondition(
                f"invalid arg '{key}' for {name} of queue type rabbit_{queue.type}_queue"
            )
    dead_letters_to = arguments.get("x-dead-letter-exchange", "")
    if not isinstance(dead_letters_to, str):
        kind = type_name(dead_letters_to)
        raise precondition(f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in {name}")
    for key, argument in _ARGUMENTS.items():
        if key in arguments:
            try:
                argument.check(arguments[key])
            except _Invalid as why:
                raise precondition(f"invalid arg '{key}' for {name}: {why}") from None
    _check_mirroring(queue, name)
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        why_not = "routing_key_but_no_dlx_defined"
        raise precondition(f"invalid arg 'x-dead-letter-routing-key' for {name}: {why_not}")
    if arguments.get("x-stream-max-segment-size-bytes", 0) > SEGMENT_BYTES_MAX:
        raise precondition("Exceeded max value for x-stream-max-segment-size-bytes")
    if queue.type != CLASSIC:
        for wrong, what in (
            (queue.auto_delete, "auto-delete"),
            (queue.exclusive, "exclusive-owner"),
            (not queue.durable, "non-durable"),
        ):
            if wrong:
                raise precondition(f"invalid property '{what}' for {name}")
    return parse_queue(arguments)


def consumer_timeout(arguments: Mapping[str, Any], name: str) -> int:
    """Return the requested consumer timeout of the queue called ``name``, in milliseconds; 0 if
    absent.

    Raises `Refusal` 406 if it is invalid.
    """
    if CONSUMER_TIMEOUT_KEY not in arguments:
        return 0
    try:
        return _expiry(arguments[CONSUMER_TIMEOUT_KEY])
    except _Invalid as why:
        raise precondition(f"invalid arg '{CONSUMER_TIMEOUT_KEY}' for {name}: {why}") from None


def _check_type(queue: QueueRecord, name: str) -> None:
    """Check that the type exists, and equals the one in the arguments."""
    wanted = queue.arguments.get(QUEUE_TYPE_KEY, queue.type)
    if not isinstance(wanted, str):
        raise precondition(
            f"invalid arg '{QUEUE_TYPE_KEY}' for {name}: {{unacceptable_type,{type_name(wanted)}}}"
        )
    if wanted not in QUEUE_TYPES or wanted != queue.type:
        raise precondition(
            f"invalid arg '{QUEUE_TYPE_KEY}' for {name}: \"unsupported queue type '{wanted}'\""
        )


def _check_mirroring(queue: QueueRecord, name: str) -> None:
    """Check the arguments that mirror a classic queue; those of others are unknown keys."""
    problem = mirror_problem(queue.arguments) if queue.type == CLASSIC else None
    if problem is not None:
        raise precondition(f"invalid arg '{problem.key}' for {name}: {problem.text}")


def _check_size(arguments: Mapping[str, Any], name: str) -> None:
    try:
        size = len(canonical(arguments))
    except (ValueError, RecursionError):
        raise precondition(f"invalid arguments for {name}") from None
    if size > TABLE_BYTES_MAX:
        raise precondition(f"arguments of {name} have more than {TABLE_BYTES_MAX} bytes")


def check_exchange_type(exchange: Exchange) -> None:
    """Raise `Refusal` 503 for an unknown type: RabbitMQ closes the connection."""
    if exchange.type not in EXCHANGE_TYPES:
        wrong = "unknown" if exchange.type else "invalid"
        raise Refusal(COMMAND_INVALID, f"{wrong} exchange type '{exchange.type}'")


def check_exchange(exchange: Exchange) -> None:
    """Raise `Refusal` 406 for invalid arguments of a new exchange."""
    arguments = exchange.arguments
    name = named("exchange", exchange.name, exchange.vhost)
    _check_size(arguments, name)
    alternate = arguments.get(ALTERNATE_KEY, "")
    if not isinstance(alternate, str):
        kind = type_name(alternate)
        raise precondition(f"invalid type '{kind}' for arg '{ALTERNATE_KEY}' in {name}")
    if exchange.type == DELAYED and arguments.get(DELAYED_TYPE_KEY) not in PLAIN_TYPES:
        raise precondition(
            f"Invalid argument, '{DELAYED_TYPE_KEY}' must be an existing exchange type"
        )
    if table_type(exchange) != CONSISTENT_HASH:
        return
    if "hash-header" in arguments and "hash-property" in arguments:
        raise precondition("hash-header and hash-property are mutually exclusive")
    if not isinstance(arguments.get("hash-header", ""), str):
        kind = type_name(arguments["hash-header"])
        raise precondition(f"invalid type '{kind}' for arg 'hash-header' in {name}")
    if "hash-property" in arguments and arguments["hash-property"] not in HASH_PROPERTIES:
        raise precondition(f"Unsupported property: {shown(arguments['hash-property'])}")


def table_type(exchange: Exchange) -> str:
    """Return the type that routes: the exchange's own, or for a delayed exchange the one in its
    arguments."""
    if exchange.type != DELAYED:
        return exchange.type
    inner = exchange.arguments.get(DELAYED_TYPE_KEY)
    return inner if isinstance(inner, str) and inner in PLAIN_TYPES else DIRECT


def check_binding(source: Exchange, binding: Binding) -> None:
    """Raise `Refusal` 406 for a binding that its source's type does not support."""
    _check_size(binding.arguments, named("exchange", source.name, source.vhost))
    kind = table_type(source)
    if kind == HEADERS:
        match = binding.arguments.get("x-match", "all")
        if not isinstance(match, str):
            raise precondition(
                f"Invalid x-match field type {type_name(match)} (value {shown(match)}); expected longstr"
            )
        if match not in X_MATCH:
            raise precondition(
                f'Invalid x-match field value <<"{match}">>; expected all, any, all-with-x, or any-with-x'
            )
    elif kind == CONSISTENT_HASH:
        _check_weight(binding.routing_key)


def _check_weight(text: str) -> None:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        quoted = f'"{text}"' if text else ""
        raise precondition(f"The binding key must be an integer: <<{quoted}>>")
    if text.startswith("-") or not text.lstrip("+0"):
        raise precondition("The binding key must be greater than 0")
    if len(text.lstrip("+0")) > len(str(WEIGHT_MAX)) or int(text) > WEIGHT_MAX:
        raise precondition(f"The binding key must not be greater than {WEIGHT_MAX}")
