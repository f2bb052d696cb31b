"""What people ask of replicated groups, and order: answered by the shard that leads the group, whichever is asked.

Whoever is asked about a group that is led elsewhere passes the question on. What takes a moment (a transfer, a change of
members) is answered when it has happened, or when it has not within `ORDER_SECONDS_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fluxmq.ipc.clusters import (
    AUDIT,
    CAN_STOP,
    MEMBER_CHANGE,
    RAFT,
    TRANSFER,
    VOTER,
    MemberRow,
    Outcome,
    Outcomes,
    RaftListing,
    RaftRow,
    RaftWanted,
    Transfer,
)
from fluxmq.ipc.conversation import Answered, Order
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    Body,
    Failure,
    Fields,
)
from fluxmq.ipc.placements import GROUP_CHARACTERS_MAX
from fluxmq.net.links import FrameLink
from fluxmq.shards.cluster.leaders import OWN
from fluxmq.shards.cluster.questions import Questions
from fluxmq.shards.cluster.reports import leader_of, name_of, raft_row

if TYPE_CHECKING:
    from fluxmq.shards.cluster.replica import Replica
    from fluxmq.shards.cluster.wiring import Cluster

ORDER_SECONDS_MAX = 1.5
"""How long an order may take before it has failed: less than a question is waited for."""

Answer = Body | Failure
Verb = Callable[["Replica", Body, Answered], None]


@dataclass(slots=True)
class Waiting:
    """An order under way: ``outcome`` gives its answer once there is one, ``late`` is the answer when there is none in time."""

    deadline: float
    outcome: Callable[[], Answer | None]
    late: Failure
    answered: Answered


class ClusterOrders:
    """Answers for one shard."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: list[Waiting] = []
        self._questions = Questions(self._serve, cluster.now)
        self._verbs: dict[str, Verb] = {
            RAFT: self._tell,
            TRANSFER: self._transfer,
            CAN_STOP: self._can_stop,
        }
        self._of_members: dict[str, Order] = {}

    def orders(self) -> dict[str, Order]:
        """What control may ask and order."""
        return {
            RAFT: self._on_raft,
            CAN_STOP: self._on_can_stop,
            TRANSFER: lambda body, answered: self._at_leader(TRANSFER, body, answered),
            AUDIT: lambda body, answered: self._at_leader(AUDIT, body, answered),
            MEMBER_CHANGE: lambda body, answered: self._at_leader(MEMBER_CHANGE, body, answered),
        }

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Who takes which control frame of other shards."""
        return self._questions.handlers()

    def serve(self, kind: str, verb: Verb) -> None:
        """Have a kind of question answered where a group is led."""
        self._verbs[kind] = verb

    def serve_member(self, kind: str, order: Order) -> None:
        """Have a kind of question of other shards answered by whoever is asked, leader or not."""
        self._of_members[kind] = order

    def ask(self, link: FrameLink, kind: str, body: Body, answered: Answered) -> None:
        """Ask another shard; ``answered`` is called once."""
        self._questions.ask(link, kind, body, answered)

    def wait(self, outcome: Callable[[], Answer | None], late: str, answered: Answered) -> None:
        """Answer when there is something to answer, or when it is too late."""
        deadline = self._cluster.now() + ORDER_SECONDS_MAX
        self._waiting.append(Waiting(deadline, outcome, Failure(ERROR_FAILED, late), answered))

    def lost(self, peer: int) -> None:
        """A shard has gone."""
        self._questions.lost(peer)

    def housekeeping(self) -> None:
        """A tenth of a second has passed."""
        self._questions.housekeeping()
        waiting, self._waiting = self._waiting, []
        now = self._cluster.now()
        for each in waiting:
            answer = each.outcome()
            if answer is None and now < each.deadline:
                self._waiting.append(each)
            else:
                each.answered(answer or each.late)

    # Where it goes

    def _at_leader(self, kind: str, body: Body, answered: Answered) -> None:
        """Have the shard that leads a group answer."""
        group = Fields(body, kind).text("group", GROUP_CHARACTERS_MAX)
        cluster = self._cluster
        leader = cluster.leaders.all().get(group)
        if leader is None and group not in cluster.replicas:
            answered(Failure(ERROR_NOT_FOUND, f"there is no replicated group {group}"))
        elif leader is None or leader.peer is None:
            answered(Failure(ERROR_AWAY, f"group {group} has no leader now"))
        elif leader.peer == OWN:
            self._serve(kind, body, answered)
        elif (link := cluster.link_to(leader.peer)) is None:
            answered(Failure(ERROR_AWAY, f"the leader of group {group} cannot be reached"))
        else:
            self._questions.ask(link, kind, body, answered)

    def _serve(self, kind: str, body: Body, answered: Answered) -> None:
        order = self._of_members.get(kind)
        if order is not None:
            order(body, answered)
            return
        verb = self._verbs.get(kind)
        if verb is None:
            answered(Failure(ERROR_UNKNOWN_KIND, f"{kind} is not known here"))
            return
        group = Fields(body, kind).text("group", GROUP_CHARACTERS_MAX)
        replica = self._cluster.replicas.get(group)
        if replica is None or not replica.hosted.keeper.leading:
            answered(Failure(ERROR_AWAY, f"group {group} is led from here no longer"))
            return
        verb(replica, body, answered)

    # How groups do

    def _tell(self, replica: Replica, _body: Body, answered: Answered) -> None:
        answered(raft_row(self._cluster, replica).to_body())

    def _on_raft(self, body: Body, answered: Answered) -> None:
        wanted = RaftWanted.from_body(body)
        cluster = self._cluster
        names = [wanted.group] if wanted.group else list(cluster.replicas)
        if wanted.everywhere and not wanted.group:
            led = (name for name in cluster.leaders.all() if "@" not in name)
            names += [name for name in led if name not in cluster.replicas]
        rows: dict[str, RaftRow] = {}
        waits = 1

        def told(name: str, answer: Answer) -> None:
            nonlocal waits
            if name and not isinstance(answer, Failure):
                rows[name] = _joined(rows.get(name), answer)
            waits -= 1
            if not waits:
                answered(RaftListing(tuple(rows.values())).to_body())

        for name in names:
            replica = cluster.replicas.get(name)
            if replica is not None:
                rows[name] = raft_row(cluster, replica)
            elif not wanted.everywhere:
                continue
            if replica is None or not replica.hosted.keeper.leading:
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
        if to == replica.plan.own:
            answered(Transfer(group, node).to_body())
            return
        self._cluster.transfer(replica, to)

        def outcome() -> Answer | None:
            if replica.hosted.keeper.leading:
                return None
            leader = leader_of(replica)
            return Transfer(group, leader).to_body() if leader else None

        self.wait(outcome, f"group {group} was not taken over by {node} in time", answered)

    def _successor(self, replica: Replica, node: str) -> int:
        """Who is to lead: the node that is named, else who is nearest to having everything. Raises ValueError."""
        status = replica.hosted.keeper.node.status()
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
        raise ValueError(f"{node} is none of its voters")

    # Stopping

    def _on_can_stop(self, _body: Body, answered: Answered) -> None:
        """Groups that would have no quorum any more if this node stopped, and why; of one where nothing is in the way, no why."""
        cluster = self._cluster
        outcomes: list[Outcome] = []
        waits = 1

        def told(name: str, answer: Answer) -> None:
            nonlocal waits
            if isinstance(answer, Failure):
                why = answer.text.removeprefix(f"group {name} ")
                outcomes.append(Outcome(name, cluster.node, why))
            elif name:
                outcomes.append(Outcome.from_body(answer))
            waits -= 1
            if not waits:
                answered(Outcomes(tuple(outcomes)).to_body())

        for name, replica in cluster.replicas.items():
            if replica.plan.own in replica.hosted.keeper.node.status().membership.voters:
                waits += 1
                question = {"group": name, "node": cluster.node}
                self._at_leader(CAN_STOP, question, partial(told, name))
        told("", {})

    def _can_stop(self, replica: Replica, body: Body, answered: Answered) -> None:
        node = Fields(body, CAN_STOP).text("node", GROUP_CHARACTERS_MAX)
        row = raft_row(self._cluster, replica)
        answered(
            Outcome(
                row.group, node, quorum_problem(row, node, replica.plan.election_timeout)
            ).to_body()
        )


LAG_ENTRIES_MAX = 1000
"""A member that is further behind than this does not count for those that could go on at once."""


def quorum_problem(row: RaftRow, node: str, contact_seconds: float) -> str:
    """Why a group could not go on without a node, as its leader tells; empty when it could."""
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
    """What this node's copy tells, with the members as the leader sees them; the leader's row where there is no copy."""
    leader = RaftRow.from_body(answer)
    return leader if own is None else replace(own, members=leader.members)
