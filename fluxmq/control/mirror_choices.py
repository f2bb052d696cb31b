"""The mirrored group of a queue: chosen here for queues that are declared, wherever a client declares
them or a file names them, and for those that a policy moves.

Queues that have the same leader, mirrors and rules share a group. Its name is part of a hash of these; of
several groups with such a name the first is taken that is led by the node that the queue should be led
by. The name of a group that has ended is not used again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from fluxmq.control.etcd.client import EtcdError
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import Set
from fluxmq.ipc.messages import ERROR_FAILED
from fluxmq.routing.topology.changes import Change, DeclareQueue
from fluxmq.routing.topology.mirror_records import MirrorRecord, begun
from fluxmq.routing.topology.mirroring import MirrorPolicy, first_nodes, mirror_policy
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.group_names import MIRRORED, is_mirrored
from fluxmq.settings.listen_addresses import ListenAddress, clash, listen_addresses_of_others
from fluxmq.settings.membership import with_mirrors
from fluxmq.settings.plans import GroupPlans, UnknownGroup
from fluxmq.settings.schema import Settings

ALIKE_MAX: Final = 16
"""Groups of one name but for a number: one for each node that may have come to lead another."""
LOAD_SECONDS: Final = 1.0
"""Time for which the nodes' loads are taken as they were counted."""


class MirrorStore(Protocol):
    """The records of mirrored groups. ``lives``: the nodes that run."""

    lives: frozenset[str]
    known: bool
    """True once the records have been read."""

    @property
    def ended(self) -> Collection[str]:
        """Groups that there have been."""

    @property
    def records(self) -> Mapping[str, MirrorRecord]:
        """The records by group."""

    async def begin(self, group: str, record: MirrorRecord) -> None:
        """Have a group known; put its record if there is none. Raises EtcdError, ValueError or
        TimeoutError."""

    async def moment(self) -> int:
        """Return a number that only grows. Raises EtcdError."""


class MirrorChoices:
    """Those of one node's control process. ``settings`` returns those in force; ``able`` whether all nodes
    know mirrored groups: until then, no queue is mirrored."""

    def __init__(
        self,
        store: MirrorStore,
        topology: Callable[[], Topology],
        settings: Callable[[], Settings],
        able: Callable[[], bool],
    ) -> None:
        self._store = store
        self._topology = topology
        self._settings = settings
        self.able = able
        self._loads: Counter[str] = Counter()
        self._counted_at = -LOAD_SECONDS

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the cluster."""
        cluster = self._settings().cluster
        return (cluster.node_id, *cluster.transport.peers)

    @property
    def online(self) -> Collection[str]:
        """Those of them that run."""
        return {*self._store.lives, self._settings().cluster.node_id} & {*self.nodes}

    def load(self, node: str) -> int:
        """Return the number of queues that a node leads or mirrors."""
        now = time.monotonic()
        if now - self._counted_at >= LOAD_SECONDS:
            self._counted_at = now
            groups = Counter(queue.group for queue in self._topology().queues())
            self._loads = Counter()
            for group, queues in groups.items():
                record = self._store.records.get(group)
                of_group = () if record is None else (each.node for each in record.members)
                for each in of_group or (group.partition("@")[2],):
                    self._loads[each] += queues
        return self._loads[node]

    async def prepare(self, sets: Sequence[Set]) -> list[Set]:
        """Return changes in which queues that are declared and to be mirrored are in their groups. Raises
        RequestError."""
        found: list[Set] = []
        for each in sets:
            if isinstance(each, tuple) and any(isinstance(change, DeclareQueue) for change in each):
                found.append(tuple([await self._prepared(change) for change in each]))
            else:
                found.append(each)
        return found

    async def _prepared(self, change: Change) -> Change:
        if not isinstance(change, DeclareQueue):
            return change
        queue, topology = change.queue, self._topology()
        home = queue.group.partition("@")[2]
        if not home or not self.able() or topology.queue(queue.vhost, queue.name) is not None:
            return change
        policy = mirror_policy(topology, queue)
        if policy is None:
            return change
        nodes = first_nodes(policy, home, self.online, self.nodes, self.load)
        return DeclareQueue(replace(queue, group=await self.group(policy, nodes)))

    async def group(self, policy: MirrorPolicy, nodes: Sequence[str]) -> str:
        """Return a group of these nodes, the leader first; it is known when this returns. Raises
        RequestError."""
        records = self._store.records
        suitable = ""
        names = (self._name(policy, nodes, number) for number in itertools.count())
        # A node that was away may still have the log of one that has ended, under its name.
        alike = (name for name in names if name not in self._store.ended)
        for name in itertools.islice(alike, ALIKE_MAX):
            record = records.get(name)
            if record is None:
                if self._has_address(name, nodes):
                    await self._begin(name, policy, nodes)
                    return name
            elif {each.node for each in record.members} == {*nodes}:
                suitable = suitable or name
                if record.leader == nodes[0]:
                    return name
        if not suitable:
            text = f"no mirrored group on {', '.join(nodes)} has an address: see cluster.raft.bind_addr"
            raise RequestError(ERROR_FAILED, text)
        return suitable

    async def _begin(self, name: str, policy: MirrorPolicy, nodes: Sequence[str]) -> None:
        try:
            since = await self._store.moment()
            rules = policy.promote_on_failure, policy.promote_on_shutdown
            await self._store.begin(name, begun(nodes, since, *rules))
        except (EtcdError, ValueError, TimeoutError) as problem:
            text = f"the record of a mirrored group cannot be written: {problem}"
            raise RequestError(ERROR_FAILED, text) from problem

    def _has_address(self, name: str, nodes: Sequence[str]) -> bool:
        """Return whether a new group has an address on every node, beside those of other groups."""
        settings = self._settings()
        first = {**settings.cluster.history.mirrors, name: tuple(nodes)}
        plans = GroupPlans(with_mirrors(settings, first))
        groups = {queue.group for queue in self._topology().queues() if "@" not in queue.group}
        for group in (*sorted(groups), *sorted(self._store.records)):
            if group and plans.replicated(group):
                with contextlib.suppress(UnknownGroup):
                    plans.of(group)
        try:
            own = plans.of(name).bind_addr
        except UnknownGroup:
            return False
        # Others, if they are on this machine, see that its address is one of theirs.
        return not clash(ListenAddress(name, own), listen_addresses_of_others(settings))

    def _name(self, policy: MirrorPolicy, nodes: Sequence[str], number: int) -> str:
        times = self._settings().cluster.history.times
        parts: Iterable[str] = (
            nodes[0],
            *sorted(f"{node}={times.get(node, 0)}" for node in nodes),
            policy.promote_on_failure,
            policy.promote_on_shutdown,
            *([str(number)] if number else ()),
        )
        return MIRRORED + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def home_of(queue: QueueRecord, records: Mapping[str, MirrorRecord]) -> str:
    """Return the node that has a classic queue, or leads its mirrored group; empty if unknown."""
    if is_mirrored(queue.group):
        record = records.get(queue.group)
        return "" if record is None else record.leader
    return queue.group.partition("@")[2]
