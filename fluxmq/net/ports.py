"""Interfaces of the loop to its shard, and to the targets of its routes.

Packages above implement them. Every method returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.run import PublishRun

if TYPE_CHECKING:
    from fluxmq.net.route import Route


class RunSink(Protocol):
    """Takes runs: a durable queue, a shared subscription."""

    def offer(self, run: PublishRun, /) -> object:
        """Take a run; its bytes are valid until this returns, unless it is detached."""


class RunLink(Protocol):
    """Takes runs for another shard."""

    def send_run(self, run: PublishRun, /) -> object:
        """Send a run, as `RunSink.offer` takes it."""


class Inbound(Protocol):
    """Traffic from another shard to this one."""

    def receive(self) -> int:
        """Handle what has arrived; return the number of records."""


class Inbox(Protocol):
    """Traffic from all other shards to this one."""

    def ready(self) -> Sequence[Inbound]:
        """Return the links over which something may have arrived."""

    def sleep(self) -> bool:
        """Ask to be woken by the next arrival; return False if there has been one already."""


AppendedCallback = Callable[[int], object]
"""Called with 0 once a queue has messages for good, else with a reason."""


class SpanPort(Protocol):
    """Records what happens to messages that have ``traceparent`` among their properties."""

    def accepted(self, connection: Connection, run: PublishRun, /) -> object:
        """Record that a client's run has arrived."""

    def delivered(self, run: PublishRun, receivers: int, /) -> object:
        """Record that a run is delivered to so many sessions here."""

    def published(self, exchange: str, key: str, block: bytes, messages: int, /) -> object:
        """Record that messages with these properties have arrived, for an exchange."""

    def appended(
        self, queue: str, block: bytes, batch: bytes, done: AppendedCallback | None, /
    ) -> AppendedCallback | None:
        """Return what to call instead of ``done`` when a queue has a batch, whose messages have
        these properties."""


class ReactorHost(Protocol):
    """The shard."""

    @property
    def spans(self) -> SpanPort:
        """The recorder of spans (`WATCH_SPANS`)."""

    def route(self, topic: bytes, /) -> Route | None:
        """Return the route of a topic; None for an invalid one."""

    def schedule(self) -> object:
        """Schedule another turn of the loop, after other work of the process."""

    def finish_tick(self) -> object:
        """Do the work deferred to the end of a tick (`Reactor.unfinished`)."""

    def link_full(self, connection: Connection, /) -> object:
        """Stop reading a publisher, as a link has no room (`Reactor.link_full`)."""

    def hold_publisher(self, connection: Connection, /) -> object:
        """Stop reading a connection if it publishes, as the node is short of something."""

    def trace(self, connection: Connection, run: PublishRun, /) -> object:
        """Copy a client's run for the firehose (`WATCH_RUNS`)."""

    def charge(self, connection: Connection, count: int, size: int, /) -> object:
        """Stop reading a connection that publishes faster than it may (`WATCH_RATES`): it has
        sent ``count`` messages, ``size`` bytes."""

    def half_close(self, connection: Connection, /) -> object:
        """End a connection of which everything is written."""

    def discard(self, connection: Connection, /) -> object:
        """Forget a connection that is lost."""
