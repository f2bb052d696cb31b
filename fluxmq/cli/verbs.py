"""Verbs named after rabbitmqctl's: virtual hosts, policies, lists, and queue and connection
actions.

These need a running broker; those about users are in `user_verbs`. Each takes the node and its
options and returns the lines to print.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

import orjson

from fluxmq.cli import ban_verbs, limit_verbs, mirror_verbs, parameter_verbs, trace_verbs
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.formats import said, table
from fluxmq.cli.node import TargetNode
from fluxmq.control.columns import LISTS
from fluxmq.ipc.row_messages import (
    CLOSE_CONNECTIONS,
    CLOSE_SESSION,
    DELETE_QUEUE,
    LIST,
    PURGE_QUEUE,
    AffectedCount,
    CloseConnections,
    CloseSession,
    Listed,
    ListRequest,
    QueueRequest,
    TableRow,
)
from fluxmq.ipc.topology_messages import (
    TOPOLOGY_CHANGE,
    TopologyChanged,
    change_body,
    pack_set,
)
from fluxmq.routing.topology.changes import (
    AddVhost,
    Change,
    ClearPolicy,
    DeleteVhost,
    SetPolicy,
    SetVhostLimits,
)
from fluxmq.routing.topology.records import Policy, Vhost

RABBITMQ_REFUSED: Final = 69
"""Exit code of rabbitmqctl for what its broker would refuse."""
REQUEST_SECONDS: Final = 35.0
"""Time to wait for actions on queues or connections: longer than control waits for shards."""


# Changes of the topology


def _change(node: TargetNode, change: Change) -> None:
    """Make a change. Exits when it is refused."""
    with node.require() as caller:
        body = caller.call(TOPOLOGY_CHANGE, change_body([pack_set([change])]))
    changed = TopologyChanged.from_body(body)
    for refusal in changed.results:
        if refusal is not None:
            raise ExitError(EXIT_REFUSED, refusal.text)
    node.complain_of(changed.unconfirmed)


def _object(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object from the command line. Exits when it is not one."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ExitError(EXIT_USAGE, f"{what} are not JSON: {error}", RABBITMQ_REFUSED) from None
    if not isinstance(value, dict):
        raise ExitError(EXIT_USAGE, f"{what} are not a JSON object")
    return value


def _add_vhost(node: TargetNode, options: argparse.Namespace) -> list[str]:
    tags = tuple(tag.strip() for tag in options.tags.split(",") if tag.strip())
    vhost = Vhost(
        options.name,
        default_queue_type=options.default_queue_type,
        tags=tags,
        description=options.description,
    )
    _change(node, AddVhost(vhost))
    return said(options, f'Adding vhost "{options.name}" ...')


def _delete_vhost(node: TargetNode, options: argparse.Namespace) -> list[str]:
    _change(node, DeleteVhost(options.name))
    return said(options, f'Deleting vhost "{options.name}" ...')


def _set_vhost_limits(node: TargetNode, options: argparse.Namespace) -> list[str]:
    limits = _object(options.limits, "limits")
    _change(node, SetVhostLimits(options.vhost, limits))
    return said(
        options, f'Setting vhost limits to "{options.limits}" for vhost "{options.vhost}" ...'
    )


def _clear_vhost_limits(node: TargetNode, options: argparse.Namespace) -> list[str]:
    _change(node, SetVhostLimits(options.vhost, {}))
    return said(options, f'Clearing vhost "{options.vhost}" limits ...')


def _set_user_limits(node: TargetNode, options: argparse.Namespace) -> list[str]:
    limits = _object(options.limits, "limits")
    return limit_verbs.set_user_limits(node, options, limits, _change)


def _clear_user_limits(node: TargetNode, options: argparse.Namespace) -> list[str]:
    return limit_verbs.clear_user_limits(node, options, _change)


def _set_policy(node: TargetNode, options: argparse.Namespace) -> list[str]:
    operator = options.command == "set_operator_policy"
    policy = Policy(
        options.vhost,
        options.name,
        options.pattern,
        options.apply_to,
        options.priority,
        _object(options.definition, "definitions"),
        operator,
    )
    _change(node, SetPolicy(policy))
    node.complaints += mirror_verbs.warnings_of(policy.definition)
    what = "operator policy override" if operator else "policy"
    return said(
        options,
        f'Setting {what} "{options.name}" for pattern "{options.pattern}" to "{options.definition}"'
        f' with priority "{options.priority}" for vhost "{options.vhost}" ...',
    )


def _clear_policy(node: TargetNode, options: argparse.Namespace) -> list[str]:
    operator = options.command == "clear_operator_policy"
    _change(node, ClearPolicy(options.vhost, options.name, operator))
    what = "operator policy override" if operator else "policy"
    return said(options, f'Clearing {what} "{options.name}" on vhost "{options.vhost}" ...')


# Lists


def _list(node: TargetNode, options: argparse.Namespace) -> list[str]:
    listing = LISTS[options.what]
    columns = tuple(options.columns or listing.shown)
    unknown = [column for column in columns if column not in listing.columns]
    if unknown:
        raise ExitError(
            EXIT_USAGE,
            f"{options.what} have no column {', '.join(map(repr, unknown))};"
            f" there are {', '.join(listing.columns)}",
        )
    vhost = options.vhost if listing.scoped and not options.everywhere else None
    if options.everywhere:
        columns = (listing.columns[0], *columns)
    subject = "" if options.everywhere else getattr(options, "subject", "")
    rows, missing = _rows(node, ListRequest(options.what, columns, vhost, (), subject))
    if missing:
        node.complaints.append(
            f"no answer in time from {', '.join(missing)}; their rows are not shown"
        )
    title = listing.title.format(vhost=vhost, subject=subject)
    if options.everywhere:
        title = "Listing limits for all vhosts ..."
    return table(options, title, list(rows), columns)


def _rows(node: TargetNode, wanted: ListRequest) -> tuple[list[TableRow], list[str]]:
    """Return all rows of a list, fetched page by page, and the shards that did not answer."""
    rows: list[TableRow] = []
    missing: set[str] = set()
    place: tuple[int, ...] = ()
    with node.require() as caller:
        while True:
            question = ListRequest(wanted.what, wanted.columns, wanted.vhost, place, wanted.subject)
            listed = Listed.from_body(caller.call(LIST, question.to_body()))
            rows += listed.rows
            missing.update(listed.missing)
            place = listed.place
            if not place:
                return rows, sorted(missing)


# Orders


def _order(node: TargetNode, kind: str, body: dict[str, object]) -> int:
    node.wait_at_least(REQUEST_SECONDS)
    with node.require() as caller:
        done = AffectedCount.from_body(caller.call(kind, body))
    if done.missing:
        node.complaints.append(f"{', '.join(done.missing)} cannot be reached")
    return done.count


def _purge_queue(node: TargetNode, options: argparse.Namespace) -> list[str]:
    request = QueueRequest(options.vhost, options.queue)
    count = _order(node, PURGE_QUEUE, request.to_body())
    title = f"Purging queue '{options.queue}' in vhost '{options.vhost}' ..."
    return said(options, title) + said(options, f"Queue was purged of {count} messages")


def _delete_queue(node: TargetNode, options: argparse.Namespace) -> list[str]:
    request = QueueRequest(options.vhost, options.queue, options.if_unused, options.if_empty)
    count = _order(node, DELETE_QUEUE, request.to_body())
    title = f"Deleting queue '{options.queue}' on vhost '{options.vhost}' ..."
    return said(options, title) + said(
        options, f"Queue was successfully deleted with {count} ready messages"
    )


def _close_connection(node: TargetNode, options: argparse.Namespace) -> list[str]:
    _order(node, CLOSE_CONNECTIONS, CloseConnections(options.pid, None, options.reason).to_body())
    return said(options, f"Closing connection {options.pid}, reason: {options.reason} ...")


def _close_all_connections(node: TargetNode, options: argparse.Namespace) -> list[str]:
    vhost = None if options.everywhere else options.vhost
    wanted = CloseConnections(None, vhost, options.reason)
    count = _order(node, CLOSE_CONNECTIONS, wanted.to_body())
    where = "" if vhost is None else f" in vhost {vhost}"
    return said(options, f"Closed {count} connections{where}, reason: {options.reason}")


def _close_session(node: TargetNode, options: argparse.Namespace) -> list[str]:
    client_id = options.client_id
    _order(node, CLOSE_SESSION, CloseSession(client_id).to_body())
    return said(options, f"Ended the session of MQTT client {client_id!r}")


_LISTS: Final = (
    "list_queues",
    "list_exchanges",
    "list_bindings",
    "list_connections",
    "list_channels",
    "list_consumers",
    "list_vhosts",
    "list_vhost_limits",
    "list_user_limits",
    "list_parameters",
    "list_global_parameters",
    "list_policies",
    "list_operator_policies",
    "explain-policy",
)

VERBS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], list[str]]]] = {
    **ban_verbs.VERBS,
    **trace_verbs.VERBS,
    **parameter_verbs.verbs(_change),
    **mirror_verbs.verbs(_rows),
    **dict.fromkeys(_LISTS, _list),
    "add_vhost": _add_vhost,
    "delete_vhost": _delete_vhost,
    "set_vhost_limits": _set_vhost_limits,
    "clear_vhost_limits": _clear_vhost_limits,
    "set_user_limits": _set_user_limits,
    "clear_user_limits": _clear_user_limits,
    "set_policy": _set_policy,
    "set_operator_policy": _set_policy,
    "clear_policy": _clear_policy,
    "clear_operator_policy": _clear_policy,
    "purge_queue": _purge_queue,
    "delete_queue": _delete_queue,
    "close_connection": _close_connection,
    "close_all_connections": _close_all_connections,
    "close_session": _close_session,
}
"""Verbs by name, as `verb_arguments` adds them."""
