"""The mirrored groups of the cluster in etcd: ``/fluxmq/mirrors/<group>``, a `MirrorRecord` as JSON.

A record says which node leads a group, and which mirrors are synchronised. It is put before the first
queue is in the group, and changes by compare-and-swap only. All control processes follow the records,
and the keys of nodes that are there (see `wills`), which lie beside them, by one watch, and have their
shards work by them.

A node asks for an epoch of its own before it leads a group: epochs are terms in Raft, so no two nodes,
and no two lives of one, ever lead in the same. The leader asks for every change of its mirrors. The node
that coordinates the cluster has a mirror lead instead of a leader whose node has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from fluxmq.control.etcd.client import (
    CompactedError,
    EtcdClient,
    EtcdError,
    UnreachableError,
)
from fluxmq.control.etcd.messages import Changed, Created, Get, KeyValue, Put, end_of
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
    LOST,
    MIRROR_LEAD,
    MIRRORED_GROUPS_MAX,
    MIRRORS,
    SYNCHRONISED,
    GroupMirrors,
    MirrorChange,
    MirrorEpoch,
    MirrorLead,
    Mirrors,
)
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology import mirror_records
from fluxmq.routing.topology.mirror_records import MirrorRecord
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.group_names import is_mirrored

PREFIX: Final = b"/fluxmq/mirrors/"
"""Directly before `NODES`: one watch follows both."""
RETRY_SECONDS: Final = 0.5
"""Pause after a failure."""
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
        self._seen: dict[str, frozenset[str]] = {}
        """On the coordinator, by group: the nodes that were there when its leader last was."""
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.promotions = 0
        self.failures = 0

    @property
    def records(self) -> Mapping[str, MirrorRecord]:
        """The records by group."""
        return {group: kept.record for group, kept in self._kept.items()}

    def start(self) -> None:
        """Follow the keys, and see to leaders that have ended, until ``stop``."""
        loop = asyncio.get_running_loop()
        self._tasks = {loop.create_task(self._follow()), loop.create_task(self._look())}

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
        yield "fluxmq_mirrors_failures_total", {}, float(self.failures)

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

    async def _follow(self) -> None:
        """Follow the keys; outermost frame of its task."""
        while True:
            try:
                await self._watch()
            except CompactedError:
                continue
            except (EtcdError, ValueError) as problem:
                self._failed("following mirrored groups", problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self) -> None:
        """Read everything, and follow. Raises EtcdError, or ValueError for a malformed answer."""
        result = await self._client.transact((), (Get(PREFIX, end_of(NODES)),))
        ((*entries,),) = result.entries
        found = {entry.key: entry for entry in entries}
        await self._take(found)
        watch = self._client.watch(PREFIX, end_of(NODES), result.revision + 1)
        async with contextlib.aclosing(watch) as watching:
            async for message in watching:
                for change in message.changes:
                    if change.deleted:
                        found.pop(change.entry.key, None)
                    else:
                        found[change.entry.key] = change.entry
                if message.changes and not message.more:
                    await self._take(found)

    async def _take(self, found: Mapping[bytes, KeyValue]) -> None:
        kept: dict[str, KeptRecord] = {}
        lives: set[str] = set()
        for key, entry in found.items():
            if key.startswith(NODES):
                lives.add(key.removeprefix(NODES).decode("utf-8", "replace"))
            elif key.startswith(PREFIX):
                group = key.removeprefix(PREFIX).decode("utf-8", "replace")
                if not is_mirrored(group) or len(kept) >= MIRRORED_GROUPS_MAX:
                    self._failed(f"key {key!r}", ValueError("ignored"))
                    continue
                try:
                    kept[group] = KeptRecord(MirrorRecord.decode(entry.value), entry.revision)
                except ValueError as problem:
                    self._failed(f"key {key!r}", problem)
        same = self.known and kept == self._kept
        self._kept, self.lives, self.known = kept, frozenset(lives), True
        self._news.set()
        if not same:
            self._changed({group: each.record.first for group, each in kept.items()})
            await self._tell(self._shards())

    async def _tell(self, shards: list[Peer]) -> None:
        body = Mirrors({group: _told(each.record) for group, each in self._kept.items()}).to_body()
        await answers_of(shards, MIRRORS, body, SHARD_SECONDS, ToldMirrors)

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()

    # Changing

    async def begin(self, group: str, record: MirrorRecord) -> None:
        """Have a group known to this node's shards; put its record if there is none. Raises EtcdError
        or ValueError, or TimeoutError."""
        if group not in self._kept:
            key = PREFIX + group.encode()
            await self._client.transact((Created(key, 0),), (Put(key, record.encode()),))
            async with asyncio.timeout(SHARD_SECONDS):
                while group not in self._kept:
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
            return (await self._mirror(MirrorChange.from_body(message.body))).to_body()
        except (EtcdError, ValueError) as problem:
            self._failed("a mirrored group", problem)
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

    async def _look(self) -> None:
        """See to groups whose leaders have ended, while this node coordinates; outermost frame of its
        task."""
        replaces_from = time.monotonic() + self._coordinator.seconds
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._coordinator.coordinates() or not self.known:
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
                    self._failed("leaders that have ended", problem)

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
            self._failed("a node that is forgotten", problem)
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

    def _failed(self, what: str, problem: Exception) -> None:
        self.failures += 1
        self._said.event(logging.WARNING, "mirrors", "etcd: %s: %s", what, problem)


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
