"""Permanent removal of a node from ``_meta`` by the leader: refused when the rest lacks a majority.

A forgotten node that returns with its old directory is ignored; with an empty one it is a new node
and admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from fluxmq.control.meta.replica import MetaReplica
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import LostError, NotLeadingError
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_INVALID
from fluxmq.raft.types import ChangeRefused, ChangeVerb, Membership, MembershipChange, NotLeader

CONTACT_SECONDS_MAX: Final = 2.0
"""Longest silence of a node that still counts towards the remaining majority."""
FORGET_SECONDS_MAX: Final = 4.0
"""Time for the change to commit before its outcome counts as unknown: less than the caller
waits."""


def problem(
    membership: Membership, own: int, number: int, heard: Mapping[int, float], now: float
) -> str:
    """Return why the group would not survive without a node; empty if it would. ``heard``: time of
    the last contact with each. Pure."""
    if number == own:
        return "it leads _meta: stop it, or ask again when another node leads"
    left = [voter for voter in membership.voters if voter != number]
    there = [
        voter
        for voter in left
        if voter == own or now - heard.get(voter, -CONTACT_SECONDS_MAX - 1) <= CONTACT_SECONDS_MAX
    ]
    needed = len(left) // 2 + 1
    if len(there) >= needed:
        return ""
    return (
        f"{len(there)} of {len(left)} voters of _meta would be in contact, and {needed} are needed"
    )


async def forget(
    replica: MetaReplica, own: int, number: int, name: str, heard: Mapping[int, float], now: float
) -> None:
    """Remove a node; return when that is committed. Raises RequestError, NotLeadingError,
    LostError."""
    if not replica.leading:
        raise NotLeadingError
    membership = replica.status().membership
    if number not in (*membership.voters, *membership.learners):
        return
    why = problem(membership, own, number, heard, now)
    if why:
        raise RequestError(ERROR_INVALID, f"{name} is not forgotten: {why}")
    outcome = replica.node.propose_membership(MembershipChange(ChangeVerb.REMOVE, number))
    replica.pump()
    if isinstance(outcome, NotLeader):
        raise NotLeadingError
    if isinstance(outcome, ChangeRefused):
        raise RequestError(ERROR_FAILED, f"{name} is not forgotten: {outcome.value}")
    try:
        async with asyncio.timeout(FORGET_SECONDS_MAX):
            await replica.reached(outcome.first_index)
    except TimeoutError:
        raise LostError from None
    if number in replica.node.membership_at(replica.applied_index).voters:
        raise LostError  # another leader has replaced the entry meanwhile
