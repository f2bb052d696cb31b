"""Comparison of a group's copies on request: the rolling hashes of all members at one index, now.

The leader takes its last applied index and asks every member for its hash there; a member answers
once it has applied that index. A difference has the same effect as one found by the continuous
comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from fluxmq.ipc.clusters import (
    DIFFERS,
    EQUAL,
    HASH,
    LEARNER,
    NOT_COMPARED,
    VOTER,
    AuditListing,
    AuditRow,
    HashReply,
    HashRequest,
)
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_FAILED, Body, Failure, MessageError
from fluxmq.raft.types import Membership
from fluxmq.replication.audit import Audit
from fluxmq.replication.group_commands import GroupCommands
from fluxmq.replication.replica import Replica, name_of
from fluxmq.replication.shard_links import ShardLinks

MEMBER_SECONDS_MAX: Final = 1.0
"""Time that a member takes to reach the index before it answers that it is behind."""
AUDIT_SECONDS_MAX: Final = 1.3
"""Time that the leader waits for all members: longer than each of them takes, less than an order
may take.
"""

AuditReplies = dict[int, int | str]
"""The answer of each member: its hash, or why there is none."""


class RequestedAudits:
    """One shard's part in requested audits. ``of``: the audits of the groups here."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        links: ShardLinks,
        commands: GroupCommands,
        of: Mapping[str, Audit],
        now: Callable[[], float],
    ) -> None:
        self._replicas = replicas
        self._links = links
        self._orders = commands
        self._of = of
        self._now = now

    def audit(self, replica: Replica, _body: Body, answered: Answered) -> None:
        """Compare the copies of a group that is led here."""
        group = replica.hosted.group
        own = replica.plan.own or replica.hosted.driver.node.status().id
        index = group.applied_index
        answers: AuditReplies = {own: group.digest()}
        deadline = self._now() + AUDIT_SECONDS_MAX

        def told(member: int, answer: Body | Failure) -> None:
            answers[member] = _read(answer)

        wanted = HashRequest(group.name, index).to_body()
        others = [number for number in _numbers(replica) if number != own]
        for number in others:
            links = self._links.of(name_of(replica, number))
            if links:
                self._orders.ask(links[0], HASH, wanted, partial(told, number))
            else:
                answers[number] = "it is not connected"

        def outcome() -> Body | None:
            if any(number not in answers for number in others) and self._now() < deadline:
                return None
            return self._compared(replica, own, index, answers).to_body()

        self._orders.wait(outcome, "the copies could not be compared in time", answered)

    def _compared(
        self, replica: Replica, own: int, index: int, answers: AuditReplies
    ) -> AuditListing:
        status = replica.hosted.driver.node.status()
        differing = deviating(own, status.membership, answers)
        if replica.hosted.driver.leading:
            for number in differing:
                links = self._links.of(name_of(replica, number))
                self._of[replica.plan.name].found(number, links[0] if links else None)
        rows = []
        for number in _numbers(replica):
            answer = answers.get(number, "it did not answer in time")
            rolling, problem = (f"{answer:016x}", "") if isinstance(answer, int) else ("", answer)
            verdict = NOT_COMPARED if problem else DIFFERS if number in differing else EQUAL
            kind = VOTER if number in status.membership.voters else LEARNER
            rows.append(AuditRow(name_of(replica, number), kind, index, rolling, verdict, problem))
        return AuditListing(replica.plan.name, tuple(sorted(rows, key=lambda row: row.node)))

    def hash(self, body: Body, answered: Answered) -> None:
        """Answer with the hash of this node's copy, once it has reached the index."""
        wanted = HashRequest.from_body(body)
        replica = self._replicas.get(wanted.group)
        if replica is None:
            link = self._links.to(self._links.place_of(wanted.group))
            if wanted.passed or link is None:
                answered(Failure(ERROR_AWAY, "it does not host the group now"))
                return
            passed = HashRequest(wanted.group, wanted.index, passed=True)
            self._orders.ask(link, HASH, passed.to_body(), answered)
            return
        audit = self._of[wanted.group]
        group = replica.hosted.group
        deadline = self._now() + MEMBER_SECONDS_MAX

        def outcome() -> Body | Failure | None:
            if group.failed:
                return Failure(ERROR_FAILED, f"it has failed: {group.failed}")
            rolling = audit.at(wanted.index)
            if rolling is not None:
                return HashReply(f"{rolling:016x}").to_body()
            if group.applied_index > wanted.index:
                return Failure(ERROR_FAILED, "it no longer knows its hash there: ask again")
            if self._now() < deadline:
                return None
            behind = wanted.index - group.applied_index
            return Failure(ERROR_FAILED, f"it is {behind} entries behind")

        if (answer := outcome()) is not None:
            answered(answer)
        else:
            self._orders.wait(outcome, "it did not reach the index in time", answered)


def _numbers(replica: Replica) -> list[int]:
    membership = replica.hosted.driver.node.status().membership
    return [*membership.voters, *membership.learners]


def _read(answer: Body | Failure) -> int | str:
    if isinstance(answer, Failure):
        return answer.text
    try:
        return int(HashReply.from_body(answer).rolling, 16)
    except (MessageError, ValueError):
        return "its answer was not understood"


def deviating(own: int, membership: Membership, answers: Mapping[int, int | str]) -> list[int]:
    """Return the members whose hash differs from that of a majority of the voters, or from the
    leader's (`own`) if no hash has a majority: then it is undecidable which one is right. Pure.
    """
    votes = Counter(
        answer
        for number, answer in answers.items()
        if number in membership.voters and isinstance(answer, int)
    )
    reference = answers[own]
    for rolling, count in votes.items():
        if count > len(membership.voters) // 2:
            reference = rolling
    return [
        number
        for number, answer in answers.items()
        if isinstance(answer, int) and answer != reference
    ]
