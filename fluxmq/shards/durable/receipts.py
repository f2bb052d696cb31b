"""Receipts of the numbered runs that a session has: they are known when they come again."""

from __future__ import annotations

from fluxmq.shards.durable.row_router import RowHome
from fluxmq.shards.run_numbers import RunNumbers, RunOrigin, receiver_of
from fluxmq.storage.state_store import HEARD

Receipt = tuple[int, int, int]
"""The sender's life; the number up to which runs may be missing; that of the last run."""


class Receipts:
    """The runs of QoS 2 messages that one session has, by the link that they came over.

    Of each link runs come in order, and those that were refused count as not received, as do all
    before them. A run that comes again does so because the shard that received it, or one that passed
    it on, has died: only receipts from before that count.
    """

    def __init__(self, home: RowHome, client_id: str, numbers: RunNumbers, shard: int) -> None:
        self._home = home
        self._client_id = client_id
        self._numbers = numbers
        self._shard = shard
        self.rows: dict[int, Receipt] = {}
        """As on disk, by `RunOrigin.receipt`."""
        self._earlier: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """Those of runs that may come again, by the sender's life and the receiver: the numbers that
        this node gives to shards of others may change when it restarts."""
        self._losses = numbers.losses

    def restore(self, rows: dict[int, Receipt]) -> None:
        """Begin with receipts of another life, or another shard."""
        self.rows = rows
        self._look_back()

    def _look_back(self) -> None:
        self._losses = self._numbers.losses
        self._earlier = {}
        for receipt, (epoch, refused, last) in self.rows.items():
            self._earlier.setdefault((epoch, receiver_of(receipt)), []).append((refused, last))

    def has(self, source: RunOrigin) -> bool:
        """Return whether a run has come before, and reached the disk then."""
        if self._losses != self._numbers.losses:
            self._look_back()
        earlier = self._earlier.get((source.epoch, receiver_of(source.link)), ())
        return any(refused < source.number <= last for refused, last in earlier)

    def note(self, source: RunOrigin, refused: bool) -> None:
        """Write a run's receipt, with its messages."""
        number = source.number
        receipt = source.receipt(self._shard)
        epoch, below, last = self.rows.get(receipt, (0, 0, 0))
        if epoch != source.epoch:
            below, last = number - 1, number
        below = max(below, number) if refused else below
        self.rows[receipt] = (source.epoch, below, max(last, number))
        self._home.put(HEARD, (self._client_id, receipt, *self.rows[receipt]))
