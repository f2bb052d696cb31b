"""Progress of the other nodes: the revision that all live shards of each have applied.

Each node reports its own progress. The author of a change waits for the others', so that clients
may use it on any node as soon as they are answered. A slow node is waited for once, and then not
again until it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fluxmq.control.meta.frames import RevisionProgress, encode


class RemoteRevisions:
    """Progress in one thing (``what``: `frames.PROGRESSES`), as one node sees it. ``names`` are
    those of the other nodes; ``send`` sends a frame to one of them."""

    def __init__(
        self, what: str, names: Mapping[int, str], send: Callable[[int, bytes], bool]
    ) -> None:
        self.news: Callable[[], None] = lambda: None
        """Called when a node has advanced, or is no longer waited for."""
        self._what = what
        self._names = names
        self._send = send
        self._own = -1
        self._held: dict[int, int] = {}
        """Revision reported by each node with a stream."""
        self._late: dict[int, int] = {}
        """Nodes that did not reach a revision in time, and that revision."""

    def reached(self, live: Iterable[str], held: Mapping[str, int], revision: int) -> None:
        """Report this node's progress. ``held``: revision of each connected shard; ``live``: those
        that count; ``revision``: the one in force."""
        least = min((held.get(name, -1) for name in live), default=revision)
        if least not in (-1, self._own):
            self._own = least
            for number in self._names:
                self.met(number)

    def met(self, number: int) -> None:
        """Send this node's progress over a new stream."""
        if self._own >= 0:
            self._send(number, encode(RevisionProgress(self._what, self._own)))

    def parted(self, number: int) -> None:
        """Note the end of the stream to a node."""
        self._late.pop(number, None)
        if self._held.pop(number, None) is not None:
            self.news()

    def heard(self, number: int, revision: int) -> None:
        """Take a node's report of its revision."""
        self._held[number] = revision
        if revision >= self._late.get(number, revision):
            self._late.pop(number, None)
        self.news()

    def lagging(self, revision: int) -> tuple[str, ...]:
        """Return the nodes still to wait for until they reach this revision."""
        return tuple(
            sorted(
                self._names[number]
                for number, held in self._held.items()
                if held < revision and number not in self._late
            )
        )

    def give_up(self, revision: int) -> None:
        """Stop waiting for these nodes, now and next time."""
        for number, held in self._held.items():
            if held < revision:
                self._late[number] = max(revision, self._late.get(number, revision))
