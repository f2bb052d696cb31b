"""Results of applying an entry: one per command, and the effects that the host carries out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fluxmq.model.batch_format import Batch


class Code(IntEnum):
    """Outcome of a command. Up to `DUPLICATE` it is positive for a publisher."""

    OK = 0
    EXISTS = 1
    """A queue or group of that name existed; the value is its id."""
    DUPLICATE = 2
    """All messages of the batch were stored before; nothing was stored again."""
    FULL = 16
    TOO_LARGE = 17
    NO_QUEUE = 18
    NO_GROUP = 19
    NOT_PENDING = 20
    """The consumer did not hold some of the messages; the value is how many it did."""
    STALE = 21
    """A claim does not fit the group's cursor; nothing was claimed."""
    LIMIT = 22
    """A named limit of the machine is reached."""
    CONFLICT = 23
    """A queue or group of that name is of another type, mode or filter."""
    OUT_OF_RANGE = 24
    IN_USE = 25
    """The queue has consumers, and deletion required none; the value is their number."""
    NOT_EMPTY = 26
    """The queue has ready messages, and deletion required none; the value is their number."""
    LOST = 27
    """Leadership was lost: the command may or may not take effect. Only leaders answer so, no
    machine."""
    CLOSED = 28
    """The queue is being moved to another group, and takes and gives nothing now."""


@dataclass(slots=True, init=False)
class Result:
    """Result of one command. `value`: base offset of an append, id of a created object, messages
    settled or claimed."""

    code: int
    value: int

    def __init__(self, code: int, value: int = 0) -> None:
        self.code = code
        self.value = value

    @property
    def ok(self) -> bool:
        """True when the publisher or consumer gets a positive answer."""
        return self.code <= Code.DUPLICATE


@dataclass(slots=True, init=False)
class Applied:
    """Effects of one entry, for the host to carry out in this order: deleted, declared, configured,
    batches, trims.

    A queue that this entry created and deleted is in both lists; effects on a deleted one may be
    skipped.
    """

    index: int
    term: int
    time: int
    results: list[Result]
    declared: list[int]
    """Ids of queues created by this entry."""
    configured: list[int]
    """Ids of existing queues with a new configuration."""
    batches: list[tuple[int, Batch]]
    """Stamped batches for the queues' segments."""
    trims: list[tuple[int, int]]
    """Queue id and the offset below which nothing is needed any more."""
    deleted: list[tuple[int, str]]
    """Ids and names of queues that are gone."""
    woken: dict[int, None]
    """Queue ids with something to dispatch, each once, in order."""
    claims: list[tuple[int, int, bool]]
    """Queue id, group id and whether it took effect completely, for every claim and dead-lettering:
    for `Dispatch`."""
    voided: list[int]
    """Ids of queues that were closed or opened for a move: their consumers and timers are void."""
    moved: list[tuple[int, int]]
    """Queue and group ids whose cursor was set (seek): `Dispatch`'s state of them is void."""

    def __init__(self, index: int, term: int, time: int) -> None:
        self.index = index
        self.term = term
        self.time = time
        self.results = []
        self.declared = []
        self.configured = []
        self.batches = []
        self.trims = []
        self.deleted = []
        self.woken = {}
        self.claims = []
        self.voided = []
        self.moved = []
