"""What a group is asked for and has not proposed yet, in the order in which it will stand in entries.

Commands that somebody waits for (appends, everything with an answer) go with the next entry. Claims and settlements
without an answer wait a little, also while appends pass them: an entry that carries them costs as much as its append
once more, and what a crash takes of them comes again. Where nothing else is to be proposed they wait longer, for an append
to go with: one that came while they are written would wait for their sync, and then for its own. Among themselves they keep their order but for two things that
make one command of many: a claim of new messages joins the group's last one, and a settlement the consumer's last one,
where they continue it. A claim may so come before settlements that were asked for earlier; never after one of its own
messages, since settlements stand behind all claims asked for before them.

An append does not look at them, unless its queue is limited: then, and before any command with an answer, everything
that waits is put into its place first (`close`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from fluxmq.queues import joining
from fluxmq.shards.queues.answers import Done

PATIENCE_US = 3_000
"""How long commands that nobody waits for (claims, settlements) may let appends pass: with every append its entry would be
twice the work. What a crash takes of them comes again."""
ALONE_US = 20_000
"""How long they may wait for an append to go with: alone they cost a write and a sync of their own on every member."""

Item = tuple[Sequence[bytes], int, Done | None, int]
"""A command in pieces, its size, who is answered, and its weight: bytes that count as uncommitted."""


class Asked:
    """The commands of one group that wait to be proposed.

    `joined` is told queue, group and target of a claim that became one command with the group's claim before it.
    """

    def __init__(self, clock: Callable[[], int], joined: Callable[[int, int, int], None]) -> None:
        self.patience_us = PATIENCE_US
        self.alone_us = ALONE_US
        self._clock = clock
        self._joined = joined
        self._ready: deque[Item] = deque()
        self._quiet: list[bytes] = []
        self._quiet_at = 0
        self._claims: dict[bytes, int] = {}
        """By queue and group: where in `_quiet` a claim is that the group's next one may join."""
        self._settled: list[bytes] = []
        self._settlements: dict[bytes, int] = {}
        """By queue, group and holder: where in `_settled` the last settlement is."""

    def __bool__(self) -> bool:
        return bool(self._ready or self._quiet or self._settled)

    def add(self, pieces: Sequence[bytes], done: Done | None, weight: int) -> None:
        """Ask for a command that somebody waits for. Behind everything asked before, if it is no append."""
        if not weight:
            self.close()
        self._ready.append((pieces, sum(map(len, pieces)), done, weight))

    def add_quietly(self, command: bytes) -> None:
        """Ask for a command that nobody waits for."""
        if not self._quiet and not self._settled:
            self._quiet_at = self._clock()
        kind = command[0]
        if kind == joining.CLAIM:
            self._add_claim(command)
        elif kind == joining.SETTLE:
            self._add_settlement(command)
        else:
            self._seal()
            self._quiet.append(command)

    def _add_claim(self, command: bytes) -> None:
        owner = joining.owner_of(command)
        at = self._claims.get(owner)
        if at is not None:
            both = joining.joined_claim(self._quiet[at], command)
            if both is not None:
                self._quiet[at] = both
                self._joined(*joining.target_of(command))
                return
        if not joining.takes_new_only(command):
            self._seal()  # it looks at what was settled before
        self._claims[owner] = len(self._quiet)
        self._quiet.append(command)

    def _add_settlement(self, command: bytes) -> None:
        owner = joining.consumer_of(command)
        at = self._settlements.get(owner)
        if at is not None:
            both = joining.joined_settlement(self._settled[at], command)
            if both is not None:
                self._settled[at] = both
                return
        self._settlements[owner] = len(self._settled)
        self._settled.append(command)

    def _seal(self) -> None:
        """What comes now stands behind everything that waits."""
        self._quiet += self._settled
        self._claims.clear()
        self._settled.clear()
        self._settlements.clear()

    def close(self) -> None:
        """Put what nobody waits for behind what is ready to be proposed."""
        self._seal()
        for command in self._quiet:
            self._ready.append(((command,), len(command), None, 0))
        self._quiet.clear()

    # Proposing

    def due(self, *, at_once: bool) -> bool:
        """Whether there is something to propose now: somebody waits, or the patience is over (or there is none)."""
        if self._quiet or self._settled:
            waited = self._clock() - self._quiet_at
            patience = self.patience_us if self._ready else self.alone_us
            if at_once or not 0 <= waited < patience:  # below 0: the clock was set back
                self.close()
        return bool(self._ready)

    @property
    def ready(self) -> bool:
        """Whether there are commands to be proposed as soon as the log takes them."""
        return bool(self._ready)

    @property
    def patient(self) -> bool:
        """Whether there are commands that nobody waits for, and none that somebody does."""
        return not self._ready and bool(self._quiet or self._settled)

    def entry(self, size_max: int) -> tuple[list[bytes], list[tuple[Done | None, int]]]:
        """The commands of the next entry, in pieces, and who is answered for each; of `size_max` bytes at most, unless a
        single one is larger. They stay until `proposed`."""
        pieces: list[bytes] = []
        answers: list[tuple[Done | None, int]] = []
        size = 0
        for taken, length, done, weight in self._ready:
            if pieces and size + length > size_max:
                break
            pieces.extend(taken)
            answers.append((done, weight))
            size += length
        return pieces, answers

    def proposed(self, count: int) -> None:
        """So many commands were proposed."""
        ready = self._ready
        if count == len(ready):
            ready.clear()
        else:
            for _ in range(count):
                ready.popleft()

    def clear(self) -> list[tuple[Done | None, int]]:
        """Forget everything; who waited for it, and the weights."""
        answers = [(done, weight) for _, _, done, weight in self._ready]
        self._ready.clear()
        self._quiet.clear()
        self._claims.clear()
        self._settled.clear()
        self._settlements.clear()
        return answers
