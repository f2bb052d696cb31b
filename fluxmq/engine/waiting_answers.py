"""Timing of acknowledgements: earlier (async) or later (min_in_sync_replicas) than the commit.

A queue that delivers before the sync has its entries applied before they are committed: their
answers wait as well (`AheadOfSync`). ``min_in_sync_replicas`` above the majority delays the answer
until that many members have the entry on disk. ``mode: async`` answers as soon as this node has it
there. Its result is not known then, so a queue that may reject an append (by length or depth)
answers after the commit all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from fluxmq.engine.ahead_of_sync import AheadOfSync
from fluxmq.engine.answers import ResultCallback
from fluxmq.queues.config import Overflow, QueueConfig
from fluxmq.queues.results import Result
from fluxmq.raft.commits import Wish


class Append:
    """Answer to an append, with its queue's condition."""

    __slots__ = ("done", "wish")

    def __init__(self, done: ResultCallback, wish: Wish) -> None:
        self.done = done
        self.wish = wish

    def __call__(self, result: Result) -> None:
        """Pass the result on."""
        self.done(result)


class WaitingAnswers:
    """A group's answers that wait for more than the commit. ``in_sync`` returns the last index that
    a number of members have on disk."""

    def __init__(self, ahead: AheadOfSync) -> None:
        self.ahead = ahead
        self.in_sync: Callable[[int], int] = lambda _members: 0
        self.early = False
        """True if any queue wants early answers."""
        self.held = False
        """True if any queue wants more members than the commit needs."""
        self._default = Wish()
        self._queues: dict[str, Wish] = {}
        self._waiting: dict[int, deque[tuple[int, ResultCallback, Result]]] = {}
        """Number of members required -> entry, callback and result."""

    def configure(self, default: Wish, queues: Mapping[str, Wish]) -> None:
        """Set the group's default condition and those of queues that differ."""
        self._default = default
        self._queues = dict(queues)
        wishes = (default, *queues.values())
        self.early = any(wish.early for wish in wishes)
        self.held = any(wish.members for wish in wishes)

    def marked(self, config: QueueConfig, done: ResultCallback | None) -> ResultCallback | None:
        """Return an append's answer, with its queue's condition."""
        if done is None or not (self.early or self.held):
            return done
        wish = self._queues.get(config.name, self._default)
        if wish.early and (config.overflow != Overflow.DROP_HEAD or config.max_depth):
            wish = wish._replace(early=False)
        return Append(done, wish)

    def answer(self, index: int, done: ResultCallback, result: Result) -> None:
        """Answer a command of an applied entry, or wait for members."""
        members = done.wish.members if isinstance(done, Append) else self._default.members
        if not members or index <= self.in_sync(members):
            done(result)
        else:
            self._waiting.setdefault(members, deque()).append((index, done, result))

    def advance(self) -> None:
        """Answer what more members have on disk by now."""
        for members, waiting in self._waiting.items():
            if waiting:
                index = self.in_sync(members)
                while waiting and waiting[0][0] <= index:
                    _, done, result = waiting.popleft()
                    done(result)

    def end(self, result: Result) -> None:
        """End all waiting answers with ``result``: the members' progress is no longer known
        here."""
        waiting, self._waiting = self._waiting, {}
        for answers in waiting.values():
            for _, done, _ in answers:
                done(result)


def is_early(done: ResultCallback | None) -> bool:
    """Return whether an append is answered once this node has it on disk."""
    return isinstance(done, Append) and done.wish.early
