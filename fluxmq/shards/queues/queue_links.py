"""What queues say over the links to other shards, both ways: as a host to clients there, as clients to hosts there."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.net import frames
from fluxmq.net.links import FrameLink
from fluxmq.shards.queues.hosting import Hosting
from fluxmq.shards.queues.remote import RemoteHosts


class QueueLinks:
    """Joins ``Hosting`` and ``RemoteHosts`` to the links."""

    def __init__(self, hosting: Hosting, remote: RemoteHosts) -> None:
        self._hosting = hosting
        self._remote = remote
        self.more: dict[str, Callable[..., None]] = {}
        """Who takes further control frames."""
        self.came: Callable[[FrameLink], None] = lambda _link: None
        """Called with a shard that has come and was told which queues are here."""
        self.went: Callable[[int], None] = lambda _peer: None
        """Called with a shard that has died, before what it had is given up."""

    def add(self, peer: int, link: FrameLink) -> None:
        """There is another shard, of another node."""
        self._hosting.add(peer, link)
        self._remote.add(peer, link)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Who takes which control frame."""
        return {**self._hosting.handlers(), **self._remote.handlers(), **self.more}

    def received(self, link: FrameLink, frame: bytes) -> None:
        """A frame that is no control frame has come."""
        if frame[0] in (frames.APPEND, frames.APPEND_BY_ADDRESS):
            self._hosting.append(link, frame)
        elif frame[0] == frames.DELIVER:
            self._remote.deliver(link, frame)
        elif frame[0] == frames.REFER:
            self._remote.refer(link, frame)
        else:
            raise AssertionError(f"unknown frame kind {frame[0]}")

    def tell_everything(self, link: FrameLink) -> None:
        """A shard has come: it learns which queues are here."""
        self._hosting.tell_everything(link)
        self.came(link)

    def lose(self, peer: int) -> None:
        """A shard has died."""
        self.went(peer)
        self._hosting.lose(peer)
        self._remote.lose(peer)
