"""The handshake, from the protocol header to connection.open-ok.

header, start, start-ok, tune, tune-ok, open, open-ok. No offered mechanism has a challenge, so
connection.secure is never sent. Before a vhost is open, protocol violations end the connection
without an answer, as in RabbitMQ: the peer may be anything. Clients that announced
``authentication_failure_close`` get a close when their credentials are wrong, or cannot be checked
now: the latter with 320 and never 403, after which clients do not retry.

Source: AMQP 0-9-1 sections 1.4.2 (connection) and 4.2.2 (protocol header), RabbitMQ's
authentication failure notification.
"""

from __future__ import annotations

from typing import Final

from fluxmq import __version__
from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.protocols.amqp091 import sasl
from fluxmq.protocols.amqp091.constants import FRAME_MIN_SIZE, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, HardError
from fluxmq.protocols.amqp091.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from fluxmq.protocols.amqp091.server import LOCALES, announced, mechanisms, server_properties
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp091.client import AmqpClient, AmqpStage
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort

AUTHENTICATION_FAILURE_CLOSE: Final = "authentication_failure_close"


class Handshake:
    """Takes a client from stage to stage."""

    def __init__(self, client: AmqpClient) -> None:
        self.client = client
        self.info: ConnectionInfo = client.info
        self.broker: AmqpBrokerPort = client.broker
        self.limits = client.broker.limits

    def begin(self) -> None:
        """Answer the protocol header of 0-9-1 with connection.start."""
        client, info, limits = self.client, self.info, self.limits
        client.stage = AmqpStage.START_OK
        if not client.deadline:  # otherwise it counts from accept, by the listener's own setting
            client.deadline = self.broker.now() + limits.handshake_timeout
        client.reschedule()
        properties = server_properties(
            limits.product, limits.product_version, __version__, limits.node_name
        )
        offered = mechanisms(external=bool(info.certificate_name))
        client.send(ConnectionStart(0, 9, properties, offered, LOCALES))

    def on_method(self, method: Method) -> None:
        """Handle a method on channel 0 before connection.open-ok. Raises HardError."""
        stage = self.client.stage
        if stage is AmqpStage.START_OK and isinstance(method, ConnectionStartOk):
            self._start_ok(method)
        elif stage is AmqpStage.TUNE_OK and isinstance(method, ConnectionTuneOk):
            self._tune_ok(method)
        elif stage is AmqpStage.OPEN and isinstance(method, ConnectionOpen):
            self._open(method)
        elif stage is AmqpStage.OPEN and isinstance(method, ConnectionClose):
            self.client.closed_by_client()
        else:
            text = f"unexpected method in connection state {stage.name.lower()}"
            raise HardError(ReplyCode.CHANNEL_ERROR, text)

    def _start_ok(self, method: ConnectionStartOk) -> None:
        """Start checking the credentials. The connection is not read meanwhile."""
        client, info = self.client, self.info
        info.properties = method.client_properties
        info.capabilities = announced(method.client_properties)
        info.mechanism = method.mechanism
        if method.mechanism == sasl.EXTERNAL and not info.certificate_name:
            text = f"unknown authentication mechanism '{method.mechanism}'"
            raise HardError(ReplyCode.COMMAND_INVALID, text)
        try:
            credentials = sasl.parse(method.mechanism, method.response)
        except HardError as error:
            if error.code is not ReplyCode.ACCESS_REFUSED:
                raise
            self._refuse(sasl.refused(info.mechanism), "authentication")
            return
        user = credentials.user
        if not user and method.mechanism == sasl.EXTERNAL:
            user = credentials.authorization_id
        client.stage = AmqpStage.AUTHENTICATING

        def done(result: AuthResult) -> None:
            if client.stage is AmqpStage.AUTHENTICATING:
                self._authenticated(result)
                client.resume()

        client.pause()
        self.broker.authenticate(info, method.mechanism, user, credentials.password, done)

    def _authenticated(self, result: AuthResult) -> None:
        """Propose limits once the credentials are verified, or refuse."""
        client, info, limits = self.client, self.info, self.limits
        if result.outcome is LoginOutcome.ACCEPTED:
            info.user = result.username
            client.access = Access(self.broker, info.user, "", result.login)
            client.stage = AmqpStage.TUNE_OK
            client.send(ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat))
        elif result.outcome in (LoginOutcome.UNAVAILABLE, LoginOutcome.BUSY):
            # Clients retry after anything but 403.
            text = "the login cannot be checked now, try again later"
            self._refuse(HardError(ReplyCode.CONNECTION_FORCED, text), "busy")
        else:
            self._refuse(sasl.refused(info.mechanism), "authentication")

    def _refuse(self, error: AmqpError, reason: str) -> None:
        """Refuse credentials that are invalid, or cannot be checked."""
        self.broker.count_error(self.info, error.code, error.text)
        if AUTHENTICATION_FAILURE_CLOSE in self.info.capabilities:
            self.client.send_close(error)
        else:
            self.client.end(reason)

    def _tune_ok(self, method: ConnectionTuneOk) -> None:
        """Take the client's limits, which may be lower than ours but not higher; any heartbeat is
        allowed."""
        client, info, limits = self.client, self.info, self.limits
        _check_agreed("frame_max", method.frame_max, limits.frame_max, FRAME_MIN_SIZE)
        _check_agreed("channel_max", method.channel_max, limits.channel_max, 1)
        client.connection.frame_max = method.frame_max or limits.frame_max
        info.channel_max = method.channel_max
        info.heartbeat = method.heartbeat
        client.stage = AmqpStage.OPEN

    def _open(self, method: ConnectionOpen) -> None:
        """Enter a vhost. Raises HardError 530 if it is missing, forbidden or full; 506 when memory
        is low."""
        client, info, broker = self.client, self.info, self.broker
        vhost = method.virtual_host
        if broker.short_of_memory:
            broker.refused_for_memory("connection")
            raise HardError(ReplyCode.RESOURCE_ERROR, "the node is low on memory")
        if broker.topology.vhost(vhost) is None:
            raise HardError(ReplyCode.NOT_ALLOWED, f"vhost {vhost} not found")
        refused = f"access to vhost '{vhost}' refused for user '{info.user}'"
        access = Access(broker, info.user, vhost, client.access.login)
        if access.permissions() is None:
            raise HardError(ReplyCode.NOT_ALLOWED, refused)
        info.vhost = vhost
        full = broker.enter(info)
        if full:
            raise HardError(ReplyCode.NOT_ALLOWED, full)
        info.counted = True
        client.access = access
        now = broker.now()
        client.stage = AmqpStage.RUNNING
        client.deadline = 0.0
        client.heard = now
        if info.heartbeat:
            client.heartbeat_at = now + info.heartbeat / 2
        client.reschedule()
        client.send(ConnectionOpenOk())
        broker.count_opened(info)


def _check_agreed(name: str, wanted: int, ours: int, least: int) -> None:
    """Raise HardError 530 for a limit higher than ours (0: unlimited), or too low to work with."""
    if ours and (wanted == 0 or wanted > ours):
        told = f"{wanted} (no limit)" if wanted == 0 else str(wanted)
        text = f"negotiated {name} = {told} is higher than the maximum allowed value ({ours})"
        raise HardError(ReplyCode.NOT_ALLOWED, text)
    if wanted and wanted < least:
        text = f"negotiated {name} = {wanted} is lower than the minimum allowed value ({least})"
        raise HardError(ReplyCode.NOT_ALLOWED, text)
