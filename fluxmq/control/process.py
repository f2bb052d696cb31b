"""Composition root of the control process: start-up order and shutdown.

Order: settings and table from the supervisor, logs, the database (on its thread), the control
socket, HTTP. Anything that cannot be opened ends the process with `EXIT_BOOT_FAILURE` and a reason.
SIGTERM ends it in reverse order; SIGHUP applies the settings that may change live (logging). The
loop itself writes the heartbeat, so that a hanging loop is noticed.

Longer than 500 lines because it names every part of the process once, with what each needs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import uvloop
from pydantic import ValidationError

import fluxmq
from fluxmq.control import backups, clustering, listings, placements, procfs, queue_migrations
from fluxmq.control.directory import KINDS as USER_KINDS
from fluxmq.control.directory import Directory
from fluxmq.control.first_user import first_user
from fluxmq.control.metadata import FILE_NAME, MetadataError, MetadataStore, StoreThread
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.overview import Readiness, live_shards, readiness, statuses
from fluxmq.control.password_hashes import parameters_of
from fluxmq.control.peers import ControlListener, Peer, PeerError, RequestError, Service, answers_of
from fluxmq.control.resources import NodeResources
from fluxmq.control.scrape import Scraper
from fluxmq.control.shutdown import END_SECONDS_MAX, end
from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc import launch as launching
from fluxmq.ipc import unix_socket
from fluxmq.ipc.clusters import AuditListing, RaftRow
from fluxmq.ipc.control_frames import FramingError
from fluxmq.ipc.definition_messages import EXPORT_DEFINITIONS, IMPORT_DEFINITIONS
from fluxmq.ipc.launch import Launch, LaunchError
from fluxmq.ipc.messages import (
    ERROR_UNKNOWN_KIND,
    HASHING,
    PING,
    STATUS,
    Body,
    ControlMessage,
    MessageError,
    NodeStatus,
    ProcessNumbers,
)
from fluxmq.ipc.owner_messages import OWNER_CLAIM
from fluxmq.ipc.record_messages import RECORD_CHANGE
from fluxmq.ipc.retained_messages import RETAINED_CHANGE
from fluxmq.ipc.table import ProcessTable, ProcessTableError
from fluxmq.ipc.topology_messages import TOPOLOGY_CHANGE
from fluxmq.ipc.user_messages import Hashing, Users
from fluxmq.logs import configure, flush_all, get_logger
from fluxmq.metrics.rabbitmq_names import ScrapedNode
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology.configured import configured_queue
from fluxmq.settings import Settings
from fluxmq.settings.clustering import META_GROUP, ClusterSettings
from fluxmq.settings.listeners import MetricsListener
from fluxmq.settings.plans import GroupPlans
from fluxmq.settings.queues import QueueSettings
from fluxmq.storage.directory import DataPaths, Placement
from fluxmq.storage.errors import StorageError

if TYPE_CHECKING:
    from fluxmq.control.etcd.retained import RetainedKeys
    from fluxmq.control.management.api import ManagementApi
    from fluxmq.control.meta.service import Meta

HEARTBEAT_SECONDS: Final = 0.25
# Heartbeats between two reports of suppressed log lines, and two memory checks: about a second.
FLUSH_BEATS: Final = 4
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


class ControlProcess:
    """The composition root: builds, starts and stops everything that lives in this process."""

    def __init__(self, launch: Launch, settings: Settings, table: ProcessTable) -> None:
        self._launch = launch
        self._settings = settings
        self._table = table
        self._thread = StoreThread()
        self._store: MetadataStore | None = None
        self._directory: Directory | None = None
        self._topology: TopologyService | None = None
        self._meta: Meta | None = None
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
            self._meta_row,
            self._forget_in_meta,
            self._audit_meta,
        )
        self._retained: RetainedKeys | None = None
        self._answers: dict[str, Callable[[ControlMessage], Awaitable[Body]]] = {
            **dict.fromkeys(placements.KINDS, self._placing.answer),
            **dict.fromkeys(backups.KINDS, writer.answer),
            **dict.fromkeys(clustering.KINDS, self._clustering.answer),
        }
        """Handlers of requests by kind."""
        self._resources = NodeResources(table, launch.slot, launch.parent_pid, settings)
        self._serving: dict[str, Serving] = {}
        """Other parts to stop before the metadata is closed, by name in the log."""
        self._listener = ControlListener(
            Service(self._answer, self._greeted, self._gone), os.geteuid()
        )
        self._stopping = asyncio.Event()

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
                None if self._meta is None else self._clustering.replicas,
                self._settings.cluster.node_id,
                self._other_nodes(),
            )
            migrations = queue_migrations.MigrationRequests(
                self._settings,
                lambda: topology_service.topology,
                topology_service.change,
                listing,
            )
            self._answers |= dict.fromkeys(listings.KINDS, listing.answer)
            self._answers |= dict.fromkeys(queue_migrations.KINDS, migrations.answer)
        except (MetadataError, ValueError, sqlite3.Error, OSError) as problem:
            raise BootError(f"storage.data_dir: {path}: {problem}") from problem
        try:
            groups = self._settings.queue_manager.local_groups
            await self._placing.load(Placement(self._launch.workers, groups))
        except StorageError as problem:
            raise BootError(f"storage.data_dir: {problem}") from problem
        self._directory = Directory(store, self._thread, users, self._shards, self._live)
        self._answers |= dict.fromkeys(USER_KINDS, self._directory.answer)
        self._answers[TOPOLOGY_CHANGE] = lambda message: topology_service.answer(message.body)
        self._start_logins(topology_service)
        if self._meta is not None:
            self._meta.join(topology_service, self._directory)
        socket_path = self._launch.control_socket
        try:
            await self._listener.start(unix_socket.bind(socket_path))
        except OSError as problem:
            raise BootError(f"storage.data_dir: {socket_path}: {problem}") from problem
        if self._meta is not None:
            await self._start_meta(self._meta)
        if self._settings.cluster.enabled and self._settings.cluster.etcd is not None:
            self._start_etcd(self._settings.cluster)
        management = cache(lambda: self._management(listing))

        async def defined(message: ControlMessage) -> Body:
            return await management().definitions.answer(message)

        self._answers |= dict.fromkeys((EXPORT_DEFINITIONS, IMPORT_DEFINITIONS), defined)
        await self._start_http(management)
        definitions = self._settings.management.load_definitions
        if definitions is not None:
            await self._load_definitions(definitions, management)

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

    async def _load(self, store: MetadataStore) -> tuple[Users, TopologyService]:
        """Read the metadata from disk, for a single node or as a member of a cluster."""
        cluster = self._settings.cluster
        # A node's identity is its supervisor's, whose child this process is.
        life = procfs.identity(self._launch.parent_pid)
        parameters = parameters_of(self._settings)
        plan = GroupPlans(self._settings).meta()
        queues = tuple(
            configured_queue(queue, self._group_of(queue)) for queue in self._settings.queues
        )
        topology_service = TopologyService(
            *(store, self._thread, self._shards, self._live, self._users_changed),
            "" if plan is None else cluster.node_id,
        )
        if plan is None:
            if await self._thread.run(lambda: store.shared):
                raise MetadataError("its users and queues belong to a cluster: set cluster.enabled")
            await topology_service.load(life, queues, lambda: first_user(parameters, os.environ))
            return await self._thread.run(store.users), topology_service
        # A single node needs no streams to others.
        from fluxmq.control.meta.service import Meta

        self._meta = topology_service.decider = Meta(
            *(plan, cluster.node_id, life, queues, store, self._thread),
            lambda: first_user(parameters, os.environ),
        )
        await self._meta.open()
        await topology_service.load_shared()
        known = self._meta.known
        return await self._thread.run(store.users) if known else Users(0, ()), topology_service

    def _other_nodes(self) -> ControlOfNodes:
        cluster = self._settings.cluster
        return ControlOfNodes(cluster.transport.peers if cluster.enabled else (), self._shards)

    def _group_of(self, queue: QueueSettings) -> str:
        """Return the replicated group of a configured queue; empty for a queue local to this
        node."""
        raft = self._settings.cluster.raft
        return queue.replication_group(raft) or "" if raft.enabled else ""

    async def _start_meta(self, meta: Meta) -> None:
        from fluxmq.cluster.connection import StreamHello
        from fluxmq.cluster.errors import ClusterError
        from fluxmq.cluster.security import Security
        from fluxmq.control.meta.streams import Streams

        cluster, workers = self._settings.cluster, self._launch.workers
        own = StreamHello(cluster.node_id, 0, workers, secrets.randbits(63), "")
        try:
            security = Security.of(cluster)
            await meta.start(Streams(meta.plan, security, own, meta.neighbours, time.monotonic))
        except ClusterError as problem:
            raise BootError(f"cluster.raft.bind_addr: the group _meta: {problem}") from problem

    def _start_etcd(self, cluster: ClusterSettings) -> None:
        # The library writes lines of its own to standard error; its errors are logged here.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        # Loaded after the fork, and only where it is used: gRPC has threads, and takes memory.
        from fluxmq.control.etcd import owners, records, wills
        from fluxmq.control.etcd.client import EtcdClient, EtcdError
        from fluxmq.control.etcd.election import Election
        from fluxmq.control.etcd.retained import RetainedKeys

        try:
            clients = [EtcdClient.of(cluster) for _ in range(5)]
        except EtcdError as problem:
            raise BootError(str(problem)) from problem
        election = self._serving["the election"] = Election(clients[0], cluster.node_id)
        election.start()
        retained = RetainedKeys(clients[1], cluster.node_id, lambda: election.leads)
        self._retained = self._serving["retained messages"] = retained
        self._answers[RETAINED_CHANGE] = retained.answer
        retained.start()
        for shard in self._shards():
            retained.greeted(shard)
        life = procfs.identity(self._launch.parent_pid)
        will_keys = self._serving["wills"] = wills.WillKeys(
            *(clients[2], cluster.node_id, life), lambda: election.leads, self._shards
        )
        self._answers |= dict.fromkeys(wills.KINDS, will_keys.answer)
        will_keys.start()
        ids = self._serving["owners of client ids"] = owners.OwnerIds(
            clients[3], cluster.node_id, life, self._shards
        )
        self._answers[OWNER_CLAIM] = ids.answer
        ids.start()
        recorded = self._serving["records"] = records.RecordKeys(
            clients[4], cluster.node_id, life, self._shards
        )
        self._answers[RECORD_CHANGE] = recorded.answer
        recorded.start()

    async def _start_http(self, management: Callable[[], ManagementApi]) -> None:
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
            _log.info("http listening", extra={"addr": listener.addr, "listener": path})

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

        return ManagementApi(
            NodeView(
                ask,
                self._settings,
                lambda: topology.topology,
                self._readiness,
                self._clustering.replicas if clustered else None,
                cluster.node_id,
                tuple(sorted({cluster.node_id, *(cluster.transport.peers if clustered else ())})),
            ),
            lambda: directory.users.users,
            lambda: self._settings,
            listing,
            self._shards,
            self._launch.workers,
        )

    async def _load_definitions(self, path: str, management: Callable[[], ManagementApi]) -> None:
        """Declare what a file contains; in a cluster, in the background, once there is a leader.
        Raises BootError."""
        from fluxmq.control.management.definition_file import DefinitionFile
        from fluxmq.control.management.requests import ApiError

        loading = DefinitionFile(path, management().definitions.load)
        try:
            if self._meta is None:
                await loading.load()
            else:
                loading.start()
                self._serving["definitions"] = loading
        except (OSError, ApiError) as problem:
            raise BootError(f"management.load_definitions: {path}: {problem}") from problem

    async def _stop(self) -> bool:
        """Stop everything; return whether it has ended."""
        steps = {name: part.stop() for name, part in self._serving.items()}
        if self._meta is not None:
            steps["the group _meta"] = self._meta.stop()
        in_time = await end(steps, END_SECONDS_MAX)
        await self._listener.stop()
        if self._store is not None:
            await self._thread.run(self._store.close)
        self._thread.close()
        return in_time

    async def _beat(self) -> None:
        for beat in itertools.count():
            self._table.beat(self._launch.slot, time.monotonic_ns())
            if beat % FLUSH_BEATS == 0:
                flush_all()
                self._resources.measure()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _reload(self) -> None:
        try:
            settings = read_settings(self._launch.settings_fd)
        except (LaunchError, ValidationError) as problem:
            _log.error("settings not reloaded: %s", problem)
            return
        self._settings = settings
        self._resources.configure(settings)
        configure(settings.log.level, settings.log.format, self._launch.process_name)
        _log.info("settings reloaded")

    def _processes(self) -> list[Peer]:
        return self._listener.processes

    def _meta_row(self) -> RaftRow | None:
        if self._meta is None:
            return None
        node = self._settings.cluster.node_id
        meta = self._meta
        return clustering.meta_row(node, META_GROUP, meta.status(), meta.replica.elections)

    async def _forget_in_meta(self, node: str) -> None:
        if self._meta is not None:
            await self._meta.forget(node)

    async def _audit_meta(self) -> AuditListing:
        assert self._meta is not None, "there is a row of it"
        return await self._meta.neighbours.comparing.audit()

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
        meta = () if self._meta is None else self._meta.samples()
        return [*serving, *self._resources.samples(), *meta]

    def _greeted(self, peer: Peer) -> None:
        hello = peer.hello
        assert hello is not None
        _log.debug("control connection opened", extra={"peer": peer.name, "pid": hello.pid})
        # A restarted process may reconnect before its old connection is seen to end.
        for other in self._processes():
            if other is not peer and other.name == peer.name:
                other.abort()
        if hello.role == "shard" and self._directory is not None:
            if self._meta is None or self._meta.known:
                self._directory.push(peer)
            self._placing.push(peer)
            if self._retained is not None:
                self._retained.greeted(peer)
            if self._topology is not None:
                self._topology.greeted(peer)

    def _gone(self, peer: Peer) -> None:
        _log.debug("control connection ended", extra={"peer": peer.name})
        if self._retained is not None:
            self._retained.gone(peer)

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
        if problem is None and self._meta is not None:
            problem = self._meta.problem
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
