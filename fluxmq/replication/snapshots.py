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
from typing import TYPE_CHECKING, Any, Final

from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.endpoint import CallHandler
from fluxmq.cluster.errors import ClusterError
from fluxmq.cluster.security import Security
from fluxmq.engine.service import QueueService
from fluxmq.logs import get_logger
from fluxmq.net.links import FrameLink
from fluxmq.raft.types import Message, MessageKind, Snapshot, SnapshotMark
from fluxmq.replication.snapshot_calls import SnapshotCalls
from fluxmq.replication.snapshot_fetch import Pace, fetch
from fluxmq.settings.plans import GroupMember, member_number
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.transfer import DamagedSegment
from fluxmq.storage.transfer_target import SnapshotTarget

if TYPE_CHECKING:
    from fluxmq.replication.carrier import Carrier
    from fluxmq.replication.replica import Replica
    from fluxmq.replication.wiring import Cluster

UNHEARD_SECONDS: Final = 1.0
"""Time after which a snapshot is offered again if the member has not reacted: the offer was lost,
or the member is reconnecting. A member that is fetching ignores it.
"""
SILENT_SECONDS: Final = 10.0
"""Time after which a member that reported fetching, and then fell silent, is offered a snapshot
again.
"""
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
    """Snapshots of one shard's groups, in both directions."""

    def __init__(
        self, cluster: Cluster, security: Security, service: QueueService, settings: Settings
    ) -> None:
        self.installed = 0
        """Number of other members' snapshots that were installed here."""
        self.fetching: dict[str, SnapshotTarget | None] = {}
        """Groups that are being fetched, with their progress once it is known."""
        self._sources: dict[str, str] = {}
        """The node from which each of them is fetched."""
        self._cluster = cluster
        self._security = security
        self._service = service
        self._files = Files()
        self._paths = DataPaths(settings.storage.data_dir)
        self._pace = Pace(settings.cluster.raft.snapshot_rate)
        self._reading = ThreadPoolExecutor(2, "snapshot-read")
        self._writing = ThreadPoolExecutor(1, "snapshot-write")
        self._offered: dict[tuple[str, int], float] = {}
        """By group and member with an offer: when to repeat it, unless the member reports."""
        self._unsaid: dict[str, tuple[str, int]] = {}
        """By group: the node yet to be told, and the snapshot index installed, 0 if none."""
        self._refetching: set[str] = set()
        """Groups whose copy here is not to be trusted, and is fetched until it is."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0.0
        self._closed = False
        self.calls = SnapshotCalls(
            self._files,
            self._paths,
            service.checkpoints,
            self._reading,
            service.groups.get,
            cluster.now,
        )

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"fetching": self._on_fetching, "fetched": self._on_fetched}

    def call_handlers(self, group: str) -> Mapping[str, CallHandler]:
        """Return the handlers of calls from a group's other members."""
        return self.calls.handlers(group)

    # The leader's side

    def wanted(self, group: str, member: int) -> None:
        """Offer a snapshot to a member that needs entries which are no longer in the log."""
        replica = self._cluster.replicas.get(group)
        if replica is None:
            return
        hosted = replica.hosted
        node, index = hosted.keeper.node, hosted.snapshot_index
        mark = SnapshotMark(index, hosted.log.term(index), node.membership_at(index))
        message = node.offer_snapshot(member, Snapshot(mark, b""))
        if message is not None:
            self._offered[group, member] = self._cluster.now() + UNHEARD_SECONDS
            replica.hosted.keeper.send([message])

    def _on_fetching(self, _link: FrameLink, group: str, member: int) -> None:
        self.calls.is_fetched(group)
        if (group, member) in self._offered:
            self._offered[group, member] = self._cluster.now() + SILENT_SECONDS

    def _on_fetched(self, _link: FrameLink, group: str, member: int, index: int) -> None:
        """Take a member's report of the snapshot index it has installed; 0 if it failed."""
        self._offered.pop((group, member), None)
        self._report(group, member, index)

    def _report(self, group: str, member: int, index: int) -> None:
        replica = self._cluster.replicas.get(group)
        if replica is None or replica.hosted.group.failed:
            return
        keeper = replica.hosted.keeper
        keeper.node.report_snapshot(member, index > 0)
        if index and keeper.leading:
            # The member has committed entries only, so they are here as well: usually more than was
            # offered.
            own = replica.carrier.number
            told = Message(MessageKind.APPEND_ANSWER, member, own, keeper.node.term, index)
            keeper.step([told])

    def housekeeping(self) -> None:
        """Offer again and report when due; called every tenth of a second."""
        now = self._cluster.now()
        for (group, member), until in list(self._offered.items()):
            if now >= until:
                del self._offered[group, member]
                self._report(group, member, 0)
        if now < self._next:
            return
        self._next = now + SAY_SECONDS
        self.calls.housekeeping()
        for group, node in self._sources.items():
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
            node = replica.hosted.keeper.node
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
        replica = self._cluster.replicas.get(group)
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
        committed = hosted.keeper.node.status().commit
        try:
            while self._cluster.replicas.get(group) is replica:
                if hosted.keeper.leading:
                    self._cluster.transfer(replica)
                leader = self._cluster.leaders.of(group).peer
                link = None if leader is None else self._cluster.links.links.get(leader)
                sources = [each for each in replica.plan.nodes if link and each.node == link.node]
                if sources and group not in self.fetching:
                    hosted.not_before = self._cluster.now() + HOLD_SECONDS
                    # A checkpoint taken meanwhile is not replaced by an older one.
                    least = max(committed, hosted.snapshot_index)
                    await self._fetch(replica, sources[0], least, True)
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._refetching.discard(group)

    def _begin(self, group: str, source: int, least: int, thorough: bool) -> None:
        replica = self._cluster.replicas.get(group)
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
        group, carrier = replica.plan.name, replica.carrier
        self.fetching[group] = None
        self._sources[group] = source.node
        dialer = self._dialer(carrier, source)
        _log.info("fetching a snapshot", extra={"group": group, "node": source.node})
        index = 0

        def began(target: SnapshotTarget) -> None:
            self.fetching[group] = target

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
                began=began,
            )
            if self._cluster.replicas.get(group) is replica:
                await self._put_in_place(replica, target)
                index = target.index
        except (ClusterError, StorageError) as problem:
            _log.warning("no snapshot", extra={"group": group, "problem": str(problem)})
            if isinstance(problem, DamagedSegment):
                # The transfer is verified, so the sender's segment may be damaged.
                self._say("damaged", group, source.node, problem.queue, problem.file)
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            del self.fetching[group], self._sources[group]
            await dialer.stop()
        if not self._say("fetched", group, source.node, index):
            self._unsaid[group] = (source.node, index)

    def _dialer(self, carrier: Carrier, source: GroupMember) -> Dialer:
        return Dialer(self._security, source.address, source.node, carrier.hello, carrier)

    async def _put_in_place(self, replica: Replica, target: SnapshotTarget) -> None:
        """Close the group, replace its files by the snapshot, and reopen it, even after an error.
        Raises StorageError.
        """
        group, hosted = replica.plan.name, replica.hosted
        cluster, service = self._cluster, self._service
        cluster.still(replica)
        await replica.carrier.stop()
        deadline = cluster.now() + WRITTEN_SECONDS_MAX
        while hosted.checkpointing or hosted.shared.owes(hosted.keeper):
            if cluster.now() > deadline:
                hosted.group.fail("its log does not come to rest")
                raise StorageError(f"group {group} does not come to rest")
            service.wake()
            await asyncio.sleep(_STEP_SECONDS)
        await self.calls.forget(group)
        if cluster.replicas.get(group) is not replica:
            raise StorageError(
                f"group {group} is hosted here no longer"
            )  # it went to another shard
        service.release(group)
        service.replacing.add(group)  # it must not be opened meanwhile
        try:
            await asyncio.get_running_loop().run_in_executor(self._writing, target.install)
        finally:
            service.replacing.discard(group)
            self._open(group)
        self.installed += 1
        fetched = {"fetched": target.fetched_bytes, "reused": target.reused_bytes}
        _log.info("snapshot in place", extra={"group": group, "index": target.index, **fetched})

    def _open(self, group: str) -> None:
        """Open a group after an attempt to replace its files; if that failed, as it was."""
        cluster, service = self._cluster, self._service
        if self._closed or cluster.place_of(group) != cluster.shard:
            return  # the next process or shard to open it finishes the installation
        try:
            service.open(group)
        except StorageError as problem:
            service.broken[group] = str(problem)
            _log.error("group not opened", extra={"group": group, "problem": str(problem)})
        else:
            service.broken.pop(group, None)

    def _say(self, what: str, group: str, node: str, *rest: object) -> bool:
        """Report to the snapshot's source; return whether it could be reached. It may lead soon,
        but not be known to yet, since it waits for this.
        """
        own, links = member_number(self._cluster.node), self._cluster.links.of(node)
        for link in links:
            link.send_control(what, group, own, *rest)
        return bool(links)

    # Closing

    async def close(self) -> None:
        """Stop fetching and release what is kept for others."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.calls.close()
        self._reading.shutdown(wait=False)
        self._writing.shutdown(wait=False)
