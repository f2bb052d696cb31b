"""Consumers, and what the leader's dispatcher hands to them."""

from __future__ import annotations

from dataclasses import dataclass

from fluxmq.model.batch_format import Batch
from fluxmq.queues.commands import Mode, Start
from fluxmq.queues.interval_set import IntervalSet
from fluxmq.queues.limits import RUN_BYTES_MAX, UNLIMITED, UNSETTLED_MAX


@dataclass(frozen=True, slots=True)
class ConsumerTerms:
    """Terms on which a consumer attaches.

    `group` is the plain name; with a `filter` the group is `<group>@<filter>`. A new group starts
    at `start`, by default at the first message; for a stream, `start` also sets the cursor of an
    existing group. `limit`: maximum number of unsettled messages within their timeout, 0 for
    `UNSETTLED_MAX`, which a `taking` consumer always has. `credit`: how many messages it accepts.
    With `auto_commit` false, only `commit` moves a stream's offset. Consumers of higher `priority`
    are served first. `timeout`: µs before an unsettled message may be claimed again, 0 for the
    queue's.

    Messages given to an `automatic` consumer are settled at once; it holds only those it has not
    written yet. A `browsing` one reads what others are given, and settles nothing. One that asks for
    its `activity` is told whether it is the active one, with a single active consumer. A `taking`
    one gets only the messages it asks for, one by one (basic.get), and does not keep the queue in
    use. One that is `abroad`, on another node, may outlive this process. An `exclusive` one shares
    its queue with no other. A `temporary` one's group ends with it.
    """

    group: str
    member: str
    mode: int = Mode.WORK
    filter: bytes = b""
    start: Start | None = None
    limit: int = 1_000
    credit: int = UNLIMITED
    auto_commit: bool = True
    priority: int = 0
    exclusive: bool = False
    automatic: bool = False
    taking: bool = False
    temporary: bool = False
    timeout: int = 0
    browsing: bool = False
    activity: bool = False
    abroad: bool = False


class GroupConsumer:
    """One attached consumer, on the leader only. Its `holder` number names it in claims.

    `unacked` are the offsets it was given and has not settled, `overdue` those of them whose
    timeout has passed: it may still settle them until they are given to another. It is `active`
    once its join was applied; a `stopped` one gets nothing more.
    """

    __slots__ = (
        *(
            "active",
            "automatic",
            "credit",
            "group_id",
            "group_name",
            "unacked",
            "holder",
            "waiting",
        ),
        *("limit", "overdue", "priority", "queue_id", "stopped", "taking", "terms"),
    )

    def __init__(self, queue_id: int, group_name: str, holder: int, terms: ConsumerTerms) -> None:
        self.queue_id = queue_id
        self.group_name = group_name
        self.group_id = 0
        self.holder = holder
        self.terms = terms
        self.priority = terms.priority
        self.automatic = terms.automatic
        self.taking = terms.taking
        self.limit = UNSETTLED_MAX if terms.taking else terms.limit or UNSETTLED_MAX
        self.credit = 0 if terms.taking else terms.credit
        self.stopped = False
        self.unacked = IntervalSet()
        self.overdue = IntervalSet()
        self.active = False
        self.waiting = False

    @property
    def member(self) -> str:
        """Name of the consumer in its group."""
        return self.terms.member

    @property
    def auto_commit(self) -> bool:
        """True while its acknowledgements move a stream group's offset."""
        return self.terms.auto_commit and not self.terms.temporary

    @property
    def counts(self) -> bool:
        """True while this consumer keeps the queue in use."""
        return not (self.taking or self.stopped or self.terms.browsing)

    @property
    def unsettled(self) -> int:
        """Messages within their timeout that it has yet to settle."""
        return 0 if self.automatic else self.unacked.count - self.overdue.count

    @property
    def available_credit(self) -> int:
        """Messages that it accepts now."""
        if self.stopped:
            return 0
        return min(self.credit, self.limit - self.unacked.count + self.overdue.count)


@dataclass(slots=True, init=False)
class ConsumerDelivery:
    """`count` messages of `batch` from index `first` for one consumer; `attempts` counts this
    delivery."""

    consumer: GroupConsumer
    batch: Batch
    first: int
    count: int
    attempts: int

    def __init__(
        self, consumer: GroupConsumer, batch: Batch, first: int, count: int, attempts: int
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
class SettlementResult:
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

    `bytes_left`: bytes that may still be handed out; 0 or less ends the run. `activity`: consumers that
    are to be told whether they are the single active one.
    """

    activity: list[tuple[GroupConsumer, bool]]
    commands: list[bytes]
    deliveries: list[ConsumerDelivery]
    dead: list[DeadLetter]
    more: bool
    bytes_left: int

    def __init__(self, bytes_left: int = RUN_BYTES_MAX) -> None:
        self.activity = []
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
