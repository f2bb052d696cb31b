"""Interfaces that the hot path of MQTT calls; packages above implement them.

`Connection` and the modules here call these, never the shard or the sessions themselves. Every
method returns at once.
"""

from __future__ import annotations

from typing import Protocol

from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.run import PublishRun


class MqttHandler(Protocol):
    """Gives packets their meaning: `Connection.handler` of an MQTT connection."""

    def packet(self, connection: Connection, first: int, body: bytes, /) -> object:
        """Handle a packet of which the loop knows nothing; ``first`` is its first byte."""

    def publish(self, connection: Connection, run: PublishRun, raw: bytes, /) -> bool:
        """Decide about a run that is out of the ordinary, with its properties as received; return
        True to route and answer it."""

    def acknowledgements(
        self, connection: Connection, first: int, buffer: bytearray, start: int, count: int, /
    ) -> object:
        """Handle ``count`` plain PUBREC, PUBREL or PUBCOMP packets, as ``first`` says, in
        ``buffer[start:]``."""

    def broken(
        self, connection: Connection, reason: int, packet: bytes | bytearray = b"", /
    ) -> object:
        """End a connection that violates the protocol."""

    def bad_topic(self, connection: Connection, topic: bytes, /) -> object:
        """End a connection that publishes to an invalid topic."""

    def refused(self, connection: Connection, answers: bytes, reason: int, /) -> object:
        """Answer a run that a queue or a session refused."""

    def lost(self, connection: Connection, /) -> object:
        """Handle a lost network connection."""

    def drained(self, connection: Connection, /) -> object:
        """Continue deliveries that waited for room (`Connection.feeding`)."""


class FlowControl(Protocol):
    """Stops and resumes reading a connection: the loop."""

    def pause(self, connection: Connection, reason: int, /) -> object:
        """Stop reading for ``reason``, a bit."""

    def resume(self, connection: Connection, reason: int, /) -> object:
        """Remove a reason for not reading."""


class AnswerSink(Protocol):
    """Receives the outcomes of an in-flight range's messages, by their numbers."""

    def acknowledged(self, first: int, count: int, /) -> object:
        """Note that ``count`` messages from number ``first`` on are answered, or not wanted."""

    def refused(self, number: int, /) -> object:
        """Note that the client refused a message or cannot take it."""


class RunJournal(Protocol):
    """Takes the runs of a session that is kept on disk, and enqueues them once that is done."""

    def keep(
        self, run: PublishRun, qos: int, retain: int, subscription_ids: bytes, group: object, /
    ) -> object:
        """Keep a run for the session."""

    def released_again(self, connection: Connection, pubrels: bytes, /) -> None:
        """Send PUBRELs again, once every PUBREC so far is on disk."""
