"""Retained messages in etcd: ``/mqtt/retained-data/<topic>`` and ``/mqtt/retained-index/<topic>``.

The first has a message whole, the second only its metadata; a transaction that sets one deletes the
other, so that a topic never has both. Shards ask for changes, in an order of their own for each
topic; the order in which changes of all nodes are committed is that of the cluster. They are made
behind a fence: one that failed is not made after a newer one.

Every shard is told all changes. One that has just connected is told everything first, as of one
revision, and meanwhile changes wait for it. The watch goes on where it ended, and begins anew with
everything if etcd no longer has the changes since then.

The node that coordinates the cluster deletes messages that have expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from fluxmq.control.etcd.client import CompactedError, EtcdClient, EtcdError
from fluxmq.control.etcd.fence import Fence
from fluxmq.control.etcd.messages import (
    Changed,
    Delete,
    EtcdTransaction,
    Get,
    KeyValue,
    Operation,
    Put,
    end_of,
)
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.ipc.messages import ERROR_FAILED, Body, ControlMessage, MessageError
from fluxmq.ipc.retained_messages import (
    CHANGES_MAX,
    DELETED,
    ENTRIES_MAX,
    INDEX,
    PART_BYTES,
    RETAINED,
    WHOLE,
    CommittedChange,
    CommittedChanges,
    RetainedChange,
    RetainedChanges,
    RetainedPart,
    decode_value,
)
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample

PREFIX: Final = b"/mqtt/retained-"
"""Common prefix of both kinds of keys: one watch of it reports their changes in order."""
DATA: Final = PREFIX + b"data/"
INDEXES: Final = PREFIX + b"index/"

PAGE_KEYS: Final = 32
"""Keys read at once: even if all are as large as etcd accepts, 1.5 MiB, the answer is. As long as they
are small, each page has twice as many as the one before, up to `PAGE_KEYS_MAX`."""
PAGE_KEYS_MAX: Final = 2048
WAITING_BYTES_MAX: Final = 16 << 20
"""Changes that wait for a shard; one that is further behind is told everything again."""
ENTRY_BYTES: Final = 64
"""Approximate memory of a change beyond topic and value."""
PART_SECONDS: Final = 30.0
"""Time for a shard to take a part: longer than any stall that it survives."""
RETRY_SECONDS: Final = 0.5
"""Pause after a failure."""
EXPIRE_SECONDS: Final = 10.0
"""Interval at which expired messages are deleted; no node delivers them meanwhile."""

_log = get_logger(__name__)


class _Feed:
    """Changes to send to a shard. ``behind``: the shard first needs everything."""

    def __init__(self, shard: Peer) -> None:
        self.shard = shard
        self.behind = True
        self.changes: deque[CommittedChange] = deque()
        self.size = 0
        self.wanted = asyncio.Event()
        self.cautious = False
        """True once reading has failed, perhaps because a page was too large."""

    def add(self, changes: list[CommittedChange]) -> None:
        """Have changes told, or everything if too many wait."""
        self.changes.extend(changes)
        self.size += sum(map(_size_of, changes))
        if self.size > WAITING_BYTES_MAX:
            self.begin()
        self.wanted.set()

    def begin(self) -> None:
        """Have everything told."""
        self.behind = True
        self.changes.clear()
        self.size = 0
        self.wanted.set()

    def take(self) -> list[CommittedChange]:
        """Return what to tell next; empty if nothing waits."""
        taken = _next_part(self.changes)
        self.size -= sum(map(_size_of, taken))
        if not self.changes:
            self.wanted.clear()
        return taken


class RetainedKeys:
    """The retained messages of the cluster, as this node's shards know and change them.

    ``node``: this one's name; ``coordinates`` returns whether it deletes what has expired.
    """

    def __init__(self, client: EtcdClient, node: str, coordinates: Callable[[], bool]) -> None:
        self._client = client
        self._fence = Fence(client, f"{node}/retained")
        self._coordinates = coordinates
        self._feeds: dict[Peer, tuple[_Feed, asyncio.Task[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._revision = 0
        """The last revision of which shards have been told, or will be."""
        self._watching = asyncio.Event()
        self._expiring: dict[bytes, tuple[float, int]] = {}
        """Keys whose messages expire: when, and the revision of their last change."""
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.committed = 0
        self.failures = 0
        self.expired = 0

    def start(self) -> None:
        """Follow changes, and go on until ``stop``."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow()), loop.create_task(self._expire())]

    async def stop(self) -> None:
        """End."""
        tasks = self._tasks + [task for _, task in self._feeds.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_retained_committed_total", {}, float(self.committed)
        yield "fluxmq_retained_failures_total", {}, float(self.failures)
        yield "fluxmq_retained_expired_total", {}, float(self.expired)

    # Changes

    async def answer(self, message: ControlMessage) -> Body:
        """Commit a shard's changes. Raises RequestError, after which they may be committed, or
        MessageError."""
        changes = RetainedChanges.from_body(message.body).changes
        operations = tuple(each for change in changes for each in _operations(change))
        try:
            result = await self._fence.transact(operations)
        except (EtcdError, ValueError) as problem:
            self._failed("committing a retained message", problem)
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
        self.committed += len(changes)
        return CommittedChanges(result.revision).to_body()

    # Telling shards

    def greeted(self, shard: Peer) -> None:
        """Tell a shard everything, and changes from then on."""
        feed = _Feed(shard)
        self._feeds[shard] = feed, asyncio.get_running_loop().create_task(self._tell(feed))

    def gone(self, shard: Peer) -> None:
        """Forget a shard whose connection has ended."""
        found = self._feeds.pop(shard, None)
        if found is not None:
            found[1].cancel()

    async def _tell(self, feed: _Feed) -> None:
        """Tell a shard what it has to be told, until its connection ends; outermost frame of its
        task."""
        while True:
            try:
                # Only then do changes reach it that are newer than what is read.
                await self._watching.wait()
                if feed.behind:
                    await self._tell_everything(feed)
                await feed.wanted.wait()
                changes = feed.take()
                if changes and not feed.behind:
                    await self._send(feed, RetainedPart(tuple(changes)))
            except PeerError as problem:
                _log.debug("shard not told of retained messages: %s", problem)
                feed.begin()
            except (EtcdError, ValueError, MessageError, TimeoutError) as problem:
                self._failed("reading retained messages", problem)
                feed.cautious = True
                feed.begin()
            else:
                continue
            await asyncio.sleep(RETRY_SECONDS)

    async def _tell_everything(self, feed: _Feed) -> None:
        """Tell a shard everything there is at one revision. Raises EtcdError, PeerError, ..."""
        feed.begin()
        feed.behind = False
        start, revision, page = PREFIX, 0, PAGE_KEYS
        while True:
            result = await self._client.transact((), (Get(start, end_of(PREFIX), page, revision),))
            ((*entries,),) = result.entries
            first, last = not revision, len(entries) < page
            small = sum(len(each.key) + len(each.value) for each in entries) < PART_BYTES
            page = min(2 * page, PAGE_KEYS_MAX) if small and not feed.cautious else PAGE_KEYS
            revision = revision or result.revision
            found = deque(each for entry in entries for each in self._changes(False, entry))
            while first or last or found:
                part = tuple(_next_part(found))
                end = last and not found
                await self._send(feed, RetainedPart(part, revision, first, end))
                first = False
                if end:
                    return
            start = entries[-1].key + b"\0"

    async def _send(self, feed: _Feed, part: RetainedPart) -> None:
        await feed.shard.ask(RETAINED, part.to_body(), PART_SECONDS)

    # Following changes

    async def _follow(self) -> None:
        """Watch, again and again; outermost frame of its task."""
        while True:
            try:
                await self._watch()
            except CompactedError:
                self._revision = 0
            except (EtcdError, ValueError) as problem:
                self._failed("following retained messages", problem)
                await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self) -> None:
        """Pass changes on. Raises EtcdError, or ValueError for a malformed answer."""
        result = await self._client.transact((), (Get(PREFIX),))
        if not 0 < self._revision <= result.revision:
            # The first time; or the changes are no longer there; or the store is another one.
            self._revision = result.revision
            self._expiring.clear()
            for feed, _ in self._feeds.values():
                feed.begin()
        self._watching.set()
        watch = self._client.watch(PREFIX, end_of(PREFIX), self._revision + 1)
        async with contextlib.aclosing(watch) as watching:
            async for found in watching:
                changes = [
                    each
                    for change in found.changes
                    for each in self._changes(change.deleted, change.entry)
                ]
                if changes:
                    # Of the last revision there may be more to come; twice is harmless.
                    self._revision = changes[-1].revision - found.more
                    for feed, _ in self._feeds.values():
                        feed.add(changes)

    def _changes(self, deleted: bool, entry: KeyValue) -> Iterator[CommittedChange]:
        """Yield the change of a key, unless its name or value makes no sense."""
        kind = WHOLE if entry.key.startswith(DATA) else INDEX
        if not entry.key.startswith((DATA, INDEXES)):
            return
        topic = entry.key.removeprefix(DATA if kind == WHOLE else INDEXES)
        if not 0 < len(topic) <= 65_535:
            return
        self._expiring.pop(entry.key, None)
        if deleted:
            yield CommittedChange(topic, entry.revision, DELETED)
            return
        try:
            deadline = decode_value(entry.value).deadline
        except MessageError as problem:
            self._failed(f"key {entry.key!r}", problem)
            return
        if deadline:
            self._expiring[entry.key] = deadline, entry.revision
        yield CommittedChange(topic, entry.revision, kind, entry.value)

    # Expiry

    async def _expire(self) -> None:
        """Delete expired messages, if this node is the one to do so; outermost frame of its
        task."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            now = time.time()
            due = [(key, at) for key, (deadline, at) in self._expiring.items() if deadline <= now]
            while due and self._coordinates():
                part, due = due[:CHANGES_MAX], due[CHANGES_MAX:]
                deletions = tuple(
                    EtcdTransaction((Changed(key, revision),), (Delete(key),))
                    for key, revision in part
                )
                try:
                    result = await self._client.transact((), deletions)
                except (EtcdError, ValueError) as problem:
                    self._failed("deleting expired retained messages", problem)
                    break
                self.expired += sum(done.succeeded for done in result.nested)

    def _failed(self, what: str, problem: Exception) -> None:
        self.failures += 1
        self._said.event(logging.WARNING, "retained", "etcd: %s: %s", what, problem)


def _next_part(changes: deque[CommittedChange]) -> list[CommittedChange]:
    """Take the next changes to tell together."""
    taken: list[CommittedChange] = []
    size = 0
    while changes and len(taken) < ENTRIES_MAX and size <= PART_BYTES:
        taken.append(changes.popleft())
        size += _size_of(taken[-1])
    return taken


def _size_of(change: CommittedChange) -> int:
    return ENTRY_BYTES + len(change.topic) + len(change.value)


def _operations(change: RetainedChange) -> tuple[Operation, ...]:
    """Return what makes a change."""
    data, index = DATA + change.topic, INDEXES + change.topic
    if change.kind == DELETED:
        return Delete(data), Delete(index)
    if change.kind == WHOLE:
        return Put(data, change.value), Delete(index)
    return Put(index, change.value), Delete(data)
