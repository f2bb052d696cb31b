"""Messages about the firehose: which virtual hosts of a node are traced. Pure, like `messages`.

::

    fluxmqctl -> control   trace: trace a virtual host, or no longer; without a name, only ask
    control -> shard       traced: all that are traced
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.ipc.messages import MessageBody, Name

TRACE: Final = "trace"
TRACED: Final = "traced"
TRACED_MAX: Final = 1024
"""Virtual hosts of a node that are traced at once."""


class TraceRequest(MessageBody, frozen=True):
    """Request to trace a virtual host, or to stop; an empty name changes nothing."""

    vhost: Name = ""
    on: bool = True


class TracedVhosts(MessageBody, frozen=True):
    """The virtual hosts that are traced: the answer to a request, and what a shard is told."""

    vhosts: Annotated[tuple[Name, ...], Meta(max_length=TRACED_MAX)] = ()
