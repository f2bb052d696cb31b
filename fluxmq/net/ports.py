"""What the loop needs of the shard that it belongs to, and of what its routes lead to.

Packages above implement them. Every method returns at once.
"""

from __future__ import annotations

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
    """What another shard sends to this one."""

    def receive(self) -> int:
        """Handle what has come; return how much there was."""

    def sleep(self) -> object:
        """Ask to be woken by what comes next."""


class ReactorHost(Protocol):
    """The shard."""

    def route(self, topic: bytes, /) -> Route | None:
        """Return what a topic leads to; None for an invalid one."""

    def schedule(self) -> object:
        """Have the loop run again, after others had their turn."""

    def finish_tick(self) -> object:
        """Do what is put off to the end of a tick (`Reactor.unfinished`)."""

    def link_full(self, connection: Connection, /) -> object:
        """Stop reading a publisher, as a link has no room (`Reactor.link_full`)."""

    def hold_publisher(self, connection: Connection, /) -> object:
        """Stop reading a connection if it publishes, as the node is short of something."""

    def half_close(self, connection: Connection, /) -> object:
        """End a connection of which everything is written."""

    def discard(self, connection: Connection, /) -> object:
        """Forget a connection that is lost."""
