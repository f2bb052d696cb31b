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

from fluxmq.ipc.messages import MessageBody, Name, Word
from fluxmq.ipc.row_messages import CLOSE_CONNECTIONS, CLOSE_SESSION, LIST
from fluxmq.ipc.traffic_messages import NODE_RATES

OF_NODE: Final = "of_node"

QUESTIONS: Final = frozenset({LIST, CLOSE_CONNECTIONS, CLOSE_SESSION, NODE_RATES})
"""Kinds of questions that a control process answers for another node."""


class NodeQuestion(MessageBody, frozen=True):
    """A question for a node. Its answer is that node's, or a failure."""

    node: Name
    kind: Word
    body: Mapping[str, Any]
