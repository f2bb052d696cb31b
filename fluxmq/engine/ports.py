"""Interface between the clients of groups and the shards that serve them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fluxmq.model.batch_format import Batch
from fluxmq.model.outcomes import QueueOutcome
from fluxmq.queues.origins import Identity

Range = tuple[int, int]
"""First and last offset, both inclusive."""

QOS_TOLD = 2
"""QoS of a consumer that is told its activity: see `wants_activity`."""
BROWSE = "browse"
"""Start of a browser, with the offset it begins at: see `is_browser`."""

AppendCallback = Callable[[int], object]
"""Called with 0 once the request is durable, else with an `Outcome`, which may carry an explanation."""


class QueueStats(NamedTuple):
    """A queue's counts of ready messages, unacked messages and consumers; or the error."""

    outcome: QueueOutcome
    ready: int = 0
    unsettled: int = 0
    consumers: int = 0


NOTHING = QueueStats(QueueOutcome.NO_QUEUE)

StatusCallback = Callable[[QueueStats], object]

GetCallback = Callable[[bool, int], object]
"""Called with whether there was a message, and how many more are ready."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """A consumer's request to attach. ``start``: a position with an offset or a time in µs
    ("interval": µs before now), or None.

    ``limit``: prefetch limit (maximum unacked messages); 0 means `queues.limits.UNSETTLED_MAX`, as
    for a consumer that takes; negative: none yet. ``priority``: consumers of higher priority get messages first.
    ``exclusive``: it must be the queue's only consumer. ``automatic``: messages are settled by
    delivery; unless ``taking``, it settles messages (with any verb) once it has passed them on, and
    gets up to ``limit`` others. ``taking``: it only gets messages by `ConsumerHandle.take`, and others do not
    count it as a consumer. ``temporary``: its consumer group is created for it and deleted with it;
    ``group`` is then part of that group's name. ``timeout``: µs until its unacked messages go to
    others; 0 uses the queue's setting. ``references``: it is sent offsets and reads the messages
    from its node's own replica. ``asker``: id of the requesting connection, which may own the
    queue; empty for MQTT. ``abroad``: it is on another node; not sent, but known by the link.
    ``cancel_on_failover``: it is cancelled, instead of attached to another leader; not sent either.
    """

    queue: str
    group: str
    member: str
    pattern: bytes
    start: tuple[str, int] | None
    limit: int
    qos: int
    explicit: bool = False
    priority: int = 0
    exclusive: bool = False
    automatic: bool = False
    taking: bool = False
    temporary: bool = False
    timeout: int = 0
    references: bool = False
    asker: str = ""
    abroad: bool = False
    cancel_on_failover: bool = False


def wants_activity(wanted: AttachRequest) -> bool:
    """Return whether a consumer is to be told if it is the single active one of a work queue: its port
    is an `ActivityPort`. A node that does not know this value of QoS tells nothing."""
    return wanted.qos == QOS_TOLD


def is_browser(wanted: AttachRequest) -> bool:
    """Return whether a consumer is a browser: it reads a work queue's ready messages, which others are
    given all the same. It asks for QoS 0, so that a node that knows no browsers refuses it instead of
    giving it messages."""
    return wanted.start is not None and wanted.start[0] == BROWSE


@dataclass(frozen=True, slots=True)
class Attached:
    """Answer to an attach. ``reason``: an `Outcome`. ``group``: the group's effective
    name.

    ``primary``: the stream's group whose progress its consumers see; empty for none. ``outcome``
    refines ``reason``.
    """

    reason: int
    group: str = ""
    stream: bool = False
    primary: str = ""
    outcome: int = QueueOutcome.OK


class ConsumerPort(Protocol):
    """Receiver of one consumer's messages. Never gets more than the consumer's limit allows."""

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Deliver ``count`` messages of ``batch`` from index ``first``; ``attempts`` includes this
        delivery.

        ``committed``: the stream's primary group's committed offset; -1 if there is none.
        """

    def cancelled(self) -> None:
        """Stop for good because the queue is gone, or the shard that serves it; nothing can be settled any more."""


class ActivityPort(ConsumerPort, Protocol):
    """Port of a consumer that asks for its activity."""

    def activity(self, active: bool) -> None:
        """Note whether it is the queue's single active consumer."""


class ConsumerHandle(Protocol):
    """Handle of an attached consumer, for the side that attached it."""

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Settle messages (``queues.commands.Verb``). ``delay``: µs until a nack redelivers; -1:
        back off."""

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream group's offset: nothing below ``offset`` is needed any more."""

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages; 0 for `queues.limits.UNSETTLED_MAX`, negative
        for none."""

    def take(self, done: GetCallback) -> None:
        """Get one message now, for a consumer that takes; it is delivered before ``done`` gets
        True.

        Sees everything that the same shard requested of the queue before: publishes and requeues.
        For a browser, ``done`` gets how many messages it has yet to look at, after what it has been
        shown, and True if the queue could be asked.
        """

    def stop(self) -> None:
        """Stop deliveries and no longer count as a consumer; held messages may be settled until
        ``detach``."""

    def detach(self) -> None:
        """Detach; messages it holds are requeued."""


Attaching = Callable[[Attached, ConsumerHandle | None], None]
"""Called once with the answer to an attach, and the consumer's handle; None if it is refused."""


class GroupTarget(Protocol):
    """A replication group as its clients send it requests, wherever it is served."""

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch. Return False above the high watermark: the publisher should pause.

        With an ``identity`` it takes effect once, however often it is retried. ``by_address``: an
        MQTT client named the queue itself (`$queue/...`); exclusive and server-named queues reject
        such appends and accept what exchanges route to them.
        """

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Attach a consumer; ``done`` is called when its group exists, at once or later."""

    def status(self, queue: str, done: StatusCallback) -> None:
        """Count a queue's messages and consumers, after earlier requests. Counts as a use of the
        queue."""

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Drop ready messages; ``done`` gets OK with their number in ``ready`` once that is
        durable."""

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Delete a queue and its messages; ``done`` gets OK with the number of ready ones in
        ``ready``.

        ``if_unused``, ``if_empty``: refuse if it has consumers (IN_USE) or ready messages
        (NOT_EMPTY).
        """


AttachCallback = Callable[[GroupTarget, AttachRequest, ConsumerPort, Attaching], None]


def attach_directly(
    target: GroupTarget, wanted: AttachRequest, port: ConsumerPort, done: Attaching
) -> None:
    """Attach a consumer, and tell nobody."""
    target.attach(wanted, port, done)
