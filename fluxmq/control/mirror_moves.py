"""Moves of queues to the nodes on which their policies want them mirrored, in a cluster.

Each node compares, for the classic queues that it has or leads, the nodes that a queue's policy wants with
those of the group that the queue is in, and has queues that differ moved to another group. A move
copies what the queue has beside its use (`queue_migrations`), so a new mirror has everything when it
becomes one: to synchronise mirrors is to move. With ``ha-sync-mode: manual`` a queue moves to more nodes
only when it is empty, or when somebody asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from fluxmq.control.mirror_choices import MirrorChoices, MirrorStore, home_of
from fluxmq.control.mirror_requests import MirrorSync
from fluxmq.control.mirror_waits import Key, MirrorWaits, WantedNodes
from fluxmq.control.mirrors import MirrorState, mirror_state, unsynchronised
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import Set
from fluxmq.control.queue_migrations import MIGRATION_BYTES
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_INVALID
from fluxmq.ipc.mirror_messages import SyncState
from fluxmq.ipc.placements import number_of
from fluxmq.ipc.row_messages import QueueExtent
from fluxmq.ipc.topology_messages import TopologyChanged
from fluxmq.logs import RateLimited, get_logger
from fluxmq.routing.topology.changes import AbortMigration, Change, MigrateQueue
from fluxmq.routing.topology.mirror_keys import MODE_KEY
from fluxmq.routing.topology.mirror_records import MirrorRecord
from fluxmq.routing.topology.mirroring import MirrorPolicy, mirror_policy, wanted
from fluxmq.routing.topology.records import Policy, QueueRecord
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.clustering import BUFFERED, LOCAL
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.schema import Settings

LOOK_SECONDS: Final = 1.0
"""Interval between two looks whether something has changed."""
CALM_SECONDS_MAX: Final = 5.0
"""Longest time for which queues are not compared because others are being declared."""
MOVING_MAX: Final = 16
"""Queues that move at once because of policies."""
QUEUES_AT_ONCE: Final = 500
"""Queues that are compared before others have a turn."""

_log = get_logger(__name__)


class MirrorMoves(MirrorSync):
    """Those that one node's control process starts. ``positions`` returns how far queues here have got."""

    def __init__(
        self,
        store: MirrorStore,
        choices: MirrorChoices,
        topology: Callable[[], Topology],
        settings: Callable[[], Settings],
        change: Callable[[Sequence[Set]], Awaitable[TopologyChanged]],
        positions: Callable[[Sequence[QueueRecord]], Awaitable[dict[Key, QueueExtent]]],
    ) -> None:
        self._store = store
        self._choices = choices
        self._topology = topology
        self._settings = settings
        self._change = change
        self._waits = MirrorWaits(positions)
        self._task: asyncio.Task[None] | None = None
        self._seen: object = None
        """Topology, records and nodes for which all queues were where they should be, or waited."""
        self._revision = -1
        self._policies: list[Policy] = []
        self._compare_at = 0.0
        """Moment of the next comparison, even if the topology changes all the time."""
        self._said = RateLimited(_log, per_second=0.1, burst=3)

    def start(self) -> None:
        """Move queues until ``stop``."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield the samples of the metrics."""
        yield "fluxmq_mirror_moves_waiting", {}, float(len(self._waits))

    # State, for lists and requests

    def state(self, queue: QueueRecord) -> MirrorState | None:
        """Return the state of a queue's mirrors; None if it is not mirrored."""
        record = self._record(queue)
        target = self._store.records.get(queue.moving_to)
        joining: tuple[str, ...] = ()
        home, online = home_of(queue, self._store.records), {*self._choices.online}
        if target is not None:
            joining = tuple(each.node for each in target.members)
        elif not queue.moving_to:
            outcome = self._outcome(queue)
            joining = () if outcome is None or outcome.policy is None else outcome.added
            if outcome is not None and outcome.waits and home == self._settings().cluster.node_id:
                # Messages that come once a mirror is listed are newer than it is.
                online.difference_update(
                    each for each in joining if not self._waits.begun(queue, each)
                )
        if record is None:
            # It is on one node until its mirrors have everything.
            return unsynchronised(home, joining, online, syncing=target is not None)
        syncing = target is not None and _is_wider(target, record)
        return mirror_state(record, online, joining, syncing=syncing)

    async def synchronise(self, queue: QueueRecord, *, begin: bool) -> SyncState:
        """Have a queue's mirrors synchronised unless they are. Raises RequestError."""
        outcome = self._outcome(queue) if begin and self._choices.able() else None
        state = self.state(queue)
        if outcome is None or outcome.policy is None or not outcome.added or _syncs(state):
            return SyncState(_syncs(state))
        if queue.moving_to:
            raise RequestError(ERROR_AWAY, f"{queue.name} is being moved: ask again after that")
        await self._move([outcome])
        return SyncState(True)

    async def cancel(self, queue: QueueRecord) -> SyncState:
        """Leave a queue where it is. Raises RequestError."""
        if not _syncs(self.state(queue)):
            return SyncState(False)
        changed = await self._change([(AbortMigration(queue.vhost, queue.name),)])
        refusal = changed.results[0]
        if refusal is not None:
            raise RequestError(ERROR_INVALID, refusal.text)
        return SyncState(True)

    def _record(self, queue: QueueRecord) -> MirrorRecord | None:
        return self._store.records.get(queue.group) if is_mirrored(queue.group) else None

    # The queues of this node

    async def _run(self) -> None:
        """See to the queues; outermost frame of its task."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not (self._store.known and self._choices.able()):
                continue
            try:
                await self._look()
            except RequestError as problem:
                self._said.event(logging.WARNING, "moves", "mirrored queues: %s", problem)
            except Exception:  # noqa: BLE001 - a task's outermost frame
                _log.exception("mirrored queues cannot be seen to")

    async def _look(self) -> None:
        revision, time = self._topology().revision, asyncio.get_running_loop().time()
        calm, self._revision = revision == self._revision, revision
        policies = _policies(self._topology())
        # Messages that come until they count for a queue are older than its new mirrors.
        calm, self._policies = calm or policies != self._policies, policies
        now = revision, self._store.records, self._choices.online
        if now != self._seen and (calm or time >= self._compare_at):
            self._compare_at = time + CALM_SECONDS_MAX
            found, moving = await self._differing()
            ready = self._waits.ready(found)
            await self._move(ready[: max(MOVING_MAX - moving, 0)])
            if not ready:
                self._seen = now
        if await self._waits.look(time):
            self._seen = None

    async def _differing(self) -> tuple[list[WantedNodes], int]:
        """Return the queues that are not where they should be, and how many move already; have moves to
        where queues should not be any more aborted."""
        found: list[WantedNodes] = []
        moving = 0
        topology, records = self._topology(), self._store.records
        node = self._settings().cluster.node_id
        mirrored = _policies(topology)
        aborted: list[Set] = []
        for number, queue in enumerate(list(topology.queues())):
            if number % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
            if not (mirrored or queue.arguments or is_mirrored(queue.group) or queue.moving_to):
                continue
            if home_of(queue, records) != node:
                continue
            outcome = self._outcome(queue)
            if not queue.moving_to:
                found += () if outcome is None else (outcome,)
            elif is_mirrored(queue.moving_to) and not self._leads_to(queue, outcome):
                aborted.append((AbortMigration(queue.vhost, queue.name),))
            else:
                moving += 1
        if aborted:
            await self._change(aborted)
        return found, moving

    def _leads_to(self, queue: QueueRecord, outcome: WantedNodes | None) -> bool:
        """Return whether a queue moves to where it should be."""
        target = self._store.records.get(queue.moving_to)
        if target is None or outcome is None or outcome.policy is None:
            return target is None
        policy = outcome.policy
        return _is_as_wanted(target, policy, outcome.nodes) or (
            bool(outcome.meanwhile) and _is_as_wanted(target, policy, outcome.meanwhile)
        )

    def _outcome(self, queue: QueueRecord) -> WantedNodes | None:
        """Return where a queue should be; None if it is there, or cannot move now."""
        topology, records = self._topology(), self._store.records
        record, online = self._record(queue), self._choices.online
        policy = mirror_policy(topology, queue)
        leader = home_of(queue, records)
        if leader not in online or (
            record is None and (policy is None or is_mirrored(queue.group))
        ):
            return None
        if policy is None:
            return WantedNodes(queue, None, (leader,), ())
        if record is None and not queue.group.startswith((f"{LOCAL}-", f"{BUFFERED}-")):
            return None
        mirrors = () if record is None else record.mirrors
        synchronised = () if record is None else record.synchronised_mirrors
        chosen, load = self._waits.added(queue), self._choices.load
        nodes = wanted(
            policy,
            leader,
            mirrors,
            online,
            self._choices.nodes,
            lambda node: -1 if node in chosen else load(node),  # mirrors to come remain the same
            synchronised,
        )
        if record is not None and _is_as_wanted(record, policy, nodes):
            return None
        present = leader, *mirrors
        added = tuple(each for each in nodes if each not in present)
        found = WantedNodes(queue, policy, nodes, added)
        if record is None or not found.waits:
            return found
        # Nothing has to be synchronised for another leader among them, or for other rules.
        meanwhile = tuple(dict.fromkeys((nodes[0], *present)))
        same = nodes[0] == leader and _is_as_wanted(record, policy, meanwhile)
        return found if same else replace(found, meanwhile=meanwhile)

    async def _move(self, those: Sequence[WantedNodes]) -> None:
        """Start to move queues. Raises RequestError."""
        moving: list[tuple[WantedNodes, Set]] = []
        for each in those:
            queue = each.queue
            if each.policy is None:
                group = self._own_group(queue, each.nodes[0])
            else:
                group = await self._choices.group(each.policy, each.nodes)
            if group != queue.group and not self._is_no_better(each, group):
                number = secrets.token_hex(MIGRATION_BYTES)
                change: Change = MigrateQueue(queue.vhost, queue.name, queue.group, group, number)
                moving.append((each, (change,)))
        if not moving:
            return
        changed = await self._change([change for _, change in moving])
        for (each, _), refusal in zip(moving, changed.results, strict=True):
            if refusal is None:
                for node in each.added:
                    said_added(each.queue, node)
            elif len(moving) == 1:
                raise RequestError(ERROR_AWAY, refusal.text)
            else:
                self._said.event(logging.WARNING, "refused", "mirrored queues: %s", refusal.text)

    def _is_no_better(self, each: WantedNodes, group: str) -> bool:
        """Return whether a queue is to have another leader alone, and does not get it in this group."""
        record, target = self._record(each.queue), self._store.records.get(group)
        if record is None or target is None or each.policy is None:
            return False
        fits = _is_as_wanted(record, each.policy, each.nodes)
        return fits and target.leader != each.nodes[0]

    def _own_group(self, queue: QueueRecord, node: str) -> str:
        """Return the group of a node's own for a queue that is mirrored no longer."""
        settings = self._settings()
        prefix = BUFFERED if settings.storage.queue_ack_durability == "buffered" else LOCAL
        return f"{prefix}-{number_of(queue.name, settings.queue_manager.local_groups)}@{node}"


def said_added(queue: QueueRecord, node: str) -> None:
    """Log that a queue gets a mirror, in RabbitMQ's words."""
    _log.info(
        "Mirrored queue '%s' in vhost '%s': Adding mirror on node %s",
        queue.name,
        queue.vhost,
        node,
    )


def _is_as_wanted(record: MirrorRecord, policy: MirrorPolicy, nodes: Sequence[str]) -> bool:
    """Return whether a group is on these nodes, by these rules."""
    rules = (record.promote_on_failure, record.promote_on_shutdown)
    return {each.node for each in record.members} == {*nodes} and rules == (
        policy.promote_on_failure,
        policy.promote_on_shutdown,
    )


def _syncs(state: MirrorState | None) -> bool:
    return state is not None and state.syncing


def _is_wider(target: MirrorRecord, record: MirrorRecord) -> bool:
    return any(record.member(each.node) is None for each in target.members)


def _policies(topology: Topology) -> list[Policy]:
    """Return the policies that mirror queues."""
    return [
        policy
        for vhost in topology.vhosts()
        for policy in topology.policies(vhost.name)
        if MODE_KEY in policy.definition
    ]
