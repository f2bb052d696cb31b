"""Requests of fluxmqctl about replicated groups, their leaders and members.

Shards know their groups and the leaders of the others; any of them forwards a command to the shard
that leads the group in question, on whichever node. This module handles what spans groups: which
leaders should move, whether the node may stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fluxmq.control.peers import (
    Peer,
    RequestError,
    answers_of,
    forwarded,
)
from fluxmq.ipc.clusters import (
    AUDIT,
    CAN_STOP,
    FORGET_NODE,
    LEARNER,
    MEMBER_CHANGE,
    RAFT,
    REBALANCE,
    REMOVE,
    TRANSFER,
    UNKNOWN,
    VOTER,
    ForgetNode,
    GroupOutcome,
    GroupOutcomes,
    MemberChange,
    MemberRow,
    RaftListing,
    RaftRequest,
    RaftRow,
    Transfer,
)
from fluxmq.ipc.leader_balance import leader_placement, rebalanced
from fluxmq.ipc.messages import (
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    Body,
    ControlMessage,
)
from fluxmq.settings.group_names import is_mirrored

KINDS: Final = frozenset({RAFT, TRANSFER, REBALANCE, CAN_STOP, MEMBER_CHANGE, FORGET_NODE, AUDIT})

ASK_SECONDS: Final = 4.0
"""Time for a shard to answer, which may have to ask another node: less than fluxmqctl waits."""
CONTACT_MILLISECONDS_MAX: Final = 2000
"""Longest silence of a node that still counts as in contact and is forgotten only by force."""


class Clustering:
    """Serves cluster requests on control's loop. ``clustered``: whether the settings name other
    nodes; ``shards``: the connected ones; ``forget``: forgets a node in topology and users;
    ``lives`` returns whether a node runs, by its key in etcd, and None for an unknown node."""

    def __init__(
        self,
        clustered: bool,
        shards: Callable[[], list[Peer]],
        forget: Callable[[str], Awaitable[None]],
        lives: Callable[[str], Awaitable[bool | None]],
    ) -> None:
        self._clustered = clustered
        self._shards = shards
        self._forget_node = forget
        self._lives = lives

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        if not self._clustered:
            raise RequestError(ERROR_INVALID, "this node is not part of a cluster")
        match message.kind:
            case "raft":
                return (await self._raft(RaftRequest.from_body(message.body))).to_body()
            case "audit" | "transfer" | "member_change":
                return await self._one(message.kind, message.body)
            case "rebalance":
                return (await self._rebalance()).to_body()
            case "can_stop":
                return (await self._can_stop()).to_body()
            case "forget_node":
                return (await self._forget(ForgetNode.from_body(message.body))).to_body()
        raise RequestError(ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")

    async def replicas(self) -> RaftListing:
        """Return the groups of the whole cluster."""
        return await self._raft(RaftRequest(everywhere=True))

    async def _raft(self, wanted: RaftRequest) -> RaftListing:
        """Return groups as this node's shards report them; one they do not have as its leader
        reports it."""
        shards = self._shards()
        found = await answers_of(shards, RAFT, wanted.to_body(), ASK_SECONDS, RaftListing)
        rows: dict[str, RaftRow] = {}
        missing = []
        for shard, listing in zip(shards, found, strict=True):
            if listing is None:
                missing.append(shard.name)
                continue
            for row in listing.groups:
                here = shard.hello is not None and row.shard == shard.hello.index
                if here or row.group not in rows:
                    rows[row.group] = row
        if wanted.group and not rows and not missing:
            raise RequestError(ERROR_NOT_FOUND, f"this node has no replicated group {wanted.group}")
        return RaftListing(tuple(rows[name] for name in sorted(rows)), tuple(sorted(missing)))

    async def _one(self, kind: str, body: Body) -> Body:
        """Forward a request to the leader of one group. Raises RequestError."""
        shards = self._shards()
        if not shards:
            raise RequestError(ERROR_FAILED, "no shard is connected")
        shard = min(shards, key=lambda each: each.name)
        return await forwarded(shard, kind, body, ASK_SECONDS)

    async def _each(self, orders: Sequence[tuple[str, str, str, Body]]) -> GroupOutcomes:
        """Carry out commands on different groups, each (group, node, kind, body); a failure stops
        no other."""

        async def one(group: str, node: str, kind: str, body: Body) -> GroupOutcome:
            try:
                await self._one(kind, body)
            except RequestError as refusal:
                return GroupOutcome(group, node, str(refusal))
            return GroupOutcome(group, node)

        return GroupOutcomes(tuple(await asyncio.gather(*(one(*request) for request in orders))))

    async def _everywhere(self) -> RaftListing:
        listing = await self._raft(RaftRequest(everywhere=True))
        if listing.missing:
            raise RequestError(ERROR_FAILED, f"{', '.join(listing.missing)} did not answer")
        return listing

    async def _rebalance(self) -> GroupOutcomes:
        """Move leaders until no node leads much more than another."""
        groups = {
            row.group: leader_placement(row.group, row.leader, _successors(row))
            for row in (await self._everywhere()).groups
            if row.leader and not is_mirrored(row.group)
        }
        moves = rebalanced(groups)
        return await self._each(
            [(group, to, TRANSFER, Transfer(group, to).to_body()) for group, to in moves]
        )

    async def _can_stop(self) -> GroupOutcomes:
        """Return what each group here would lose if this node stopped."""
        shards = self._shards()
        found = await answers_of(shards, CAN_STOP, {}, ASK_SECONDS, GroupOutcomes)
        rows: list[GroupOutcome] = []
        for shard, outcomes in zip(shards, found, strict=True):
            if outcomes is None:
                raise RequestError(ERROR_FAILED, f"{shard.name} did not answer in time")
            # Nobody votes in a mirrored group, so that it has no majority to lose.
            rows += (each for each in outcomes.rows if not is_mirrored(each.group))
        return GroupOutcomes(tuple(sorted(rows, key=lambda row: row.group)))

    async def _forget(self, wanted: ForgetNode) -> GroupOutcomes:
        """Remove a node from every group, after its member of etcd: etcd refuses to lose its
        quorum."""
        rows = (await self._everywhere()).groups
        having = [
            (row, member)
            for row in rows
            for member in row.members
            if member.node == wanted.node and member.kind in (VOTER, LEARNER)
        ]
        lives = None if having else await self._lives(wanted.node)
        if not having and lives is None:
            text = f"{wanted.node} is no node of this cluster, and not a member of any group"
            raise RequestError(ERROR_NOT_FOUND, text)
        heard = [
            row.group
            for row, member in having
            if member.leads
            or (member.connected and UNKNOWN < member.contact <= CONTACT_MILLISECONDS_MAX)
        ]
        if heard and not wanted.force:
            where = f"{', '.join(heard[:3])}{' and others' if len(heard) > 3 else ''}"
            raise RequestError(
                ERROR_INVALID,
                f"{wanted.node} is in contact as a member of {where}: shrink those, or use --force",
            )
        if lives and not wanted.force:
            text = (
                f"{wanted.node} runs, or did ten seconds ago: run fluxmqctl leave there, wait, or"
            )
            raise RequestError(ERROR_INVALID, f"{text} use --force")
        await self._forget_node(wanted.node)
        return await self._each(
            [
                (
                    row.group,
                    wanted.node,
                    MEMBER_CHANGE,
                    MemberChange(row.group, wanted.node, REMOVE).to_body(),
                )
                for row, _member in having
                if not is_mirrored(row.group)  # its leader does so by its record
            ]
        )


def in_contact(member: MemberRow) -> bool:
    """Return whether a group's leader hears from a member, or the member is the leader."""
    return member.leads or (member.connected and member.contact <= CONTACT_MILLISECONDS_MAX)


def _successors(row: RaftRow) -> tuple[str, ...]:
    """Return the nodes that could lead a group now: voters in contact with its leader."""
    return tuple(
        member.node
        for member in row.members
        if member.kind == VOTER and not member.doubt and in_contact(member)
    )
