"""Messages by which control processes of different nodes ask each other, through their shards.

::

    control -> shard        of_node: a question for another node
    shard -> control        the question itself, on behalf of another node
    fluxmqctl -> control    describe_node, settings, listening
    control -> acceptor     listening

Control processes have no connections to each other for this: any shard of one node passes the
question to one of the other, which has its own control process answer. Pure, like `messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from fluxmq.ipc.column_messages import RATE_COLUMN
from fluxmq.ipc.door_messages import BANS_WANTED
from fluxmq.ipc.messages import MessageBody, Name, Natural, Text, Word
from fluxmq.ipc.row_messages import CLOSE_CONNECTIONS, CLOSE_SESSION, LIST
from fluxmq.ipc.traffic_messages import NODE_RATES

OF_NODE: Final = "of_node"
DESCRIBE_NODE: Final = "describe_node"
SETTINGS: Final = "settings"
LISTENING: Final = "listening"

HTTP_PATH: Final = "/api/fluxmq/v1/control"
"""Path of the management interface under which requests to the control process are sent."""
MEDIA_TYPE: Final = "application/vnd.msgpack"
"""Type of a request's and an answer's body there: a frame's value, `[version, kind, id, body]`."""

REVISION_WANTED: Final = "revision_wanted"
NODE_ROW: Final = "node_row"

ADMIT_MEMBER: Final = "admit_member"
NODE_LEFT: Final = "node_left"

QUESTIONS: Final = frozenset(
    {
        *(LIST, CLOSE_CONNECTIONS, CLOSE_SESSION, REVISION_WANTED, ADMIT_MEMBER, NODE_RATES),
        *(BANS_WANTED, NODE_ROW, NODE_LEFT, RATE_COLUMN),
    }
)
"""Kinds of questions that a control process answers for another node."""

NODES_MAX: Final = 1024


class NodeQuestion(MessageBody, frozen=True):
    """A question for a node. Its answer is that node's, or a failure."""

    node: Name
    kind: Word
    body: Mapping[str, Any]


class RevisionWanted(MessageBody, frozen=True):
    """Question whether a node's shards work by a revision of ``what``, answered when they do or a
    while after; the answer is a `fluxmq.ipc.user_messages.Confirmed` with the revision that they
    have."""

    what: Word
    revision: Natural


class NodeRow(MessageBody, frozen=True):
    """A node as the management interface shows it: the answer to ``node_row``."""

    row: Mapping[str, Any]


class AdmitMember(MessageBody, frozen=True):
    """Request of a node whose member of etcd has lost its directory, or never had one: remove the
    member that it had, and admit one again at the same address."""

    node: Name


class NodeLeft(MessageBody, frozen=True):
    """Request of a node that has left all groups: remove its member of etcd, and its records."""

    node: Name


class ListenerRow(MessageBody, frozen=True):
    """A listening address: the path of its setting, such as ``server.amqp.tcp``, host (empty for every
    interface) and port."""

    path: Word
    host: Text
    port: Natural


class NodeDescription(MessageBody, frozen=True):
    """A node: its name, its cluster's nodes and those of them in contact (itself included), its
    listeners, why it is not ready (empty when it is), and where its data is. ``compatible_version``: the
    version that it reports to tools written for RabbitMQ. Disk space is in bytes."""

    name: Name
    version: Word
    compatible_version: Word
    pid: Natural
    data_dir: Text
    nodes: Annotated[tuple[Name, ...], Meta(max_length=NODES_MAX)]
    running: Annotated[tuple[Name, ...], Meta(max_length=NODES_MAX)]
    listeners: Annotated[tuple[ListenerRow, ...], Meta(max_length=64)]
    problems: Annotated[tuple[Text, ...], Meta(max_length=1024)]
    alarms: Annotated[tuple[Word, ...], Meta(max_length=16)]
    clustered: bool
    vhosts: Natural
    queues: Natural
    disk_free: Natural
    disk_free_limit: Natural


class SettingsText(MessageBody, frozen=True):
    """The settings in force as YAML, secrets hidden."""

    text: str


class Listening(MessageBody, frozen=True):
    """Command to accept client connections, or to refuse them from now on; those that are open stay.
    Lasts until the next one, or until the acceptor starts anew."""

    accept: bool
