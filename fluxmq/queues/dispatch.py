"""The leader's volatile side of one replication group: consumers, credit, claims under way, timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fluxmq._hot.batches import Batch
from fluxmq.queues.commands import FIRST, Mode, Range, Start
from fluxmq.queues.limits import UNLIMITED
from fluxmq.queues.machine import Machine
from fluxmq.queues.results import Applied


class Delivery(NamedTuple):
    """`count` messages of `batch` from index `first` for one consumer; `attempts` counts this delivery."""

    consumer: Any
    batch: Batch
    first: int
    count: int
    attempts: int


class DeadLetter(NamedTuple):
    """One message to append to `target` (queue name), then to be reported by `dead_lettered`.

    `producer` and the offset as sequence go into the appended batch, so that a repeat is recognised.
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
    producer: int


class Settlement(NamedTuple):
    """What became of a consumer's settle: commands for the next entry, messages settled, messages not held."""

    commands: list[bytes]
    settled: int
    missing: int


@dataclass(slots=True)
class Step:
    """One run's work; `more` says that another run at once would find more to do."""

    commands: list[bytes]
    deliveries: list[Delivery]
    dead: list[DeadLetter]
    more: bool


class Dispatch:
    """Hands messages to consumers. Signatures first; the body follows in the next commit."""

    def __init__(
        self, machine: Machine, read: Callable[[int, int], Batch], auto_commit_interval: int = 5_000_000
    ) -> None:
        raise NotImplementedError

    def lead(self, term: int, now: int) -> list[bytes]:
        """Start leading in `term`: members left over from before leave, so that what they held comes again."""
        raise NotImplementedError

    def reset(self) -> None:
        """Stop leading: every consumer and everything volatile is forgotten."""
        raise NotImplementedError

    def attach(
        self,
        queue_id: int,
        group: str,
        member: str,
        mode: int = Mode.WORK,
        filter_: bytes = b"",
        start: Start | None = None,
        limit: int = 1_000,
        credit: int = UNLIMITED,
        auto_commit: bool = True,
    ) -> tuple[Any, list[bytes]]:
        """A consumer comes. Returns it and commands to propose; it gets messages once they are applied.

        `group` is the plain name; with a filter the effective name is `<group>@<filter>` (`consumer.group_name`).
        `limit`: most unsettled messages it holds. Raises `AttachRefused` for no queue, other mode or filter.
        """
        raise NotImplementedError

    def credit(self, consumer: Any, count: int) -> None:
        """The consumer accepts `count` more messages (with `credit=` at attach other than UNLIMITED)."""
        raise NotImplementedError

    def detach(self, consumer: Any) -> list[bytes]:
        """The consumer goes; what it holds is released by the returned commands."""
        raise NotImplementedError

    def settle(
        self,
        consumer: Any,
        verb: int,
        ranges: Sequence[Range],
        now: int,
        delay: int = -1,
        reason: bytes = b"",
    ) -> Settlement:
        """The consumer speaks about messages it holds (`Verb`)."""
        raise NotImplementedError

    def commit(self, consumer: Any, offset: int) -> list[bytes]:
        """Explicit commit of a stream's group: everything below `offset` is done with. Raises `ValueError` beyond the cursor."""
        raise NotImplementedError

    def run(self, queue_id: int, now: int, messages_max: int) -> Step:
        """Hand out what can be handed out, `messages_max` messages at most."""
        raise NotImplementedError

    def due(self, now: int) -> list[int]:
        """Queue ids whose timers have come; run each."""
        raise NotImplementedError

    def next_due(self) -> int | None:
        """Time of the next timer in µs, None without one."""
        raise NotImplementedError

    def applied(self, applied: Applied) -> list[int]:
        """An entry was applied to the machine: merge claims under way; returns the queue ids worth a run."""
        raise NotImplementedError
