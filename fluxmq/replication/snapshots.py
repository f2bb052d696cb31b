"""Snapshots of groups between nodes: offered by the leader, fetched and installed by a lagging
member, or by a copy that differs.

A leader that no longer has the entries a member needs offers its snapshot. The member fetches the
segments it lacks while its copy keeps answering, then closes the group, installs the snapshot, and
reopens it: with its previous vote, and a log that begins behind the snapshot. It reports that to
the leader, which continues with entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.errors import ClusterError
from fluxmq.cluster.security import Security
from fluxmq.logs import get_logger
from fluxmq.raft.types import Message, MessageKind
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.leaders import Leaders
from fluxmq.replication.raft_transport import RaftTransport
from fluxmq.replication.replica import Replica
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.replication.snapshot_calls import SnapshotCalls
from fluxmq.replication.snapshot_fetch import Pace, fetch
from fluxmq.settings.plans import GroupMember, member_number
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.transfer import DamagedSegment
from fluxmq.storage.transfer_target import SnapshotTarget

SAY_SECONDS: Final = 1.0
"""Interval between two reports of a member that fetches."""
AGAIN_SECONDS: Final = 2.0
"""Time before an untrusted copy is fetched again, and before a member reports that it failed to
fetch one: it is then offered the next at once.
"""
HOLD_SECONDS: Final = 600.0
"""Time that a damaged copy takes no checkpoint while it is fetched: a newer one of its own would be
in the way.
"""
WRITTEN_SECONDS_MAX: Final = 30.0
"""Time that the log may take to write the group's entries before the group is closed."""
_STEP_SECONDS: Final = 0.005

_log = get_logger("fluxmq.cluster")


class Snapshots:
    """Fetches other members' snapshots for one shard's groups. ``served``: those that members fetch
    from here."""

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        leaders: Leaders,
        links: ShardLinks,
        security: Security,
        hosting: AnyHostedGroups,
        served: SnapshotCalls,
        settings: Settings,
        now: Callable[[], float],
    ) -> None:
        self.installed = 0
        """Number of other members' snapshots that were installed here."""
        self.fetching: dict[str, str] = {}
        """Groups that are being fetched, with the node that they come from."""
        self._replicas = replicas
        self._leaders = leaders
        self._links = links
        self._security = security
        self._hosting = hosting
        self._served = served
        self._now = now
        self._files = Files()
        self._paths = DataPaths(settings.storage.data_dir)
        self._pace = Pace(settings.cluster.raft.snapshot_rate)
        self._writing = ThreadPoolExecutor(1, "snapshot-write")
        self._unsaid: dict[str, tuple[str, int]] = {}
        """By group: the node yet to be told, and the snapshot index installed, 0 if none."""
        self._refetching: set[str] = set()
        """Groups whose copy here is not to be trusted, and is fetched until it is."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0.0
        self._closed = False

    def housekeeping(self) -> None:
        """Report when due; called by the shard's timer."""
        now = self._now()
        if now < self._next:
            return
        self._next = now + SAY_SECONDS
        for group, node in self.fetching.items():
            self._say("fetching", group, node)
        for group, (node, index) in list(self._unsaid.items()):
            if group in self.fetching or self._say("fetched", group, node, index):
                del self._unsaid[group]

    # The fetching member's side

    def intercept(self, replica: Replica, messages: Sequence[Message]) -> Sequence[Message]:
        """Handle snapshot offers among a member's messages, and return the rest for the node."""
        rest = []
        for message in messages:
            offered = message.snapshot
            node = replica.hosted.driver.node
            stale = message.term < node.term
            if message.kind is not MessageKind.SNAPSHOT or offered is None or stale:
                rest.append(message)
            elif offered.mark.index <= node.status().commit:
                rest.append(message)  # it is here already, and the answer says so
            else:
                self._begin(replica.plan.name, message.source, offered.mark.index, False)
        return rest

    def refetch(self, group: str) -> bool:
        """Fetch a copy that is not to be trusted from the leader until that succeeds; return
        whether that begins now.

        A copy that has not failed stays in use meanwhile, but does not lead.
        """
        replica = self._replicas.get(group)
        if replica is None or group in self._refetching:
            return False
        self._refetching.add(group)
        replica.hosted.mending = True
        self._run(self._refetch(replica))
        return True

    async def _refetch(self, replica: Replica) -> None:
        group, hosted = replica.plan.name, replica.hosted
        # Committed entries may be acknowledged by now, so the snapshot has to cover them; what
        # follows is in the log.
        committed = hosted.driver.node.status().commit
        try:
            while self._replicas.get(group) is replica:
                if hosted.driver.leading:
                    replica.transfer()
                leader = self._leaders.of(group).peer
                link = None if leader is None else self._links.abroad.get(leader)
                sources = [each for each in replica.plan.nodes if link and each.node == link.node]
                if sources and group not in self.fetching:
                    hosted.not_before = self._now() + HOLD_SECONDS
                    # A checkpoint taken meanwhile is not replaced by an older one.
                    least = max(committed, hosted.snapshot_index)
                    await self._fetch(replica, sources[0], least, True)
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._refetching.discard(group)

    def _begin(self, group: str, source: int, least: int, thorough: bool) -> None:
        replica = self._replicas.get(group)
        if replica is None or group in self.fetching:
            return
        for member in replica.plan.nodes:
            if member.number == source:
                self._say("fetching", group, member.node)
                self._run(self._fetch(replica, member, least, thorough))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(
        self, replica: Replica, source: GroupMember, least: int, thorough: bool
    ) -> None:
        """Fetch a member's snapshot and install it; failures are logged, and the next offer
        retries.
        """
        group, raft_transport = replica.plan.name, replica.raft_transport
        self.fetching[group] = source.node
        dialer = self._dialer(raft_transport, source)
        _log.info("fetching a snapshot", extra={"group": group, "node": source.node})
        index = 0

        try:
            target = await fetch(
                dialer.call,
                self._files,
                self._paths,
                group,
                self._writing,
                least=least,
                thorough=thorough,
                pace=self._pace,
            )
            if self._replicas.get(group) is replica:
                await self._put_in_place(replica, target)
                index = target.index
        except (ClusterError, StorageError) as problem:
            _log.warning(
                "cannot fetch or install a snapshot",
                extra={"group": group, "problem": str(problem)},
            )
            if isinstance(problem, DamagedSegment):
                # The transfer is verified, so the sender's segment may be damaged.
                self._say("damaged", group, source.node, problem.queue, problem.file)
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            del self.fetching[group]
            await dialer.stop()
        if not self._say("fetched", group, source.node, index):
            self._unsaid[group] = (source.node, index)

    def _dialer(self, raft_transport: RaftTransport, source: GroupMember) -> Dialer:
        return Dialer(
            self._security, source.address, source.node, raft_transport.hello, raft_transport
        )

    async def _put_in_place(self, replica: Replica, target: SnapshotTarget) -> None:
        """Close the group, replace its files by the snapshot, and reopen it, even after an error.
        Raises StorageError.
        """
        group, hosted = replica.plan.name, replica.hosted
        hosting = self._hosting
        replica.still()
        await replica.raft_transport.stop()
        deadline = self._now() + WRITTEN_SECONDS_MAX
        while hosted.checkpointing or hosted.shared.has_pending(hosted.driver):
            if self._now() > deadline:
                hosted.group.fail("its log does not become idle")
                raise StorageError(f"group {group} does not become idle")
            hosting.wake()
            await asyncio.sleep(_STEP_SECONDS)
        await self._served.forget(group)
        if self._replicas.get(group) is not replica:
            raise StorageError(
                f"group {group} is hosted here no longer"
            )  # it went to another shard
        hosting.release(group)
        hosting.replacing.add(group)  # it must not be opened meanwhile
        try:
            await asyncio.get_running_loop().run_in_executor(self._writing, target.install)
        finally:
            hosting.replacing.discard(group)
            self._open(group)
        self.installed += 1
        fetched = {"fetched": target.fetched_bytes, "reused": target.reused_bytes}
        _log.info("snapshot installed", extra={"group": group, "index": target.index, **fetched})

    def _open(self, group: str) -> None:
        """Open a group after an attempt to replace its files; if that failed, as it was."""
        # Otherwise the next process or shard to open it finishes the installation.
        if not self._closed and self._links.place_of(group) == self._links.shard:
            self._hosting.reopen(group)

    def _say(self, what: str, group: str, node: str, *rest: object) -> bool:
        """Report to the snapshot's source; return whether it could be reached. It may lead soon,
        but not be known to yet, since it waits for this.
        """
        own, links = member_number(self._links.node), self._links.of(node)
        for link in links:
            link.send_control(what, group, own, *rest)
        return bool(links)

    # Closing

    async def close(self) -> None:
        """Stop fetching."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writing.shutdown(wait=False)
