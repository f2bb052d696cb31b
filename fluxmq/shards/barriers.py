"""Barriers: everything that was sent to this shard before one has arrived once it is passed.

A barrier is a number that each peer returns, behind the messages that it has sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

PassedCallback = Callable[[bool], None]
"""Called with whether all peers have returned the number."""


class Barriers:
    """The barriers of one kind of links that are not passed yet."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[set[int], PassedCallback]] = {}

    def begin(self, peers: Iterable[int], done: PassedCallback) -> int:
        """Return the number to send to the peers."""
        number = next(self._numbers)
        outstanding = set(peers)
        if outstanding:
            self._open[number] = outstanding, done
        else:
            done(True)
        return number

    def returned(self, peer: int, number: int, passed: bool = True) -> None:
        """Note that a peer has returned a number; ``passed``: the barriers that it began for it are
        passed as well."""
        if number not in self._open:
            return
        outstanding, done = self._open[number]
        outstanding.discard(peer)
        if not passed or not outstanding:
            del self._open[number]
            done(passed)

    def lost(self, peer: int) -> None:
        """Fail all that wait for a peer: what it had sent may not have arrived."""
        for number in [number for number, (peers, _) in self._open.items() if peer in peers]:
            self.returned(peer, number, False)
