"""Policies: valid definitions, and the one that applies to a queue or an exchange.

Keys are the arguments' names without ``x-``. Of policies whose pattern matches the name the one of
highest priority applies, among equals the first by name; of operator policies likewise. Texts of
refusals are RabbitMQ 3.10's. Keys that mirror queues are checked together (`mirror_keys`). Values of
apply-to include those of RabbitMQ 3.12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from fluxmq.model.patterns import Pattern, PatternError, compile_pattern
from fluxmq.routing.topology.arguments import (
    ALTERNATE_KEY,
    BEFORE_SYNC_KEY,
    CLASSIC,
    LENGTH_MAX,
    MILLISECONDS_MAX,
    QUORUM,
    SEGMENT_BYTES_MAX,
    STREAM,
    age_seconds,
)
from fluxmq.routing.topology.mirror_keys import MIRROR_KEYS, mirror_problem, term
from fluxmq.routing.topology.names import APPLY_TO
from fluxmq.routing.topology.records import Exchange, Policy, QueueRecord
from fluxmq.routing.topology.refusals import precondition
from fluxmq.routing.topology.values import TABLE_BYTES_MAX, canonical

PATTERNS_KEPT: Final = 4096
"""Maximum compiled patterns cached: more than anybody has policies."""


class _Key(NamedTuple):
    """Valid values of a definition's key, and its name in refusals."""

    accepts: Callable[[Any], bool]
    what: str
    by_operator: bool = False


def _is_integer(value: Any, least: int, most: int = LENGTH_MAX) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(least: int, most: int = LENGTH_MAX) -> Callable[[Any], bool]:
    return lambda value: _is_integer(value, least, most)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _choice(*choices: Any) -> Callable[[Any], bool]:
    return lambda value: not isinstance(value, bool) and value in choices


_KEYS: Final[dict[str, _Key]] = {
    ALTERNATE_KEY: _Key(_text, "alternate exchange name"),
    "dead-letter-exchange": _Key(_text, "dead letter exchange name"),
    "dead-letter-routing-key": _Key(_text, "dead letter routing key"),
    "dead-letter-strategy": _Key(_choice("at-most-once", "at-least-once"), "dead letter strategy"),
    "message-ttl": _Key(_number(0), "message TTL", by_operator=True),
    "expires": _Key(_number(1), "queue expiry", by_operator=True),
    "max-length": _Key(_number(0), "maximum length", by_operator=True),
    "max-length-bytes": _Key(_number(0), "maximum length in bytes", by_operator=True),
    "max-in-memory-length": _Key(_number(0), "maximum memory in bytes", by_operator=True),
    "max-in-memory-bytes": _Key(_number(0), "maximum memory in bytes", by_operator=True),
    "delivery-limit": _Key(_number(-1), "delivery limit", by_operator=True),
    "consumer-timeout": _Key(_number(1, MILLISECONDS_MAX), "consumer timeout", by_operator=True),
    "queue-mode": _Key(_choice("default", "lazy"), "queue-mode value"),
    "queue-version": _Key(_choice(1, 2), "queue-version value"),
    "overflow": _Key(
        _choice("drop-head", "reject-publish", "reject-publish-dlx"), "overflow value"
    ),
    "max-age": _Key(lambda value: isinstance(value, str) and age_seconds(value) > 0, "max age"),
    "stream-max-segment-size-bytes": _Key(_number(0, SEGMENT_BYTES_MAX), "segment size"),
    "queue-leader-locator": _Key(
        _choice("client-local", "balanced", "random", "least-leaders"), "queue leader locator value"
    ),
    "queue-master-locator": _Key(
        _choice("client-local", "min-masters", "random"), "queue master locator value"
    ),
    BEFORE_SYNC_KEY.removeprefix("x-"): _Key(_flag, "deliver-before-sync value"),
}


def check_policy(policy: Policy) -> None:
    """Raise `Refusal` 406 for an invalid policy."""
    try:
        compiled(policy.pattern)
    except PatternError as error:
        raise precondition(
            f"pattern should be regular expression but is invalid: {error}"
        ) from None
    if policy.apply_to not in APPLY_TO:
        choices = ", ".join(f"'{choice}'" for choice in APPLY_TO[1:])
        raise precondition(
            f"apply-to '{policy.apply_to}' unrecognised; should be {choices} or '{APPLY_TO[0]}'"
        )
    definition = policy.definition
    if not definition:
        raise precondition("no policy provided")
    try:
        size = len(canonical(definition))
    except (ValueError, RecursionError):
        raise precondition("a policy's definition has values of no known type") from None
    if size > TABLE_BYTES_MAX:
        raise precondition(f"a policy's definition has more than {TABLE_BYTES_MAX} bytes")
    unknown = [
        f"{{{term(key)},{term(value)}}}"
        for key, value in definition.items()
        if not _is_known(key, policy.operator)
    ]
    if unknown:
        raise precondition(f"[{','.join(unknown)}] are not recognised policy settings")
    problem = mirror_problem(definition)
    if problem is not None:
        raise precondition(problem.text)
    for key, value in definition.items():
        if key in _KEYS and not _KEYS[key].accepts(value):
            raise precondition(f"{term(value)} is not a valid {_KEYS[key].what}")


def _is_known(key: str, operator: bool) -> bool:
    if key in MIRROR_KEYS:
        return not operator
    return key in _KEYS and (_KEYS[key].by_operator or not operator)


@lru_cache(PATTERNS_KEPT)
def compiled(pattern: str) -> Pattern:
    """Return the compiled pattern. Raises `PatternError`."""
    return compile_pattern(pattern)


_QUEUES_OF: Final = {CLASSIC: "classic_queues", QUORUM: "quorum_queues", STREAM: "streams"}


def applying(
    policies: Iterable[Policy], to: QueueRecord | Exchange, operator: bool
) -> Policy | None:
    """Return the policy that applies, None when none does. Takes policies of one vhost."""
    if isinstance(to, Exchange):
        kinds: tuple[str, ...] = ("all", "exchanges")
    else:
        kinds = ("all", "queues", _QUEUES_OF[to.type])
    best: Policy | None = None
    for policy in policies:
        if policy.operator is not operator or policy.apply_to not in kinds:
            continue
        if best is not None and (-policy.priority, policy.name) > (-best.priority, best.name):
            continue
        if compiled(policy.pattern).search(to.name):
            best = policy
    return best
