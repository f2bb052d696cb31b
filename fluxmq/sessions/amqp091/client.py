"""The state of one AMQP 0.9.1 connection. Lives in one shard and is accessed only there."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fluxmq.protocols.connection import Connection
from fluxmq.sessions.amqp091.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fluxmq.sessions.amqp091.channel import Channel


class Stage(Enum):
    """Progress of a connection: the awaited method, or open, closing, closed."""

    HEADER = 0
    START_OK = 1
    SECURE_OK = 2
    AUTHENTICATING = 3
    TUNE_OK = 4
    OPEN = 5
    RUNNING = 6
    CLOSING = 7
    CLOSED = 8


class Client:
    """One connection. ``peer`` and ``local``: "address:port". ``owner``: globally unique id of the
    connection, which its exclusive queues carry.

    ``certificate_name``: of a verified client certificate, else empty. ``properties`` and
    ``capabilities``: from connection.start-ok. ``heartbeat``: seconds, 0 for none. ``exclusive``:
    it has declared exclusive queues. ``entered``: counted into its vhost. ``blocked``: it was told
    not to publish. ``held``: channels for which reading is stopped. ``budget``: for its channels'
    incomplete messages and uncommitted transactions; ``backlog_bytes``: in their backlogs. Times
    are monotonic seconds: ``deadline`` of the handshake or of the answer to connection.close,
    ``heartbeat_at`` of the next heartbeat, ``heard``: earliest start of the present silence.
    ``connected_at``: milliseconds since the epoch.
    """

    __slots__ = (
        "backlog_bytes",
        "blocked",
        "budget",
        "capabilities",
        "certificate_name",
        "channel_max",
        "channels",
        "connected_at",
        "connection",
        "deadline",
        "entered",
        "exclusive",
        "frame_max",
        "heard",
        "heartbeat",
        "heartbeat_at",
        "held",
        "listener",
        "local",
        "mechanism",
        "name",
        "owner",
        "peer",
        "properties",
        "stage",
        "user",
        "vhost",
    )

    def __init__(
        self, connection: Connection, peer: str, local: str, listener: int, owner: str
    ) -> None:
        self.connection = connection
        self.peer = peer
        self.local = local
        self.listener = listener
        self.owner = owner
        self.name = f"{peer} -> {local}"
        self.stage = Stage.HEADER
        self.certificate_name = ""
        self.mechanism = ""
        self.user = ""
        self.vhost = ""
        self.properties: Mapping[str, object] = {}
        self.capabilities: frozenset[str] = frozenset()
        self.channel_max = 0
        self.frame_max = 0
        self.connected_at = 0
        self.heartbeat = 0
        self.heartbeat_at = 0.0
        self.deadline = 0.0
        self.heard = 0.0
        self.channels: dict[int, Channel] = {}
        self.exclusive = False
        self.entered = False
        self.blocked = False
        self.budget = Budget()
        self.backlog_bytes = 0
        self.held = 0
