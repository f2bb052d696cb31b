"""The handshake, from the protocol header to open.

SASL is required: its header, the mechanisms, init, outcome; then the header of AMQP, and open from
both sides. No offered mechanism has a challenge. Before open, protocol violations end the connection
without an answer: the peer may be anything. A client that begins with AMQP's or TLS's header is
answered with SASL's, which is what the server requires, and the connection closes.

ANONYMOUS is offered if the settings name a user for it: permissions on exchanges and queues belong to
users. What a client says with it is not looked at.

Source: OASIS AMQP 1.0 part 2, sections 2.2 (version negotiation) and 2.7.1 (open); part 5, section
5.3 (SASL).
"""

from __future__ import annotations

from typing import Final

from fluxmq import __version__
from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.protocols.amqp091 import sasl
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.conditions import ConnectionConditionError
from fluxmq.protocols.amqp10.frames import (
    AMQP_HEADER,
    FRAME_BYTES_MIN,
    FRAME_SASL,
    SASL_HEADER,
    frame,
)
from fluxmq.protocols.amqp10.performatives import (
    UINT_MAX,
    OpenFrame,
    SaslInitFrame,
    SaslMechanismsFrame,
    SaslOutcomeFrame,
    names,
)
from fluxmq.protocols.amqp10.types import Symbol, symbols
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp10.client import Amqp10Client, Amqp10Stage
from fluxmq.sessions.amqp10.subscriptions import CONTAINER_ID

FIRST_FRAME_MAX: Final = 16 << 10
"""Largest frame before open: passwords are short, tokens in their place a few thousand bytes."""
VHOST_PREFIX: Final = "vhost:"
"""Prefix of open's hostname that names a virtual host; other names mean the default one."""
CAPABILITIES: Final = ("LINK_PAIR_V1_0", "ANONYMOUS-RELAY", "SHARED-SUBS")
"""Capabilities offered: pairs of links, targets without address, subscriptions of several links."""
SASL_OK: Final = 0
SASL_AUTH: Final = 1
SASL_SYS_TEMP: Final = 4
"""Outcomes of SASL (5.3.3.6): accepted, refused, cannot be checked now."""
PROPERTIES_MAX: Final = 64
"""Properties of a client that are kept for listings."""


class Amqp10Handshake:
    """Takes a client from stage to stage."""

    def __init__(self, client: Amqp10Client) -> None:
        self.client = client
        self.info = client.info
        self.broker = client.broker
        self.limits = client.broker.limits

    def header(self, header: bytes) -> None:
        """Handle a protocol header."""
        client = self.client
        if client.stage is Amqp10Stage.HEADER and header == SASL_HEADER:
            client.stage = Amqp10Stage.SASL_INIT
            client.connection.frame_max = FIRST_FRAME_MAX
            if not client.deadline:  # otherwise it counts from accept
                client.deadline = self.broker.now() + self.limits.handshake_timeout
            client.reschedule()
            offered = [sasl.PLAIN]
            if self.info.certificate_name:
                offered.append(sasl.EXTERNAL)
            if self.limits.anonymous_user:
                offered.append(sasl.ANONYMOUS)
            client.connection.append(SASL_HEADER)
            self._sasl(SaslMechanismsFrame(symbols(*offered)))
        elif client.stage is Amqp10Stage.AMQP_HEADER and header == AMQP_HEADER:
            client.stage = Amqp10Stage.OPEN
            client.connection.append(AMQP_HEADER)
        else:
            required = client.stage is Amqp10Stage.HEADER
            client.connection.append(SASL_HEADER if required else AMQP_HEADER)
            client.end("protocol_header", linger=True)

    def _sasl(self, body: object) -> None:
        self.client.connection.append(frame(0, body, kind=FRAME_SASL))

    def on_sasl(self, body: object) -> None:
        """Handle a SASL frame. Raises ConnectionConditionError out of order."""
        client, info = self.client, self.info
        if client.stage is not Amqp10Stage.SASL_INIT or not isinstance(body, SaslInitFrame):
            raise ConnectionConditionError(conditions.ILLEGAL_STATE, "a SASL frame out of order")
        info.mechanism = str(body.mechanism)
        known = info.mechanism == sasl.PLAIN
        known = known or (info.mechanism == sasl.EXTERNAL and bool(info.certificate_name))
        anonymous = info.mechanism == sasl.ANONYMOUS and bool(self.limits.anonymous_user)
        try:
            if anonymous:
                credentials = sasl.Credentials("", self.limits.anonymous_user, b"")
            elif known:
                credentials = sasl.parse(info.mechanism, body.initial_response or b"")
            else:
                raise sasl.refused(info.mechanism)
        except HardError as error:
            self._refuse(error, SASL_AUTH, "authentication")
            return
        user = credentials.user or credentials.authorization_id
        client.stage = Amqp10Stage.AUTHENTICATING

        def done(result: AuthResult) -> None:
            if client.stage is Amqp10Stage.AUTHENTICATING:
                self._authenticated(result)
                client.resume()

        client.pause()
        self.broker.authenticate(info, info.mechanism, user, credentials.password, done)

    def _authenticated(self, result: AuthResult) -> None:
        """Await open once the credentials are verified, or refuse them."""
        client, info = self.client, self.info
        if result.outcome is LoginOutcome.ACCEPTED:
            info.user = result.username
            client.access = Access(self.broker, info.user, "", result.login)
            client.stage = Amqp10Stage.AMQP_HEADER
            client.connection.version = 0
            self._sasl(SaslOutcomeFrame(SASL_OK))
        elif result.outcome in (LoginOutcome.UNAVAILABLE, LoginOutcome.BUSY):
            self._refuse(sasl.refused(info.mechanism), SASL_SYS_TEMP, "busy")
        else:
            self._refuse(sasl.refused(info.mechanism), SASL_AUTH, "authentication")

    def _refuse(self, error: HardError, code: int, reason: str) -> None:
        """Refuse credentials that are invalid, or cannot be checked."""
        self.broker.count_error(self.info, error.code, error.text)
        self._sasl(SaslOutcomeFrame(code))
        self.client.end(reason, linger=True)

    def on_open(self, wanted: OpenFrame) -> None:
        """Enter a vhost, and answer. Raises ConnectionConditionError if it is missing, forbidden or
        full, when memory is low, or for limits too small to work with."""
        client, info, broker, limits = self.client, self.info, self.broker, self.limits
        self._send_open()
        if wanted.max_frame_size < FRAME_BYTES_MIN:
            text = f"max-frame-size = {wanted.max_frame_size}, the minimum is {FRAME_BYTES_MIN}"
            raise ConnectionConditionError(conditions.INVALID_FIELD, text)
        self._enter(_vhost_in(wanted.hostname))
        client.frame_max = min(wanted.max_frame_size, UINT_MAX)
        client.connection.frame_max = limits.frame_max
        info.channel_max = min(wanted.channel_max, limits.channel_max)
        info.heartbeat = limits.heartbeat
        info.capabilities = frozenset(names(wanted.desired_capabilities)[:PROPERTIES_MAX])
        info.properties = {
            str(name): _plain(value)
            for name, value in list((wanted.properties or {}).items())[:PROPERTIES_MAX]
        } | {CONTAINER_ID: wanted.container_id}
        now = broker.now()
        client.stage = Amqp10Stage.RUNNING
        client.deadline = 0.0
        client.heard = now
        if wanted.idle_time_out:
            client.empty_frames.begin(max(wanted.idle_time_out / 2000, 0.1), now)
        client.reschedule()
        broker.count_opened(info)

    def _send_open(self) -> None:
        """Send our open; errors follow it, as a close must."""
        limits = self.limits
        self.client.send(
            0,
            OpenFrame(
                limits.node_name,
                None,
                limits.frame_max,
                limits.channel_max,
                limits.heartbeat * 1000 or None,
                offered_capabilities=symbols(*CAPABILITIES),
                properties={
                    Symbol("product"): limits.product,
                    Symbol("version"): limits.product_version_1_0,
                    Symbol("platform"): "Python",
                    Symbol("node"): limits.node_name,
                    Symbol("fluxmq_version"): __version__,
                },
            ),
        )

    def _enter(self, vhost: str) -> None:
        """Enter a vhost. Raises ConnectionConditionError."""
        client, info, broker = self.client, self.info, self.broker
        if broker.short_of_memory:
            broker.refused_for_memory("connection")
            text = "the node is low on memory"
            raise ConnectionConditionError(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        if broker.topology.vhost(vhost) is None:
            raise ConnectionConditionError(conditions.NOT_FOUND, f"vhost {vhost} not found")
        access = Access(broker, info.user, vhost, client.access.login)
        if access.permissions() is None:
            refused = f"access to vhost '{vhost}' refused for user '{info.user}'"
            raise ConnectionConditionError(conditions.UNAUTHORIZED_ACCESS, refused)
        info.vhost = vhost
        full = broker.enter(info)
        if full:
            raise ConnectionConditionError(conditions.RESOURCE_LIMIT_EXCEEDED, full)
        info.counted = True
        client.access = access


def _plain(value: object) -> object:
    """Return a client's property as listings show it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return str(value)


def _vhost_in(hostname: str | None) -> str:
    """Return the vhost that open's hostname means."""
    if hostname is not None and hostname.startswith(VHOST_PREFIX):
        return hostname[len(VHOST_PREFIX) :]
    return DEFAULT_VHOST
