"""A node that leaves its cluster for good: what is against it, and its last steps.

``fluxmqctl leave`` has the node refuse clients, hand over what it leads and leave its groups. Here is
what the command asks for before and after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final

from fluxmq.control.clustering import in_contact
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import RequestError
from fluxmq.ipc.cluster_nodes import Leave, Obstacles
from fluxmq.ipc.clusters import VOTER, RaftListing, RaftRow
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_FAILED, ERROR_INVALID, Body, ControlMessage
from fluxmq.ipc.node_messages import NODE_LEFT, NodeLeft
from fluxmq.logs import get_logger
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.group_names import is_mirrored
from fluxmq.storage.errors import StorageError

if TYPE_CHECKING:
    from fluxmq.control.etcd.cluster_nodes import NodeKeys

ASK_SECONDS: Final = 15.0
"""Time for another node to remove this one's member of etcd and its records."""
END_SECONDS: Final = 0.5
"""Time for the answer to reach who has asked, before the node stops."""
NAMED_MAX: Final = 20
"""Queues that are named in an answer."""

_log = get_logger(__name__)


class Departure:
    """This node's part. ``keys``: the nodes of the cluster; ``replicas`` returns the groups;
    ``delete`` removes queues, by virtual host and name; ``forget`` removes what the store has of a
    node; ``supervisor``: the process to stop at the end."""

    def __init__(
        self,
        node: str,
        keys: NodeKeys,
        nodes: ControlOfNodes,
        topology: Callable[[], Topology],
        replicas: Callable[[], Awaitable[RaftListing]],
        delete: Callable[[list[tuple[str, str]]], Awaitable[None]],
        forget: Callable[[str], Awaitable[None]],
        supervisor: int,
    ) -> None:
        self._node = node
        self._keys = keys
        self._nodes = nodes
        self._topology = topology
        self._replicas = replicas
        self._delete = delete
        self._forget = forget
        self._supervisor = supervisor

    async def answer(self, message: ControlMessage) -> Body:
        """Say what is against leaving, or leave. Raises RequestError or MessageError."""
        wanted = Leave.from_body(message.body)
        listing = await self._replicas()
        if listing.missing:
            raise RequestError(ERROR_FAILED, f"{', '.join(listing.missing)} did not answer")
        own = own_queues(self._topology(), self._node)
        others = tuple(sorted(self._nodes.nodes))
        against = obstacles(listing, self._node, others if wanted.moves else ())
        if not others:
            against.append("there is no other node")
        found = Obstacles(tuple(against), tuple(losses(own)), others)
        if wanted.check:
            return found.to_body()
        left = [
            row.group
            for row in listing.groups
            if _has(row, self._node) and not is_mirrored(row.group)
        ]
        if left:
            text = (
                f"this node is still a member of {', '.join(left[:NAMED_MAX])}: shrink them first"
            )
            raise RequestError(ERROR_INVALID, text)
        if found.obstacles or (found.losses and not wanted.force):
            raise RequestError(ERROR_INVALID, "; ".join((*found.obstacles, *found.losses)))
        await self._leave([(vhost, name) for vhost, name in own])
        return found.to_body()

    async def _leave(self, own: list[tuple[str, str]]) -> None:
        if own:
            await self._delete(own)
        await self._ask_others()
        try:
            await self._keys.close_door()
        except StorageError as problem:
            raise RequestError(ERROR_FAILED, str(problem)) from problem
        _log.warning("this node has left the cluster, and stops")
        loop = asyncio.get_running_loop()
        loop.call_later(END_SECONDS, os.kill, self._supervisor, signal.SIGTERM)

    async def _ask_others(self) -> None:
        """Have another node remove this one's member of etcd and records. Raises RequestError."""
        problem = RequestError(
            ERROR_AWAY,
            f"no other node can be reached; stop this one, and run fluxmqctl forget_node {self._node}"
            " on another",
        )
        for node in self._nodes.nodes:
            try:
                await self._nodes.ask(node, NODE_LEFT, NodeLeft(self._node).to_body(), ASK_SECONDS)
            except RequestError as refusal:
                problem = refusal
            else:
                return
        raise problem

    async def let_go(self, message: ControlMessage) -> Body:
        """Answer another node that leaves. Raises RequestError or MessageError."""
        node = NodeLeft.from_body(message.body).node
        await self._keys.remove_member_of(node)

        async def forget() -> None:
            with contextlib.suppress(RequestError):  # it had no record, or etcd elects a leader
                await self._forget(node)

        await forget()
        # Until it is known to have left, a policy may have given it more mirrors.
        self._keys.mark_left_soon(node, forget)
        return {}


def own_queues(topology: Topology, node: str) -> list[tuple[str, str]]:
    """Return the durable queues that a node alone has, by virtual host and name."""
    return [
        (queue.vhost, queue.name)
        for queue in topology.queues()
        if queue.durable and queue.group.endswith(f"@{node}")
    ]


def losses(own: list[tuple[str, str]]) -> list[str]:
    """Return what is lost if a node leaves that alone has these queues."""
    if not own:
        return []
    names = ", ".join(f"{name!r} of {vhost!r}" for vhost, name in own[:NAMED_MAX])
    more = f" and {len(own) - NAMED_MAX} more" if len(own) > NAMED_MAX else ""
    return [f"this node alone has the queues {names}{more}: consume and delete them"]


def obstacles(listing: RaftListing, node: str, others: Collection[str] = ()) -> list[str]:
    """Return why groups would not survive without a node. ``others``: nodes that get copies before it
    leaves."""
    found = []
    for row in listing.groups:
        if not _has(row, node):
            continue
        voters = [each for each in row.members if each.kind == VOTER]
        remaining = [each for each in voters if each.node != node]
        if len(remaining) == len(voters):
            continue  # it is a learner
        if is_mirrored(row.group):
            if not remaining:
                text = f"group {row.group}: no other node has all messages of its mirrored queues"
                found.append(f"{text}; wait for their mirrors, or change their policies")
            continue
        if not remaining and others:
            continue
        if not remaining:
            found.append(
                f"group {row.group}: this node has the only copy; fluxmqctl grow {row.group} NODE"
                " adds another"
            )
            continue
        fit = [each.node for each in remaining if not each.doubt and in_contact(each)]
        needed = len(remaining) // 2 + 1
        if not row.leader:
            found.append(f"group {row.group}: has no leader at the moment")
        elif len(fit) < needed:
            away = ", ".join(sorted({each.node for each in remaining} - set(fit)))
            found.append(
                f"group {row.group}: of the other {len(remaining)} voters {len(fit)} are in contact, and"
                f" {needed} are needed; start {away}, or shrink the group"
            )
    return found


def _has(row: RaftRow, node: str) -> bool:
    return any(each.node == node for each in row.members)
