"""``fluxmqctl groups``, ``queues``, ``pin`` and ``unpin``: one request to the control process each.

Each command takes a connection, its options and whether colours may be used, and returns the lines
to print.
"""

from __future__ import annotations

import argparse
from typing import Final

import orjson

from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.tables import TextTable, columns, grouped
from fluxmq.ipc.placements import (
    GROUPS,
    PIN,
    QUEUES,
    UNPIN,
    GroupListing,
    GroupRow,
    Pin,
    PinResult,
    QueueListing,
    QueueRow,
    Release,
)
from fluxmq.ipc.table import NOT_PINNED

MOVE_SECONDS: Final = 120.0
"""Time to wait for the answer to pin and unpin: the checkpoint before a move may write a lot."""

_NONE: Final = "-"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
ROLES: Final = {
    "leader": "green",
    "follower": "green",
    "starting": "yellow",
    "leaving": "yellow",
    "failed": "red",
}
"""Colours of a node's role in a group; any other role is red."""

_GROUP_COLUMNS: Final = columns(
    "GROUP, #SHARD, #CORE, STATE, DURABILITY, #QUEUES, #MESSAGES, #SIZE, #APPLIED, #FSYNC P99"
)
_LED_COLUMNS: Final = columns("LEADER, #TERM")
"""Shown for groups of a cluster."""
_QUEUE_COLUMNS: Final = columns(
    "QUEUE, TYPE, GROUP, DURABILITY, #MESSAGES, #SIZE, #FIRST, #NEXT, #CONSUMERS, "
    "#LAG, #UNSETTLED, #DEAD"
)


def size(count: int) -> str:
    """Return a number of bytes in the unit that leaves one to four digits: ``12.3 MiB``."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def milliseconds(seconds: float) -> str:
    """Return a latency: ``0.42 ms``, or a dash when none was measured yet."""
    return f"{seconds * 1000:.2f} ms" if seconds > 0 else _NONE


def groups(caller: BrokerCaller, options: argparse.Namespace, colour: bool) -> list[str]:
    """Show the replication groups."""
    listing = GroupListing.from_body(caller.call(GROUPS, {}))
    if options.json:
        return [orjson.dumps(listing.to_body()).decode()]
    return group_lines(listing, colour=colour)


def group_lines(listing: GroupListing, *, colour: bool) -> list[str]:
    """Return the table of groups, followed by remarks that do not fit into it."""
    clustered = any(row.leader is not None for row in listing.groups)
    table = TextTable((*_GROUP_COLUMNS, *(_LED_COLUMNS if clustered else ())))
    for number, row in enumerate(listing.groups):
        table.colours[number, 3] = ROLES.get(row.role, "red")
        led = [row.leader or _NONE, grouped(row.term)] if clustered else []
        table.rows.append([*_group_cells(row), *led])
    remarks = [f"{row.group}: {row.problem}" for row in listing.groups if row.problem]
    remarks += [f"{shard}: did not answer in time" for shard in listing.missing]
    if not listing.groups:
        return ["there are no replication groups", *remarks]
    return table.with_remarks(remarks, colour=colour)


def _group_cells(row: GroupRow) -> list[str]:
    core = _NONE if row.core == NOT_PINNED else str(row.core)
    return [
        row.group,
        str(row.shard),
        f"{core} pinned" if row.pinned else core,
        row.role,
        row.durability,
        grouped(row.queues),
        grouped(row.messages),
        size(row.bytes),
        grouped(row.applied),
        milliseconds(row.fsync_p99),
    ]


def queues(caller: BrokerCaller, options: argparse.Namespace, colour: bool) -> list[str]:
    """Show the queues."""
    listing = QueueListing.from_body(caller.call(QUEUES, {}))
    if options.json:
        return [orjson.dumps(listing.to_body()).decode()]
    return queue_lines(listing, colour=colour)


def queue_lines(listing: QueueListing, *, colour: bool) -> list[str]:
    """Return the table of queues with their consumer groups, followed by remarks that do not fit
    into it."""
    table = TextTable(_QUEUE_COLUMNS)
    for row in listing.queues:
        if row.durability == "buffered":
            table.colours[len(table.rows), 3] = "yellow"
        table.rows += _queue_cells(row)
    remarks = [f"{shard}: did not answer in time" for shard in listing.missing]
    if listing.left_out:
        remarks.append(f"{grouped(listing.left_out)} more queues are not shown")
    if not listing.queues:
        return ["there are no queues", *remarks]
    return table.with_remarks(remarks, colour=colour)


def _queue_cells(row: QueueRow) -> list[list[str]]:
    """Return a queue's row, and one for each of its consumer groups."""
    cells = [
        row.queue,
        row.type,
        row.group,
        row.durability,
        grouped(row.messages),
        size(row.bytes),
        str(row.first),
        str(row.next),
        grouped(row.consumers),
        _NONE,
        _NONE,
        grouped(row.dead_lettered),
    ]
    lines = [cells]
    for group in row.groups:
        counts = (group.members, group.lag, group.unsettled)
        name = f"  {group.name or '(default)'}"
        lines.append([name, group.mode, *[""] * 6, *map(grouped, counts), ""])
    return lines


def pin(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Move a group to a core or to a shard, and keep it there."""
    kind, number = options.place
    wanted = Pin(options.group, **{kind: number})
    placed = PinResult.from_body(caller.call(PIN, wanted.to_body()))
    return [_placed(options.group, placed, "is pinned to")]


def unpin(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Let a group's name decide its shard again."""
    placed = PinResult.from_body(caller.call(UNPIN, Release(options.group).to_body()))
    return [_placed(options.group, placed, "is no longer pinned; it is on")]


def _placed(group: str, placed: PinResult, how: str) -> str:
    core = "" if placed.core == NOT_PINNED else f" (core {placed.core})"
    moved = f", moved there in {milliseconds(placed.pause)}" if placed.moved else ""
    return f"group {group!r} {how} shard {placed.shard}{core}{moved}"
