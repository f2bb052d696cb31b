"""Messages between the homes of a client id on two nodes.

Not every two shards of two nodes have a stream. A home sends over one of its own; the shard that
receives the message passes it on to the id's home on its node.

Control frames between nodes: ``session`` [client id, name, arguments]; between the shards of a node:
``session relayed`` [node, client id, name, arguments].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxmq.net.links import Link
from fluxmq.shards.node_paths import PublishLink

HomeHandler = Callable[..., None]
"""Called with the node that has sent a message, the client id and the arguments."""


class HomeRelay:
    """Sends and receives such messages. ``home`` returns the home of a client id on this node."""

    def __init__(self, shard: int, links: dict[int, Link]) -> None:
        self._shard = shard
        self._links = links
        self.home: Callable[[str], int] = lambda _client_id: shard
        self.receivers: dict[str, HomeHandler] = {}
        """Handlers of messages by name. Others are ignored."""
        self._streams: dict[int, PublishLink] = {}

    def send(self, node: str, client_id: str, name: str, *arguments: Any) -> bool:
        """Send a message; return False if there is no stream to the node."""
        for link in self._streams.values():
            if link.node == node and link.up:
                link.send_control("session", client_id, name, list(arguments))
                return True
        return False

    def came(self, link: PublishLink) -> None:
        """Note a stream to another node."""
        self._streams[link.peer] = link

    def gone(self, link: PublishLink) -> None:
        """Forget a stream that has ended."""
        self._streams.pop(link.peer, None)

    def housekeeping(self) -> None:
        """Do nothing."""

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames of other nodes by name."""
        return {"session": self._on_stream}

    def frame_handlers(self) -> dict[int, Callable[[PublishLink, bytes], None]]:
        """Return nothing: control frames are enough."""
        return {}

    def link_handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames of other shards by name."""
        return {"session relayed": self._on_link}

    def _on_stream(
        self, link: PublishLink, client_id: str, name: str, arguments: list[Any]
    ) -> None:
        home = self.home(client_id)
        if home == self._shard:
            self._receive(link.node, client_id, name, arguments)
        elif self._links[home].up:
            self._links[home].send_control("session relayed", link.node, client_id, name, arguments)

    def _on_link(
        self, _link: Link, node: str, client_id: str, name: str, arguments: list[Any]
    ) -> None:
        self._receive(node, client_id, name, arguments)

    def _receive(self, node: str, client_id: str, name: str, arguments: list[Any]) -> None:
        receiver = self.receivers.get(name)
        if receiver is not None:
            receiver(node, client_id, *arguments)
