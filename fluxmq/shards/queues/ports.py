"""What the clients' side and the host's side of queues say to each other, whichever shards they are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fluxmq._hot.batches import Batch

Range = tuple[int, int]
"""First and last offset, both inside."""

Answer = Callable[[int], object]
"""Called with 0 when what was asked for is durable, else with an MQTT reason code (0x80 or more: refused)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A consumer as it asks to be attached. ``start`` is a position and an offset or a time in µs, or None.

    ``limit``: most unsettled messages it holds; ``stream``: the mode its group is made in.
    """

    queue: str
    group: str
    member: str
    pattern: bytes
    start: tuple[str, int] | None
    limit: int
    qos: int
    explicit: bool = False


@dataclass(frozen=True, slots=True)
class Attached:
    """Answer to an attach. ``reason``: 0, or an MQTT reason code. ``group``: the group's effective name.

    ``primary``: a stream's group whose progress its consumers are told; empty for none.
    """

    reason: int
    group: str = ""
    stream: bool = False
    primary: str = ""


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

    def detach(self) -> None:
        """Go; what is held is released."""


class QueueHost(Protocol):
    """Whoever hosts a replication group, seen from any shard."""

    def append(self, queue: str, batch: bytes, done: Answer | None) -> bool:
        """Store a batch. False: there is more under way than is good, who feeds it should pause."""

    def attach(
        self, wanted: Wanted, port: ConsumerPort, done: Callable[[Attached, Held | None], None]
    ) -> None:
        """Attach a consumer; ``done`` is called when its group exists, at once or later."""
