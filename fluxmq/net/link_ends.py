"""The initial descriptors of a link between two shards of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LinkKind = Literal["ring", "socket"]


@dataclass(slots=True, frozen=True)
class LinkEnds:
    """Both directions between this shard and one peer shard.

    ``send_fd`` and ``receive_fd`` are memfds holding one ring each, or, for links of kind
    ``socket``, the two ends this shard uses of two AF_UNIX SOCK_SEQPACKET pairs.
    """

    peer: int
    send_fd: int
    receive_fd: int
