"""Builds the queues' part of a shard and connects it to the broker; nothing else knows all of
them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fluxmq.engine.clients import QueueClients
from fluxmq.engine.cluster_groups import OWN_GROUPS, ClusterGroups
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.group_client import GroupClient
from fluxmq.engine.group_server import GroupServer
from fluxmq.engine.handover import Handovers
from fluxmq.engine.names import QueueNames
from fluxmq.engine.node_groups import NO_GROUP, NodeGroups
from fluxmq.engine.ports import AttachCallback, GroupTarget, attach_directly
from fluxmq.engine.queue_links import QueueLinks
from fluxmq.engine.remote_shards import RemoteShards
from fluxmq.engine.service import QueueService
from fluxmq.ipc.conversation import RequestHandler
from fluxmq.logs import get_logger
from fluxmq.model.errors import FluxmqError
from fluxmq.net.links import Link
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.connection import Connection
from fluxmq.replication.backups import GroupBackups
from fluxmq.replication.disk import Disk
from fluxmq.replication.hosted_groups import HostedGroups
from fluxmq.replication.nodes import Nodes
from fluxmq.replication.placement import Places
from fluxmq.settings.clustering import BUFFERED, LOCAL
from fluxmq.settings.group_names import group_of_set, is_mirrored
from fluxmq.settings.plans import UnknownGroup
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths, Placement, name_of

_log = get_logger("fluxmq.queues")


def microseconds_now() -> int:
    """Return wall-clock time in µs since the epoch, as entries and batches carry it."""
    return time.time_ns() // 1000


class Queues:
    """All queue components of one shard."""

    def __init__(
        self,
        shard: int,
        settings: Settings,
        placement: Placement,
        reactor: Reactor,
        call_later: Callable[[float, Callable[[], None]], None],
        dropped: Callable[[str, int], None],
        clock: Callable[[], int] = microseconds_now,
        disk: Disk | None = None,
    ) -> None:
        self.reactor = reactor
        self._disk = disk or Disk()
        self.places = Places(placement)
        self.names = QueueNames(settings, placement.workers, placement.local_groups)
        self.paths = DataPaths(settings.storage.data_dir)
        self.service = QueueService(
            shard,
            settings,
            self.names,
            self,
            reactor,
            clock,
            call_later,
            self._disk,
        )
        self.clients = QueueClients(
            settings,
            self.names,
            self,
            reactor,
            clock,
            self.service.wake,
            dropped,
        )
        self.flush_others: Callable[[], None] = lambda: None
        """Turns what clients of protocols other than MQTT answered in this tick into
        settlements."""
        self.attach: AttachCallback = attach_directly
        """Attaches a client's consumer to a group."""
        self.elsewhere: ClusterGroups = OWN_GROUPS
        """The groups that other nodes have too, if any."""
        self.node_groups = NodeGroups(
            shard, self.places, self.service, lambda: self.reactor.tally.now
        )
        self.handovers = Handovers(
            shard,
            self.places,
            self.service,
            self.node_groups,
            self.groups_here,
            self._is_elsewhere,
            self._disk.files,
            self.paths,
        )
        self._backups = GroupBackups(shard, settings, self._disk.files, self.paths, self.durable)
        self._drain_seconds = settings.queue_manager.capture_drain_timeout

    @property
    def durable(self) -> HostedGroups[ReplicationGroup]:
        """The groups on disk."""
        return self.service.durable

    @property
    def nodes(self) -> Nodes:
        """The cluster's other nodes, if any."""
        return self.durable.nodes

    def share(self, nodes: Nodes, elsewhere: ClusterGroups) -> None:
        """Share groups with other nodes. Called before `join` and `open`."""
        self.durable.nodes = nodes
        self.elsewhere = self.service.observer = elsewhere

    def groups_here(self) -> list[str]:
        """Return the durable groups that this shard hosts: those of the settings, and those on
        disk."""
        files = self._disk.files
        names = set(self.names.configured_groups())
        names.update(self.nodes.groups_here())
        if files.exists(self.paths.groups):
            found = (name_of(directory) for directory in files.listdir(self.paths.groups))
            names.update(name for name in found if name is not None)
        return sorted(
            name
            for name in names
            if self.is_member(name)
            and self.places.shard_of(name) == self.service.shard
            and not self.places.is_moving(name)
        )

    def go_on(self) -> None:
        """Let leaders of all groups proceed once the time of day is known."""
        for group in self.service.all_groups():
            self.service.mark(group)

    def is_member(self, group: str) -> bool:
        """Return whether this node is a member of a group."""
        return "@" not in group and self.nodes.is_member(group)

    def commands(self) -> dict[str, RequestHandler]:
        """Return the control process's commands for this shard."""
        return {
            **self.handovers.commands(),
            **self._backups.commands(),
            **self.nodes.commands(),
        }

    def _is_elsewhere(self, group: str) -> bool:
        return self.places.shard_of(group) != self.service.shard and not self.places.is_moving(
            group
        )

    def open(self, beat: Callable[[], None]) -> None:
        """Recover and start this shard's groups. Raises StorageError."""
        for name in self.groups_here():
            self.durable.open(name)
            beat()
        self.durable.forget_orphaned_groups(self._is_elsewhere)
        # Groups that are left only in the logs: open them too, or their entries would stay for
        # ever.
        for name in self.durable.unhosted():
            if self.places.shard_of(name) == self.service.shard and not self.places.is_moving(name):
                if self.nodes.left(name):
                    self.durable.forget(name)
                    continue
                try:
                    self.durable.open(name)
                except UnknownGroup:
                    if group_of_set(name) is None and not is_mirrored(name):
                        raise
                    continue  # it is opened when its nodes are known
                beat()

    # Clients of groups

    def client(self, group: str, following: bool = False) -> GroupTarget:
        """Return the client of a group, for connections of this shard. Consumers are ``following``: they
        follow their queue to another group, also from one of this node's own."""
        found = self.elsewhere.client(group)
        if found is None and (following or group in self.node_groups.moving):
            found = self._following(group, following)
        return found or self.node_groups.client(group)

    def _following(self, group: str, always: bool) -> GroupTarget | None:
        """Return the client of one of this node's own durable groups by which other nodes' shards use it,
        as do its own ones unless nothing moves away from it: requests that are made twice count once."""
        if not group.startswith((f"{LOCAL}-", f"{BUFFERED}-")):
            return None
        found = self.elsewhere.client(self.names.shared_name(group))
        moving = self.node_groups.moving
        if always or moving[group] or not isinstance(found, GroupClient) or not found.idle:
            return found
        del moving[group]
        return None

    def sender(self, group: str) -> GroupTarget:
        """Return the client for messages that queues themselves send: it forwards them to the
        group's leader, also where clients are refused."""
        return self.elsewhere.sender(group) or self.client(group)

    def arrived(self, group: str) -> GroupTarget:
        """Return the target of requests that other shards forwarded."""
        group = self.elsewhere.own_name(group)
        if "@" in group:
            return NO_GROUP  # another node's own group
        found = self.node_groups.arrived(group)
        if isinstance(found, ReplicationGroup):
            return self.elsewhere.copy_of(found) or found
        return found

    def moved(self, queue: str, before: str, after: str) -> None:
        """Redirect this shard's requests and consumers of a queue that has moved to another
        group."""
        self.elsewhere.moved(queue, before, after)
        self.node_groups.moved(queue, before, self.client(after, following=True))

    def join(self, links: dict[int, Link], origin: int) -> QueueLinks:
        """Connect to the other shards, as server and as client; ``origin``: a number of this
        shard's life."""
        groups = self.node_groups
        remote = RemoteShards(links, self.names, lambda: self.reactor.tally.now, groups)
        groups.join(remote, origin)
        self.elsewhere.join(remote)
        self._server = GroupServer(links, self.service, self.names, self.arrived)
        found = QueueLinks(self._server, remote, self.nodes)
        self.nodes.join(links, found, self._arrived_from_nodes)
        return found

    def _arrived_from_nodes(self) -> None:
        """Take the time: what other nodes send is handled outside of ticks, and the last one may be
        long ago."""
        self.reactor.tally.now = time.monotonic()

    @property
    def remote_above_high_watermark(self) -> bool:
        """True while unanswered appends to groups elsewhere exceed the high watermark."""
        return self.node_groups.above_high_watermark or self.elsewhere.above_high_watermark

    def hold(self, connection: Connection) -> bool:
        """Pause a connection until there is room for its appends; return False if there is."""
        return self.service.hold(connection, self.remote_above_high_watermark)

    def before_groups(self) -> None:
        """Do the first work at the end of a tick."""
        self.clients.flush()
        self.flush_others()
        self.node_groups.step()

    def after_groups(self) -> None:
        """Send the answers to other shards."""
        self._server.flush()

    # Time

    def housekeeping(self) -> None:
        """Do periodic work; runs every tenth of a second while something happens."""
        self.clients.housekeeping()
        self.node_groups.housekeeping()
        self.elsewhere.housekeeping()
        self.nodes.housekeeping()
        self.service.housekeeping()
        self.after_groups()

    async def drain(self, tick: Callable[[], None]) -> None:
        """Wait, for a bounded time, until appends in flight are durable and their publishers
        answered."""
        await self.nodes.hand_over(tick)
        deadline = time.monotonic() + self._drain_seconds
        while not self.service.idle and time.monotonic() < deadline:
            tick()
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        """Checkpoint every group and close its files."""
        await self.nodes.stop()
        try:
            await self.service.stop()
        except FluxmqError as error:
            _log.error("queues did not close cleanly", extra={"problem": str(error)})
        self.service.executor.shutdown()
