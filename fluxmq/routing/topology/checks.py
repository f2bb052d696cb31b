"""Consistency of declarations: reserved names, exclusive use, equivalence (RabbitMQ's rules and
texts)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fluxmq.routing.topology.arguments import (
    ALTERNATE_KEY,
    COMPARED_KEYS,
    GROUP_KEY,
    QUEUE_TYPE_KEY,
)
from fluxmq.routing.topology.migrations import other_group
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, Exchange, QueueRecord
from fluxmq.routing.topology.refusals import Refusal, locked, named, precondition
from fluxmq.routing.topology.type_changes import LEFT_OUT, may_be_called_classic
from fluxmq.routing.topology.values import described, same, shown


def check_access(queue: QueueRecord, asker: str | None) -> None:
    """Raise `Refusal` 405 when the queue is exclusive to another connection; operators (None) may
    use any."""
    if asker is not None and queue.exclusive and queue.owner != asker:
        raise locked(queue.name, queue.vhost)


def check_exchange_equal(current: Exchange, wanted: Exchange) -> None:
    """Raise `Refusal` 406 when an exchange is redeclared differently."""
    name = named("exchange", current.name, current.vhost)
    _check_field(name, "type", wanted.type, current.type)
    for key in ("durable", "auto_delete", "internal"):
        _check_field(name, key, getattr(wanted, key), getattr(current, key))
    _check_arguments(name, wanted.arguments, current.arguments, (ALTERNATE_KEY,))


def check_queue_equal(current: QueueRecord, wanted: QueueRecord) -> None:
    """Raise `Refusal` 405 or 406 when a queue is redeclared differently.

    For a queue of the settings file, whose configuration its declarer does not know, only the given
    arguments must agree.
    """
    if current.exclusive != wanted.exclusive or current.owner != wanted.owner:
        raise locked(current.name, current.vhost)
    name = named("queue", current.name, current.vhost)
    for key in ("durable", "auto_delete"):
        _check_field(name, key, getattr(wanted, key), getattr(current, key))
    given, there = _groups_aside(current, wanted.arguments)
    keys: Iterable[str] = COMPARED_KEYS
    if current.origin == ORIGIN_SETTINGS:
        keys = [key for key in keys if key in given]
        there = {QUEUE_TYPE_KEY: current.type, **there}
    elif may_be_called_classic(current, given):
        keys = [key for key in COMPARED_KEYS if key not in (QUEUE_TYPE_KEY, *LEFT_OUT)]
    elif current.type == wanted.type == given.get(QUEUE_TYPE_KEY, wanted.type):
        keys = COMPARED_KEYS[:-1]  # given or not, it is the same type
    _check_arguments(name, given, there, keys)


def _groups_aside(
    current: QueueRecord, given: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments to compare: a given group agrees if it is the queue's, or was at
    declaration.

    Raises `Refusal` 406 for any other group, naming the way to move a queue.
    """
    there, wanted = current.arguments, given.get(GROUP_KEY)
    if wanted is None or not current.group:
        return given, there
    if wanted != current.group and wanted != there.get(GROUP_KEY):
        raise precondition(other_group(current, shown(wanted)))
    return {**given, GROUP_KEY: current.group}, {**there, GROUP_KEY: current.group}


def _check_field(name: str, key: str, wanted: Any, current: Any) -> None:
    if wanted != current:
        raise _inequivalent(name, key, f"'{shown(wanted)}'", f"'{shown(current)}'")


def _check_arguments(
    name: str, wanted: Mapping[str, Any], current: Mapping[str, Any], keys: Iterable[str]
) -> None:
    for key in keys:
        missing, new = key not in wanted, key not in current
        if missing and new:
            continue
        if missing or new:
            raise _inequivalent(
                name,
                key,
                described(wanted.get(key), missing),
                described(current.get(key), new),
            )
        if not same(wanted[key], current[key]):
            raise _inequivalent(name, key, f"'{shown(wanted[key])}'", f"'{shown(current[key])}'")


def _inequivalent(name: str, key: str, wanted: str, current: str) -> Refusal:
    return precondition(
        f"inequivalent arg '{key}' for {name}: received {wanted} but current is {current}"
    )
