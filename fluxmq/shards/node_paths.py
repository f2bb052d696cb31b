"""The way of messages to another node: numbered, kept until they are answered, bounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from fluxmq.model.outcomes import Outcome
from fluxmq.net import frames
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.shards.run_numbers import RunNumbers

QOS_0_BACKLOG_MAX = 16 << 20
"""Bytes that wait for a stream above which QoS 0 messages for it are dropped."""
PAUSE_BACKLOG = 48 << 20
"""Bytes that wait for a stream above which publishers of QoS 1 and 2 messages for it are paused,
until there are less than `QOS_0_BACKLOG_MAX`; a stream with 64 MiB is cut."""
UNANSWERED_BYTES_MAX = 16 << 20
"""Bytes of unanswered messages that are kept for another node. Above it, those that no publisher
waits for are sent without being kept, and others are refused at four times as much."""


class PublishLink(Protocol):
    """A link to a shard of another node."""

    @property
    def peer(self) -> int:
        """This node's number for the shard."""

    @property
    def node(self) -> str:
        """The shard's node."""

    @property
    def shard(self) -> int:
        """The shard's number on its node."""

    @property
    def epoch(self) -> int:
        """Number of the life of its process."""

    @property
    def up(self) -> bool:
        """True while there is a stream."""

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait to be sent."""

    def send_control(self, name: str, /, *arguments: object) -> None:
        """Send a control frame."""

    def send_frame(self, frame: bytes, /) -> None:
        """Send a whole frame."""

    def close(self) -> None:
        """End the stream; the next one begins soon."""


class NodeCounts:
    """Numbers for the metrics."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.repeated = 0
        self.dropped = 0
        self.refused = 0
        self.slow = 0


class NodePath:
    """The way of messages to another node, over the link to its primary shard for this one."""

    def __init__(
        self,
        link: PublishLink,
        reactor: Reactor,
        now: Callable[[], float],
        numbers: Iterator[int],
        counts: NodeCounts,
        identities: RunNumbers,
    ) -> None:
        """``numbers``: those of the shard's runs, which never come again in its life."""
        self.identities = identities
        self.link = link
        self._reactor = reactor
        self._now = now
        self._counts = counts
        self._numbers = numbers
        self._sent: dict[int, tuple[bytes, PendingAck | None, float]] = {}
        """Unanswered runs in order: frame, the pending ack of a publisher who waits, and when it
        began to."""
        self._bytes = 0
        self._epoch = link.epoch
        self.away_since: float | None = None

    def send(self, run: PublishRun, head: Callable[[int, float], bytes], waits: bool) -> None:
        """Send a run; ``head`` makes the beginning of its frame, given number and time to live."""
        self._counts.sent += run.count
        link = self.link
        body = bytes(memoryview(run.buffer)[run.start : run.end])
        left = max(run.deadline - self._now(), 1e-6) if run.deadline else 0.0
        if not run.qos:
            if link.up and link.backlog_bytes <= QOS_0_BACKLOG_MAX:
                link.send_frame(head(0, left) + body)
            else:
                self._counts.dropped += run.count
            return
        number = next(self._numbers)
        frame = head(number, left) + body
        pending_ack = self._reactor.hold() if waits else None
        if pending_ack is not None and self._bytes > 4 * UNANSWERED_BYTES_MAX:
            self._counts.refused += run.count
            pending_ack.done(Outcome.OVER_LIMIT)
            return
        if pending_ack is not None or self._bytes <= UNANSWERED_BYTES_MAX:
            self._sent[number] = (frame, pending_ack, self._now())
            self._bytes += len(frame)
        elif not link.up:
            self._counts.dropped += run.count
        if link.up:
            link.send_frame(frame)
            if link.backlog_bytes > PAUSE_BACKLOG:
                self._reactor.link_full = True

    def answered(self, number: int, reason: int) -> None:
        """End a run that the other node has, or refuses."""
        found = self._sent.pop(number, None)
        if found is not None:
            frame, pending_ack, _ = found
            self._bytes -= len(frame)
            if pending_ack is not None:
                pending_ack.done(reason)

    def came(self) -> None:
        """Send unanswered runs over a new stream.

        A process that has restarted has lost its sessions, except persistent ones: only what
        publishers wait for is sent to it.
        """
        self.away_since = None
        restarted, self._epoch = self.link.epoch != self._epoch, self.link.epoch
        for number, (frame, pending_ack, _) in list(self._sent.items()):
            if restarted and pending_ack is None:
                self.answered(number, 0)
            else:
                self.link.send_frame(frame)

    def lost(self) -> None:
        """Note that the stream has ended."""
        self.away_since = self._now()

    def give_up(self, before: float = math.inf) -> None:
        """Refuse what publishers have been waiting for since then, or at all."""
        overdue = []
        for number, (_, pending_ack, since) in self._sent.items():
            if since > before:
                break
            if pending_ack is not None:
                overdue.append(number)
        for number in overdue:
            self.answered(number, Outcome.OVER_LIMIT)

    @property
    def behind(self) -> bool:
        """True while publishers have to pause."""
        return self.link.up and self.link.backlog_bytes > QOS_0_BACKLOG_MAX


class PathEnd:
    """A `NodePath` as routes and shared groups use it.

    ``batch_max``: maximum number of messages in a frame; ``waits``: publishers wait for answers.
    """

    def __init__(self, path: NodePath, batch_max: int, waits: bool) -> None:
        self._path = path
        self._batch_max = batch_max
        self._waits = waits

    def send_run(self, run: PublishRun) -> None:
        """Send a run to the node's subscribers."""
        if run.qos:
            self._path.identities.identify(run)
        for part in parts_of(run, self._batch_max):
            head = partial(frames.encode_node_run, run=part)
            self._path.send(part, head, self._waits)

    def send_shared(self, group: bytes, topic_filter: bytes, run: PublishRun) -> None:
        """Send a run to the node's members of a shared group."""
        for part in parts_of(run, self._batch_max):
            head = partial(
                frames.encode_node_shared, group=group, topic_filter=topic_filter, run=part
            )
            self._path.send(part, head, self._waits)


def parts_of(run: PublishRun, count_max: int) -> Iterator[PublishRun]:
    """Yield a run in parts of up to ``count_max`` messages."""
    if run.count <= count_max:
        yield run
        return
    offset, left = run.start, run.count
    while left:
        count = min(left, count_max)
        end = run.skip(offset, count)
        piece = run.part(offset, end, count)
        if run.identity is not None:
            piece.identity = run.identity[0], run.identity[1] + run.count - left
        yield piece
        offset, left = end, left - count
