"""Verbs about bans of addresses, users and client ids. They need a running broker."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from fluxmq.auth.bans import ban_problem
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.formats import said, table
from fluxmq.cli.node import TargetNode
from fluxmq.ipc.door_messages import (
    BAN,
    LIST_BANS,
    UNBAN,
    BanChanged,
    BanList,
    BanRequest,
    UnbanRequest,
)
from fluxmq.settings.values import parse_duration

COLUMNS: Final = ("kind", "value", "until", "reason")


def _ban(node: TargetNode, options: argparse.Namespace) -> list[str]:
    seconds = None
    if options.seconds is not None:
        try:
            seconds = parse_duration(options.seconds)
        except ValueError as problem:
            raise ExitError(EXIT_USAGE, f"--for: {options.seconds!r} {problem}") from None
        if seconds <= 0:
            raise ExitError(EXIT_USAGE, "--for: a ban takes some time; unban lifts one")
    _check(options)
    wanted = BanRequest(options.kind, options.value, seconds, options.reason)
    closed = _change(node, BAN, wanted.to_body())
    ending = "" if seconds is None else f" for {options.seconds}"
    title = f'Banning {options.kind} "{options.value}"{ending} ...'
    return said(options, title) + said(options, f"Closed {closed} connections")


def _unban(node: TargetNode, options: argparse.Namespace) -> list[str]:
    _check(options)
    _change(node, UNBAN, UnbanRequest(options.kind, options.value).to_body())
    return said(options, f'Lifting the ban of {options.kind} "{options.value}" ...')


def _list_bans(node: TargetNode, options: argparse.Namespace) -> list[str]:
    with node.require() as caller:
        bans = BanList.from_body(caller.call(LIST_BANS, {})).bans
    rows: list[Mapping[str, Any]] = [
        {"kind": ban.kind, "value": ban.value, "until": _time(ban.until), "reason": ban.reason}
        for ban in sorted(bans, key=lambda ban: (ban.kind, ban.value))
    ]
    return table(options, "Listing bans ...", rows, COLUMNS)


def _check(options: argparse.Namespace) -> None:
    problem = ban_problem(options.kind, options.value)
    if problem is not None:
        raise ExitError(EXIT_REFUSED, problem)


def _change(node: TargetNode, kind: str, body: dict[str, object]) -> int:
    """Make a change; return how many connections it has closed."""
    with node.require() as caller:
        changed = BanChanged.from_body(caller.call(kind, body))
    node.complain_of(changed.unconfirmed)
    return changed.closed


def _time(until: float | None) -> str:
    return "" if until is None else datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")


VERBS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], list[str]]]] = {
    "ban": _ban,
    "unban": _unban,
    "list_bans": _list_bans,
}
