"""A group's commands that are not proposed yet, in the order in which entries will hold them.

Commands with an answer (appends and others) go into the next entry. Claims and settlements without
an answer wait a little and let appends pass: an entry with them costs twice as much as the append
alone, and a crash that loses them only causes redeliveries. With nothing else to propose they wait
longer, to share an append's entry: an append that arrived during their write would wait for their
sync, then for its own. They keep their order, except that a claim of new messages is merged into
the group's last claim, and a settlement into the consumer's last one, where it continues that. A
claim may thus precede settlements that were requested earlier, but never those of its own messages,
since settlements follow all claims requested before them.

An append ignores the waiting commands unless its queue is bounded: then, and before any other
command with an answer, they are put in their place first (`close`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from fluxmq.engine.answers import ResultCallback
from fluxmq.queues import claim_merge

LINGER_US = 3_000
"""Time for which commands without an answer (claims, settlements) let appends pass: joining every
append would double its work. A crash that loses them causes redeliveries."""
ALONE_US = 20_000
"""Time for which they wait for an append: alone they cost a write and a sync on every member."""

Item = tuple[Sequence[bytes], int, ResultCallback | None, int]
"""A command in pieces, its size, its answer's callback, and its weight: bytes that count as
uncommitted."""


class ProposalBuffer:
    """A group's commands that wait to be proposed.

    `joined` gets the queue, group and target of a claim that was merged into the group's claim
    before it.
    """

    def __init__(self, clock: Callable[[], int], joined: Callable[[int, int, int], None]) -> None:
        self.linger_us = LINGER_US
        self.alone_us = ALONE_US
        self._clock = clock
        self._joined = joined
        self._ready: deque[Item] = deque()
        self._accepted = 0
        """Number of ready commands from the first on that `leading` has looked at and counts."""
        self._quiet: list[bytes] = []
        self._quiet_at = 0
        self._claims: dict[bytes, int] = {}
        """Index in `_quiet`, by queue and group, of the claim that the group's next one may
        join."""
        self._settled: list[bytes] = []
        self._settlements: dict[bytes, int] = {}
        """Index in `_settled`, by queue, group and holder, of the last settlement."""

    def __bool__(self) -> bool:
        return bool(self._ready or self._quiet or self._settled)

    def add(self, pieces: Sequence[bytes], done: ResultCallback | None, weight: int) -> None:
        """Add a command with an answer. Unless it is an append, it follows everything added
        before."""
        if not weight:
            self.close()
        self._ready.append((pieces, sum(map(len, pieces)), done, weight))

    def add_quietly(self, command: bytes) -> None:
        """Add a command without an answer."""
        if not self._quiet and not self._settled:
            self._quiet_at = self._clock()
        kind = command[0]
        if kind == claim_merge.CLAIM:
            self._add_claim(command)
        elif kind == claim_merge.SETTLE:
            self._add_settlement(command)
        else:
            self._seal()
            self._quiet.append(command)

    def _add_claim(self, command: bytes) -> None:
        owner = claim_merge.owner_of(command)
        at = self._claims.get(owner)
        if at is not None:
            both = claim_merge.joined_claim(self._quiet[at], command)
            if both is not None:
                self._quiet[at] = both
                self._joined(*claim_merge.target_of(command))
                return
        if not claim_merge.takes_new_only(command):
            self._seal()  # it depends on earlier settlements
        self._claims[owner] = len(self._quiet)
        self._quiet.append(command)

    def _add_settlement(self, command: bytes) -> None:
        owner = claim_merge.consumer_of(command)
        at = self._settlements.get(owner)
        if at is not None:
            both = claim_merge.joined_settlement(self._settled[at], command)
            if both is not None:
                self._settled[at] = both
                return
        self._settlements[owner] = len(self._settled)
        self._settled.append(command)

    def _seal(self) -> None:
        """Make later commands follow everything that waits."""
        self._quiet += self._settled
        self._claims.clear()
        self._settled.clear()
        self._settlements.clear()

    def close(self) -> None:
        """Put commands without an answer behind those that are ready to be proposed."""
        self._seal()
        for command in self._quiet:
            self._ready.append(((command,), len(command), None, 0))
        self._quiet.clear()

    # Proposing

    def due(self, *, at_once: bool) -> bool:
        """Return whether to propose now: a command has an answer, or the wait is over (or is
        zero)."""
        if self._quiet or self._settled:
            waited = self._clock() - self._quiet_at
            linger = self.linger_us if self._ready else self.alone_us
            if at_once or not 0 <= waited < linger:  # below 0: the clock was set back
                self.close()
        return bool(self._ready)

    @property
    def ready(self) -> bool:
        """True while commands are to be proposed as soon as the log accepts them."""
        return bool(self._ready)

    @property
    def lingering(self) -> bool:
        """True while there are only commands without an answer."""
        return not self._ready and bool(self._quiet or self._settled)

    def leading(self, accepts: Callable[[bytes], bool]) -> int:
        """Return how many ready commands, from the first on, are accepted by their beginnings.

        Those that were accepted before count as such.
        """
        for pieces, _, _, _ in islice(self._ready, self._accepted, None):
            if not accepts(pieces[0]):
                break
            self._accepted += 1
        return self._accepted

    def entry(
        self, size_max: int, count_max: int = 0
    ) -> tuple[list[bytes], list[tuple[ResultCallback | None, int]]]:
        """Return the next entry's command pieces and the answer and weight of each command; at most
        `size_max` bytes, unless a single command is larger, and `count_max` commands unless that is
        0. They stay until `proposed`."""
        pieces: list[bytes] = []
        answers: list[tuple[ResultCallback | None, int]] = []
        size = 0
        for taken, length, done, weight in self._ready:
            if pieces and (size + length > size_max or len(answers) == count_max):
                break
            pieces.extend(taken)
            answers.append((done, weight))
            size += length
        return pieces, answers

    def proposed(self, count: int) -> None:
        """Remove the first ``count`` commands, which were proposed."""
        ready = self._ready
        self._accepted = max(0, self._accepted - count)
        if count == len(ready):
            ready.clear()
        else:
            for _ in range(count):
                ready.popleft()

    def clear(self) -> list[tuple[ResultCallback | None, int]]:
        """Drop everything; return the answers and weights."""
        answers = [(done, weight) for _, _, done, weight in self._ready]
        self._ready.clear()
        self._accepted = 0
        self._quiet.clear()
        self._claims.clear()
        self._settled.clear()
        self._settlements.clear()
        return answers
