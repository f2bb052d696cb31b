"""The mirrored groups of the cluster in etcd: ``/fluxmq/mirrors/<group>``, a `MirrorRecord` as JSON.

A record says which node leads a group, and which mirrors are synchronised. It is put before the first
queue is in the group, and changes by compare-and-swap only. A group that no queue is in any more ends
(`mirror_endings`): ``/fluxmq/mirrors_ended/<group>`` takes the place of the record. All control processes follow the records,
and the keys of nodes that are there (see `wills`), which lie beside them, by one watch, and have their
shards work by them.

A node asks for an epoch of its own before it leads a group: epochs are terms in Raft, so no two nodes,
and no two lives of one, ever lead in the same. The leader asks for every change of its mirrors. The node
that coordinates the cluster has a mirror lead instead of a leader whose node has ended, and every node that
has a synchronised mirror does so instead of one whose process has.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from fluxmq.control.etcd.client import EtcdClient, EtcdError, UnreachableError
from fluxmq.control.etcd.followed_keys import FollowedKeys
from fluxmq.control.etcd.messages import (
    Changed,
    Compare,
    Created,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
    end_of,
)
from fluxmq.control.etcd.wills import NODES
from fluxmq.control.peers import Peer, RequestError, answers_of
from fluxmq.ipc.messages import (
    ERROR_FAILED,
    ERROR_UNREACHABLE,
    Body,
    ControlMessage,
    MessageBody,
)
from fluxmq.ipc.mirrored_groups import (
    ALONE,
    ENDED_MAX,
    LOST,
    MIRROR_ENDED,
    MIRROR_LEAD,
    MIRRORED_GROUPS_MAX,
    MIRRORS,
    SYNCHRONISED,
    GroupMirrors,
    MirrorChange,
    MirrorEnded,
    MirrorEpoch,
    MirrorLead,
    Mirrors,
)
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology import mirror_records
from fluxmq.routing.topology.mirror_records import MirrorRecord
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.group_names import is_mirrored

PREFIX: Final = b"/fluxmq/mirrors/"
ENDED: Final = b"/fluxmq/mirrors_ended/"
"""Keys of groups that there have been. They stay, so that no group begins under such a name. Both are
directly before `NODES`: one watch follows all."""
LOOK_SECONDS: Final = 1.0
"""Interval at which the coordinator looks for leaders whose nodes have ended."""
SHARD_SECONDS: Final = 2.0
"""Time for a shard to confirm what it was told."""
RETURN_SECONDS: Final = 8.0
"""Time that a leader gets, if leaders go on alone in a partition, to reach an etcd that was away for all and to
say that it did without the others, before another takes its place."""
ATTEMPTS_MAX: Final = 5
"""Attempts of a change while others change the same record."""

_log = get_logger(__name__)


class ToldMirrors(MessageBody, frozen=True):
    """The empty answer of a shard."""


class KeptRecord(NamedTuple):
    """A record, and the revision of its key."""

    record: MirrorRecord
    revision: int


class MirrorCoordinator(NamedTuple):
    """``coordinates`` returns whether this node sees to the leaders of others, which it does for so many
    ``seconds`` before it replaces one."""

    coordinates: Callable[[], bool]
    seconds: float = 0.0


class MirrorKeys:
    """Follows the records and decides about them, for one node.

    ``coordinator``: whether this node sees to the leaders of others; ``shards`` returns the
    connected shards; ``changed`` is called with the nodes that the groups begin on.
    """

    def __init__(
        self,
        client: EtcdClient,
        node: str,
        coordinator: MirrorCoordinator,
        shards: Callable[[], list[Peer]],
        changed: Callable[[Mapping[str, tuple[str, ...]]], None],
    ) -> None:
        self._client = client
        self._node = node
        self._coordinator = coordinator
        self._shards = shards
        self._changed = changed
        self._kept: dict[str, KeptRecord] = {}
        self.lives: frozenset[str] = frozenset()
        """Nodes that have said within ten seconds that they run."""
        self.known = False
        """True once the records have been read."""
        self.ended: Mapping[str, int] = {}
        """Groups that there have been, with the revision at which they ended."""
        self._seen: dict[str, frozenset[str]] = {}
        """On the coordinator, by group: the nodes that were there when its leader last was."""
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._followed = FollowedKeys(client, "mirrored groups", PREFIX, end_of(NODES), self._take)
        self.promotions = 0

    @property
    def records(self) -> Mapping[str, MirrorRecord]:
        """The records by group."""
        return {group: kept.record for group, kept in self._kept.items()}

    def coordinates(self) -> bool:
        """Return whether this node sees to groups whose leaders have ended, and ends those without queues."""
        return self._coordinator.coordinates()

    def groups(self) -> Iterator[str]:
        """Yield the groups that there are."""
        yield from list(self._kept)

    def ending(self, group: str) -> tuple[tuple[Compare, ...], tuple[Operation, ...]] | None:
        """Return the condition and the operations by which a group ends; None if there is none."""
        kept, name = self._kept.get(group), group.encode()
        if kept is None:
            return None
        return (Changed(PREFIX + name, kept.revision),), (
            Delete(PREFIX + name),
            Put(ENDED + name, b""),
        )

    def start(self) -> None:
        """Follow the keys, and see to leaders that have ended, until ``stop``."""
        loop = asyncio.get_running_loop()
        self._tasks = {loop.create_task(self._followed.run()), loop.create_task(self._look())}

    async def stop(self) -> None:
        """End. Groups that this node leads get another leader before, if one may lead them."""
        with contextlib.suppress(EtcdError, ValueError, TimeoutError):
            async with asyncio.timeout(SHARD_SECONDS):
                await self._stop_orderly()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_mirrored_groups", {}, float(len(self._kept))
        yield "fluxmq_mirror_promotions_total", {}, float(self.promotions)
        yield "fluxmq_mirrors_failures_total", {}, float(self._followed.failures)

    def greeted(self, peer: Peer) -> None:
        """Tell a shard that has connected."""
        if self.known:
            self._run(self._tell([peer]))

    def gone(self, _peer: Peer) -> None:
        """Do nothing: a shard that connects again is told again."""

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Following

    async def _take(self, found: Mapping[bytes, KeyValue], _revision: int) -> None:
        kept: dict[str, KeptRecord] = {}
        lives: set[str] = set()
        ended: dict[str, int] = {}
        for key, entry in found.items():
            if key.startswith(NODES):
                lives.add(key.removeprefix(NODES).decode("utf-8", "replace"))
            elif key.startswith(ENDED):
                ended[key.removeprefix(ENDED).decode("utf-8", "replace")] = entry.revision
            elif key.startswith(PREFIX):
                group = key.removeprefix(PREFIX).decode("utf-8", "replace")
                if not is_mirrored(group) or len(kept) >= MIRRORED_GROUPS_MAX:
                    self._followed.failed(f"key {key!r}", ValueError("ignored"))
                    continue
                try:
                    kept[group] = KeptRecord(MirrorRecord.decode(entry.value), entry.revision)
                except ValueError as problem:
                    self._followed.failed(f"key {key!r}", problem)
        same = self.known and (kept, ended) == (self._kept, self.ended)
        self.ended = ended
        self._kept, self.lives, self.known = kept, frozenset(lives), True
        self._news.set()
        if not same:
            self._changed({group: each.record.first for group, each in kept.items()})
            await self._tell(self._shards())

    async def _tell(self, shards: list[Peer]) -> None:
        groups = {group: _told(each.record) for group, each in self._kept.items()}
        gone = (each for each in self.ended if each not in groups)
        latest = sorted(gone, key=self.ended.__getitem__)[-ENDED_MAX:]
        body = Mirrors(groups, tuple(latest)).to_body()
        await answers_of(shards, MIRRORS, body, SHARD_SECONDS, ToldMirrors)

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()

    # Changing

    async def begin(self, group: str, record: MirrorRecord) -> None:
        """Have a group known to this node's shards; put its record if there is none. Raises EtcdError
        or ValueError, or TimeoutError."""
        if group not in self._kept:
            key, ended = PREFIX + group.encode(), ENDED + group.encode()
            first = Created(key, 0), Created(ended, 0)
            await self._client.transact(first, (Put(key, record.encode()),))
            async with asyncio.timeout(SHARD_SECONDS):
                while group not in self._kept:
                    if group in self.ended:
                        raise EtcdError(f"{group} has ended")
                    await self._next()

    async def moment(self) -> int:
        """Return a number that only grows: the store's revision. Raises EtcdError."""
        return (await self._client.transact((), (Get(PREFIX),))).revision

    async def change(
        self,
        group: str,
        decide: Callable[[MirrorRecord, int], MirrorRecord | None],
        *,
        fence: bool = False,
    ) -> MirrorRecord | None:
        """Change a record; ``decide`` gets it and a moment, and returns what it becomes, or None to leave
        it. ``fence``: put it even if it stays the same, so that no earlier change succeeds later. Return
        what it is then, None if it was left or is not there. Raises EtcdError or ValueError.
        """
        # One after another, in the order of requests: one that has not read yet is no earlier change.
        async with self._changing[group]:
            return await self._change(PREFIX + group.encode(), decide, fence=fence)

    async def _change(
        self,
        key: bytes,
        decide: Callable[[MirrorRecord, int], MirrorRecord | None],
        *,
        fence: bool,
    ) -> MirrorRecord | None:
        for _ in range(ATTEMPTS_MAX):
            result = await self._client.transact((), (Get(key),))
            ((*entries,),) = result.entries
            if not entries:
                return None
            record = MirrorRecord.decode(entries[0].value)
            after = decide(record, result.revision)
            if after is None:
                return None
            if after == record and not fence:
                return record
            put = await self._client.transact(
                (Changed(key, entries[0].revision),), (Put(key, after.encode()),)
            )
            if put.succeeded:
                return after
        raise EtcdError("others change the same record all the time")

    # Requests of shards

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a shard. Raises RequestError or MessageError."""
        try:
            if message.kind == MIRROR_LEAD:
                return (await self._lead(MirrorLead.from_body(message.body))).to_body()
            if message.kind == MIRROR_ENDED:
                return (await self._replace(MirrorEnded.from_body(message.body))).to_body()
            return (await self._mirror(MirrorChange.from_body(message.body))).to_body()
        except (EtcdError, ValueError) as problem:
            self._followed.failed("a mirrored group", problem)
            away = isinstance(problem, UnreachableError)
            code = ERROR_UNREACHABLE if away else ERROR_FAILED
            raise RequestError(code, f"etcd: {problem}") from problem

    async def _lead(self, asked: MirrorLead) -> MirrorEpoch:
        """Give this node an epoch to lead a group in, if it is the one that leads."""

        def decide(record: MirrorRecord, moment: int) -> MirrorRecord | None:
            if record.leader != self._node:
                return None
            if asked.empty and record.epoch > 1:
                # Its copy was lost: a mirror that has everything leads instead.
                return mirror_records.promoted(record, self.lives - {self._node}, False)
            after = mirror_records.returned(record, self._node, moment)
            if asked.alone:
                if record.forced != asked.forced:
                    return None
                after = mirror_records.alone(after)
            return replace(after, epoch=max(after.epoch, asked.term) + 1)

        record = await self.change(asked.group, decide)
        leads = record is not None and record.leader == self._node
        return MirrorEpoch(record.epoch if record is not None and leads else 0)

    async def _mirror(self, asked: MirrorChange) -> MirrorEpoch:
        """Change a mirror as the leader asks; answer with the epoch if it is done."""

        def decide(record: MirrorRecord, moment: int) -> MirrorRecord | None:
            if (record.leader, record.epoch) != (self._node, asked.epoch):
                return None
            if asked.state == ALONE:
                return mirror_records.alone(record)
            if asked.state == LOST:
                return mirror_records.removed(record, asked.node)
            if record.member(asked.node) is None:
                return None
            after = mirror_records.returned(record, asked.node, moment)
            if asked.state == SYNCHRONISED:
                return mirror_records.synchronised(after, asked.node, moment)
            return after

        # What the leader does without must not enter the record by an earlier request that is late.
        record = await self.change(asked.group, decide, fence=asked.state in (ALONE, LOST))
        return MirrorEpoch(0 if record is None else record.epoch)

    # Leaders that have ended

    async def _replace(self, asked: MirrorEnded) -> MirrorEpoch:
        """Have a synchronised mirror lead, since the process of the leader has ended though its node's key
        is there; answer with the epoch, 0 if another one is not to lead.

        Nothing is lost if the leader is there all the same: an entry that it commits is on every mirror
        that the record names, and it cannot do without one of those once the record names another leader.
        """
        alive = self.lives & {*asked.reached}

        def decide(record: MirrorRecord, _moment: int) -> MirrorRecord | None:
            own = record.member(self._node)
            if own is None or not own.synchronised:
                return None  # it is the leader that has lost this node, and not the other way round
            if (record.leader, record.epoch) != (asked.leader, asked.epoch):
                return None
            return mirror_records.replaced(record, alive)

        after = await self.change(asked.group, decide)
        if after is None:
            return MirrorEpoch(0)
        self._said_promoted(asked.group, after)
        return MirrorEpoch(after.epoch)

    async def _look(self) -> None:
        """See to groups whose leaders have ended, while this node coordinates; outermost frame of its
        task."""
        replaces_from = time.monotonic() + self._coordinator.seconds
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self.coordinates() or not self.known:
                self._seen.clear()
                replaces_from = time.monotonic() + self._coordinator.seconds
                continue
            for group, kept in list(self._kept.items()):
                if kept.record.leader in self.lives:
                    self._seen[group] = self.lives
                    continue
                if time.monotonic() < replaces_from:
                    continue
                try:
                    await self._promote(group)
                except (EtcdError, ValueError) as problem:
                    self._followed.failed("leaders that have ended", problem)

    async def _promote(self, group: str) -> None:
        seen, lives = self._seen.get(group, frozenset()), self.lives

        def decide(record: MirrorRecord, _moment: int) -> MirrorRecord | None:
            if record.leader in lives:
                return None
            return mirror_records.promoted(record, lives, False, seen)

        after = await self.change(group, decide)
        if after is not None:
            self._said_promoted(group, after)

    def _said_promoted(self, group: str, record: MirrorRecord) -> None:
        self.promotions += 1
        _log.warning(
            "a mirror becomes the leader of a group",
            extra={"group": group, "node": record.leader, "epoch": record.epoch},
        )

    async def forget(self, node: str) -> None:
        """Do without the copies of a node that is gone for good: others lead what it led, even those that
        lack something. Raises RequestError."""

        def decide(record: MirrorRecord, _moment: int) -> MirrorRecord | None:
            return None if record.member(node) is None else mirror_records.forgotten(record, node)

        try:
            for group, kept in list(self._kept.items()):
                if kept.record.member(node) is not None:
                    after = await self.change(group, decide)
                    if after is not None and after.leader != kept.record.leader:
                        self._said_promoted(group, after)
        except (EtcdError, ValueError) as problem:
            self._followed.failed("a node that is forgotten", problem)
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem

    async def _stop_orderly(self) -> None:
        """Say that this node stops, and have others lead the groups that it leads."""
        others = self.lives - {self._node}

        def decide(record: MirrorRecord, moment: int) -> MirrorRecord | None:
            if record.member(self._node) is None:
                return None
            left = mirror_records.stopped(record, self._node, moment)
            if record.leader != self._node:
                return mirror_records.removed(left, self._node)
            return mirror_records.promoted(left, others, True) or left

        for group, kept in list(self._kept.items()):
            if kept.record.member(self._node) is not None:
                after = await self.change(group, decide)
                if after is not None and after.leader != kept.record.leader:
                    self._said_promoted(group, after)


def coordinator(cluster: ClusterSettings, coordinates: Callable[[], bool]) -> MirrorCoordinator:
    """Return this node as a coordinator by the settings."""
    waits = cluster.cluster_partition_handling != "pause_minority"
    return MirrorCoordinator(coordinates, RETURN_SECONDS if waits else 0.0)


def _told(record: MirrorRecord) -> GroupMirrors:
    """Return what shards are told of a record."""
    members = tuple(each.node for each in record.members)
    synchronised = tuple(each.node for each in record.members if each.synchronised)
    running = tuple(each.node for each in record.members if each.since)
    return GroupMirrors(
        *(record.epoch, record.leader, record.first, members, synchronised, running),
        record.forced,
    )
