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

from typing import TYPE_CHECKING, Final

from fluxmq import __version__
from fluxmq.auth.logins import Authenticated, LoginOutcome
from fluxmq.protocols.amqp091 import sasl
from fluxmq.protocols.amqp091.constants import FRAME_MIN_SIZE, ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.methods import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    frame,
)
from fluxmq.protocols.amqp091.server import LOCALES, announced, mechanisms, server_properties
from fluxmq.sessions.amqp091.client import Client, Stage

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.handler import Handler

AUTHENTICATION_FAILURE_CLOSE: Final = "authentication_failure_close"


def begin(handler: Handler, client: Client) -> None:
    """Answer the protocol header of 0-9-1 with connection.start."""
    limits = handler.broker.limits
    client.stage = Stage.START_OK
    if not client.deadline:  # otherwise it counts from accept, by the listener's own setting
        client.deadline = handler.broker.now() + limits.handshake_timeout
    handler.reschedule(client)
    properties = server_properties(
        limits.product, limits.product_version, __version__, limits.node_name
    )
    offered = mechanisms(external=bool(client.certificate_name))
    start = ConnectionStart(0, 9, properties, offered, LOCALES)
    client.connection.append(frame(0, start))


def on_method(handler: Handler, client: Client, method: Method) -> None:
    """Handle a method on channel 0 before connection.open-ok. Raises HardError."""
    stage = client.stage
    if stage is Stage.START_OK and isinstance(method, ConnectionStartOk):
        on_start_ok(handler, client, method)
    elif stage is Stage.TUNE_OK and isinstance(method, ConnectionTuneOk):
        on_tune_ok(handler, client, method)
    elif stage is Stage.OPEN and isinstance(method, ConnectionOpen):
        on_open(handler, client, method)
    elif stage is Stage.OPEN and isinstance(method, ConnectionClose):
        handler.closed_by_client(client)
    else:
        text = f"unexpected method in connection state {stage.name.lower()}"
        raise HardError(ReplyCode.CHANNEL_ERROR, text)


def on_start_ok(handler: Handler, client: Client, method: ConnectionStartOk) -> None:
    """Start checking the credentials. The connection is not read meanwhile."""
    client.properties = method.client_properties
    client.capabilities = announced(method.client_properties)
    client.mechanism = method.mechanism
    if method.mechanism == sasl.EXTERNAL and not client.certificate_name:
        text = f"unknown authentication mechanism '{method.mechanism}'"
        raise HardError(ReplyCode.COMMAND_INVALID, text)
    try:
        credentials = sasl.parse(method.mechanism, method.response)
    except HardError as error:
        if error.code is not ReplyCode.ACCESS_REFUSED:
            raise
        refuse(handler, client)
        return
    user = credentials.user or (
        credentials.authorization_id if method.mechanism == sasl.EXTERNAL else ""
    )
    client.stage = Stage.AUTHENTICATING

    def done(result: Authenticated) -> None:
        if client.stage is Stage.AUTHENTICATING:
            on_authenticated(handler, client, result)
            handler.resume(client)

    handler.pause(client)
    handler.broker.authenticate(client, method.mechanism, user, credentials.password, done)


def on_authenticated(handler: Handler, client: Client, result: Authenticated) -> None:
    """Propose limits once the credentials are verified, or refuse."""
    if result.outcome in (LoginOutcome.UNAVAILABLE, LoginOutcome.BUSY):
        postpone(handler, client)
        return
    if result.outcome is not LoginOutcome.ACCEPTED:
        refuse(handler, client)
        return
    client.user = result.username
    client.stage = Stage.TUNE_OK
    limits = handler.broker.limits
    tune = ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat)
    client.connection.append(frame(0, tune))


def refuse(handler: Handler, client: Client) -> None:
    """Refuse invalid credentials."""
    error = sasl.refused(client.mechanism)
    handler.broker.count_error(client, error.code, error.text)
    if AUTHENTICATION_FAILURE_CLOSE in client.capabilities:
        handler.send_close(client, error)
    else:
        handler.end(client, "authentication")


def postpone(handler: Handler, client: Client) -> None:
    """Refuse for now: credentials cannot be checked. Clients retry after anything but 403."""
    text = "the login cannot be checked now, try again later"
    error = HardError(ReplyCode.CONNECTION_FORCED, text)
    handler.broker.count_error(client, error.code, error.text)
    if AUTHENTICATION_FAILURE_CLOSE in client.capabilities:
        handler.send_close(client, error)
    else:
        handler.end(client, "busy")


def on_tune_ok(handler: Handler, client: Client, method: ConnectionTuneOk) -> None:
    """Take the client's limits, which may be lower than ours but not higher; any heartbeat is
    allowed."""
    limits = handler.broker.limits
    check_agreed("frame_max", method.frame_max, limits.frame_max, FRAME_MIN_SIZE)
    check_agreed("channel_max", method.channel_max, limits.channel_max, 1)
    connection = client.connection
    connection.frame_max = method.frame_max or limits.frame_max
    client.frame_max = connection.frame_max
    client.channel_max = method.channel_max
    client.heartbeat = method.heartbeat
    client.stage = Stage.OPEN


def check_agreed(name: str, wanted: int, ours: int, least: int) -> None:
    """Raise HardError 530 for a limit higher than ours (0: unlimited), or too low to work with."""
    if ours and (wanted == 0 or wanted > ours):
        told = f"{wanted} (no limit)" if wanted == 0 else str(wanted)
        text = f"negotiated {name} = {told} is higher than the maximum allowed value ({ours})"
        raise HardError(ReplyCode.NOT_ALLOWED, text)
    if wanted and wanted < least:
        text = f"negotiated {name} = {wanted} is lower than the minimum allowed value ({least})"
        raise HardError(ReplyCode.NOT_ALLOWED, text)


def on_open(handler: Handler, client: Client, method: ConnectionOpen) -> None:
    """Enter a vhost. Raises HardError 530 if it is missing, forbidden or full; 506 when memory is
    short."""
    broker = handler.broker
    vhost = method.virtual_host
    if broker.short_of_memory:
        broker.refused_for_memory("connection")
        raise HardError(ReplyCode.RESOURCE_ERROR, "the node is short of memory")
    if broker.topology.vhost(vhost) is None:
        raise HardError(ReplyCode.NOT_ALLOWED, f"vhost {vhost} not found")
    refused = f"access to vhost '{vhost}' refused for user '{client.user}'"
    if broker.permissions(client.user, vhost) is None:
        raise HardError(ReplyCode.NOT_ALLOWED, refused)
    client.vhost = vhost
    limit = broker.enter(client)
    if limit is not None:
        text = f"{refused}: connection limit ({limit}) is reached"
        raise HardError(ReplyCode.NOT_ALLOWED, text)
    client.entered = True
    now = broker.now()
    client.stage = Stage.RUNNING
    client.deadline = 0.0
    client.heard = now
    if client.heartbeat:
        client.heartbeat_at = now + client.heartbeat / 2
    handler.reschedule(client)
    client.connection.append(frame(0, ConnectionOpenOk()))
    broker.count_opened(client)
