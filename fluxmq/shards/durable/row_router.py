"""Homes of rows: this shard's store, or that of another shard over the link.

Changes for another shard are numbered and kept here until that shard confirms that they are on
disk; when it is back after a restart it gets all unconfirmed changes again, in order. Rows are put
and removed by key, so that repetitions have no effect. Numbers grow over restarts of this shard, so
that an answer to its former life confirms nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from fluxmq.model.outcomes import Outcome
from fluxmq.net.links import Link
from fluxmq.storage.state_store import Key, Row, StateTable

CommitCallback = Callable[[int], object]

UNCONFIRMED_BYTES_MAX = 16 << 20
"""Bytes of unconfirmed changes for a home; beyond it new messages are refused."""
AWAY_SECONDS = 10.0
"""Time before new messages for an absent home are refused: a restart takes one or two seconds."""
CHANGE_BYTES = 32
"""Approximate cost of a change besides its values."""


class RowHome(Protocol):
    """Takes rows and reports when they are on disk."""

    @property
    def refusing(self) -> int:
        """The reason why nothing new can be kept now; 0 if it can."""

    def put(self, table: StateTable, row: Row) -> None:
        """Insert or replace a row."""

    def remove(self, table: StateTable, key: Key) -> None:
        """Remove a row."""

    def wipe(self, client: str) -> None:
        """Remove everything of a client."""

    def when_safe(self, done: CommitCallback) -> None:
        """Call ``done`` once all changes so far are on disk, with 0, or the reason for failure."""

    def flush(self) -> None:
        """Start writing the gathered changes."""


class LocalRows(RowHome, Protocol):
    """This shard's own home, which can be read as well."""

    @property
    def idle(self) -> bool:
        """True when everything is on disk, and hence readable."""

    def rows(self, table: StateTable, client: str | None = None) -> Iterator[Row]:
        """Yield rows as on disk, in the order of keys."""


class _Sent:
    """Changes sent to the home and not confirmed."""

    __slots__ = ("changes", "dones", "number", "size")

    def __init__(
        self, number: int, changes: list[Any], dones: list[CommitCallback], size: int
    ) -> None:
        self.number = number
        self.changes = changes
        self.dones = dones
        self.size = size


class RemoteRows:
    """The store of another shard."""

    def __init__(self, link: Link, first_number: int, now: Callable[[], float]) -> None:
        self._link = link
        self._number = first_number
        self._now = now
        self._changes: list[Any] = []
        self._dones: list[CommitCallback] = []
        self._size = 0
        self._sent: deque[_Sent] = deque()
        self._bytes = 0
        self._away_since = now()
        self.told = 0
        """The home's reason to keep nothing new; 0 if there is none."""

    @property
    def refusing(self) -> int:
        """The home's reason, or quota exceeded if it is absent for too long or too much waits."""
        if self.told:
            return self.told
        away = not self._link.up and self._now() > self._away_since + AWAY_SECONDS
        if away or self._bytes + self._size > UNCONFIRMED_BYTES_MAX:
            return Outcome.OVER_LIMIT
        return 0

    def put(self, table: StateTable, row: Row) -> None:
        """Insert or replace a row."""
        self._add(["put", table.name, list(row)], row)

    def remove(self, table: StateTable, key: Key) -> None:
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

    def when_safe(self, done: CommitCallback) -> None:
        """Call ``done`` when the home has confirmed all changes made so far."""
        if self._changes:
            self._dones.append(done)
        elif self._sent:
            self._sent[-1].dones.append(done)
        else:
            done(0)

    def flush(self) -> None:
        """Send the gathered changes to the home."""
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
        """Handle the home's answer for changes up to ``number``: on disk (``reason`` 0) or not."""
        while self._sent and self._sent[0].number <= number:
            sent = self._sent.popleft()
            self._bytes -= sent.size
            for done in sent.dones:
                done(reason)

    def back(self) -> None:
        """Resend unconfirmed changes to a home that is back."""
        for sent in self._sent:
            self._link.send_control("keep", sent.number, sent.changes, bool(sent.dones))

    def lost(self) -> None:
        """Note that the home's shard has died."""
        self.told = 0
        self._away_since = self._now()

    def give_up(self) -> None:
        """Refuse callers after too long an absence; the changes are kept for the home."""
        if self._link.up or not self._sent or self._now() <= self._away_since + AWAY_SECONDS:
            return
        for sent in self._sent:
            dones, sent.dones = sent.dones, []
            for done in dones:
                done(Outcome.OVER_LIMIT)
