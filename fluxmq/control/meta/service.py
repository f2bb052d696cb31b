"""The group ``_meta`` of one control process: decisions, notifications, admission.

Implements `ports.Decider` for the topology service, forwards changes of users, and runs the
group: bootstrap, returning and ended nodes, snapshots.

Longer than 500 lines because requests, decisions and periodic work of a member share its state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from fluxmq.auth.users import User
from fluxmq.control.directory import KINDS as USER_KINDS
from fluxmq.control.directory import Directory, change_of
from fluxmq.control.meta import admission, bootstrap, snapshots
from fluxmq.control.meta.bootstrap import BEGIN, Bootstrap
from fluxmq.control.meta.cluster_view import ClusterView, MetaStatus, Work
from fluxmq.control.meta.decisions import AcceptedDelta, Decision, UsersChange
from fluxmq.control.meta.frames import TOPOLOGY, USERS
from fluxmq.control.meta.leader_term import LeaderTerm
from fluxmq.control.meta.remove_node import forget
from fluxmq.control.meta.replica import MetaReplica
from fluxmq.control.meta.requests import MetaRequests, UnknownOutcomeError
from fluxmq.control.meta.streams import Links
from fluxmq.control.meta.tables import NODE, CommittedEntries, Kept, MemberState, MetaTables
from fluxmq.control.meta.transport import MetaTransport
from fluxmq.control.metadata import ChangeError, MetadataStore, StoreThread
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import LostError, NotLeadingError, Set, Shared
from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc.clusters import FORGET_NODE, ForgetNode
from fluxmq.ipc.messages import (
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_UNKNOWN_KIND,
    Body,
    ControlMessage,
)
from fluxmq.ipc.topology_messages import (
    TOPOLOGY_CHANGE,
    TopologyChanged,
    change_body,
    pack_set,
    read_sets,
)
from fluxmq.ipc.user_messages import Confirmed, Users
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.raft.types import Membership, MembershipChange, ProposalAccepted, Role
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Delta
from fluxmq.settings.plans import GroupPlan

REQUEST_SECONDS: Final = 5.0
"""Time for a change: two elections, and half of clients' wait for a declaration."""
AGAIN_SECONDS: Final = 0.05
"""Delay before retrying a change that no leader took, unless there is news earlier."""
TEND_SECONDS: Final = 0.2
"""Interval of the group's periodic work."""
SEED_SECONDS: Final = 3.0
"""Time the first leader waits for all nodes, one of which may bring metadata."""
HAND_OVER_SECONDS: Final = 1.0
"""Time a stopping leader waits for a successor."""
NO_LEADER: Final = (
    "no leader among the nodes of the cluster: topology and users cannot be changed now"
)

Result = TypeVar("Result")
_log = get_logger(__name__)


class Meta:
    """This process's member. `life`: the supervisor's identity; `queues`: the configured."""

    def __init__(
        self,
        plan: GroupPlan,
        node: str,
        life: str,
        queues: Sequence[QueueRecord],
        store: MetadataStore,
        thread: StoreThread,
        first: Callable[[], User],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self._node = node
        self._life = life
        self._queues = tuple(queues)
        self._store = store
        self._thread = thread
        self._first = first
        self._now = now
        self._names = {member.number: member.node for member in plan.nodes}
        self._numbers = {member.node: member.number for member in plan.nodes}
        self._tables = MetaTables(store, node, plan.own)
        self._cluster_view = ClusterView()
        self._work = Work()
        self.neighbours = MetaTransport(plan, store, thread, self._cluster_view, self._work)
        self._requests = MetaRequests(self.neighbours.send, self._serve)
        self._leader_term: LeaderTerm | None = None
        self._begun = (0, 0)
        self._leading: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._topology: TopologyService
        self._directory: Directory
        self.replica: MetaReplica

    # Start and stop

    async def open(self) -> None:
        """Read the tables. Raises MetadataError, ValueError or sqlite3.Error."""
        kept = await self._thread.run(self._open)
        neighbours = self.neighbours
        self.replica = MetaReplica(
            self.plan, self._tables, self._thread, kept, neighbours.send_raft, self
        )
        neighbours.join(self._tables, self.replica, self._requests)
        self._cluster_view.take(await self._thread.run(self._tables.shared))

    def _open(self) -> Kept:
        members = Membership(tuple(member.number for member in self.plan.members))
        return self._tables.open(members, snapshots.default_keys())

    def join(self, topology_service: TopologyService, directory: Directory) -> None:
        """Connect the services of topology and users, which request and learn decisions."""
        self._topology, self._directory = topology_service, directory
        directory.decide = self.change_users
        topology_service.revision_barrier.join(self.neighbours.remote_revisions[TOPOLOGY])
        directory.revision_barrier.join(self.neighbours.remote_revisions[USERS])

    async def start(self, streams: Links) -> None:
        """Meet the others over streams that report to `neighbours`. Raises EndpointError."""
        self.neighbours.streams = streams
        await streams.start()
        self.neighbours.form()
        self.replica.start()
        self._tend()

    async def stop(self) -> None:
        """Transfer leadership if held here, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        await self._hand_over()
        self._requests.stop()
        await self._work.stop()
        await self.replica.stop()
        await self.neighbours.streams.stop()

    async def _hand_over(self) -> None:
        status = self.replica.status()
        voters = set(status.membership.voters) & set(self.neighbours.known)
        if status.role is not Role.LEADER or not voters or self.replica.problem is not None:
            return
        best = max(voters, key=lambda number: status.progress[number].match)
        if self.replica.transfer(best):
            await self._within(HAND_OVER_SECONDS, self._led_elsewhere())

    async def _led_elsewhere(self) -> None:
        while self.replica.status().role is Role.LEADER:
            self._news.clear()
            await self._news.wait()

    @staticmethod
    async def _within(seconds: float, wait: Awaitable[object]) -> bool:
        """Wait for something for so long; return whether it came."""
        try:
            async with asyncio.timeout(seconds):
                await wait
        except TimeoutError:
            return False
        return True

    # State

    @property
    def known(self) -> bool:
        """True when this node's disk holds the cluster's metadata."""
        return self._cluster_view.known

    @property
    def problem(self) -> str | None:
        """Reason why this node does not serve, None when it does."""
        replica = self.replica
        if replica.problem is not None:
            return replica.problem
        if replica.standing is MemberState.NEW:
            met = sorted(self._names[number] for number in self.neighbours.known)
            return f"its directory is new, and it has met no majority of the nodes yet, but {met}"
        if not self.known:
            return "the cluster's topology has not arrived yet"
        if replica.standing is MemberState.RETURNING:
            return "it waits to be made a member again"
        if replica.leader == 0:
            return "no leader in _meta"
        return None

    def status(self) -> MetaStatus:
        """Return an overview of the group."""
        status, now = self.replica.status(), self._now()
        voters, learners = status.membership
        heard = self.neighbours.streams.heard
        members = {}
        for number, name in self._names.items():
            age = None if number not in heard else max(0.0, now - heard[number])
            role = "voter" if number in voters else "learner" if number in learners else "none"
            members[name] = role, age
        return MetaStatus(
            *(status.term, status.role.value, self._names.get(self.replica.leader, "")),
            *(status.commit, self.replica.applied_index, self.replica.standing.value),
            self.problem,
            members,
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the same as metrics."""
        yield from self.status().samples(self._node, self.replica.elections)
        yield from self.neighbours.comparing.samples()

    # Decisions requested by this node's shards and people

    async def change(self, sets: Sequence[Set]) -> tuple[int, tuple[Refusal | None, ...]]:
        """Have sets of changes decided, see `ports.Decider`."""
        asked = [each for each in sets if not isinstance(each, Refusal)]
        body = change_body([pack_set(each) for each in asked])

        async def remote(number: int, seconds: float) -> TopologyChanged:
            started = await self._requests.ask(number, TOPOLOGY_CHANGE, body, seconds)
            return TopologyChanged.from_body(started)

        async def local() -> TopologyChanged:
            return TopologyChanged(*await self._topology.decide(asked))

        # Leftovers of the node's previous life must be gone before anything of this one is added.
        if not await self._within(REQUEST_SECONDS, self._announced()):
            raise RequestError(ERROR_FAILED, NO_LEADER)
        changed = await self._decided(local, remote, retryable=True)
        if len(changed.results) != len(asked):
            raise RequestError(ERROR_FAILED, "the leader answered something else")
        await self._reached(self._topology.reached(changed.revision))
        found = iter(changed.results)
        return changed.revision, tuple(
            each if isinstance(each, Refusal) else next(found) for each in sets
        )

    async def change_users(self, message: ControlMessage) -> int:
        """Have a change of users made; return the revision, which this node has reached.

        Raises RequestError or MessageError.
        """
        change_of(message)  # malformed requests need not travel

        async def remote(number: int, seconds: float) -> int:
            started = await self._requests.ask(number, message.kind, message.body, seconds)
            return Confirmed.from_body(started).revision

        revision = await self._decided(lambda: self._decide_users(message), remote, retryable=False)
        await self._reached(self._directory.reached(revision))
        return revision

    async def forget(self, node: str) -> None:
        """Remove a lost node from the group. Raises RequestError."""
        body, ask = ForgetNode(node).to_body(), self._requests.ask
        await self._decided(
            lambda: self._decide_forgotten(body),
            lambda to, wait: ask(to, FORGET_NODE, body, wait),
            retryable=True,
        )

    async def _reached(self, wait: Awaitable[None]) -> None:
        if not await self._within(REQUEST_SECONDS, wait):
            raise RequestError(ERROR_FAILED, "it is committed, but not applied on this node yet")

    async def _decided(
        self,
        local: Callable[[], Awaitable[Result]],
        remote: Callable[[int, float], Awaitable[Result]],
        *,
        retryable: bool,
    ) -> Result:
        """Have the leader decide something; `retryable`: retry even after an unknown outcome."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REQUEST_SECONDS
        while (left := deadline - loop.time()) > 0:
            leader = self.replica.leader
            self._news.clear()
            try:
                if leader == self.plan.own:
                    async with asyncio.timeout(left):
                        return await local()
                if leader:
                    return await remote(leader, left)
            except NotLeadingError:
                pass
            except (LostError, UnknownOutcomeError, TimeoutError) as problem:
                if not retryable:
                    text = "leadership was lost meanwhile: the change may or may not be applied; check it"
                    raise RequestError(ERROR_FAILED, text) from problem
            await self._within(AGAIN_SECONDS, self._news.wait())
        raise RequestError(ERROR_FAILED, NO_LEADER)

    # Decisions as leader

    async def _serve(self, kind: str, body: Body) -> Mapping[str, Any]:
        """Decide about another node's request."""
        if kind == TOPOLOGY_CHANGE:
            self.check()
            return TopologyChanged(*await self._topology.decide(read_sets(body))).to_body()
        if kind in USER_KINDS:
            return {"revision": await self._decide_users(ControlMessage(kind, 1, body))}
        if kind == BEGIN:
            return {"revision": await self._decide_begun(Bootstrap.from_body(body))}
        if kind == FORGET_NODE:
            return await self._decide_forgotten(body)
        raise RequestError(ERROR_UNKNOWN_KIND, f"{kind} is not supported here")

    def check(self) -> None:
        """Raise NotLeadingError unless this node leads, and the metadata is known."""
        if not self.replica.leading or not self.known:
            raise NotLeadingError

    async def commit(self, deltas: Sequence[AcceptedDelta], shared: Shared = ()) -> None:
        """Commit changes on all nodes, see `ports.Decider`."""
        await self._propose(Decision(tuple(deltas), shared=shared))

    async def barrier(self) -> None:
        """Implement `ports.Decider`."""
        await self.replica.barrier()

    async def _propose(self, decision: Decision) -> None:
        await self.replica.propose(decision.encode())

    async def _decide_users(self, message: ControlMessage) -> int:
        change = change_of(message)

        def tried() -> tuple[Users, Users]:
            return self._store.users(), self._store.tried(change)

        self.check()
        async with self._topology.deciding():
            term = self.replica.node.term
            try:
                before, after = await self._thread.run(tried)
            except ChangeError as refusal:
                raise RequestError(refusal.code, str(refusal)) from refusal
            if self.replica.node.term != term:
                raise NotLeadingError
            await self._propose(Decision(users=UsersChange.between(before, after)))
        return after.revision

    async def _decide_forgotten(self, body: Body) -> Mapping[str, Any]:
        node, heard = ForgetNode.from_body(body).node, self.neighbours.streams.heard
        number = self._numbers.get(node, 0)
        await forget(self.replica, self.plan.own, number, node, heard, self._now())
        return {}

    async def _decide_begun(self, started: Bootstrap) -> int:
        """Handle the announcement of a running node."""
        self.check()
        if started.node not in self._numbers:
            raise RequestError(ERROR_INVALID, f"{started.node} is not a node of this cluster")
        async with self._topology.deciding() as topology:
            before = self._cluster_view.records.get(started.node)
            if before is not None and before.incarnation != started.incarnation:
                raise RequestError(ERROR_INVALID, f"{started.node} has a new directory by now")
            deltas: list[Delta] = []
            for change in bootstrap.changes(started, topology, self._cluster_view.records):
                try:
                    deltas.append(topology.apply(change))
                except Refusal as refusal:
                    _log.warning("a configured queue is not declared: %s", refusal)
            record = started.record(before)
            if record != before or deltas:
                shared = ((NODE + started.node, record.pack()),)
                await self._topology.commit([delta for delta in deltas if delta.rows], shared)
            return topology.revision

    # Events of the replica

    def applied(self, written: CommittedEntries) -> None:
        """Handle entries, or a snapshot, that are on disk."""
        if written.shared is not None:
            self._cluster_view.take(written.shared)
        if written.anew:
            self._topology.told(None)
        else:
            for _, decision in written.applied:
                if decision is not None and decision.deltas:
                    self._topology.told([taken.delta for taken in decision.deltas])
        if written.users is not None:
            (self._directory.replace if written.anew else self._directory.take)(written.users)

    def turned(self) -> None:
        """Handle a possible change of role, leader or member state."""
        about = {"group": self.plan.name, "term": self.replica.node.term}
        if self.replica.leading and self._leader_term is None:
            self._leader_term = LeaderTerm(self._now())
            _log.info("leading", extra=about)
        elif self.replica.status().role is not Role.LEADER:
            self.neighbours.leads_no_longer()
            if self._leader_term is not None:
                _log.info("leadership lost", extra=about)
            self._leader_term = None
        self._news.set()
        self.neighbours.introduce()

    def behind(self, number: int) -> None:
        """Send a snapshot to a member that needs one."""
        self.neighbours.lacks(number)

    # Periodic work

    def _tend(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TEND_SECONDS, self._tend)
        replica = self.replica
        if replica.leading and (self._leading is None or self._leading.done()):
            self._leading = self._work.begin(self._lead())
        here = self._here
        member = replica.standing is MemberState.MEMBER and self.known and bool(replica.leader)
        free = self._announcing is None or self._announcing.done()
        if member and free and self._begun != here:
            self._announcing = self._work.begin(self._announce(here))

    @property
    def _here(self) -> tuple[int, int]:
        """Identity of this directory: its incarnation and cluster."""
        return self.replica.incarnation, self._cluster_view.cluster

    async def _announced(self) -> None:
        while self._begun != self._here:
            self._news.clear()
            await self._news.wait()

    async def _announce(self, here: tuple[int, int]) -> None:
        """Announce that this node runs."""
        started = Bootstrap(
            *(self._node, self.replica.incarnation, self._life, self.replica.last_index),
            self._queues,
        )

        async def remote(number: int, seconds: float) -> None:
            await self._requests.ask(number, BEGIN, started.to_body(), seconds)

        async def local() -> None:
            await self._decide_begun(started)

        try:
            await self._decided(local, remote, retryable=True)
        except RequestError as problem:
            _log.debug("start not announced yet: %s", problem)
        else:
            self._begun = here
            self._news.set()

    async def _lead(self) -> None:
        """Bootstrap the cluster and readmit returning nodes as leader, one step at a time."""
        if not self.known:
            await self._seed()
            return
        numbers = self._numbers
        noted = self._cluster_view.records.items()
        records = {numbers[node]: record for node, record in noted if node in numbers}
        status = self.replica.status()
        self.neighbours.tend(status, records)
        step = admission.next_step(status, self.neighbours.known, records)
        if isinstance(step, MembershipChange):
            outcome = self.replica.node.propose_membership(step)
            self.replica.pump()
            if isinstance(outcome, ProposalAccepted):
                node = self._names[step.node]
                _log.info("_meta: member change", extra={"node": node, "change": step.verb.name})
        elif step is not None:
            noted_now = NODE + self._names[step.number], step.record.pack()
            await self._propose(Decision(shared=(noted_now,)))
        if self._leader_term is not None:
            others = set(numbers.values()) - {self.plan.own}
            heard = self.neighbours.streams.heard
            for number in self._leader_term.newly_ended(others, heard, self._now()):
                await self._drop_queues_of(self._names[number])

    async def _drop_queues_of(self, node: str) -> None:
        """Delete the queues in the memory of a node that has ended."""
        async with self._topology.deciding() as topology:
            found = bootstrap.dropped_with(node, topology)
            if not found:
                return
            deltas = [topology.apply(change) for change in found]
            await self._topology.commit([delta for delta in deltas if delta.rows])
        _log.warning(
            "a node has ended: queues in its memory are deleted",
            extra={"node": node, "queues": len(found)},
        )

    async def _seed(self) -> None:
        """Bootstrap the cluster with what some node brings, else with the defaults."""
        replica, known = self.replica, self.neighbours.known
        if not replica.brings:
            for number, started in known.items():
                if started.brings and started.standing is MemberState.MEMBER:
                    replica.transfer(number)
                    return
            term = self._leader_term
            waited = 0.0 if term is None else self._now() - term.since
            if len(known) + 1 < len(self.plan.nodes) and waited < SEED_SECONDS:
                return
        brings = replica.brings
        decision = await self._thread.run(
            lambda: snapshots.beginning(
                self._store, self._node, replica.incarnation, brings, self._first
            )
        )
        await self._propose(decision)
        _log.info("cluster bootstrapped", extra={"with_own": brings})
