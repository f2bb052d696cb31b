"""Operators' questions and orders about replicated groups, answered by the shard that leads the
group, whichever is asked.

A shard passes on questions about a group that is led elsewhere. Orders that take a moment (a
transfer, a change of members) are answered when they have taken effect, or have not within
`COMMAND_SECONDS_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from fluxmq.ipc.clusters import (
    AUDIT,
    CAN_STOP,
    MEMBER_CHANGE,
    RAFT,
    TRANSFER,
    VOTER,
    GroupOutcome,
    GroupOutcomes,
    Leaving,
    MemberRow,
    OfGroup,
    RaftListing,
    RaftRequest,
    RaftRow,
    Transfer,
)
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    Body,
    Failure,
)
from fluxmq.net.links import FrameLink
from fluxmq.replication.leaders import OWN, Leaders
from fluxmq.replication.questions import Questions
from fluxmq.replication.replica import Replica, leader_of, name_of
from fluxmq.replication.reports import raft_row
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.replication.spread import TRANSFERRED
from fluxmq.settings.group_names import is_mirrored

COMMAND_SECONDS_MAX = 1.5
"""Time after which an order has failed: less than the asker waits for an answer."""

CommandReply = Body | Failure
Verb = Callable[["Replica", Body, Answered], None]


@dataclass(slots=True)
class PendingCommand:
    """An order under way: ``outcome`` returns its answer, if any, ``late`` answers a timeout."""

    deadline: float
    outcome: Callable[[], CommandReply | None]
    late: Failure
    answered: Answered


class GroupCommands:
    """Answers questions and orders for one shard."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        leaders: Leaders,
        links: ShardLinks,
        now: Callable[[], float],
    ) -> None:
        self._replicas = replicas
        self._leaders = leaders
        self._links = links
        self._now = now
        self._waiting: list[PendingCommand] = []
        self._questions = Questions(self._serve, now)
        self._verbs: dict[str, Verb] = {
            RAFT: self._tell,
            TRANSFER: self._transfer,
            CAN_STOP: self._can_stop,
        }
        self._of_members: dict[str, RequestHandler] = {}

    def commands(self) -> dict[str, RequestHandler]:
        """Return the handlers of control's questions and orders by kind."""
        return {
            RAFT: self._on_raft,
            CAN_STOP: self._on_can_stop,
            TRANSFER: lambda body, answered: self._at_leader(TRANSFER, body, answered),
            AUDIT: lambda body, answered: self._at_leader(AUDIT, body, answered),
            MEMBER_CHANGE: lambda body, answered: self._at_leader(MEMBER_CHANGE, body, answered),
        }

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames of other shards by name."""
        return self._questions.handlers()

    def serve(self, kind: str, verb: Verb) -> None:
        """Register a kind of question that the group's leader answers."""
        self._verbs[kind] = verb

    def serve_member(self, kind: str, handler: RequestHandler) -> None:
        """Register a kind of question of other shards that any member answers, leader or not."""
        self._of_members[kind] = handler

    def ask(self, link: FrameLink, kind: str, body: Body, answered: Answered) -> None:
        """Ask another shard; ``answered`` is called once."""
        self._questions.ask(link, kind, body, answered)

    def wait(
        self, outcome: Callable[[], CommandReply | None], late: str, answered: Answered
    ) -> None:
        """Answer when there is an outcome, or when it is too late."""
        deadline = self._now() + COMMAND_SECONDS_MAX
        self._waiting.append(
            PendingCommand(deadline, outcome, Failure(ERROR_FAILED, late), answered)
        )

    def lost(self, peer: int) -> None:
        """Fail the questions to a shard that has gone."""
        self._questions.lost(peer)

    def housekeeping(self) -> None:
        """Answer orders that are done or late; called by the shard's timer."""
        self._questions.housekeeping()
        waiting, self._waiting = self._waiting, []
        now = self._now()
        for each in waiting:
            answer = each.outcome()
            if answer is None and now < each.deadline:
                self._waiting.append(each)
            else:
                each.answered(answer or each.late)

    # Routing

    def _at_leader(self, kind: str, body: Body, answered: Answered) -> None:
        """Have the shard that leads a group answer."""
        group = OfGroup.from_body(body).group
        leader = self._leaders.all().get(group)
        if leader is None and group not in self._replicas:
            answered(Failure(ERROR_NOT_FOUND, f"there is no replicated group {group}"))
        elif leader is None or leader.peer is None:
            answered(Failure(ERROR_AWAY, f"group {group} has no leader at the moment"))
        elif leader.peer == OWN:
            self._serve(kind, body, answered)
        elif (link := self._links.to(leader.peer)) is None:
            answered(Failure(ERROR_AWAY, f"the leader of group {group} cannot be reached"))
        else:
            self._questions.ask(link, kind, body, answered)

    def _serve(self, kind: str, body: Body, answered: Answered) -> None:
        handler = self._of_members.get(kind)
        if handler is not None:
            handler(body, answered)
            return
        verb = self._verbs.get(kind)
        if verb is None:
            answered(Failure(ERROR_UNKNOWN_KIND, f"{kind} is not supported here"))
            return
        group = OfGroup.from_body(body).group
        replica = self._replicas.get(group)
        if replica is None or not replica.hosted.driver.leading:
            answered(Failure(ERROR_AWAY, f"group {group} is no longer led from here"))
            return
        verb(replica, body, answered)

    # Group status

    def _tell(self, replica: Replica, _body: Body, answered: Answered) -> None:
        answered(raft_row(self._links, replica, self._now()).to_body())

    def _on_raft(self, body: Body, answered: Answered) -> None:
        wanted = RaftRequest.from_body(body)
        names = [wanted.group] if wanted.group else list(self._replicas)
        if wanted.everywhere and not wanted.group:
            led = (name for name in self._leaders.all() if "@" not in name)
            names += [name for name in led if name not in self._replicas]
        rows: dict[str, RaftRow] = {}
        waits = 1

        def told(name: str, answer: CommandReply) -> None:
            nonlocal waits
            if name and not isinstance(answer, Failure):
                rows[name] = _joined(rows.get(name), answer)
            waits -= 1
            if not waits:
                answered(RaftListing(tuple(rows.values())).to_body())

        for name in names:
            replica = self._replicas.get(name)
            if replica is not None:
                rows[name] = raft_row(self._links, replica, self._now())
            elif not wanted.everywhere:
                continue
            if replica is None or not replica.hosted.driver.leading:
                waits += 1
                question = {"group": name}
                self._at_leader(RAFT, question, partial(told, name))
        told("", {})

    # Leadership

    def _transfer(self, replica: Replica, body: Body, answered: Answered) -> None:
        wanted = Transfer.from_body(body)
        group = wanted.group
        try:
            to = self._successor(replica, wanted.node)
        except ValueError as problem:
            answered(Failure(ERROR_INVALID, f"group {group}: {problem}"))
            return
        node = name_of(replica, to)
        if to == replica.hosted.driver.node.status().id:
            answered(Transfer(group, node).to_body())
            return
        for link in self._links.of(node):
            link.send_control(TRANSFERRED, group, replica.hosted.driver.node.term)
        replica.transfer(to)

        def outcome() -> CommandReply | None:
            if replica.hosted.driver.leading:
                return None
            leader = leader_of(replica)
            return Transfer(group, leader).to_body() if leader else None

        self.wait(outcome, f"group {group} was not taken over by {node} in time", answered)

    def _successor(self, replica: Replica, node: str) -> int:
        """Return the next leader: the node given, or the most advanced voter. Raises ValueError."""
        if is_mirrored(replica.plan.name):
            raise ValueError("its policy and its record determine the leader of a mirrored group")
        status = replica.hosted.driver.node.status()
        reachable = {
            number: peer.match
            for number, peer in status.progress.items()
            if not peer.learner and replica.acquaintances.believed(number)
        }
        if not node:
            if not reachable:
                raise ValueError("no other voter can be reached")
            return max(reachable, key=lambda number: reachable[number])
        for number in status.membership.voters:
            if name_of(replica, number) == node:
                if number != status.id and number not in reachable:
                    raise ValueError(f"{node} cannot be reached")
                return number
        raise ValueError(f"{node} is not one of its voters")

    # Stopping

    def _on_can_stop(self, _body: Body, answered: Answered) -> None:
        """List the groups that vote here, with the reason, if any, why they need this node."""
        outcomes: list[GroupOutcome] = []
        waits = 1

        def told(name: str, answer: CommandReply) -> None:
            nonlocal waits
            if isinstance(answer, Failure):
                why = answer.text.removeprefix(f"group {name} ")
                outcomes.append(GroupOutcome(name, self._links.node, why))
            elif name:
                outcomes.append(GroupOutcome.from_body(answer))
            waits -= 1
            if not waits:
                answered(GroupOutcomes(tuple(outcomes)).to_body())

        for name, replica in self._replicas.items():
            status = replica.hosted.driver.node.status()
            if status.id in status.membership.voters:
                waits += 1
                question = Leaving(name, self._links.node).to_body()
                self._at_leader(CAN_STOP, question, partial(told, name))
        told("", {})

    def _can_stop(self, replica: Replica, body: Body, answered: Answered) -> None:
        node = Leaving.from_body(body).node
        row = raft_row(self._links, replica, self._now())
        answered(
            GroupOutcome(
                row.group, node, quorum_problem(row, node, replica.plan.election_timeout)
            ).to_body()
        )


LAG_ENTRIES_MAX = 1000
"""Maximum lag of a member that counts as able to take over at once."""


def quorum_problem(row: RaftRow, node: str, contact_seconds: float) -> str:
    """Return why a group would not survive without a node, by its leader's row; empty if it would."""
    voters = [member for member in row.members if member.kind == VOTER]
    needed = len(voters) // 2 + 1
    others = [member for member in voters if member.node != node]
    fit = [member for member in others if not _unfit(member, row.node, contact_seconds)]
    if len(fit) >= needed:
        return ""
    left = ", ".join(
        f"{member.node} {why}"
        for member in others
        if (why := _unfit(member, row.node, contact_seconds))
    )
    count = f"{len(fit)} of {len(voters)} voters would be left, and {needed} are needed"
    return f"{count}: {left}" if left else count


def _unfit(member: MemberRow, leader: str, contact_seconds: float) -> str:
    if member.node == leader:
        return ""
    if member.doubt:
        return member.doubt
    if not member.connected or not 0 <= member.contact <= contact_seconds * 1000:
        return "is not in contact"
    return f"is {member.lag} entries behind" if member.lag > LAG_ENTRIES_MAX else ""


def _joined(own: RaftRow | None, answer: Body) -> RaftRow:
    """Return this node's row, or else the leader's, with the members as the leader sees them."""
    leader = RaftRow.from_body(answer)
    return leader if own is None else replace(own, members=leader.members)
