"""How far the other nodes of a cluster are with something: which revision of it all of a node's live shards work by.

Each node tells the others its own. Who has made a change waits for theirs, so that clients may use it on any node as soon as
they are answered; a node that is slow is waited for once, and then no more until it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fluxmq.control.meta.frames import Progress, encode


class Elsewhere:
    """One thing (``what``: `frames.PROGRESSES`), from the side of one node. ``names`` are those of the other nodes; ``send``
    sends a frame to one of them."""

    def __init__(
        self, what: str, names: Mapping[int, str], send: Callable[[int, bytes], bool]
    ) -> None:
        self.news: Callable[[], None] = lambda: None
        """Called when a node has come further, or is not to be waited for any more."""
        self._what = what
        self._names = names
        self._send = send
        self._own = -1
        self._held: dict[int, int] = {}
        """What each node has said, as long as there is a stream to it."""
        self._late: dict[int, int] = {}
        """Nodes that were waited for in vain, and how far they were to come."""

    def reached(self, live: Iterable[str], held: Mapping[str, int], revision: int) -> None:
        """``held``: by which revision each connected shard works, of which ``live`` are to. ``revision`` is the one in force."""
        least = min((held.get(name, -1) for name in live), default=revision)
        if least not in (-1, self._own):
            self._own = least
            for number in self._names:
                self.met(number)

    def met(self, number: int) -> None:
        """There is a stream to a node."""
        if self._own >= 0:
            self._send(number, encode(Progress(self._what, self._own)))

    def parted(self, number: int) -> None:
        """There is none any more."""
        self._late.pop(number, None)
        if self._held.pop(number, None) is not None:
            self.news()

    def heard(self, number: int, revision: int) -> None:
        """A node has come so far."""
        self._held[number] = revision
        if revision >= self._late.get(number, revision):
            self._late.pop(number, None)
        self.news()

    def lagging(self, revision: int) -> tuple[str, ...]:
        """The nodes that are worth waiting for until they have come so far."""
        return tuple(
            sorted(
                self._names[number]
                for number, held in self._held.items()
                if held < revision and number not in self._late
            )
        )

    def give_up(self, revision: int) -> None:
        """Wait for none of these any longer, now and the next time."""
        for number, held in self._held.items():
            if held < revision:
                self._late[number] = max(revision, self._late.get(number, revision))
