"""What the clients' side and the host's side of queues say to each other, whichever shards they are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from fluxmq._hot.batches import Batch
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues.origins import Identity

MOVED: Final = 1 << 8 | Reason.IMPLEMENTATION_SPECIFIC_ERROR
"""Between hosts only, and no reason code of MQTT: the queue's group is not where it was asked for, or not any more; nobody can say what became of what
was asked. Who asked finds out where it is, and asks again."""

FENCED: Final = 2 << 8 | Reason.IMPLEMENTATION_SPECIFIC_ERROR
"""Between hosts only, as `MOVED`: the queue is being moved to another group; nothing came of what was asked, and who asked
asks again, there or here."""

Range = tuple[int, int]
"""First and last offset, both inside."""

Answer = Callable[[int], object]
"""Called with 0 when what was asked for is durable, else with an MQTT reason code (0x80 or more: refused)."""


class Outcome(IntEnum):
    """What came of asking for a queue: more than reason codes say. The values cross links between shards."""

    OK = 0
    NO_QUEUE = 1
    UNAVAILABLE = 2
    """Its group cannot be reached now, or has failed."""
    REFUSED = 3
    """The consumer group has another mode or filter, or a limit is reached."""
    EXCLUSIVE = 4
    """The queue has an exclusive consumer, or others where one wanted to be the only one."""
    IN_USE = 5
    NOT_EMPTY = 6
    LOCKED = 7
    """The queue is another connection's."""


class Status(NamedTuple):
    """A queue's messages that nobody holds, those that somebody does, and its consumers. Or why there is no telling."""

    outcome: Outcome
    ready: int = 0
    unsettled: int = 0
    consumers: int = 0


NOTHING = Status(Outcome.NO_QUEUE)

Told = Callable[[Status], object]

Taken = Callable[[bool, int], object]
"""Called with whether there was a message, and how many more are ready."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A consumer as it asks to be attached. ``start`` is a position and an offset or a time in µs ("interval": µs back
    from now), or None.

    ``limit``: most unsettled messages it holds, 0 for `queues.limits.UNSETTLED_MAX`, as for one that takes. Of higher
    ``priority`` is given messages first. ``exclusive``: it wants to be the queue's only consumer. ``automatic``: what it is given is settled by
    that; if it does not take, it says of messages that it has got rid of them by settling them (with any verb), and of
    others it is given ``limit``. ``taking``: it is given only what it takes (`Held.take`) and is no consumer to others.
    ``temporary``: its group is its own, made for it and gone with it; ``group`` is then part of that group's name.
    ``timeout``: µs after which what it has not settled is given to others; 0 is what the queue says. ``references``: it is
    told which messages it gets, and reads them from its node's own copy of the group. ``asker``: id of the connection that
    asks, which may be the queue's owner; MQTT's have none.
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


@dataclass(frozen=True, slots=True)
class Attached:
    """Answer to an attach. ``reason``: 0, or an MQTT reason code. ``group``: the group's effective name.

    ``primary``: a stream's group whose progress its consumers are told; empty for none. ``outcome`` says more precisely
    what ``reason`` is about.
    """

    reason: int
    group: str = ""
    stream: bool = False
    primary: str = ""
    outcome: int = Outcome.OK


class ReferencePort(Protocol):
    """Where it is said which messages are for one consumer, of one batch of the queue."""

    def refer(self, offset: int, count: int, attempts: int, committed: int) -> None:
        """``count`` messages from ``offset`` on; the rest as in `ConsumerPort.deliver`."""

    def cancelled(self) -> None:
        """As in `ConsumerPort`."""


class ConsumerPort(Protocol):
    """Where messages for one consumer go. Called at most with what the consumer's limit allows."""

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """``count`` messages of ``batch`` from index ``first``; ``attempts`` counts this delivery.

        ``committed``: how far the stream's primary group has come, an offset; -1 when there is none.
        """

    def cancelled(self) -> None:
        """The queue, or the host, has gone: nothing comes any more, nothing can be settled."""


class Held(Protocol):
    """A consumer that is attached, from the side of who asked for it."""

    def settle(
        self, verb: int, ranges: Sequence[Range], delay: int, reason: bytes, done: Answer | None
    ) -> None:
        """Settle messages (``queues.commands.Verb``). ``delay``: µs before a nacked one comes again, -1: back-off."""

    def commit(self, offset: int, done: Answer | None) -> None:
        """A stream's group needs nothing below ``offset`` any more."""

    def set_limit(self, limit: int) -> None:
        """At most so many unsettled messages from now on; 0 for `queues.limits.UNSETTLED_MAX`."""

    def take(self, done: Taken) -> None:
        """One message now, for a consumer that takes. It is delivered before ``done`` is called with True.

        Everything that was asked of the queue before by the same shard is seen: publishes, messages given back.
        """

    def stop(self) -> None:
        """Be given nothing more, and count no longer; what is held may be settled still, until ``detach``."""

    def detach(self) -> None:
        """Go; what is held is released."""


class QueueHost(Protocol):
    """Whoever hosts a replication group, seen from any shard."""

    def append(
        self,
        queue: str,
        batch: bytes,
        done: Answer | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Store a batch. False: there is more under way than is good, who feeds it should pause.

        With an ``identity`` it takes effect once, however often it is asked for. ``by_address``: an MQTT client named the
        queue itself (`$queue/...`); an exclusive or server-named queue refuses that, and takes what exchanges route to it.
        """

    def attach(
        self, wanted: Wanted, port: ConsumerPort, done: Callable[[Attached, Held | None], None]
    ) -> None:
        """Attach a consumer; ``done`` is called when its group exists, at once or later."""

    def status(self, queue: str, done: Told) -> None:
        """Count a queue's messages and consumers, after what was asked before. It counts as use of the queue."""

    def purge(self, queue: str, done: Told) -> None:
        """Drop what is ready; ``done`` gets OK and in ``ready`` how many messages that were, once it is durable."""

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Delete a queue and what is in it; ``done`` gets OK and in ``ready`` how many messages were ready.

        ``if_unused``, ``if_empty``: not while it has consumers (IN_USE), or messages ready (NOT_EMPTY).
        """
