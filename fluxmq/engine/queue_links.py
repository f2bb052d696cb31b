"""Queues' traffic over links to other shards: as the server of their clients, and as a client of
their groups."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.group_server import GroupServer
from fluxmq.engine.remote_shards import RemoteShards
from fluxmq.net import frames
from fluxmq.net.links import FrameLink
from fluxmq.replication.nodes import Nodes


class QueueLinks:
    """Connects ``GroupServer`` and ``RemoteShards`` to the links, and replicated groups, if
    any."""

    def __init__(self, hosting: GroupServer, remote: RemoteShards, nodes: Nodes) -> None:
        self._hosting = hosting
        self._remote = remote
        self._nodes = nodes

    def add(self, peer: int, link: FrameLink) -> None:
        """Add a shard of another node."""
        self._hosting.add(peer, link)
        self._remote.add(peer, link)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames."""
        return {**self._hosting.handlers(), **self._remote.handlers(), **self._nodes.handlers()}

    def received(self, link: FrameLink, frame: bytes) -> None:
        """Handle a frame that is not a control frame."""
        if frame[0] in (frames.APPEND, frames.APPEND_BY_ADDRESS):
            self._hosting.append(link, frame)
        elif frame[0] == frames.DELIVER:
            self._remote.deliver(link, frame)
        elif frame[0] == frames.REFER:
            self._remote.refer(link, frame)
        else:
            raise AssertionError(f"unknown frame kind {frame[0]}")

    def tell_everything(self, link: FrameLink) -> None:
        """Announce this shard's queues to one that has connected."""
        self._hosting.tell_everything(link)
        self._nodes.came(link)

    def lose(self, peer: int) -> None:
        """Handle the loss of a shard."""
        self._nodes.went(peer)
        self._hosting.lose(peer)
        self._remote.lose(peer)
