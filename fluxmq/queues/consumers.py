"""Consumers, and what the leader's dispatcher hands to them."""

from __future__ import annotations

from dataclasses import dataclass

from fluxmq.model.batch_format import Batch
from fluxmq.queues.limits import RUN_BYTES_MAX
from fluxmq.queues.spans import Spans


class Consumer:
    """One attached consumer, on the leader only. Its `holder` number names it in claims.

    `held` are the offsets it was given and has not settled, `overdue` those of them whose timeout
    has passed: it may still settle them until they are given to another. `credit` is how many more
    messages it accepts, `limit` how many unsettled ones it may hold within their timeout. It is
    `active` once its join was applied.

    Messages given to an `automatic` consumer are settled at once; it holds only those it has not
    written yet. A `taking` one gets only the messages it asks for, one by one (basic.get), and does
    not keep the queue in use; a `stopped` one gets nothing more. An `exclusive` one shares its
    queue with no other. A `temporary` one's group ends with it.
    """

    __slots__ = (
        *("active", "auto_commit", "automatic", "credit", "exclusive", "filter", "group_id"),
        *("group_name", "held", "holder", "hungry", "limit", "member", "mode", "overdue"),
        *("priority", "queue_id", "stopped", "taking", "temporary"),
    )

    def __init__(
        self,
        queue_id: int,
        group_name: str,
        member: str,
        holder: int,
        *,
        mode: int,
        filter_: bytes,
        limit: int,
        credit: int,
        auto_commit: bool,
        priority: int = 0,
        exclusive: bool = False,
        automatic: bool = False,
        taking: bool = False,
        temporary: bool = False,
    ) -> None:
        self.queue_id = queue_id
        self.group_name = group_name
        self.group_id = 0
        self.member = member
        self.holder = holder
        self.mode = mode
        self.filter = filter_
        self.limit = limit
        self.credit = credit
        self.auto_commit = auto_commit
        self.priority = priority
        self.exclusive = exclusive
        self.automatic = automatic
        self.taking = taking
        self.temporary = temporary
        self.stopped = False
        self.held = Spans()
        self.overdue = Spans()
        self.active = False
        self.hungry = False

    @property
    def counts(self) -> bool:
        """True while this consumer keeps the queue in use."""
        return not (self.taking or self.stopped)

    @property
    def unsettled(self) -> int:
        """Messages within their timeout that it has yet to settle."""
        return 0 if self.automatic else self.held.count - self.overdue.count

    @property
    def room(self) -> int:
        """Messages that it accepts now."""
        if self.stopped:
            return 0
        return min(self.credit, self.limit - self.held.count + self.overdue.count)


@dataclass(slots=True, init=False)
class Delivery:
    """`count` messages of `batch` from index `first` for one consumer; `attempts` counts this
    delivery."""

    consumer: Consumer
    batch: Batch
    first: int
    count: int
    attempts: int

    def __init__(
        self, consumer: Consumer, batch: Batch, first: int, count: int, attempts: int
    ) -> None:
        self.consumer = consumer
        self.batch = batch
        self.first = first
        self.count = count
        self.attempts = attempts


@dataclass(slots=True)
class DeadLetter:
    """One message to append to the queue named `target`, then to report by `dead_lettered`.

    `producer`, with `offset` as the sequence, goes into the appended batch: a repeat is detected
    there and answered as a duplicate, which is as good as stored. Times are µs, 0 for never
    delivered.
    """

    queue_id: int
    group_id: int
    group: str
    target: str
    batch: Batch
    index: int
    offset: int
    reason: int
    text: bytes
    attempts: int
    first_time: int
    last_time: int
    died: int
    producer: int


@dataclass(slots=True, init=False)
class Settlement:
    """Outcome of a settlement: commands to propose, messages settled, messages the consumer did not
    hold."""

    commands: list[bytes]
    settled: int
    missing: int

    def __init__(self, commands: list[bytes], settled: int, missing: int) -> None:
        self.commands = commands
        self.settled = settled
        self.missing = missing


@dataclass(slots=True, init=False)
class Step:
    """The work of one run. `more`: messages_max stopped it, and another run would do more at once.

    `bytes_left`: bytes that may still be handed out; 0 or less ends the run.
    """

    commands: list[bytes]
    deliveries: list[Delivery]
    dead: list[DeadLetter]
    more: bool
    bytes_left: int

    def __init__(self, bytes_left: int = RUN_BYTES_MAX) -> None:
        self.commands = []
        self.deliveries = []
        self.dead = []
        self.more = False
        self.bytes_left = bytes_left

    def fit(self, batch: Batch, count: int) -> int:
        """Return how many of `count` messages of a batch, at least one, fit, and count them as
        handed out."""
        size = batch.length // batch.count
        if count * size < self.bytes_left:
            self.bytes_left -= count * size
            return count
        count = min(count, max(self.bytes_left // size, 1))
        self.bytes_left = 0
        return count
