"""Interface that the parser of AMQP 0.9.1 calls; the sessions implement it."""

from __future__ import annotations

from typing import Protocol

from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.connection import Connection


class AmqpHandler(Protocol):
    """Gives frames their meaning: `Connection.handler` of an AMQP 0.9.1 connection."""

    def protocol_header(self, connection: Connection, header: bytes, /) -> object:
        """Answer the protocol header."""

    def publish_run(self, connection: Connection, channel: int, run: AmqpPublishRun, /) -> object:
        """Publish a run; its bytes are valid until this returns."""

    def frame(self, connection: Connection, kind: int, channel: int, payload: bytes, /) -> object:
        """Handle one frame."""

    def broken(self, connection: Connection, code: int, text: str, /) -> object:
        """End a connection whose bytes are no frames."""

    def lost(self, connection: Connection, /) -> object:
        """Handle a lost network connection."""

    def drained(self, connection: Connection, /) -> object:
        """Continue deliveries that waited for room (`Connection.feeding`)."""
