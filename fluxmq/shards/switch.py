"""The links to the node's other shards, and the handlers of their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fluxmq.net import frames
from fluxmq.net.links import Connect, Link

FrameHandler = Callable[[Link, bytes], None]


class Switch:
    """Hands frames to the parts of the shard that have registered for their kind.

    Exists before those parts, which need the links. Nothing arrives before the first tick.
    """

    def __init__(self, connect: Connect) -> None:
        self._control: dict[str, Callable[..., None]] = {}
        self._frames: dict[int, FrameHandler] = {}
        self._full: list[Callable[[Link], None]] = []
        self.links = connect(self._received, self._blocked)

    def on_control(self, handlers: Mapping[str, Callable[..., None]]) -> None:
        """Register handlers of control frames by name; they get the link and the arguments."""
        self._control.update(handlers)

    def on_frame(self, handler: FrameHandler, *kinds: int) -> None:
        """Register the handler of the other frames of these kinds."""
        self._frames.update(dict.fromkeys(kinds, handler))

    def on_full(self, handler: Callable[[Link], None]) -> None:
        """Register a handler that is called with a link that takes no more for now."""
        self._full.append(handler)

    def _received(self, link: Link, frame: bytes) -> None:
        if frame[0] == frames.CONTROL:
            name, *arguments = frames.decode_control(frame)
            if link.up or name in ("hello", "welcome"):
                self._control[str(name)](link, *arguments)
        elif link.up:  # otherwise it is meant for this shard's former life
            self._frames[frame[0]](link, frame)

    def _blocked(self, link: Link) -> None:
        for handler in self._full:
            handler(link)
