"""Following of the cluster's topology and users in etcd, by a watch.

Every commit is written into the node's copy (``meta.db``), and then told to the services of
topology and users. A node that starts has what its copy has until etcd can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from fluxmq.control.decisions import NodeRecord
from fluxmq.control.directory import Directory
from fluxmq.control.etcd import metadata_keys
from fluxmq.control.etcd.client import CompactedError, EtcdClient, EtcdError
from fluxmq.control.etcd.messages import Change, Get, KeyValue, end_of
from fluxmq.control.etcd.metadata_copy import (
    NOTHING,
    CopyState,
    ForeignTopologyError,
    MetadataCopy,
    MetadataStep,
)
from fluxmq.control.etcd.metadata_keys import PREFIX, ROOT, MetadataRoot, decision_of
from fluxmq.control.metadata import StoreThread
from fluxmq.control.ports import ConflictError
from fluxmq.control.topology_service import TopologyService
from fluxmq.logs import RateLimited, get_logger

RETRY_SECONDS: Final = 0.5
"""Pause after a failure."""
PAGE_KEYS: Final = 500
"""Keys read at once: a record or a user is at most some 64 KiB long, and few are."""
UNREACHABLE: Final = "etcd cannot be reached: topology and users cannot be changed now"

_log = get_logger(__name__)


class MetadataFollower:
    """The copy, and how far it goes. ``seed`` is called when etcd has no metadata yet."""

    def __init__(
        self,
        copy: MetadataCopy,
        thread: StoreThread,
        seed: Callable[[EtcdClient, CopyState], Awaitable[None]],
    ) -> None:
        self._copy = copy
        self._thread = thread
        self._seed = seed
        self.state = CopyState(0, MetadataRoot(0, 0, 0), NOTHING, {})
        self.root_revision = 0
        """Revision of the first key that the copy has; 0 until this node follows etcd."""
        self.problem: str | None = UNREACHABLE
        """Reason why this node does not serve; it goes on when etcd cannot be reached any more."""
        self._stale = False
        """True while the copy has to be replaced, since changes are missing."""
        self._news = asyncio.Event()
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.failures = 0

    async def open(self) -> None:
        """Read the copy's state. Raises MetadataError, ValueError or sqlite3.Error."""
        self.state = await self._thread.run(self._copy.open)

    async def run(
        self, client: EtcdClient, topology: TopologyService, directory: Directory
    ) -> None:
        """Follow etcd, and tell both services; outermost frame of its task."""
        while True:
            try:
                await self._follow(client, topology, directory)
                continue
            except CompactedError:
                self._stale = True
                continue
            except EtcdError as problem:
                self.failed("topology and users", problem)
            except (ForeignTopologyError, ValueError, sqlite3.Error) as problem:
                self.problem = str(problem)
                self.failed("topology and users", problem)
            await asyncio.sleep(RETRY_SECONDS)

    def failed(self, what: str, problem: Exception) -> None:
        """Count and log a failure."""
        self.failures += 1
        self._said.event(logging.WARNING, "metadata", "etcd: %s: %s", what, problem)

    def check(self) -> None:
        """Raise ConflictError unless this node follows etcd."""
        if not self.root_revision:
            raise ConflictError

    async def reach(self, revision: int) -> None:
        """Return when the copy goes up to a revision of etcd."""
        while self.state.revision < revision:
            await self.next()

    async def next(self) -> None:
        """Return when the copy has changed."""
        self._news.clear()
        await self._news.wait()

    async def _follow(
        self, client: EtcdClient, topology: TopologyService, directory: Directory
    ) -> None:
        """Take what the copy lacks, and then every commit. Raises EtcdError or ValueError,
        ForeignTopologyError or sqlite3.Error."""
        result = await client.transact((), (Get(ROOT),))
        ((*entries,),) = result.entries
        if not entries:
            await self._seed(client, self.state)
            return
        (entry,) = entries
        if self._stale or not self._continues(MetadataRoot.unpack(entry.value), result.revision):
            await self._take_all(client, result.revision, topology, directory)
        elif entry.revision <= self.state.revision:
            self.root_revision = entry.revision
        start = self.state.revision + 1
        changes: list[Change] = []
        async with contextlib.aclosing(client.watch(PREFIX, end_of(PREFIX), start)) as watching:
            self._serve(entry.revision)
            async for found in watching:
                changes += found.changes
                if not found.more:
                    await self._take(changes, topology, directory)
                    changes.clear()
                    self._serve(entry.revision)

    def _continues(self, root: MetadataRoot, revision: int) -> bool:
        """Return whether etcd, at this revision, is where the copy's content comes from."""
        state = self.state
        return (
            0 < state.revision <= revision
            and state.root.cluster == root.cluster
            and state.root.topology <= root.topology
            and state.root.users <= root.users
        )

    def _serve(self, revision: int) -> None:
        """Serve if the copy goes up to a revision."""
        if self.root_revision and self.state.revision >= revision:
            self.problem = None
        self._news.set()

    async def _take_all(
        self, client: EtcdClient, revision: int, topology: TopologyService, directory: Directory
    ) -> None:
        """Replace the copy by what is in etcd. Raises as `_follow`."""
        entries: list[KeyValue] = []
        start = PREFIX
        while True:
            wanted = Get(start, end_of(PREFIX), PAGE_KEYS, revision)
            ((*page,),) = (await client.transact((), (wanted,))).entries
            entries += page
            if len(page) < PAGE_KEYS:
                break
            start = page[-1].key + b"\0"
        content = metadata_keys.content_of(entries)
        users = await self._thread.run(lambda: self._copy.replace(content, revision))
        self._stale = False
        self.state = CopyState(
            revision,
            content.root,
            content.root.topology + content.root.users,
            _with({}, content.decision.nodes),
        )
        self.root_revision = next(each.revision for each in entries if each.key == ROOT)
        topology.told(None)
        directory.replace(users)

    async def _take(
        self, changes: Sequence[Change], topology: TopologyService, directory: Directory
    ) -> None:
        """Take the changes of one or more commits."""
        steps: list[MetadataStep] = []
        root, nodes = self.state.root, self.state.nodes
        for revision, of_one in _by_revision(changes):
            decided = decision_of(of_one, root)
            if decided is None:
                what = f"keys below {PREFIX.decode()} were changed by something else"
                self.failed("ignored", ValueError(what))
                continue
            root, decision = decided
            steps.append(MetadataStep(revision, root, decision))
            nodes = _with(nodes, decision.nodes)
        if not steps:
            return
        users = await self._thread.run(lambda: self._copy.write(steps))
        self.state = CopyState(steps[-1].revision, root, root.topology + root.users, nodes)
        self.root_revision = steps[-1].revision
        for step in steps:
            if step.decision.deltas:
                topology.told([taken.delta for taken in step.decision.deltas])
        if users is not None:
            directory.take(users)


def _with(
    nodes: dict[str, NodeRecord], changed: Sequence[tuple[str, NodeRecord | None]]
) -> dict[str, NodeRecord]:
    """Return the nodes' records after a change of some."""
    found = dict(nodes)
    for name, record in changed:
        if record is None:
            found.pop(name, None)
        else:
            found[name] = record
    return found


def _by_revision(changes: Sequence[Change]) -> Iterator[tuple[int, list[Change]]]:
    """Yield the changes of each revision."""
    of_one: list[Change] = []
    for change in changes:
        if of_one and of_one[0].entry.revision != change.entry.revision:
            yield of_one[0].entry.revision, of_one
            of_one = []
        of_one.append(change)
    if of_one:
        yield of_one[0].entry.revision, of_one
