"""Announcements that are numbered, and callers that wait until all who heard one have confirmed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fluxmq.shards.barriers import Barriers


@dataclass(slots=True)
class _Waiting:
    """A caller, with the peers that it waits for, and the announcement that each has to confirm."""

    outstanding: dict[int, int]
    since: float
    done: Callable[[], None]


class Confirmations:
    """Confirmations of announcements by peers. A peer confirms with a number all up to it."""

    def __init__(self) -> None:
        self.sequence = 0
        """Number of the latest announcement."""
        self._told: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._waiting: list[_Waiting] = []
        self._held: list[Callable[[], None]] | None = None
        self.barriers = Barriers()

    def hold(self) -> None:
        """Make all callers of `when_known` wait until `release`."""
        self._held = []

    def release(self, now: float) -> None:
        """Make callers, earlier ones included, wait only for the peers told so far."""
        held, self._held = self._held or [], None
        for done in held:
            self.when_known(done, now)

    def announce(self, peers: Iterable[int]) -> int:
        """Number an announcement to these peers, and return the number."""
        self.sequence += 1
        self._told.update(dict.fromkeys(peers, self.sequence))
        return self.sequence

    def when_known(self, done: Callable[[], None], now: float = 0.0) -> None:
        """Call ``done`` when all peers have confirmed what they were told so far."""
        outstanding = {
            peer: told for peer, told in self._told.items() if self._known.get(peer, 0) < told
        }
        if self._held is not None:
            self._held.append(done)
        elif outstanding:
            self._waiting.append(_Waiting(outstanding, now, done))
        else:
            done()

    def has_confirmed(self, peer: int) -> bool:
        """Return whether a peer was told something and has confirmed all of it."""
        return 0 < self._told.get(peer, 0) <= self._known.get(peer, 0)

    def confirmed(self, peer: int, sequence: int) -> None:
        """Note that a peer has confirmed up to a number."""
        self._known[peer] = sequence
        self._settle(peer, sequence)

    def lost(self, peer: int) -> None:
        """Wait for a peer no longer; barriers that it has not returned fail."""
        self.barriers.lost(peer)
        self._told.pop(peer, None)
        self._known.pop(peer, None)
        self._settle(peer, None)

    def overdue(self, before: float) -> Iterator[int]:
        """Yield the peers that callers have been waiting for since then."""
        found = [each.outstanding for each in self._waiting if each.since <= before]
        yield from set[int]().union(*found)

    def _settle(self, peer: int, sequence: int | None) -> None:
        remaining: list[_Waiting] = []
        ready: list[_Waiting] = []
        for each in self._waiting:
            if sequence is None or each.outstanding.get(peer, 0) <= sequence:
                each.outstanding.pop(peer, None)
            (remaining if each.outstanding else ready).append(each)
        self._waiting = remaining
        for each in ready:
            each.done()
