"""The acceptor process: every client listener, the first bytes of every connection, nothing else.

It reads what a client sends
first, at most 8 KiB and no longer than the listener's timeout, recognises the protocol, and passes
descriptor and bytes to the shard that owns the client's session. It never replies: a rejected
client sees its connection closed; a counter and a log line give the reason. One epoll loop, no
threads, no asyncio: a connection costs four to seven system calls here and no task, future or
transport. An MQTT client whose CONNECT has already arrived never reaches this module:
``net.accept`` puts it into its shard's batch. The loop never blocks; everything it holds is
bounded (``pending``, ``delivery``, ``admission``).

Longer than 500 lines because it is one loop over the same table of descriptors.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType

from pydantic import ValidationError

from fluxmq import logs
from fluxmq.auth.addresses import key_of_peer
from fluxmq.auth.bans import BanTable
from fluxmq.ipc import launch as launching
from fluxmq.ipc.conversation import Answered, Handlers
from fluxmq.ipc.descriptors import shares_here
from fluxmq.ipc.door_messages import BANS, BanList, BansApplied
from fluxmq.ipc.handoff import LISTENERS, Handoff
from fluxmq.ipc.launch import Launch
from fluxmq.ipc.log_messages import RECENT_LOG, on_recent_log
from fluxmq.ipc.messages import Body, ProcessHello, ProcessNumbers
from fluxmq.ipc.node_messages import LISTENING, Listening
from fluxmq.ipc.polling_client import PollingClient
from fluxmq.ipc.table import ProcessTable
from fluxmq.metrics.registry import Sample
from fluxmq.model.errors import FluxmqError
from fluxmq.net.accept import ASK, AWAIT, EARLY_TURNS, ENDED, FAILED, HANDED, NONE, Entrance
from fluxmq.protocols.sniff import (
    CONNECT_BYTES_MAX,
    NEED_MORE,
    Sniffed,
    SniffRefusal,
    WireProtocol,
    shard_of,
    sniff,
)
from fluxmq.settings.schema import Settings
from fluxmq.supervisor import listen_sockets
from fluxmq.supervisor.admission import AddressRates, CloseReason, counted_key
from fluxmq.supervisor.delivery import ShardHandoff
from fluxmq.supervisor.listen_sockets import ListenSocket, SpareDescriptor
from fluxmq.supervisor.pending_connections import PENDING_MAX, PendingConnection, PendingConnections

HOUSEKEEPING_SECONDS = 0.25
"""Interval between timeout checks, while there is something to check."""

REST_SECONDS = 1.0
"""Longest time between two heartbeats, when nothing happens."""

REFUSALS_LOG_SECONDS = 10.0
"""Minimum time between two log lines about refused connections; the counters are exact."""

EVENTS_MAX = 256
"""Maximum events per turn of the loop."""

CROWD_MIN = 2
"""New connections in one turn that count as a crowd."""

CROWD_PAUSE_SECONDS = 0.002
"""Delay of the next turn in a crowd: first bytes then are there already, and each message to a
shard carries more connections. Saves more than half of the work; a lone client is served at
once."""

DESCRIPTORS_RESERVED = 64
"""Descriptors of the acceptor itself: sockets to the shards, listeners, table, logs, loop."""

_PLAIN = LISTENERS.index("mqtt.tcp")
_AMQP = LISTENERS.index("amqp.tcp")
_AMQP_ALL = (_AMQP, LISTENERS.index("amqp.tls"))
_WIRES = (
    WireProtocol.MQTT,
    WireProtocol.TLS,
    WireProtocol.HTTP,
    WireProtocol.AMQP091,
    WireProtocol.TLS,
    WireProtocol.TLS,
)
assert len(_WIRES) == len(LISTENERS)
assert LISTENERS[:3] == ("mqtt.tcp", "mqtt.tls", "mqtt.websocket")
assert LISTENERS[3:] == ("amqp.tcp", "amqp.tls", "mqtt.websocket_tls")

_REFUSALS = {
    SniffRefusal.UNKNOWN_PROTOCOL: CloseReason.UNKNOWN_PROTOCOL,
    SniffRefusal.MALFORMED: CloseReason.MALFORMED,
    SniffRefusal.TOO_LARGE: CloseReason.TOO_LARGE,
    SniffRefusal.AMQP_VERSION: CloseReason.AMQP_VERSION,
}

_log = logs.get_logger(__name__)


def pending_capacity(descriptors: int, workers: int) -> int:
    """Return how many connections may be awaited without using up the descriptors."""
    free = descriptors - DESCRIPTORS_RESERVED - 2 * workers
    return max(16, min(PENDING_MAX, free // 2))


class Acceptor:
    """The loop and its state. ``run`` returns after ``stop``."""

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        table: ProcessTable,
        listeners: list[ListenSocket],
        descriptors: int,
    ) -> None:
        self._launch = launch
        self._table = table
        self._listeners = {each.index: each for each in listeners}
        self._by_socket = {
            sock.fileno(): (each, sock) for each in listeners for sock in each.sockets
        }
        self._resting: dict[int, float] = {}
        self._spare = SpareDescriptor()
        self._rates = AddressRates(settings.ratelimit.connection)
        self._pending = PendingConnections(pending_capacity(descriptors, launch.workers))
        allowed = shares_here(settings, launch.workers)
        self._delivery = ShardHandoff(launch.handoff_fds, table, allowed.connections)
        self._limit = min(CONNECT_BYTES_MAX, settings.broker.max_connect_size)
        self._entrance = Entrance(self._limit, self._delivery.batches, _PLAIN)
        self._set_rates()
        self.accepted = [0] * len(LISTENERS)
        self.refused: Counter[CloseReason] = Counter()
        self._reported: Counter[CloseReason] = Counter()
        self._report_at = 0.0
        self._control = PollingClient(
            launch.control_socket,
            ProcessHello(launch.role, launch.index, os.getpid()),
            Handlers(
                self.samples,
                self.numbers,
                commands={
                    BANS: self._take_bans,
                    LISTENING: self._listen,
                    RECENT_LOG: on_recent_log,
                },
            ),
        )
        self._control_fd: int | None = None
        self._control_writes = False
        self._epoll = select.epoll()
        self._blocked: dict[int, int] = {}  # descriptor to a full shard -> shard
        self._wakeup, self._signalled = socket.socketpair()
        self._came = 0  # new connections in this turn
        self._crowd_turns = 0  # turns for which a crowd is still expected
        self._stopping = False
        self._reloading = False

    # The loop.

    def run(self) -> None:
        """Serve until ``stop``; then close the listeners and all awaited connections."""
        for fd in self._by_socket:
            self._epoll.register(fd, select.EPOLLIN)
        self._epoll.register(self._wakeup.fileno(), select.EPOLLIN)
        housekeeping_at = wait = 0.0
        while not self._stopping:
            events = self._epoll.poll(wait, EVENTS_MAX)
            clock = time.monotonic_ns()
            now = clock / 1e9
            self._table.beat(self._launch.slot, clock)
            self._turn(events, now)
            if now >= housekeeping_at:
                self._keep_house(now)
                housekeeping_at = now + HOUSEKEEPING_SECONDS
            wait = HOUSEKEEPING_SECONDS if events else self.rest_seconds()
            if self._is_crowd(now):
                wait = 0.0  # early connections are not in the poll set
                if self._came < listen_sockets.ACCEPT_BATCH:
                    time.sleep(CROWD_PAUSE_SECONDS)
        self._close()

    def rest_seconds(self) -> float:
        """Return how long nothing is due unless something happens. What the turn after an event
        has changed is looked at once more before."""
        due = (
            len(self._pending)
            or self._delivery.backlog()
            or self._resting
            or self._reloading
            or not self._control.established
            or self.refused != self._reported
        )
        return HOUSEKEEPING_SECONDS if due else REST_SECONDS

    def watch_signals(self) -> None:
        """Install signal handlers: SIGTERM and SIGINT stop, SIGHUP reloads; all wake the loop."""
        self._wakeup.setblocking(False)
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._reloading = True
        else:
            self._stopping = True

    def _turn(self, events: list[tuple[int, int]], now: float) -> None:
        """Handle what the kernel reported: awaited connections first, new ones last."""
        plain = self._listeners.get(_PLAIN)
        if plain is not None:
            room = self._delivery.room(_PLAIN, plain.max_connections)
            self._entrance.room = min(room, self._delivery.places)
        self._came = 0
        accepting = []
        for fd, _mask in events:
            pending = self._pending.get(fd)
            if pending is not None:
                self._hear(pending, now)
            elif fd in self._by_socket:
                accepting.append(fd)
            else:
                self._inside(fd, now)
        if self._entrance.early:
            self._entrance.begin()
            while (outcome := self._entrance.again()) != NONE:
                self._admit(outcome, now)
        for fd in accepting:
            self._accept(fd, now)
        self._delivery.flush(now)
        for shard in self._delivery.blocked:
            fd = self._delivery.fileno(shard)
            if fd not in self._blocked:
                self._blocked[fd] = shard
                self._epoll.register(fd, select.EPOLLOUT)

    def _inside(self, fd: int, now: float) -> None:
        """Handle an event on a shard's socket, the control connection or the signal pipe."""
        if fd in self._blocked:
            self._delivery.writable(self._blocked.pop(fd))
            self._epoll.unregister(fd)
        elif fd == self._control_fd:
            self._control.on_readable(now)
            self._control.on_writable(now)
            self._watch_control()
        elif fd == self._wakeup.fileno():
            self._wakeup.recv(64)

    def _is_crowd(self, now: float) -> bool:
        """Return whether a crowd is arriving; if not, start awaiting early connections."""
        if self._came >= CROWD_MIN:
            self._crowd_turns = EARLY_TURNS
        elif self._crowd_turns:
            self._crowd_turns -= 1
        if self._crowd_turns:
            return True
        entrance = self._entrance
        if entrance.early:
            for fd, listener, peer, loopback, _ in entrance.early:
                address = peer.decode()
                counted = None if loopback else counted_key(key_of_peer(address))
                self._await(PendingConnection(fd, listener, address, counted, now))
            entrance.early.clear()
        return False

    # One connection.

    def _accept(self, fd: int, now: float) -> None:
        """Take new connections from one listening socket."""
        listener, sock = self._by_socket[fd]
        if listener.suspended:  # in this turn
            return
        entrance = self._entrance
        entrance.left = listen_sockets.ACCEPT_BATCH
        entrance.accepted = 0
        while (outcome := entrance.take(sock, listener.index)) != NONE:
            if outcome == FAILED:
                if listen_sockets.is_passing(entrance.error):
                    continue
                self._spare.shed(sock, entrance.error)
                self.refused[CloseReason.DESCRIPTORS] += 1
                self._epoll.unregister(fd)
                self._resting[fd] = now + listen_sockets.REST_SECONDS
                break
            self._admit(outcome, now)
        self._came += entrance.accepted
        self.accepted[listener.index] += entrance.accepted

    def _admit(self, outcome: int, now: float) -> None:
        """Continue with a new connection that was not handed over at once."""
        entrance = self._entrance
        fd, listener = entrance.fd, entrance.listener
        peer = entrance.peer.decode()
        key = None
        if outcome == ASK or not entrance.loopback:
            key = key_of_peer(peer)
        if outcome == ASK:
            assert key is not None
            if self._rates.bans.of_addresses and self._rates.bans.address(peer, time.time()):
                self._refuse(fd, CloseReason.BANNED)
                return
            if not self._rates.allow(key, now):
                self._refuse(fd, CloseReason.RATE)
                return
            outcome = entrance.enter()
            if outcome == AWAIT:
                entrance.early.append((fd, listener, entrance.peer, entrance.loopback, EARLY_TURNS))
                return
        if outcome == HANDED:
            return
        counted = None if key is None else counted_key(key)
        if outcome == AWAIT:
            self._await(PendingConnection(fd, listener, peer, counted, now))
        elif outcome == ENDED:
            self._refuse(fd, CloseReason.CLOSED_EARLY)
        else:
            data = entrance.data()
            verdict = sniff(data, self._limit)
            if verdict is NEED_MORE:
                self._await(
                    PendingConnection(fd, listener, peer, counted, now, data=bytearray(data))
                )
            else:
                self._decide(fd, listener, peer, data, verdict, now)

    def _await(self, pending: PendingConnection) -> None:
        """Keep a connection until its protocol is known, making room for it if necessary."""
        crowd = self._pending.busiest_address(pending.address)
        if crowd is not None:
            self._drop(crowd, CloseReason.ADDRESS_PENDING)
        oldest = self._pending.full()
        if oldest is not None:
            self._drop(oldest, CloseReason.PENDING_FULL)
        try:
            self._epoll.register(pending.fd, select.EPOLLIN | select.EPOLLRDHUP)
        except OSError:  # the kernel's limit on watches
            self._refuse(pending.fd, CloseReason.DESCRIPTORS)
            return
        self._pending.add(pending)

    def _hear(self, pending: PendingConnection, now: float) -> None:
        """Read from an awaited connection, which has sent something or ended."""
        entrance = self._entrance
        seen = len(pending.data)
        if seen:
            outcome = entrance.read(pending.fd, self._limit - seen)
        else:
            outcome = entrance.hear(pending.fd, pending.listener, pending.peer)
        if outcome == AWAIT:
            return
        if outcome == ENDED:
            self._drop(pending, CloseReason.CLOSED_EARLY)
            return
        if outcome == HANDED:
            self._forget(pending)
            return
        pending.data += entrance.data()
        verdict = sniff(pending.data, self._limit, seen)
        if verdict is NEED_MORE:
            self._pending.spoke(pending)
            return
        self._forget(pending)
        data = bytes(pending.data)
        self._decide(pending.fd, pending.listener, pending.peer, data, verdict, now)

    def _forget(self, pending: PendingConnection) -> None:
        """Stop awaiting a connection; it stays open."""
        self._pending.remove(pending)
        # Closing our descriptor does not imply this: the shard's copy keeps the registration alive.
        self._epoll.unregister(pending.fd)

    def _decide(
        self,
        fd: int,
        listener: int,
        peer: str,
        data: bytes,
        verdict: Sniffed | SniffRefusal,
        now: float,
    ) -> None:
        """Hand a recognised connection over, or close it.

        A shard answers a wrong protocol header on the AMQP port with the supported one.
        """
        if listener != _AMQP:
            if isinstance(verdict, SniffRefusal):
                self._refuse(fd, _REFUSALS[verdict])
                return
            if verdict.wire is not _WIRES[listener]:
                self._refuse(fd, CloseReason.WRONG_PROTOCOL)
                return
        if not self._delivery.has_room(listener, self._listeners[listener].max_connections):
            self._refuse(fd, CloseReason.MAX_CONNECTIONS)
            return
        shard = self._shard_for(listener, verdict)
        if not self._delivery.has_place(shard):
            self._refuse(fd, CloseReason.DESCRIPTORS)
            return
        if not self._delivery.put(shard, Handoff(fd, listener, peer, data), now):
            self._refuse(fd, CloseReason.SHARD_BUSY)
        elif listener == _PLAIN:
            self._entrance.room -= 1

    def _shard_for(self, listener: int, verdict: Sniffed | SniffRefusal) -> int:
        """Choose a shard: by session for MQTT, the least loaded for AMQP, else in turn."""
        if listener in _AMQP_ALL:
            return self._delivery.lightest_shard(_AMQP_ALL)
        client_id = verdict.client_id if isinstance(verdict, Sniffed) else None
        shard = shard_of(client_id or b"", self._delivery.workers)
        return self._delivery.any_shard() if shard is None else shard

    def _drop(self, pending: PendingConnection, reason: CloseReason) -> None:
        """Close an awaited connection."""
        self._pending.remove(pending)
        self._refuse(pending.fd, reason)

    def _refuse(self, fd: int, reason: CloseReason) -> None:
        self.refused[reason] += 1
        os.close(fd)

    # Now and then.

    def _keep_house(self, now: float) -> None:
        """Handle timeouts, resting listeners, the control connection, a reload and the log line."""
        for listener in self._listeners.values():
            for pending in self._pending.expired(listener.index, now - listener.connect_timeout):
                self._drop(pending, CloseReason.TIMEOUT)
        for connection in self._delivery.expire(now):
            self._refuse(connection.fd, CloseReason.SHARD_BUSY)
        self._delivery.recount()
        for fd, until in list(self._resting.items()):
            if now >= until:
                del self._resting[fd]
                self._epoll.register(fd, select.EPOLLIN)
        self._control.tick(now)
        self._watch_control()
        if self._reloading:
            self._reloading = False
            self._reload()
        if now >= self._report_at and self.refused != self._reported:
            news = self.refused - self._reported
            fields = {reason.value: count for reason, count in news.items()}
            _log.warning("connections refused", extra={"reasons": fields})
            self._reported = self.refused.copy()
            self._report_at = now + REFUSALS_LOG_SECONDS

    def _watch_control(self) -> None:
        """Follow the control connection's descriptor, which changes when it reconnects."""
        fd, writes = self._control.fileno, self._control.wants_write
        if (fd, writes) == (self._control_fd, self._control_writes):
            return
        mask = select.EPOLLIN | (select.EPOLLOUT if writes else 0)
        if fd == self._control_fd:
            if fd is not None:
                self._epoll.modify(fd, mask)
        elif fd is not None:
            self._epoll.register(fd, mask)
        self._control_fd, self._control_writes = fd, writes

    def _reload(self) -> None:
        """Apply settings that may change live: connection rates and logging."""
        try:
            payload = launching.read_settings(self._launch.settings_fd)
            settings = Settings.model_validate_json(payload)
        except (launching.LaunchError, ValidationError) as exc:
            _log.error("settings not reloaded: %s", exc)
            return
        self._rates.configure(settings.ratelimit.connection)
        self._set_rates()
        logs.configure(settings.log.level, settings.log.format, self._launch.process_name)
        _log.info("settings reloaded")

    def _listen(self, body: Body, answered: Answered) -> None:
        """Accept client connections, or refuse them. Raises MessageError."""
        wanted = Listening.from_body(body)
        for listener in self._listeners.values():
            if listener.suspended is not wanted.accept:
                continue
            if wanted.accept:
                listen_sockets.resume(listener)
            for sock in listener.sockets:
                fd = sock.fileno()
                if wanted.accept:
                    self._epoll.register(fd, select.EPOLLIN)
                elif self._resting.pop(fd, None) is None:
                    self._epoll.unregister(fd)
            if not wanted.accept:
                listen_sockets.suspend(listener)
        _log.info("client connections are %s", "accepted" if wanted.accept else "refused")
        answered({})

    def _set_rates(self) -> None:
        self._entrance.ask_loopback = self._rates.counts(loopback=True)
        self._entrance.ask_others = self._rates.counts(loopback=False)

    def _take_bans(self, body: Body, answered: Answered) -> None:
        """Refuse these addresses from now on; shards close the connections that they have."""
        self._rates.bans = BanTable(BanList.from_body(body).bans)
        self._set_rates()
        answered(BansApplied(0).to_body())

    def _close(self) -> None:
        self._table.set_ready(self._launch.slot, False)
        for listener in self._listeners.values():
            listen_sockets.close(listener)
        for connection in self._delivery.close():
            self._refuse(connection.fd, CloseReason.STOPPING)
        for pending in self._pending:
            self._drop(pending, CloseReason.STOPPING)
        for fd, *_ in self._entrance.early:
            self._refuse(fd, CloseReason.STOPPING)
        self._control.close()
        self._spare.close()
        self._epoll.close()
        self._wakeup.close()
        self._signalled.close()

    # Reported to the control process.

    def samples(self) -> Iterator[Sample]:
        """Yield the acceptor's metrics."""
        for listener in self._listeners:
            labels = {"listener": LISTENERS[listener]}
            yield "fluxmq_acceptor_accepted_total", labels, self.accepted[listener]
            yield "fluxmq_acceptor_handed_total", labels, self._delivery.handed[listener]
        for reason in CloseReason:
            yield (
                "fluxmq_acceptor_refused_total",
                {"reason": reason.value},
                self.refused[reason],
            )
        yield "fluxmq_acceptor_pending", {}, len(self._pending) + len(self._entrance.early)

    def numbers(self) -> ProcessNumbers:
        """Return the connections that this process holds itself, for ``fluxmqctl status``."""
        awaited = len(self._pending) + len(self._entrance.early)
        refusing = any(each.suspended for each in self._listeners.values())
        return ProcessNumbers(
            connections=awaited + self._delivery.backlog(), refusing=int(refusing)
        )


def main(launch: Launch) -> None:
    """Accept until SIGTERM; exit with 3 when a listener cannot be opened."""
    try:
        table = ProcessTable(launch.table_fd)
        settings = Settings.model_validate_json(launching.read_settings(launch.settings_fd))
    except (FluxmqError, ValidationError, OSError) as exc:
        launching.fail_boot(f"acceptor: {exc}")
    logs.configure(settings.log.level, settings.log.format, launch.process_name)
    descriptors = launching.raise_file_limit()
    try:
        listeners = listen_sockets.open_listeners(settings)
    except listen_sockets.ListenError as exc:
        launching.fail_boot(str(exc), table, launch.slot)
    acceptor = Acceptor(launch, settings, table, listeners, descriptors)
    acceptor.watch_signals()
    gc.collect()
    gc.freeze()
    table.beat(launch.slot, time.monotonic_ns())
    table.set_ready(launch.slot)
    for listener in listeners:
        addresses = [sock.getsockname() for sock in listener.sockets]
        _log.info("listening", extra={"listener": listener.path, "addresses": addresses})
    acceptor.run()
    _log.info("stopped")
