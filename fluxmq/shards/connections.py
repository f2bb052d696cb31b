"""Connections of clients on one shard: pausing, silence, retained messages to feed, and their end.

AMQP connections are paused and closed here as well.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from fluxmq.ipc.handoff import LISTENERS
from fluxmq.net.reactor import PAUSED_STEP, Reactor
from fluxmq.protocols.connection import Connection
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.sessions.mqtt.session import CONNECTED, MqttClient
from fluxmq.shards.alarms import Alarms
from fluxmq.shards.publish_rates import PublishRates
from fluxmq.shards.timers import DueTimes, SilenceWheel

LINGER_SECONDS = 2.0
"""Time for a client to read the reason for a disconnect before the socket is closed."""


class ClientConnections:
    """Reading from and closing connections, and their timeouts."""

    def __init__(
        self,
        reactor: Reactor,
        holders: tuple[Alarms, PublishRates],
        handler: MqttConnectionHandler,
        schedule: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """``holders`` stop publishers; ``schedule`` schedules a tick; ``call_later`` calls an action after that many seconds."""
        self._reactor = reactor
        alarms, self._rates = holders
        self._alarms = alarms
        self._handler = handler
        self._schedule = schedule
        self._call_later = call_later
        self.wheel = SilenceWheel()
        self.open_now = [0] * len(LISTENERS)
        """Number of connections by listener."""
        self._ends: DueTimes[MqttClient] = DueTimes()
        """Times at which logins end."""
        self._unfed: dict[MqttClient, None] = {}
        alarms.on_relief.append(self._give_up_incomplete)

    def pause(self, connection: Connection) -> None:
        """Stop reading while an answer is pending."""
        self._reactor.pause(connection, PAUSED_STEP)

    def resume(self, connection: Connection) -> None:
        """Resume reading. The answer that was awaited, perhaps outside of a tick, is written in the
        next one."""
        self._reactor.resume(connection, PAUSED_STEP)
        self._schedule()

    # Timeouts

    def watch(self, client: MqttClient, seconds: float) -> None:
        """Disconnect the client after this many seconds of silence."""
        self.wheel.watch(client, seconds, self._reactor.tally.now)

    def watch_connect(self, client: MqttClient, seconds: float) -> None:
        """Close the connection unless CONNECT is complete by then."""
        self.wheel.watch_connect(client, seconds, self._reactor.tally.now)

    def end_at(self, client: MqttClient, at: float) -> None:
        """Disconnect the client when its login ends; 0: it does not end."""
        self._ends.set_earliest(client, at)

    def feed_later(self, client: MqttClient) -> None:
        """Continue with the client's retained messages soon, whatever is pending."""
        self._unfed[client] = None

    @property
    def next_due(self) -> float:
        """Moment at which ``run_timers`` has work, in monotonic seconds."""
        return 0.0 if self._unfed else min(self.wheel.next_due, self._ends.next_due)

    def run_timers(self) -> None:
        """Handle silence, and feed clients."""
        for client in self.wheel.expired(self._reactor.tally.now):
            self._handler.expired(client)
        self._ends.due(self._reactor.tally.now, self._expired)
        unfed, self._unfed = self._unfed, {}
        for client in unfed:
            if client.stage is CONNECTED:
                self._handler.drained(client.connection)

    def _expired(self, client: MqttClient) -> None:
        self._handler.disconnect(client, Cause.EXPIRED)
        self._schedule()

    def _give_up_incomplete(self) -> None:
        """Disconnect stopped clients in the middle of a large packet: the memory alarm lasts."""
        for connection in list(self._alarms.held):
            client = connection.identity
            if isinstance(client, MqttClient) and self._alarms.is_large(connection):
                self._alarms.refuse("incomplete")
                self._handler.disconnect(client, Cause.MEMORY)

    # The end

    def close(self, connection: Connection, linger: bool) -> None:
        """Close, at once or after the client had time to read the last packet."""
        if connection.fd < 0 or connection.closing:
            return
        connection.delivery = None
        connection.open = False
        self.wheel.forget(connection.identity)
        self._ends.cancel(connection.identity)
        if not linger:
            if connection.size or connection.stream is not None:
                # Send this tick's answers, as far as the socket accepts them.
                connection.flush()
                self._end_stream(connection)
            self.discard(connection)
            return
        connection.closing = True
        connection.buffer()
        self._reactor.pause(connection, PAUSED_STEP)
        self._call_later(LINGER_SECONDS, lambda: self.discard(connection))
        self._schedule()

    def half_close(self, connection: Connection) -> None:
        """Shut down the write side after all output, and let the client close. Closing at once
        would reset the connection if the client's last bytes are unread, and lose our last
        packet."""
        self._end_stream(connection)
        sock = socket.socket(fileno=connection.fd)
        try:
            sock.shutdown(socket.SHUT_WR)
            ended = False
        except OSError:
            ended = True
        finally:
            sock.detach()
        if ended:
            self.discard(connection)

    def _end_stream(self, connection: Connection) -> None:
        """End TLS or WebSocket in an orderly way, if the socket accepts that."""
        if connection.stream is not None and connection.fd >= 0:
            goodbye = connection.stream.shutdown()
            if goodbye and connection.size == 0:
                connection.write(goodbye, 0, len(goodbye))

    def discard(self, connection: Connection) -> None:
        """Release the socket."""
        if connection.fd >= 0:
            self.open_now[connection.listener] -= 1
            self._alarms.forget(connection)
            self._rates.forget(connection)
            if connection.stream is not None:
                connection.stream.release()
            self._reactor.discard(connection)
