"""Composition root of a shard: builds the parts, runs the loop, stops them in reverse.

Start: bind to the parent, read the settings, greet the other shards, accept connections once their
interest is known. Stop (SIGTERM): accept no more connections, notify clients, flush output, exit.
The loop itself writes the heartbeat, so that a hanging shard is detected.

Longer than 500 lines because it names every part of the process once, with what each needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvloop

from fluxmq import logs
from fluxmq.cluster.errors import ClusterError
from fluxmq.engine.listing import GroupListings
from fluxmq.engine.wiring import Queues
from fluxmq.ipc import memory
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Answered, Handlers
from fluxmq.ipc.descriptors import shares_here
from fluxmq.ipc.door_messages import RELOAD_CERTIFICATES, CertificatesReloaded
from fluxmq.ipc.launch import Launch, fail_boot, finish_ticks, raise_file_limit, read_settings
from fluxmq.ipc.log_messages import RECENT_LOG, on_recent_log
from fluxmq.ipc.memory import ProcessMemory, Watermarks
from fluxmq.ipc.messages import Body, ProcessHello
from fluxmq.ipc.table import NOT_PINNED, ProcessTable
from fluxmq.ipc.user_messages import Users
from fluxmq.metrics.registry import Sample
from fluxmq.net.links import make_links
from fluxmq.net.tls import TlsSettingsError
from fluxmq.replication.disk import disk_beside
from fluxmq.replication.placement import placement_of
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.session import MqttClient
from fluxmq.settings.membership import settings_of
from fluxmq.settings.plans import UnknownGroup
from fluxmq.settings.schema import Settings
from fluxmq.shards.alarms import Watch, trim
from fluxmq.shards.amqp.reports import AmqpReports
from fluxmq.shards.composition import Shard
from fluxmq.shards.durable.wiring import StoreWatch, expect_others, open_store
from fluxmq.shards.garbage import Garbage
from fluxmq.shards.heap import keep_heap
from fluxmq.shards.reports import Reports
from fluxmq.shards.steady import make_clock
from fluxmq.shards.surroundings import Surroundings, Times
from fluxmq.shards.system_topics import SystemTopics
from fluxmq.shards.turn_timer import TurnTimer
from fluxmq.storage.errors import StorageError

if TYPE_CHECKING:
    from fluxmq.cluster.shard_endpoint import ShardEndpoint

READY_LOOK_SECONDS = 0.005
"""Interval of checks whether a starting shard may accept connections; one takes some 2 µs."""
READY_SECONDS_MAX = 5.0
"""Maximum wait, after recovery of its groups, for peers' interest, users and the start of the
topology, before a shard accepts connections without them."""
TOPOLOGY_SECONDS_MAX = 120.0
"""Maximum wait for the start of the topology on a node without a cluster: the control process
reads it before it answers, and 100,000 queues take longer than the other wait."""
QUIET_TENTHS = 50
"""Tenths of a second over which a shard needs hardly any ticks to count as quiet."""
SECOND_TENTHS = 10
QUIET_TICKS = 4 * QUIET_TENTHS
"""Maximum number of ticks of a quiet shard in that time, including its own."""

_log = logs.get_logger("fluxmq.shard")


class Worker:
    """One shard."""

    def __init__(self, launch: Launch, settings: Settings, table: ProcessTable) -> None:
        self.launch = launch
        self.settings = settings
        self.table = table
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self._again = True  # no tick before construction is complete; the timer begins with one
        self._last_ticks = 0
        self.timer = TurnTimer(self._turn, self.loop.call_later, time.monotonic)
        self._started = time.monotonic()
        self._ready = False
        self.boot_failure = ""
        """Reason for which this shard cannot serve the data directory."""
        self.clock = make_clock(settings, launch.index, self._time_is_known)
        self.store = open_store(settings.storage.data_dir, launch.index)
        self.watch = StoreWatch(self.store)
        self.shard = Shard(settings, self._surroundings(), self._share)
        self._again = False
        self.reports = self._make_reports()
        self.garbage = Garbage(gc, self.reports.collections.observe, time.perf_counter)
        self.own_memory = ProcessMemory(settled=lambda: self._ready)
        self.resources = self._make_watch()
        self.system = SystemTopics(
            launch.index,
            self.shard.broker,
            self.shard.peers,
            lambda: self.reports.census.result.connected,
        )
        self._next_system = time.monotonic() + settings.broker.sys_interval

    def _surroundings(self) -> Surroundings:
        """Return this process and its data directory as seen by the shard's parts. Raises
        StorageError."""
        launch, settings = self.launch, self.settings
        rows = {
            row.index: slot for slot, row in enumerate(self.table.rows()) if row.role == "shard"
        }

        def is_alive(peer: int) -> bool:
            row = self.table.row(rows[peer])
            return row.pid != 0 and row.heartbeat != 0

        # Connections that former lives of this shard received: the acceptor counts them as well.
        before = self.table.row(launch.slot).received

        def count_connections(listener: int, held: int, received: int) -> None:
            self.table.set_connections(launch.slot, listener, held, before[listener] + received)

        data_dir = settings.storage.data_dir
        return Surroundings(
            index=launch.index,
            workers=launch.workers,
            epoch=int.from_bytes(os.urandom(7), "big"),
            loop=self.loop,
            placement=placement_of(settings, launch.workers),
            times=Times(
                time.monotonic, self.clock.seconds, time.time_ns, self.clock.now, self.call_later
            ),
            disk=disk_beside(
                launch.node_cores,
                launch.cores,
                launch.spare_cores,
                shares_here(settings, launch.workers).storage,
            ),
            store=self.store,
            expect_others=lambda routes, groups: expect_others(
                routes, groups, data_dir, launch.index, launch.workers
            ),
            connect=lambda reactor, received, blocked: make_links(
                launch.links, launch.link_kind, launch.wake_fds, reactor, received, blocked
            ),
            is_alive=is_alive,
            handoff_fd=launch.handoff_fds[0],
            schedule=self.schedule,
            count_connections=count_connections,
            take_connections=lambda taking: self.table.set_taking(launch.slot, taking),
            connected=lambda: self.reports.census.result.connected,
            endpoint=self._endpoint() if self.settings.cluster.enabled else None,
        )

    @property
    def _clustered(self) -> bool:
        return self.settings.cluster.enabled and self.settings.cluster.raft.enabled

    def _endpoint(self) -> ShardEndpoint:
        """Return the address at which other nodes reach this shard. Raises SecurityError."""
        # Imported only where it is used: it costs time and memory.
        from fluxmq.cluster.shard_endpoint import ShardEndpoint

        epoch = int.from_bytes(os.urandom(7), "big")
        launch = self.launch
        return ShardEndpoint.of(self.settings.cluster, launch.index, launch.workers, epoch)

    def _share(self, queues: Queues, endpoint: ShardEndpoint) -> None:
        """Share this shard's groups with other nodes."""
        from fluxmq.engine.group_clients import share  # as above

        nodes = share(queues, self.settings, endpoint, self.clock)
        mirrors = nodes.members.mirrors
        assert mirrors is not None, "they were made"
        mirrors.request = self._request

    def _request(self, kind: str, body: Body, answered: Answered) -> bool:
        return self.control.request(kind, body, answered)

    def _time_is_known(self) -> None:
        self.shard.queues.go_on()

    def _make_reports(self) -> Reports:
        return Reports(
            self.shard.reactor,
            self.shard.broker,
            self.shard.intake,
            self.shard.peers,
            self.shard.queues,
            self.store,
            self.clock,
            AmqpReports(self.shard.amqp.broker, self.shard.amqp.topology, self.shard.amqp.messages),
        )

    def _make_watch(self) -> Watch:
        return Watch(
            self.shard.broker.alarms,
            self.shard.reactor,
            self.table,
            self.launch.slot,
            Watermarks.of(self.settings.memory, memory.available()),
            self.own_memory.read,
            trim,
            lambda: self.shard.queues.service.full,
        )

    # The loop

    def schedule(self) -> None:
        """Schedule a tick unless one is running, whose end handles requests."""
        self.timer.stir()
        self._tick_soon()

    def _tick_soon(self) -> None:
        if not self._again and not self.shard.reactor.ticking:
            self._again = True
            self.loop.call_soon(self._tick)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` after a delay, and then tick."""

        def act() -> None:
            self.shard.reactor.tally.now = time.monotonic()
            action()
            self.schedule()

        self.loop.call_later(seconds, act)

    def arrived(self) -> None:
        """Note that a message of the control process is about to be handled, outside of ticks."""
        self.shard.reactor.tally.now = time.monotonic()
        self.timer.stir()

    def _tick(self) -> None:
        self._again = False
        self.shard.reactor.run_ready()

    def _input(self) -> None:
        self.timer.stir()
        self.shard.reactor.run_ready()

    def _turn(self) -> None:
        now = time.monotonic()
        lag = self.timer.begin(now)
        self.reports.lag.observe(lag)
        self.reports.lag_max.observe(lag)
        self.shard.reactor.tally.now = now
        self.table.beat(self.launch.slot, time.monotonic_ns())
        self.shard.intake.tell()
        self.resources.step(now)
        self.shard.broker.run_timers()
        self.clock.housekeeping()
        self.shard.queues.housekeeping()
        self.shard.amqp.housekeeping()
        self.store.low = self.shard.queues.service.low
        self.shard.durable.housekeeping()
        for user in self.shard.control_users:
            user.housekeeping()
        self.reports.census.step(resting=self.timer.resting)
        self.shard.peers.check()
        if self.timer.passes(SECOND_TENTHS):
            self.shard.broker.retained.housekeeping()
            logs.flush_all()
        if now >= self._next_system:
            self._next_system = now + self.settings.broker.sys_interval
            self.system.tick()
        if self._ready:
            self.garbage.look(quiet=self.timer.passes(QUIET_TENTHS) and self._is_quiet())
        self.timer.end(self._next_due)
        self._tick_soon()

    def _next_due(self) -> float:
        """Return when something becomes due by time alone; 0.0: there is work for every turn."""
        return min(self.shard.next_due, self._next_system) if self._ready else 0.0

    def _is_quiet(self) -> bool:
        """Return whether there were hardly any ticks since the last call."""
        before, self._last_ticks = self._last_ticks, self.shard.reactor.tally.ticks
        return self._last_ticks - before < QUIET_TICKS

    def _await_ready(self) -> None:
        if self.stopping.is_set():
            return
        self._become_ready(time.monotonic())
        if not self._ready:
            self.loop.call_later(READY_LOOK_SECONDS, self._await_ready)

    def _become_ready(self, now: float) -> None:
        told = (
            self.shard.peers.synchronised
            and self.shard.peers.met_all
            and self.shard.authentication.revision >= 0
        )
        self.boot_failure = self.shard.queues.durable.failure
        if self.boot_failure:
            self.stopping.set()
        if (
            self.boot_failure
            or not self.shard.queues.service.ready
            or not self.shard.durable.loaded
        ):
            return
        links = self.shard.publish_links
        if links is not None:
            links.start(now)  # its sessions are there, and so is their interest
            told = links.met(now) and told
        retained = self.shard.retained_sync
        told = told and self.shard.amqp.known and (retained is None or retained.synchronised)
        late = is_late(
            now - self._started,
            arriving=self.shard.amqp.topology.arriving,
            expected=not self.shard.amqp.known and not self._clustered,
        )
        if told or late:
            self._ready = True
            if links is not None:
                links.ready()
            gc.disable()
            self.garbage.begin()
            self.shard.intake.start()
            self.table.set_ready(self.launch.slot)
            _log.info("ready", extra={"pid": os.getpid()})

    def start(self) -> None:
        """Connect to the loop, the peers and the control process."""
        launch = self.launch
        self.table.beat(launch.slot, time.monotonic_ns())  # peers that hear from us look for it
        wake_fd = launch.wake_fds[launch.index] if launch.wake_fds else -1
        if wake_fd >= 0:
            self.shard.reactor.watch(wake_fd, lambda: _clear(wake_fd))
        self.shard.queues.open(lambda: self.table.beat(launch.slot, time.monotonic_ns()))
        self.shard.reactor.watch(self.store.fileno(), self.watch.completed)
        self.loop.add_reader(self.shard.reactor.fileno(), self._input)
        self.shard.peers.start()
        self.loop.add_signal_handler(signal.SIGTERM, self.stopping.set)
        self.loop.add_signal_handler(signal.SIGHUP, self.reload)
        queues, core = self.shard.queues, launch.cores[0] if launch.cores else NOT_PINNED
        self.control = ControlClient(
            launch.control_socket,
            ProcessHello("shard", launch.index, os.getpid()),
            Handlers(
                self._samples,
                self.reports.status,
                self.set_users,
                {
                    **queues.commands(),
                    **GroupListings(queues, core).commands(),
                    **self.shard.amqp.commands,
                    **self.shard.permissions.bans.commands,
                    RELOAD_CERTIFICATES: self._reload_certificates,
                    RECENT_LOG: on_recent_log,
                    **self.shard.node_questions.commands,
                    **{
                        kind: handler
                        for user in self.shard.control_users
                        for kind, handler in user.commands.items()
                    },
                },
                self._control_established,
            ),
            self.arrived,
        )
        self.shard.amqp.topology.connect(self.control)
        self.shard.node_questions.connect(self.control)
        self.shard.authentication.backends.connect(self.control)
        self.shard.authentication.upgrades.connect(self.control)
        for user in self.shard.control_users:
            user.connect(self.control)
        self._control_task = self.loop.create_task(self.control.run())
        self._started = time.monotonic()  # recovery does not count, however long it took
        self._turn()
        self._await_ready()

    def _samples(self) -> Iterator[Sample]:
        yield from self.reports.samples()
        for user in self.shard.control_users:
            yield from user.samples()

    def _control_established(self) -> None:
        self.shard.amqp.topology.established()
        for user in self.shard.control_users:
            user.established()

    async def meet(self) -> None:
        """Listen for other nodes, and dial them. Raises ClusterError."""
        if self.shard.endpoint is not None:
            await self.shard.endpoint.start()
        await self.shard.queues.nodes.start()

    async def stop(self) -> None:
        """Finish queues' work in flight, notify clients, flush output for a bounded time, and
        end."""
        self.shard.intake.stop()
        await self.shard.queues.drain(self._turn_once)
        self.shard.amqp.shut_down()
        for connection in list(self.shard.reactor.connections.values()):
            if isinstance(connection.identity, MqttClient):
                self.shard.broker.handler.disconnect(connection.identity, Cause.SHUTDOWN)
        # Every connection closes within LINGER_SECONDS; a shorter setting cuts that short.
        deadline = time.monotonic() + self.settings.server.shutdown_timeout
        while self._is_busy() and time.monotonic() < deadline:
            self._turn_once()
            await asyncio.sleep(0.01)
        self._control_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._control_task
        self.timer.stop()
        self.shard.authentication.close()
        self.watch.close()
        self.own_memory.close()
        if self.shard.publish_links is not None:
            await self.shard.publish_links.stop()
        if self.shard.endpoint is not None:
            await self.shard.endpoint.stop()
        await self.shard.queues.close()

    def _is_busy(self) -> bool:
        """Return whether there are connections, or wills that control does not know of."""
        return bool(self.shard.reactor.connections) or not self.shard.broker.wills.idle

    def _turn_once(self) -> None:
        self.shard.reactor.tally.now = time.monotonic()
        self.shard.reactor.run_ready()

    # Changes while running

    def reload(self) -> None:
        """Apply settings that the supervisor has rewritten."""
        settings = settings_of(read_settings(self.launch.settings_fd), self.launch.data_dir)
        self.settings = settings
        self.shard.broker.configure(settings)
        self.shard.intake.configure(settings)
        self.shard.permissions.configure(settings.auth)
        self.shard.amqp.configure(settings)
        self.shard.amqp.users_changed()
        self.resources.configure(Watermarks.of(settings.memory, memory.available()))
        logs.configure(settings.log.level, settings.log.format, self.launch.process_name)

    def _reload_certificates(self, _body: Body, answered: Answered) -> None:
        """Use new certificates, towards clients and other nodes, for connections from now on."""
        self.shard.intake.reload_certificates()
        if self.shard.endpoint is not None:
            try:
                self.shard.endpoint.security.reload()
            except ClusterError as problem:
                _log.error("certificates not reloaded: %s", problem)
        answered(CertificatesReloaded().to_body())

    def set_users(self, users: Users) -> None:
        """Apply a new snapshot of users, to live connections too."""
        self.shard.permissions.set_users(users.revision, users.users)
        self.shard.amqp.users_changed()


def is_late(waited: float, *, arriving: bool, expected: bool) -> bool:
    """Return whether a shard accepts connections without all that it has waited for.

    `arriving`: parts of the topology have come; `expected`: the control process will send it.
    """
    return not arriving and waited > (TOPOLOGY_SECONDS_MAX if expected else READY_SECONDS_MAX)


def _clear(wake_fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(wake_fd)


async def run(launch: Launch, settings: Settings, table: ProcessTable) -> None:
    """Serve until SIGTERM."""
    try:
        worker = Worker(launch, settings, table)
    except StorageError as problem:
        fail_boot(f"storage.data_dir: {problem}", table, launch.slot)
    except (TlsSettingsError, ssl.SSLError, OSError) as problem:
        fail_boot(f"server: {problem}", table, launch.slot)
    try:
        worker.start()
        await worker.meet()
    except StorageError as problem:
        fail_boot(f"storage.data_dir: {problem}", table, launch.slot)
    except ClusterError as problem:
        fail_boot(f"cluster: {problem}", table, launch.slot)
    except UnknownGroup as problem:  # a replica from a time when the settings allowed it
        fail_boot(f"cluster.raft: replication group {problem}", table, launch.slot)
    await worker.stopping.wait()
    if worker.boot_failure:
        fail_boot(f"storage.data_dir: {worker.boot_failure}", table, launch.slot)
    await worker.stop()


def main(launch: Launch) -> None:
    """Run the process until SIGTERM."""
    table = ProcessTable(launch.table_fd)
    raise_file_limit()
    keep_heap()
    finish_ticks(launch)
    settings = settings_of(read_settings(launch.settings_fd), launch.data_dir)
    logs.configure(settings.log.level, settings.log.format, launch.process_name)
    uvloop.run(run(launch, settings, table))
