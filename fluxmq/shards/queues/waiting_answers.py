"""When who asked a group is told what came of it: what its queues want beyond that an entry is committed and applied, or
short of that.

``min_in_sync_replicas`` above the majority holds an answer back until so many members have the entry on disk.
``mode: async`` answers an append as soon as this node has it there. That is a promise made before it is known what the
append comes to, so a queue that may refuse one (by its length or depth) is answered after commit all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fluxmq.queues.config import Overflow, QueueConfig
from fluxmq.queues.results import Result
from fluxmq.shards.queues.answers import Done


class Wish(NamedTuple):
    """What an answer waits for. ``early``: only until this node has the entry on disk; ``members``: besides the commit,
    that so many have it there, 0 for no more than commits it."""

    early: bool = False
    members: int = 0


class Append:
    """The answer to an append of a queue with a wish of its own."""

    __slots__ = ("done", "wish")

    def __init__(self, done: Done, wish: Wish) -> None:
        self.done = done
        self.wish = wish

    def __call__(self, result: Result) -> None:
        """Tell what came of it."""
        self.done(result)


class WaitingAnswers:
    """Answers of one group that wait for more than its commit. ``in_sync`` says up to which entry so many members hold the log."""

    def __init__(self) -> None:
        self.in_sync: Callable[[int], int] = lambda _members: 0
        self.early = False
        """Whether any queue wants answers early."""
        self.held = False
        """Whether any answer waits for more members than the commit."""
        self._default = Wish()
        self._queues: dict[str, Wish] = {}
        self._waiting: dict[int, deque[tuple[int, Done, Result]]] = {}
        """By how many members must hold it: entry, who is told, what."""

    def configure(self, default: Wish, queues: Mapping[str, Wish]) -> None:
        """What the group wants, and queues that want something else."""
        self._default = default
        self._queues = dict(queues)
        wishes = (default, *queues.values())
        self.early = any(wish.early for wish in wishes)
        self.held = any(wish.members for wish in wishes)

    def marked(self, config: QueueConfig, done: Done | None) -> Done | None:
        """An append's answer, as its queue wants it."""
        if done is None or not (self.early or self.held):
            return done
        wish = self._queues.get(config.name, self._default)
        if wish.early and (config.overflow != Overflow.DROP_HEAD or config.max_depth):
            wish = wish._replace(early=False)
        return Append(done, wish)

    def answer(self, index: int, done: Done, result: Result) -> None:
        """An entry is applied: tell, or wait for members."""
        members = done.wish.members if isinstance(done, Append) else self._default.members
        if not members or index <= self.in_sync(members):
            done(result)
        else:
            self._waiting.setdefault(members, deque()).append((index, done, result))

    def advance(self) -> None:
        """Members have more of the log than before."""
        for members, waiting in self._waiting.items():
            if waiting:
                index = self.in_sync(members)
                while waiting and waiting[0][0] <= index:
                    _, done, result = waiting.popleft()
                    done(result)

    def end(self, result: Result) -> None:
        """Nobody can say any more when members have what waits."""
        waiting, self._waiting = self._waiting, {}
        for answers in waiting.values():
            for _, done, _ in answers:
                done(result)


def is_early(done: Done | None) -> bool:
    """Whether who appended is answered when this node has it on disk."""
    return isinstance(done, Append) and done.wish.early
