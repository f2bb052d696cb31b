"""Composition root of the control process: start-up order and shutdown.

Order: settings and table from the supervisor, logs, the database (on its thread), the control
socket, HTTP. Anything that cannot be opened ends the process with `EXIT_BOOT_FAILURE` and a reason.
SIGTERM ends it in reverse order; SIGHUP applies the settings that may change live (logging). The
loop itself writes the heartbeat, so that a hanging loop is noticed.

Longer than 500 lines because it names every part of the process once, with what each needs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import uvloop
from pydantic import ValidationError

import fluxmq
from fluxmq.control import (
    backups,
    clustering,
    listings,
    mirror_requests,
    node_details,
    placements,
    procfs,
    queue_backups,
    queue_migrations,
)
from fluxmq.control.bans import FILE_NAME as BANS_FILE
from fluxmq.control.bans import REQUESTS, Bans
from fluxmq.control.certificates import (
    CertificateWatch,
    of_client_listeners,
    of_listener,
    of_transport,
    renew_certificates,
)
from fluxmq.control.cluster_view import ClusterView
from fluxmq.control.directory import KINDS as USER_KINDS
from fluxmq.control.directory import Directory
from fluxmq.control.first_user import first_user
from fluxmq.control.metadata import FILE_NAME, MetadataError, MetadataStore, StoreThread
from fluxmq.control.node_departure import own_queues
from fluxmq.control.node_revisions import NodeRevisions
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.overview import Readiness, live_shards, readiness, statuses
from fluxmq.control.password_hashes import parameters_of
from fluxmq.control.peers import ControlListener, Peer, PeerError, RequestError, Service, answers_of
from fluxmq.control.recent_log import RecentLog
from fluxmq.control.resources import NodeResources
from fluxmq.control.revision_barrier import confirmed
from fluxmq.control.scrape import Scraper
from fluxmq.control.shutdown import END_SECONDS_MAX, end
from fluxmq.control.topology_service import TopologyService
from fluxmq.control.traces import Traces
from fluxmq.control.user_requests import UserRequests
from fluxmq.ipc import launch as launching
from fluxmq.ipc import unix_socket
from fluxmq.ipc.cluster_nodes import ADMIT_NODE, LEAVE
from fluxmq.ipc.column_messages import RATE_COLUMN
from fluxmq.ipc.control_frames import FramingError
from fluxmq.ipc.definition_messages import EXPORT_DEFINITIONS, IMPORT_DEFINITIONS
from fluxmq.ipc.door_messages import BANS_WANTED
from fluxmq.ipc.launch import Launch, LaunchError
from fluxmq.ipc.log_messages import RECENT_LOG
from fluxmq.ipc.messages import (
    ERROR_UNKNOWN_KIND,
    HASHING,
    PING,
    STATUS,
    USERS,
    Body,
    ControlMessage,
    MessageError,
    NodeStatus,
    ProcessNumbers,
)
from fluxmq.ipc.node_messages import (
    ADMIT_MEMBER,
    NODE_LEFT,
    NODE_ROW,
    REVISION_WANTED,
    RevisionWanted,
)
from fluxmq.ipc.owner_messages import OWNER_CLAIM
from fluxmq.ipc.record_messages import RECORD_CHANGE
from fluxmq.ipc.retained_messages import RETAINED_CHANGE
from fluxmq.ipc.table import ProcessTable, ProcessTableError
from fluxmq.ipc.topology_messages import TOPOLOGY, TOPOLOGY_CHANGE
from fluxmq.ipc.trace_messages import TRACE
from fluxmq.ipc.traffic_messages import NODE_RATES
from fluxmq.ipc.user_messages import Confirmed, Hashing, Users
from fluxmq.logs import configure, flush_all, get_logger
from fluxmq.metrics.rabbitmq_names import ScrapedNode
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology.changes import DeleteQueue
from fluxmq.routing.topology.configured import configured_queue
from fluxmq.settings import Settings
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.listeners import HttpsListener, MetricsListener
from fluxmq.settings.queues import QueueSettings
from fluxmq.storage.directory import DataPaths, Placement
from fluxmq.storage.errors import StorageError

if TYPE_CHECKING:
    from fluxmq.control.etcd.client import EtcdClient
    from fluxmq.control.etcd.shared_metadata import SharedMetadata
    from fluxmq.control.management.api import ManagementApi

# Heartbeats, reports of suppressed log lines, and memory checks.
HEARTBEAT_SECONDS: Final = 1.0
# Time fluxmqctl status waits for shards' numbers, and /ready for the control socket.
STATUS_SECONDS: Final = 1.0
PING_SECONDS: Final = 1.0

_log = get_logger(__name__)


class BootError(Exception):
    """The process cannot start; the text names the setting or file."""


class Serving(Protocol):
    """A part that runs until it is stopped."""

    async def stop(self) -> None:
        """End; called once."""

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of its metrics."""


class GreetingUser(Protocol):
    """A part that shards hear from when they have connected."""

    def greeted(self, peer: Peer) -> None:
        """Send a shard what it has to know."""

    def gone(self, peer: Peer) -> None:
        """Forget a process whose connection has ended."""


class ControlProcess:
    """The composition root: builds, starts and stops everything that lives in this process."""

    def __init__(self, launch: Launch, settings: Settings, table: ProcessTable) -> None:
        self._launch = launch
        self._view = ClusterView(settings, launch.data_dir)
        self._table = table
        self._thread = StoreThread()
        self._store: MetadataStore | None = None
        self._directory: Directory | None = None
        self._topology: TopologyService | None = None
        self._shared: SharedMetadata | None = None
        self._placing = placements.Placements(
            DataPaths(launch.data_dir), self._thread, self._shards, table.rows
        )
        writer = backups.NodeBackups(
            DataPaths(launch.data_dir), self._thread, self._placing, self._shards
        )
        cluster = settings.cluster
        self._clustering = clustering.Clustering(
            cluster.enabled and cluster.raft.enabled,
            self._shards,
            self._forget,
            self._view.lives,
        )
        self._greeting: list[GreetingUser] = []
        recent = RecentLog(self._processes)
        self._answers: dict[str, Callable[[ControlMessage], Awaitable[Body]]] = {
            **dict.fromkeys(placements.KINDS, self._placing.answer),
            **dict.fromkeys(backups.KINDS, writer.answer),
            **dict.fromkeys(clustering.KINDS, self._clustering.answer),
            RECENT_LOG: recent.answer,
        }
        """Handlers of requests by kind."""
        self._resources = NodeResources(table, launch.slot, launch.parent_pid, settings)
        self._greeting.append(self._view.mirroring)
        self._serving: dict[str, Serving] = {"mirrored queues": self._view.mirroring}
        """Other parts to stop before the metadata is closed, by name in the log."""
        self._listener = ControlListener(
            Service(self._answer, self._greeted, self._gone), os.geteuid()
        )
        self._stopping = asyncio.Event()

    @property
    def _settings(self) -> Settings:
        """The settings in force, with the nodes that have joined the cluster."""
        return self._view.settings

    async def run(self) -> None:
        """Start, serve until SIGTERM, stop. Raises BootError."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        # The terminal's Ctrl-C reaches the whole process group; the supervisor decides.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        heart = loop.create_task(self._beat())
        try:
            await self._start()
            self._table.set_ready(self._launch.slot)
            _log.info("control process ready", extra={"pid": os.getpid()})
            await self._stopping.wait()
        finally:
            self._table.set_ready(self._launch.slot, False)
            in_time = await self._stop()
            heart.cancel()
        _log.info("control process stopped")
        if not in_time:
            flush_all()
            os._exit(os.EX_OK)  # the loop would wait for tasks that do not end

    async def _start(self) -> None:
        path = Path(self._launch.data_dir) / FILE_NAME
        try:
            store = await self._thread.run(lambda: MetadataStore(path))
            self._store = store
            loading = asyncio.create_task(self._load(store))
            await asyncio.sleep(0)
            if self._settings.http_listeners():
                # Takes a tenth of a second, like the first user's password on the store's thread.
                import fluxmq.control.http  # noqa: F401
            users, topology_service = await loading
            self._topology = topology_service
            listing = listings.Listings(
                lambda: topology_service.topology,
                self._shards,
                None if self._shared is None else self._clustering.replicas,
                self._settings.cluster.node_id,
                self._other_nodes(),
                self._view.mirroring.state,
            )
            details = self._details(topology_service)
            self._answers |= dict.fromkeys(node_details.KINDS, details.answer)
            self._answers |= dict.fromkeys(listings.KINDS, listing.answer)
            self._serve_queues(topology_service, listing)
        except (MetadataError, ValueError, sqlite3.Error, OSError) as problem:
            raise BootError(f"storage.data_dir: {path}: {problem}") from problem
        try:
            groups = self._settings.queue_manager.local_groups
            await self._placing.load(Placement(self._launch.workers, groups))
        except StorageError as problem:
            raise BootError(f"storage.data_dir: {problem}") from problem
        self._directory = Directory(store, self._thread, users, self._shards, self._live)
        of_users = UserRequests(self._directory.answer, topology_service)
        self._answers |= dict.fromkeys(USER_KINDS, of_users.answer)
        self._answers[TOPOLOGY_CHANGE] = lambda message: topology_service.answer(message.body)
        self._start_logins(topology_service)
        self._start_tracing()
        self._join(topology_service, self._directory)
        await self._load_bans()
        socket_path = self._launch.control_socket
        try:
            await self._listener.start(unix_socket.bind(socket_path))
        except OSError as problem:
            raise BootError(f"storage.data_dir: {socket_path}: {problem}") from problem
        watch = CertificateWatch(self._shards, time.time)
        self._serving["certificates"] = watch
        self._greeting.append(watch)
        self._start_cluster(self._settings.cluster, watch, listing)
        management = cache(lambda: self._management(listing))

        async def defined(message: ControlMessage) -> Body:
            return await management().definitions.answer(message)

        self._answers |= dict.fromkeys((EXPORT_DEFINITIONS, IMPORT_DEFINITIONS), defined)
        watch.add(of_client_listeners(self._settings))
        await self._start_http(management, watch)
        definitions = self._settings.management.load_definitions
        if definitions is not None:
            await self._load_definitions(definitions, management)

    def _serve_queues(self, topology_service: TopologyService, listing: listings.Listings) -> None:
        """Answer requests to move queues, to synchronise their mirrors and to back them up."""
        migrations = queue_migrations.MigrationRequests(
            *(lambda: self._settings, lambda: topology_service.topology),
            *(topology_service.change, listing),
            *(self._clustering.replicas, self._view.changes_types),
        )
        backing_up = queue_backups.QueueBackupRequests(
            lambda: topology_service.topology, self._shards, self._answer
        )
        mirroring = mirror_requests.MirrorRequests(lambda: topology_service.topology)
        self._answers |= dict.fromkeys(queue_migrations.KINDS, migrations.answer)
        self._answers |= dict.fromkeys(mirror_requests.KINDS, mirroring.answer)
        self._answers |= dict.fromkeys(queue_backups.KINDS, backing_up.answer)

    def _join(self, topology_service: TopologyService, directory: Directory) -> None:
        """Connect the services of topology and users with the other nodes', and with the firehose."""
        traces = Traces(lambda: topology_service.topology, self._shards)
        self._greeting.append(traces)
        self._answers[TRACE] = traces.answer
        self._answers[REVISION_WANTED] = self._revised
        if self._shared is not None:
            self._shared.join(topology_service, directory)
            nodes = self._other_nodes()
            topology_service.revision_barrier.join(NodeRevisions(TOPOLOGY, nodes))
            directory.revision_barrier.join(NodeRevisions(USERS, nodes))

    async def _load_bans(self) -> None:
        """Read the bans from disk, before anybody can ask for them. Raises BootError."""
        path = f"{self._launch.data_dir}/{BANS_FILE}"
        bans = Bans(path, self._thread, self._processes, time.time)
        try:
            await bans.load()
        except (ValueError, StorageError) as problem:
            raise BootError(f"storage.data_dir: {path}: {problem}") from problem
        self._answers |= dict.fromkeys(REQUESTS, bans.answer)
        self._serving["bans"] = bans
        self._greeting.append(bans)

    def _start_logins(self, topology_service: TopologyService) -> None:
        """Make the login backends beside the internal one. Raises BootError."""
        from fluxmq.control.logins import service
        from fluxmq.control.logins.backend import BackendSettingsError

        def vhosts() -> list[str]:
            return [vhost.name for vhost in topology_service.topology.vhosts()]

        try:
            logins = service.LoginBackends(lambda: self._settings.auth, vhosts)
        except BackendSettingsError as problem:
            raise BootError(str(problem)) from problem
        self._serving["login backends"] = logins
        self._answers |= dict.fromkeys(service.KINDS, logins.answer)

    def _start_tracing(self) -> None:
        """Make what sends spans to a collector, if the settings want it. Raises BootError."""
        if not self._settings.tracing.enabled:
            return
        from fluxmq.control import span_exports

        try:
            exporter = span_exports.make_exporter(
                self._settings.tracing, self._settings.cluster.node_id, fluxmq.__version__
            )
        except span_exports.TracingError as problem:
            raise BootError(str(problem)) from problem
        exports = self._serving["spans"] = span_exports.SpanExports(exporter)
        self._answers |= dict.fromkeys(span_exports.KINDS, exports.answer)
        exports.start()

    async def _load(self, store: MetadataStore) -> tuple[Users, TopologyService]:
        """Read the metadata from disk, for a single node or as a member of a cluster."""
        cluster = self._settings.cluster
        # A node's identity is its supervisor's, whose child this process is.
        life = procfs.identity(self._launch.parent_pid)
        parameters = parameters_of(self._settings)
        clustered = cluster.enabled and cluster.raft.enabled
        queues = tuple(
            configured_queue(queue, self._group_of(queue)) for queue in self._settings.queues
        )
        topology_service = TopologyService(
            *(store, self._thread, self._shards, self._live, self._users_changed),
            cluster.node_id if clustered else "",
        )
        if not clustered:
            if await self._thread.run(lambda: store.of_cluster):
                raise MetadataError("its users and queues belong to a cluster: set cluster.enabled")
            await topology_service.load(life, queues, lambda: first_user(parameters, os.environ))
            return await self._thread.run(store.users), topology_service
        # A single node does not need etcd.
        from fluxmq.control.etcd.shared_metadata import SharedMetadata
        from fluxmq.control.node_starts import NodeStart

        shared = self._shared = topology_service.decider = SharedMetadata(
            NodeStart(cluster.node_id, life, queues),
            len(cluster.transport.peers) + 1,
            *(store, self._thread),
            lambda: first_user(parameters, os.environ),
        )
        await shared.open()
        await topology_service.load_shared()
        known = shared.known
        return await self._thread.run(store.users) if known else Users(0, ()), topology_service

    def _other_nodes(self) -> ControlOfNodes:
        return ControlOfNodes(self._view.others, self._shards)

    def _group_of(self, queue: QueueSettings) -> str:
        """Return the replicated group of a configured queue; empty for a queue local to this
        node."""
        raft = self._settings.cluster.raft
        return queue.replication_group(raft) or "" if raft.enabled else ""

    def _start_cluster(
        self, cluster: ClusterSettings, watch: CertificateWatch, listing: listings.Listings
    ) -> None:
        """Start what a cluster has in etcd, and watch the certificates shown to other nodes and to
        etcd. Raises BootError."""
        clients = []
        if cluster.enabled and cluster.etcd is not None:
            clients = self._start_etcd(cluster, listing)
        watch.add(of_transport(cluster, partial(renew_certificates, cluster, clients)))

    def _start_etcd(self, cluster: ClusterSettings, listing: listings.Listings) -> list[EtcdClient]:
        """Start the parts that use etcd; return their connections to it. Raises BootError."""
        # The library writes lines of its own to standard error; its errors are logged here.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        # Loaded after the fork, and only where it is used: gRPC has threads, and takes memory.
        from fluxmq.control.etcd import owners, records, wills
        from fluxmq.control.etcd.client import EtcdClient, EtcdError
        from fluxmq.control.etcd.election import Election
        from fluxmq.control.etcd.metadata_keys import FLAT_MAX, NESTED_MAX
        from fluxmq.control.etcd.mirrors import MirrorKeys, coordinator
        from fluxmq.control.etcd.retained import RetainedKeys

        clients: list[EtcdClient] = []

        def client() -> EtcdClient:
            """Return a connection for one part, which closes it."""
            try:
                made = EtcdClient.of(cluster)
            except EtcdError as problem:
                raise BootError(str(problem)) from problem
            clients.append(made)
            return made

        election = self._serving["the election"] = Election(client(), cluster.node_id)
        election.start()
        if self._shared is not None:
            self._serving["topology and users"] = self._shared
            self._shared.start(client(), lambda: election.leads)
            self._follow_nodes(client(), self._shared)
            assert self._topology is not None, "the metadata is open"
            keys = MirrorKeys(
                *(client(), cluster.node_id, coordinator(cluster, lambda: election.leads)),
                *(self._shards, self._view.mirrored),
            )
            self._answers |= self._view.mirroring.start(
                *(keys, self._shared, self._topology, lambda: self._settings),
                *(self._view.mirrors, self._view.changes_types, listing),
            )
        retained = RetainedKeys(client(), cluster.node_id, lambda: election.leads)
        self._serving["retained messages"] = retained
        self._greeting.append(retained)
        self._answers[RETAINED_CHANGE] = retained.answer
        if cluster.member is not None:
            self._join_etcd(client(), cluster)
        retained.start()
        for shard in self._shards():
            retained.greeted(shard)
        life = procfs.identity(self._launch.parent_pid)
        will_keys = self._serving["wills"] = wills.WillKeys(
            *(client(), cluster.node_id, life), lambda: election.leads, self._shards
        )
        self._answers |= dict.fromkeys(wills.KINDS, will_keys.answer)
        will_keys.start()
        operations_max = NESTED_MAX if cluster.member is not None else FLAT_MAX
        ids = self._serving["owners of client ids"] = owners.OwnerIds(
            client(), cluster.node_id, life, self._shards, operations_max
        )
        self._answers[OWNER_CLAIM] = ids.answer
        ids.start()
        recorded = self._serving["records"] = records.RecordKeys(
            client(), cluster.node_id, life, self._shards, operations_max
        )
        self._answers[RECORD_CHANGE] = recorded.answer
        recorded.start()
        self._share_bans(client())
        return clients

    def _share_bans(self, client: EtcdClient) -> None:
        """Have all nodes enforce the same bans."""
        from fluxmq.control.etcd.bans import BanKeys

        bans = self._serving["bans"]
        assert isinstance(bans, Bans), "they have been read"
        keys = BanKeys(client, self._settings.cluster.node_id, bans)
        bans.share(keys, self._other_nodes())
        self._answers[BANS_WANTED] = bans.answer
        self._serving["bans of the cluster"] = keys
        keys.start()

    def _join_etcd(self, client: EtcdClient, cluster: ClusterSettings) -> None:
        """Have this node's member admitted if it was lost, and admit others'."""
        from fluxmq.control.etcd.membership import EtcdMembership

        etcd = cluster.member
        assert etcd is not None, "this node runs a member"
        data_dir = Path(etcd.directory(self._launch.data_dir))
        membership = self._serving["members of etcd"] = EtcdMembership(
            *(client, cluster.node_id, self._view.members, data_dir), self._other_nodes()
        )
        self._answers[ADMIT_MEMBER] = membership.answer
        membership.start()

    def _follow_nodes(self, client: EtcdClient, shared: SharedMetadata) -> None:
        """Follow the nodes that join and leave, and admit and release them."""
        from fluxmq.control.etcd.cluster_nodes import NodeKeys
        from fluxmq.control.node_departure import Departure
        from fluxmq.settings.membership import KnownNodes

        topology = self._topology
        assert topology is not None, "the metadata is open"
        view = self._view
        keys = view.keys = self._serving["nodes"] = NodeKeys(
            *(client, view.file, self._launch.data_dir),
            KnownNodes(nodes=dict(view.known), sets=dict(view.sets)),
            *(self._thread, self._shards, view.changed),
        )

        async def delete(queues: list[tuple[str, str]]) -> None:
            await topology.change([(DeleteQueue(*queue, by_broker=True),) for queue in queues])

        async def forget(node: str) -> None:
            await self._view.mirroring.forget(node)
            await shared.forget(node)

        leaving = Departure(
            *(self._settings.cluster.node_id, keys, self._other_nodes()),
            lambda: topology.topology,
            self._clustering.replicas,
            *(delete, forget, self._launch.parent_pid),
        )
        self._greeting.append(keys)
        self._answers[ADMIT_NODE] = keys.answer
        self._answers[LEAVE] = leaving.answer
        self._answers[NODE_LEFT] = leaving.let_go
        keys.start()
        for shard in self._shards():
            keys.greeted(shard)

    async def _start_http(
        self, management: Callable[[], ManagementApi], watch: CertificateWatch
    ) -> None:
        if not self._settings.http_listeners():
            return
        from fluxmq.control.http import HttpServer, HttpServers
        from fluxmq.net.tls import TlsSettingsError

        node = self._settings.cluster.node_id
        scraper = Scraper(
            self._table.rows,
            self._processes,
            self._user_count,
            self._own_samples,
            ScrapedNode(node, node, self._settings.amqp.product_version),
        )
        servers = self._serving["http"] = HttpServers()
        for path, listener in self._settings.http_listeners():
            try:
                api = None if isinstance(listener, MetricsListener) else management()
                http = HttpServer(listener, self._readiness, scraper.text, api)
                await servers.start(http)
            except TlsSettingsError as problem:
                raise BootError(f"{path}: {problem}") from problem
            except OSError as problem:
                # The loop wraps the kernel's reason in its own sentence.
                reason = os.strerror(problem.errno) if problem.errno else str(problem)
                raise BootError(
                    f"{path}.addr: cannot listen on {listener.addr}: {reason}"
                ) from problem
            if isinstance(listener, HttpsListener) and http.certificates is not None:
                watch.add([of_listener(path, listener, http.certificates.reload)])
            _log.info("http listening", extra={"addr": listener.addr, "listener": path})

    def _details(self, topology_service: TopologyService) -> node_details.NodeDetails:
        return node_details.NodeDetails(
            lambda: self._settings,
            lambda: topology_service.topology,
            self._readiness,
            self._processes,
            None if self._shared is None else self._clustering.replicas,
        )

    def _management(self, listing: listings.Listings) -> ManagementApi:
        from fluxmq.control.management.api import ManagementApi
        from fluxmq.control.management.overview import NodeView

        topology, directory = self._topology, self._directory
        assert topology is not None
        assert directory is not None
        cluster = self._settings.cluster
        clustered = cluster.enabled and cluster.raft.enabled

        async def ask(kind: str, body: Body) -> Body:
            return await self._answer(ControlMessage(kind, 1, body))

        api = ManagementApi(
            NodeView(
                ask,
                self._settings,
                lambda: topology.topology,
                self._readiness,
                self._clustering.replicas if clustered else None,
                cluster.node_id,
                self._view.others if clustered else (),
            ),
            lambda: directory.users.users,
            lambda: self._settings,
            listing,
            self._shards,
        )
        self._answers[NODE_RATES] = api.rates.answer
        self._answers[RATE_COLUMN] = api.rates.answer_column
        self._answers[NODE_ROW] = api.overview.answer
        self._serving["management"] = api
        api.start()
        return api

    async def _load_definitions(self, path: str, management: Callable[[], ManagementApi]) -> None:
        """Declare what a file contains; in a cluster, in the background, once there is a leader.
        Raises BootError."""
        from fluxmq.control.management.definition_file import DefinitionFile
        from fluxmq.control.management.requests import ApiError

        loading = DefinitionFile(path, management().definitions.load)
        try:
            if self._shared is None:
                await loading.load()
            else:
                loading.start()
                self._serving["definitions"] = loading
        except (OSError, ApiError) as problem:
            raise BootError(f"management.load_definitions: {path}: {problem}") from problem

    async def _stop(self) -> bool:
        """Stop everything; return whether it has ended."""
        steps = {name: part.stop() for name, part in self._serving.items()}
        in_time = await end(steps, END_SECONDS_MAX)
        await self._listener.stop()
        if self._store is not None:
            await self._thread.run(self._store.close)
        self._thread.close()
        return in_time

    async def _beat(self) -> None:
        while True:
            self._table.beat(self._launch.slot, time.monotonic_ns())
            flush_all()
            self._resources.measure()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _reload(self) -> None:
        try:
            settings = read_settings(self._launch.settings_fd)
        except (LaunchError, ValidationError) as problem:
            _log.error("settings not reloaded: %s", problem)
            return
        self._view.reload(settings)
        settings = self._settings
        self._resources.configure(settings)
        configure(settings.log.level, settings.log.format, self._launch.process_name)
        _log.info("settings reloaded")
        watch = self._serving.get("certificates")
        if isinstance(watch, CertificateWatch):
            watch.check(unchanged=True)

    def _processes(self) -> list[Peer]:
        return self._listener.processes

    async def _forget(self, node: str) -> None:
        """Forget a node that is gone for good, and the durable queues that it alone had."""
        await self._view.forget(node, self._shared)
        assert self._topology is not None
        if lost := own_queues(self._topology.topology, node):
            await self._topology.change([(DeleteQueue(*each, by_broker=True),) for each in lost])

    async def _revised(self, message: ControlMessage) -> Body:
        """Answer another node, when this one's shards have a revision of topology or users."""
        wanted = RevisionWanted.from_body(message.body)
        assert self._topology is not None
        assert self._directory is not None
        thing = self._topology if wanted.what == TOPOLOGY else self._directory
        return Confirmed(await confirmed(thing, wanted.revision)).to_body()

    def _shards(self) -> list[Peer]:
        return [peer for peer in self._processes() if peer.hello and peer.hello.role == "shard"]

    def _live(self) -> list[str]:
        return live_shards(self._table.rows())

    def _users_changed(self, users: Users) -> None:
        if self._directory is not None:
            self._directory.take(users)

    def _user_count(self) -> int:
        return 0 if self._directory is None else len(self._directory.users.users)

    def _own_samples(self) -> Iterable[Sample]:
        serving = [each for part in self._serving.values() for each in part.samples()]
        return [*serving, *self._resources.samples()]

    def _greeted(self, peer: Peer) -> None:
        hello = peer.hello
        assert hello is not None
        _log.debug("control connection opened", extra={"peer": peer.name, "pid": hello.pid})
        # A restarted process may reconnect before its old connection is seen to end.
        for other in self._processes():
            if other is not peer and other.name == peer.name:
                other.abort()
        bans = self._serving.get("bans")
        if hello.role == "acceptor" and isinstance(bans, Bans):
            bans.greeted(peer)
        if hello.role == "shard" and self._directory is not None:
            if self._shared is None or self._shared.known:
                self._directory.push(peer)
            self._placing.push(peer)
            if self._topology is not None:
                self._topology.greeted(peer)
            for user in self._greeting:
                user.greeted(peer)

    def _gone(self, peer: Peer) -> None:
        _log.debug("control connection ended", extra={"peer": peer.name})
        for user in self._greeting:
            user.gone(peer)

    async def _answer(self, message: ControlMessage) -> Body:
        if message.kind == PING:
            return {}
        if message.kind == STATUS:
            return (await self._status()).to_body()
        if message.kind == HASHING:
            return Hashing(parameters_of(self._settings)).to_body()
        answer = self._answers.get(message.kind)
        if answer is not None:
            return await answer(message)
        raise RequestError(ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")

    async def _status(self) -> NodeStatus:
        found = await _numbers(self._processes())
        numbers = {name: answer for name, answer in found.items() if answer is not None}
        processes = statuses(self._table.rows(), time.monotonic_ns(), time.time(), numbers)
        revision = 0 if self._directory is None else self._directory.users.revision
        return NodeStatus(fluxmq.__version__, revision, processes, self._resources.read())

    async def _readiness(self) -> Readiness:
        problem, numbers = await asyncio.gather(self._ping(), _numbers(self._shards()))
        rows, now_ns = self._table.rows(), time.monotonic_ns()
        if problem is None and self._shared is not None:
            problem = self._shared.problem
        return readiness(rows, now_ns, numbers, problem, self._resources.read().alarms)

    async def _ping(self) -> str | None:
        """Call our own control socket as others do; return why that failed, or None."""
        listener = ControlListener(Service(_refuse, lambda _: None, lambda _: None), os.geteuid())
        peer = Peer(listener)
        try:
            opened = unix_socket.connect(self._launch.control_socket, 0.0)
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: peer, sock=opened)
            await peer.ask(PING, {}, PING_SECONDS)
        except (OSError, PeerError, MessageError, FramingError, TimeoutError) as problem:
            return str(problem) or "no answer in time"
        finally:
            peer.abort()
        return None


async def _refuse(message: ControlMessage) -> Body:
    raise RequestError(ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")


async def _numbers(peers: Sequence[Peer]) -> dict[str, ProcessNumbers | None]:
    """Return the figures of processes by name, None for those that do not answer."""
    answers = await answers_of(peers, STATUS, {}, STATUS_SECONDS, ProcessNumbers)
    return {peer.name: answer for peer, answer in zip(peers, answers, strict=True)}


def read_settings(fd: int) -> Settings:
    """Return the settings in the supervisor's memfd. Raises LaunchError or ValidationError."""
    return Settings.model_validate_json(launching.read_settings(fd))


def main(launch: Launch) -> None:
    """Run the control process until SIGTERM."""
    try:
        table = ProcessTable(launch.table_fd)
    except (ProcessTableError, OSError) as problem:
        launching.fail_boot(f"control: {problem}")
    _run(launch, table)


def _run(launch: Launch, table: ProcessTable) -> None:
    def fail(reason: str) -> NoReturn:
        launching.fail_boot(reason, table, launch.slot)

    os.umask(0o077)
    try:
        settings = read_settings(launch.settings_fd)
    except (LaunchError, ValidationError) as problem:
        fail(f"control: {problem}")
    configure(settings.log.level, settings.log.format, launch.process_name)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(ControlProcess(launch, settings, table).run())
    except BootError as problem:
        fail(str(problem))
