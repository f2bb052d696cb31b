"""Columns of mirrored queues, under the names of RabbitMQ's tools, old and new.

A queue that is not mirrored has none of them. One that is has lists, which are empty while it has no
mirror. Identifiers have the form of Erlang's, so that programs find the node in them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fluxmq.control.columns import QUEUE_MIRRORS
from fluxmq.ipc.row_messages import TableRow
from fluxmq.routing.topology.mirror_records import MirrorRecord
from fluxmq.routing.topology.records import QueueRecord

PID_NUMBERS: Final = 1 << 15
"""Bound of the number by which identifiers of queues on one node differ, as in Erlang."""


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The nodes of a mirrored queue. ``mirrors``: those that are online, without the leader, the one
    that has run longest first; ``synchronised``: those of them that have everything;
    ``recoverable``: also those that are not online; ``syncing``: mirrors are being synchronised."""

    leader: str
    mirrors: tuple[str, ...] = ()
    synchronised: tuple[str, ...] = ()
    recoverable: tuple[str, ...] = ()
    syncing: bool = False


MirrorStates: TypeAlias = Callable[[QueueRecord], MirrorState | None]
"""Look-up of a queue's state; None for one that is not mirrored."""


def not_mirrored(_queue: QueueRecord) -> MirrorState | None:
    """Return the state of any queue where none is mirrored: on a node without a cluster."""
    return None


def mirror_state(
    record: MirrorRecord, online: Collection[str], joining: Sequence[str] = (), *, syncing: bool
) -> MirrorState:
    """Return the state of the queues of a mirrored group. ``joining``: nodes that will have a mirror
    once they are synchronised."""
    later = tuple(each for each in joining if record.member(each) is None)
    every = (*record.mirrors, *later)
    return MirrorState(
        record.leader,
        tuple(each for each in every if each in online),
        tuple(each for each in record.synchronised_mirrors if each in online),
        every,
        syncing,
    )


def unsynchronised(
    leader: str, joining: Sequence[str], online: Collection[str], *, syncing: bool
) -> MirrorState | None:
    """Return the state of a queue that is on one node, and will have mirrors on others; None if on none."""
    mirrors = tuple(each for each in joining if each != leader)
    if not mirrors:
        return None
    there = tuple(each for each in mirrors if each in online)
    return MirrorState(leader, there, (), mirrors, syncing)


def mirror_columns(queue: QueueRecord, state: MirrorState | None) -> TableRow:
    """Return the columns of a queue: lists of its mirrors, None where it is not mirrored."""
    if state is None:
        return dict.fromkeys(QUEUE_MIRRORS)
    pids = [_pid(each, queue) for each in state.mirrors]
    synchronised = [_pid(each, queue) for each in state.synchronised]
    return {
        "slave_pids": pids,
        "mirror_pids": pids,
        "synchronised_slave_pids": synchronised,
        "synchronised_mirror_pids": synchronised,
        "slave_nodes": list(state.mirrors),
        "mirror_nodes": list(state.mirrors),
        "synchronised_slave_nodes": list(state.synchronised),
        "synchronised_mirror_nodes": list(state.synchronised),
        "recoverable_slaves": list(state.recoverable),
        "mirrors_syncing": state.syncing,
    }


def add_mirrors(row: TableRow, queue: QueueRecord, state: MirrorState | None) -> None:
    """Add the columns of mirrors to a queue's row, and its identifier; if it is mirrored, add its leader
    where its group has none for now."""
    row.update(mirror_columns(queue, state))
    if state is not None:
        row["leader"] = row.get("leader") or state.leader
    node = state.leader if state is not None else queue.group.partition("@")[2]
    if node:
        row["pid"] = _pid(node, queue)


def _pid(node: str, queue: QueueRecord) -> str:
    number = zlib.crc32(queue.internal_name.encode()) % PID_NUMBERS
    return f"<{node}.1.{number}.0>"
