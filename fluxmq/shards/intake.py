"""Connections from the acceptor: descriptor, first bytes, listener.

The shard trusts only the descriptor: the listener's stream filter applies its rules (TLS, WebSocket
path and origins) again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from fluxmq.ipc.handoff import LISTENERS, HandoffClosedError, adopt, receive
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net import sockets
from fluxmq.net.certificates import ListenerCertificates
from fluxmq.net.reactor import Reactor
from fluxmq.net.secure_websocket import SecureWebSocketStream
from fluxmq.net.tls import TlsSettingsError, TlsStream
from fluxmq.net.websocket import WebSocketStream
from fluxmq.protocols.connection import Connection
from fluxmq.sessions.mqtt.session import CONNECTED, MqttClient
from fluxmq.settings.listeners import (
    ClientTlsListener,
    TcpListener,
    WebSocketListener,
    WebSocketTlsListener,
)
from fluxmq.settings.schema import Settings
from fluxmq.shards.broker import ShardBroker

MESSAGES_PER_TURN = 4
"""Maximum number of hand-over messages (of up to 60 connections) accepted per tick."""

TCP, TLS, WEBSOCKET, AMQP, AMQP_TLS, WEBSOCKET_TLS = range(len(LISTENERS))


class Intake:
    """Turns handed-over sockets into connections of the reactor."""

    def __init__(
        self,
        handoff_fd: int,
        reactor: Reactor,
        broker: ShardBroker,
        amqp: Callable[[Connection, str, float], None],
        settings: Settings,
        counted: Callable[[int, int, int], None],
        taking: Callable[[bool], None],
        now_us: Callable[[], int],
    ) -> None:
        """``amqp`` makes a connection speak AMQP; ``str``: its peer, ``float``: seconds until it
        must be open. ``counted`` gets a listener, the number of its connections and of those ever
        received, ``taking`` whether connections are received that it has not got yet. ``now_us`` returns µs since the epoch."""
        self._socket = adopt(handoff_fd)
        self._reactor = reactor
        self._broker = broker
        self.open_now = broker.connections.open_now
        self._settings = settings
        self._counted = counted
        self._taking = taking
        self._now_us = now_us
        self._tls: dict[int, ListenerCertificates] = {}
        self._amqp = amqp
        self.opened = [0] * len(LISTENERS)
        self._log = RateLimited(get_logger("fluxmq.intake"), per_second=1, burst=5)
        server = settings.server
        mqtt = server.mqtt
        self._listeners = (
            *(mqtt.tcp, mqtt.tls, mqtt.websocket, server.amqp.tcp, server.amqp.tls),
            mqtt.websocket_tls,
        )
        for listener, tls in enumerate(self._listeners):
            if isinstance(tls, ClientTlsListener):
                self._tls[listener] = ListenerCertificates(tls)

    def start(self) -> None:
        """Begin to accept connections."""
        self._reactor.watch(self._socket.fileno(), self._ready)

    def stop(self) -> None:
        """Accept no more; the owner of the other end closes those not yet accepted."""
        if self._reactor.others.pop(self._socket.fileno(), None) is not None:
            self._reactor.poller.unregister(self._socket.fileno())

    def configure(self, settings: Settings) -> None:
        """Apply new settings: output limits, for connections from now on."""
        self._settings = settings

    def reload_certificates(self) -> None:
        """Use the certificates that are in the files now for further handshakes. The control process
        has tried them; should they have changed again, the previous ones stay."""
        for listener, certificates in self._tls.items():
            try:
                certificates.reload()
            except TlsSettingsError as problem:
                self._log.event(
                    logging.ERROR,
                    "certificates",
                    "certificates not reloaded: %s",
                    problem,
                    listener=LISTENERS[listener],
                )

    def _ready(self) -> None:
        # The acceptor must not see an empty socket and the counts from before.
        self._taking(True)
        try:
            self._take()
        finally:
            self._taking(False)

    def _take(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            try:
                batch = receive(self._socket)
            except HandoffClosedError:
                self._log.event(
                    logging.ERROR, "closed", "the acceptor has closed its end of the socket"
                )
                self.stop()
                return
            if not batch:
                return
            for handed in batch:
                self._adopt(handed.fd, handed.listener, handed.peer, handed.data)
            self.tell()

    def tell(self) -> None:
        """Publish the connection count per listener, by which the acceptor enforces limits."""
        for listener, count in enumerate(self.open_now):
            self._counted(listener, count, self.opened[listener])

    def _adopt(self, fd: int, listener: int, peer: str, data: bytes) -> None:
        settings = self._listeners[listener] if listener < len(self._listeners) else None
        if settings is None:
            self._log.event(
                logging.ERROR, "listener", "refused a connection of an unknown listener"
            )
            os.close(fd)
            return
        reactor = self._reactor
        connection = Connection(
            fd, reactor.tally, reactor.dirty, self._settings.session.max_output_bytes, sockets.send
        )
        connection.listener = listener
        client: MqttClient | None = None
        if listener in (AMQP, AMQP_TLS):
            self._amqp(connection, peer, settings.connect_timeout)
        else:
            connection.handler = self._broker.handler
            client = MqttClient(connection, peer, listener)
            client.connected_at = self._now_us() // 1000
            connection.identity = client
        connection.stream = self._filter(listener, settings)
        self.opened[listener] += 1
        self.open_now[listener] += 1
        reactor.add(connection)
        if connection.stream is not None:
            reactor.filtered(connection, data)
        elif data:
            reactor.process(connection, bytearray(data), len(data))
        if client is not None and client.stage is not CONNECTED:
            self._broker.connections.watch_connect(client, settings.connect_timeout)

    def _filter(
        self, listener: int, settings: TcpListener
    ) -> TlsStream | WebSocketStream | SecureWebSocketStream | None:
        """Return the stream filter of a new connection; None on plain TCP."""
        certificates = self._tls.get(listener)
        tls = None if certificates is None else TlsStream(certificates.context)
        if not isinstance(settings, WebSocketListener | WebSocketTlsListener):
            return tls
        websocket = WebSocketStream(
            settings.path, settings.allowed_origins, self._settings.broker.max_packet_size
        )
        return websocket if tls is None else SecureWebSocketStream(tls, websocket)
