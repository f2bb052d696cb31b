"""Where rows are kept: this shard's store, or that of another shard over the link.

What another shard is asked to keep is numbered and kept here until that shard says that it is on disk; when that
shard is back after a restart it gets everything again that it has not confirmed, in order. Rows are put and removed by
key, so that doing it twice is doing it once. Numbers grow over restarts of this shard, so that an answer meant for its
former life confirms nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fluxmq.net.links import Link
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.storage.state_store import Key, Row, Table

Done = Callable[[int], object]

UNCONFIRMED_BYTES_MAX = 16 << 20
"""Changes kept for a home that has not confirmed them; beyond it new messages are refused."""
PATIENCE_SECONDS = 10.0
"""How long a home that is away is waited for before new messages for it are refused: a restart takes one or two."""
CHANGE_BYTES = 32
"""About what a change costs besides its values."""


class Home(Protocol):
    """Takes rows and says when they are on disk."""

    @property
    def refusing(self) -> int:
        """The reason for which nothing new can be kept now; 0 when it can."""

    def put(self, table: Table, row: Row) -> None:
        """Insert or replace a row."""

    def remove(self, table: Table, key: Key) -> None:
        """Remove a row."""

    def wipe(self, client: str) -> None:
        """Remove everything of a client."""

    def when_safe(self, done: Done) -> None:
        """Call ``done`` when all changes made so far are on disk: 0, or why they are not."""

    def flush(self) -> None:
        """Get on with what was gathered."""


class Store(Home, Protocol):
    """This shard's own home, which can be read as well."""

    @property
    def idle(self) -> bool:
        """Whether everything is on disk, and hence read."""

    def rows(self, table: Table, client: str | None = None) -> Iterator[Row]:
        """Rows as on disk, in the order of keys."""


class _Sent:
    """Changes told to the home and not confirmed."""

    __slots__ = ("changes", "dones", "number", "size")

    def __init__(self, number: int, changes: list[Any], dones: list[Done], size: int) -> None:
        self.number = number
        self.changes = changes
        self.dones = dones
        self.size = size


class RemoteHome:
    """The store of another shard."""

    def __init__(self, link: Link, first_number: int, now: Callable[[], float]) -> None:
        self._link = link
        self._number = first_number
        self._now = now
        self._changes: list[Any] = []
        self._dones: list[Done] = []
        self._size = 0
        self._sent: deque[_Sent] = deque()
        self._bytes = 0
        self._away_since = now()
        self.told = 0
        """Why the home says that it keeps nothing new; 0 when it does."""

    @property
    def refusing(self) -> int:
        """What the home says, or that too much waits for it, or that it is away for too long."""
        if self.told:
            return self.told
        away = not self._link.up and self._now() > self._away_since + PATIENCE_SECONDS
        if away or self._bytes + self._size > UNCONFIRMED_BYTES_MAX:
            return Reason.QUOTA_EXCEEDED
        return 0

    def put(self, table: Table, row: Row) -> None:
        """Insert or replace a row."""
        self._add(["put", table.name, list(row)], row)

    def remove(self, table: Table, key: Key) -> None:
        """Remove a row."""
        self._add(["remove", table.name, list(key)], key)

    def wipe(self, client: str) -> None:
        """Remove everything of a client."""
        self._add(["wipe", client], (client,))

    def _add(self, change: list[Any], values: Row) -> None:
        self._changes.append(change)
        self._size += CHANGE_BYTES + sum(
            len(value) for value in values if isinstance(value, bytes | str)
        )

    def when_safe(self, done: Done) -> None:
        """Call ``done`` when the home has confirmed all changes made so far."""
        if self._changes:
            self._dones.append(done)
        elif self._sent:
            self._sent[-1].dones.append(done)
        else:
            done(0)

    def flush(self) -> None:
        """Tell the home what was gathered."""
        if not self._changes:
            return
        self._number += 1
        sent = _Sent(self._number, self._changes, self._dones, self._size)
        self._changes, self._dones, self._size = [], [], 0
        self._sent.append(sent)
        self._bytes += sent.size
        if self._link.up:
            self._link.send_control("keep", sent.number, sent.changes, bool(sent.dones))

    def confirmed(self, number: int, reason: int) -> None:
        """The home has changes up to ``number`` on disk (``reason`` 0), or refuses the promise for now."""
        while self._sent and self._sent[0].number <= number:
            sent = self._sent.popleft()
            self._bytes -= sent.size
            for done in sent.dones:
                done(reason)

    def back(self) -> None:
        """The home is there again: it gets what it has not confirmed."""
        for sent in self._sent:
            self._link.send_control("keep", sent.number, sent.changes, bool(sent.dones))

    def lost(self) -> None:
        """The home's shard has died."""
        self.told = 0
        self._away_since = self._now()

    def give_up(self) -> None:
        """Refuse those who have waited in vain; the changes themselves are kept for the home."""
        if self._link.up or not self._sent or self._now() <= self._away_since + PATIENCE_SECONDS:
            return
        for sent in self._sent:
            dones, sent.dones = sent.dones, []
            for done in dones:
                done(Reason.QUOTA_EXCEEDED)
