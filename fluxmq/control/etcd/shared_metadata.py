"""Topology and users of a cluster, which are in etcd (see `metadata_keys`).

Implements `ports.Decider` for the topology service. The node that is asked for a change decides
about it, and commits it on the condition that nobody else has committed one meanwhile; else it
follows (`metadata_follower`), and decides again.

The node that coordinates the cluster deletes queues in the memory of nodes that have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from fluxmq.auth.users import User
from fluxmq.control import node_starts
from fluxmq.control.decisions import AcceptedDelta, Decision, NodeRecord, UsersChange
from fluxmq.control.directory import Directory, change_of
from fluxmq.control.etcd import wills
from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.membership import remove_member
from fluxmq.control.etcd.messages import Changed, Compare, Existing, Get, Operation, end_of
from fluxmq.control.etcd.metadata_copy import MetadataCopy
from fluxmq.control.etcd.metadata_follower import RETRY_SECONDS, UNREACHABLE, MetadataFollower
from fluxmq.control.etcd.metadata_keys import (
    ROOT,
    MetadataRoot,
    mirrored_groups_of,
    operations_of,
)
from fluxmq.control.etcd.metadata_seed import MetadataSeed
from fluxmq.control.etcd.mirrors import PREFIX as MIRRORS
from fluxmq.control.metadata import ChangeError, MetadataStore, StoreThread
from fluxmq.control.node_starts import NodeStart
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import ConflictError, LostError, Set
from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_LIMIT, ERROR_NOT_FOUND, ControlMessage
from fluxmq.ipc.user_messages import Users
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Delta, Topology

LOOK_SECONDS: Final = 1.0
"""Interval at which the coordinator looks which nodes there are."""
REQUEST_SECONDS: Final = 5.0
"""Time for a change: several attempts, and half of clients' wait for a declaration."""

TOO_LARGE: Final = ("request is too large", "too many operations")
"""Words of etcd's refusal of a transaction, of which nothing is carried out."""
DIVIDE: Final = "make the change in parts, or raise max-request-bytes and max-txn-ops of that etcd"

Result = TypeVar("Result")
_log = get_logger(__name__)


class SharedMetadata:
    """Topology and users as this node knows and changes them.

    ``started``: what the node announces of itself; ``size``: number of the cluster's nodes;
    ``first`` makes the first user.
    """

    def __init__(
        self,
        started: NodeStart,
        size: int,
        store: MetadataStore,
        thread: StoreThread,
        first: Callable[[], User],
    ) -> None:
        self._started = started
        self._store = store
        self._thread = thread
        copy = MetadataCopy(store, started.node)
        seed = MetadataSeed(started.node, size, copy, thread, first)
        self._follower = MetadataFollower(copy, thread, seed.plant)
        self._client: EtcdClient
        self._topology: TopologyService
        self._directory: Directory
        self._tasks: list[asyncio.Task[None]] = []
        self._announced = asyncio.Event()
        self.prepare: Callable[[Sequence[Set]], Awaitable[Sequence[Set]]] | None = None
        """Puts queues that are declared into their mirrored groups."""
        self.commits = 0
        self.conflicts = 0

    async def open(self) -> None:
        """Read the copy. Raises MetadataError, ValueError or sqlite3.Error."""
        await self._follower.open()

    def join(self, topology_service: TopologyService, directory: Directory) -> None:
        """Connect the services of topology and users, which request and learn decisions."""
        self._topology, self._directory = topology_service, directory
        directory.decide = self.change_users

    def start(self, client: EtcdClient, coordinates: Callable[[], bool]) -> None:
        """Follow etcd until ``stop``. ``coordinates`` returns whether this node sees to those that
        have ended."""
        self._client = client
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follower.run(client, self._topology, self._directory)),
            loop.create_task(self._announce()),
            loop.create_task(self._look(coordinates)),
        ]

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            await self._client.close()

    @property
    def known(self) -> bool:
        """True when this node's copy is the cluster's."""
        return self._follower.state.revision > 0

    @property
    def problem(self) -> str | None:
        """Reason why this node does not serve, None when it does."""
        return self._follower.problem

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_metadata_commits_total", {}, float(self.commits)
        yield "fluxmq_metadata_conflicts_total", {}, float(self.conflicts)
        yield "fluxmq_metadata_failures_total", {}, float(self._follower.failures)
        yield "fluxmq_metadata_revision", {}, float(self._follower.root_revision)

    # Decisions

    async def change(self, sets: Sequence[Set]) -> tuple[int, tuple[Refusal | None, ...]]:
        """Decide about sets of changes, see `ports.Decider`."""

        async def decide() -> tuple[int, tuple[Refusal | None, ...]]:
            # Each time anew: a mirrored group may have ended meanwhile.
            prepared = sets if self.prepare is None else await self.prepare(sets)
            # Leftovers of the node's previous life must be gone before anything is added.
            await self._announced.wait()
            return await self._topology.decide(prepared)

        return await self._decided(decide, retryable=True)

    async def change_users(self, message: ControlMessage) -> int:
        """Have a change of users made; return the revision, which this node has reached.

        Raises RequestError or MessageError.
        """
        change = change_of(message)

        def tried() -> Users:
            return self._store.tried(change)

        async def decide() -> int:
            async with self._topology.deciding():
                before = self._directory.users
                try:
                    after = await self._thread.run(tried)
                except ChangeError as refusal:
                    raise RequestError(refusal.code, str(refusal)) from refusal
                await self._commit(Decision(users=UsersChange.between(before, after)))
            return after.revision

        return await self._decided(decide, retryable=False)

    async def forget(self, node: str) -> None:
        """Remove the member of etcd of a node that is gone for good, and delete what is known of it.
        Raises RequestError."""

        async def decide() -> None:
            async with self._topology.deciding() as topology:
                if node not in self._follower.state.nodes:
                    raise RequestError(ERROR_NOT_FOUND, f"{node} is not a node of this cluster")
                deltas = [topology.apply(each) for each in node_starts.dropped_with(node, topology)]
                await self._topology.commit(deltas, ((node, None),))

        await remove_member(self._client, node)
        await self._decided(decide, retryable=True)

    async def _decided(self, decide: Callable[[], Awaitable[Result]], *, retryable: bool) -> Result:
        """Decide until nobody else has changed anything meanwhile; ``retryable``: also when it is
        not known whether it is committed."""
        deadline = time.monotonic() + REQUEST_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    return await decide()
            except ConflictError:
                if not self._follower.root_revision:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await self._follower.next()
            except (LostError, TimeoutError) as problem:
                if not retryable:
                    text = "etcd did not answer: the change may or may not be applied; check it"
                    raise RequestError(ERROR_FAILED, text) from problem
        raise RequestError(ERROR_FAILED, UNREACHABLE)

    def check(self) -> None:
        """Raise ConflictError unless this node follows etcd."""
        self._follower.check()

    async def commit(
        self,
        deltas: Sequence[AcceptedDelta],
        nodes: Sequence[tuple[str, NodeRecord | None]] = (),
    ) -> None:
        """Commit changes, see `ports.Decider`."""
        await self._commit(Decision(tuple(deltas), nodes=tuple(nodes)))

    async def barrier(self) -> None:
        """Implement `ports.Decider`."""
        self.check()
        known = self._follower.root_revision
        try:
            ((entry,),) = (await self._client.transact((), (Get(ROOT),))).entries
        except (EtcdError, ValueError) as problem:
            raise LostError from problem
        if entry.revision != known:
            await self._until(lambda: self._follower.root_revision != known)
            raise ConflictError

    async def _commit(self, decision: Decision) -> None:
        """Commit a decision, and return when the copy has it. Raises ConflictError or LostError, or
        RequestError if it is too large for etcd."""
        self.check()
        root, known = self._follower.state.root, self._follower.root_revision
        decision = self._with_users(decision)
        revision = decision.deltas[-1].delta.revision if decision.deltas else root.topology
        users = root.users if decision.users is None else decision.users.revision
        operations = operations_of(decision, MetadataRoot(revision, users, root.cluster))
        # No queue is put into a mirrored group that has ended, see `while_unchanged`.
        groups = tuple(Existing(MIRRORS + each.encode()) for each in mirrored_groups_of(decision))
        try:
            result = await self._client.transact(
                (Changed(ROOT, known), *groups), operations, (Get(ROOT),)
            )
        except (EtcdError, ValueError) as problem:
            self._follower.failed("a change of topology or users", problem)
            if any(words in str(problem) for words in TOO_LARGE):
                raise RequestError(ERROR_LIMIT, f"etcd: {problem}: {DIVIDE}") from problem
            raise LostError from problem
        if not result.succeeded:
            self.conflicts += 1
            ((entry,),) = result.entries
            if entry.revision != known:
                await self._until(lambda: self._follower.root_revision != known)
            else:
                await asyncio.sleep(
                    RETRY_SECONDS
                )  # until this node has heard that the group has ended
            raise ConflictError
        self.commits += 1
        await self._until(lambda: self._follower.state.revision >= result.revision)

    async def while_unchanged(
        self,
        decide: Callable[[Topology], tuple[tuple[Compare, ...], tuple[Operation, ...]] | None],
    ) -> bool:
        """Carry out operations that the topology allows, on the condition that it is as it was then, and
        return whether they are; ``decide`` returns them, with further conditions, or None. Raises
        EtcdError or ValueError, after which they may have been carried out, or ConflictError."""
        async with self._topology.deciding() as topology:
            known, decided = self._follower.root_revision, decide(topology)
            if decided is None:
                return False
            compares, operations = decided
            result = await self._client.transact((Changed(ROOT, known), *compares), operations)
            return result.succeeded

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return when the copy is such. Raises LostError when it is not in time."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                while not condition():
                    await self._follower.next()
        except TimeoutError as problem:
            raise LostError from problem

    def _with_users(self, decision: Decision) -> Decision:
        """Return a decision with the changes of users that follow from it: permissions in virtual
        hosts that are deleted go with them."""
        dropped = set(decision.dropped_vhosts())
        put = []
        for user in self._directory.users.users if dropped else ():
            kept = tuple(each for each in user.permissions if each.vhost not in dropped)
            topics = tuple(each for each in user.topic_permissions if each.vhost not in dropped)
            if (kept, topics) != (user.permissions, user.topic_permissions):
                put.append(replace(user, permissions=kept, topic_permissions=topics))
        if not put:
            return decision
        users = UsersChange(self._directory.users.revision + 1, tuple(put), ())
        return Decision(decision.deltas, users, decision.nodes)

    # Nodes that start and end

    async def _announce(self) -> None:
        """Say that this node runs, once it follows etcd; outermost frame of its task."""
        while not self._announced.is_set():
            try:
                await self._announce_once()
                self._announced.set()
            except (ConflictError, LostError):
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - a task's outermost frame
                _log.exception("the start of this node cannot be announced")
                await asyncio.sleep(RETRY_SECONDS)

    async def _announce_once(self) -> None:
        started, follower = self._started, self._follower
        while not follower.root_revision:
            await follower.next()
        async with self._topology.deciding() as topology:
            records = follower.state.nodes
            deltas: list[Delta] = []
            for change in node_starts.changes(started, topology, records):
                try:
                    deltas.append(topology.apply(change))
                except Refusal as refusal:
                    _log.warning("a configured queue is not declared: %s", refusal)
            record = started.record()
            if record != records.get(started.node) or deltas:
                taken = [delta for delta in deltas if delta.rows]
                await self._topology.commit(taken, ((started.node, record),))

    async def _look(self, coordinates: Callable[[], bool]) -> None:
        """See to nodes that have ended while this one coordinates; outermost frame of its task."""
        ended: set[str] = set()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            known = set(self._follower.state.nodes) - {self._started.node}
            if not coordinates() or not self._follower.root_revision:
                ended.clear()
                continue
            try:
                wanted = Get(wills.NODES, end_of(wills.NODES))
                ((*entries,),) = (await self._client.transact((), (wanted,))).entries
                there = {each.key.removeprefix(wills.NODES).decode() for each in entries}
                ended &= known - there
                for node in known - there - ended:
                    await self._drop_queues_of(node)
                    ended.add(node)
            except (EtcdError, ValueError, ConflictError, LostError) as problem:
                self._follower.failed("nodes that have ended", problem)

    async def _drop_queues_of(self, node: str) -> None:
        """Delete the queues in the memory of a node that has ended."""
        async with self._topology.deciding() as topology:
            found = node_starts.dropped_with(node, topology)
            if not found:
                return
            deltas = [topology.apply(change) for change in found]
            await self._topology.commit([delta for delta in deltas if delta.rows])
        _log.warning(
            "a node has ended: queues in its memory are deleted",
            extra={"node": node, "queues": len(found)},
        )
