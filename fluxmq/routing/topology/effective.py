"""Combination of a queue's arguments, its policy and its operator policy.

The smallest of several limits applies, whatever its source; of everything else the argument before
the policy (RabbitMQ's rules, "Combining policy definitions"). Operator policies have limits only.
Keys are the arguments' names without ``x-``; keys that do not apply to the queue's type are left
out. Nothing is cached: policies may change at any time.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fluxmq.routing.topology.arguments import (
    ALTERNATE_KEY,
    CLASSIC,
    QUEUE_KEYS,
    age_seconds,
    applies_to_type,
)
from fluxmq.routing.topology.mirror_keys import MIRROR_KEYS
from fluxmq.routing.topology.policies import applying
from fluxmq.routing.topology.records import Exchange, Policy, QueueRecord
from fluxmq.routing.topology.topology import Topology
from fluxmq.routing.topology.values import shown

SMALLEST: Final = frozenset(
    {
        "consumer-timeout",
        "delivery-limit",
        "expires",
        "max-age",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "max-length-bytes",
        "message-ttl",
    }
)
"""Limits, of which the smallest counts; a ``delivery-limit`` of -1 is unlimited and larger than
any."""


class Explained(NamedTuple):
    """One setting of a queue: its value, its origin, and the alternatives (``policy 'p' says
    10``)."""

    key: str
    value: str
    source: str
    others: str


class _Said(NamedTuple):
    source: str
    value: Any


def policy_of(
    topology: Topology, to: QueueRecord | Exchange, *, operator: bool = False
) -> Policy | None:
    """Return the policy, or the operator policy, that applies to a queue or exchange."""
    return applying(topology.policies(to.vhost), to, operator)


def policy_definition(topology: Topology, to: QueueRecord | Exchange) -> dict[str, Any]:
    """Return both policies combined, without arguments: RabbitMQ's column
    ``effective_policy_definition``."""
    said: dict[str, list[_Said]] = {}
    _hear_policies(topology, to, said)
    return {key: _winner(key, values).value for key, values in said.items()}


def effective(topology: Topology, queue: QueueRecord) -> dict[str, Any]:
    """Return every setting of the queue, by key, as it was given."""
    return {key: _winner(key, values).value for key, values in _hear(topology, queue).items()}


def explain(topology: Topology, to: QueueRecord | Exchange) -> list[Explained]:
    """Return every setting by key, with its origin and what it overrides."""
    rows: list[Explained] = []
    for key, values in sorted(_hear(topology, to).items()):
        winner = _winner(key, values)
        others = "; ".join(
            f"{said.source} says {shown(said.value)}" for said in values if said is not winner
        )
        rows.append(Explained(key, shown(winner.value), winner.source, others))
    return rows


def _hear(topology: Topology, to: QueueRecord | Exchange) -> dict[str, list[_Said]]:
    """Return all sources of each key; the argument first."""
    said: dict[str, list[_Said]] = {}
    keys = (*QUEUE_KEYS, *MIRROR_KEYS) if isinstance(to, QueueRecord) else (ALTERNATE_KEY,)
    for key in keys:
        if key in to.arguments and (key not in MIRROR_KEYS or _applies(key, to)):
            said[key.removeprefix("x-")] = [_Said("argument", to.arguments[key])]
    _hear_policies(topology, to, said)
    return said


def _hear_policies(
    topology: Topology, to: QueueRecord | Exchange, said: dict[str, list[_Said]]
) -> None:
    for operator in (False, True):
        policy = policy_of(topology, to, operator=operator)
        if policy is None:
            continue
        source = f"{'operator ' if operator else ''}policy '{policy.name}'"
        for key, value in policy.definition.items():
            if _applies(key, to):
                said.setdefault(key, []).append(_Said(source, value))


def _applies(key: str, to: QueueRecord | Exchange) -> bool:
    if isinstance(to, Exchange):
        return key == ALTERNATE_KEY
    if key in MIRROR_KEYS:
        return to.type == CLASSIC
    return applies_to_type(f"x-{key}", to.type)


def _winner(key: str, values: list[_Said]) -> _Said:
    return min(values, key=_rank) if key in SMALLEST else values[0]


def _rank(said: _Said) -> float:
    """Return a limit's sort key: the smaller, the stricter."""
    if isinstance(said.value, str):
        return age_seconds(said.value)
    return float("inf") if said.value < 0 else said.value
