"""Messages by which control processes of different nodes ask each other, through their shards.

::

    control -> shard     of_node: a question for another node
    shard -> control     the question itself, on behalf of another node

Control processes have no connections to each other for this: any shard of one node passes the
question to one of the other, which has its own control process answer. Pure, like `messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fluxmq.ipc.messages import MessageBody, Name, Natural, Word
from fluxmq.ipc.row_messages import CLOSE_CONNECTIONS, CLOSE_SESSION, LIST

OF_NODE: Final = "of_node"

REVISION_WANTED: Final = "revision_wanted"

ADMIT_MEMBER: Final = "admit_member"

QUESTIONS: Final = frozenset(
    {LIST, CLOSE_CONNECTIONS, CLOSE_SESSION, REVISION_WANTED, ADMIT_MEMBER}
)
"""Kinds of questions that a control process answers for another node."""


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


class AdmitMember(MessageBody, frozen=True):
    """Request of a node whose member of etcd has lost its directory, or never had one: remove the
    member that it had, and admit one again at the same address."""

    node: Name
