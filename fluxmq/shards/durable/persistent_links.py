"""QoS 1 and 2 messages for persistent sessions of another shard, numbered and confirmed.

A KEPT frame is a RUN frame with a number in front, a DEALT frame a SHARED one: the part of a shared
group that has persistent members there. Its publisher waits until the peer reports that its part is
on disk or with its clients. A dead peer is waited for: when its sessions are back it gets all
unanswered runs again, and runs published meanwhile wait here, bounded. The filters of its sessions
are known from its announcements, and at this shard's own start from its file. So after a death a
message may arrive there twice, but is never lost. QoS 2 messages do not arrive twice: each
session's last number is written with its messages (``SessionJournal``). Parts of shared groups,
which may be dealt differently the second time, do.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.model.outcomes import Outcome
from fluxmq.net import frames
from fluxmq.net.links import Link
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.shards.durable.commit_waiter import CallbackAck
from fluxmq.shards.durable.row_router import AWAY_SECONDS
from fluxmq.shards.run_numbers import RunNumbers

UNANSWERED_BYTES_MAX = 64 << 20
"""Bytes of unanswered messages kept for a peer; beyond it publishers are refused. A healthy peer
answers within a sweep and a commit, a tenth of a second: hundreds of megabytes a second.
"""


class PersistentLink:
    """The path to one other shard's persistent sessions; replaces its link in routes."""

    def __init__(
        self,
        link: Link,
        reactor: Reactor,
        first_number: int,
        now: Callable[[], float],
        numbers: RunNumbers,
    ) -> None:
        self.peer = link.peer
        self._link = link
        self._reactor = reactor
        self._number = first_number
        self._now = now
        self._numbers = numbers
        self._sent: dict[int, tuple[bytes, PendingAck]] = {}
        self._bytes = 0
        self._away_since = now()
        self.serving = False
        """True while the peer's sessions are there."""

    @property
    def unanswered(self) -> int:
        """Number of runs that the peer has not answered."""
        return len(self._sent)

    def send_run(self, run: PublishRun) -> None:
        """Send the peer a run; its publisher waits for the answer."""
        if not run.qos:
            self._link.send_run(run)
        else:
            self._numbers.identify(run)
            source = self._numbers.source or frames.NO_SOURCE
            self._send(run, lambda number: frames.encode_kept(number, run, source))

    def send_shared(self, group: bytes, topic_filter: bytes, run: PublishRun) -> None:
        """Send the peer a QoS 1 or 2 run for its members of a shared group."""
        self._send(run, lambda number: frames.encode_dealt(number, group, topic_filter, run))

    def _send(self, run: PublishRun, head: Callable[[int], bytes]) -> None:
        pending_ack = self._reactor.hold()
        if self._hopeless() or self._bytes > UNANSWERED_BYTES_MAX:
            pending_ack.done(Outcome.OVER_LIMIT)
            return
        self._number += 1
        body = bytes(memoryview(run.buffer)[run.start : run.end])
        frame = head(self._number) + body
        self._sent[self._number] = (frame, pending_ack)
        self._bytes += len(frame)
        if self.serving:
            self._link.send_frame(frame)

    def answered(self, number: int, reason: int) -> None:
        """End a run that the peer has made safe, or refuses."""
        found = self._sent.pop(number, None)
        if found is not None:
            frame, pending_ack = found
            self._bytes -= len(frame)
            pending_ack.done(reason)

    def serve(self) -> None:
        """Resend unanswered runs: the peer's sessions are there."""
        self.serving = True
        for frame, _ in self._sent.values():
            self._link.send_frame(frame)

    def lose(self) -> None:
        """Note that the peer has died."""
        self.serving = False
        self._away_since = self._now()

    def give_up(self) -> None:
        """Refuse runs that have waited too long for a peer that does not come back."""
        if not self._sent or not self._hopeless():
            return
        sent, self._sent = self._sent, {}
        self._bytes = 0
        for _, pending_ack in sent.values():
            pending_ack.done(Outcome.OVER_LIMIT)

    def _hopeless(self) -> bool:
        return not self.serving and self._now() > self._away_since + AWAY_SECONDS


class PersistentRuns:
    """The receiving side: runs of other shards for this one's sessions."""

    def __init__(self, links: dict[int, Link], reactor: Reactor, wake: Callable[[], None]) -> None:
        self._links = links
        self._reactor = reactor
        self._wake = wake
        self._done: dict[int, list[int]] = {}

    def deliver(self, link: Link, number: int, deliver: Callable[[], None]) -> None:
        """Deliver a numbered run; its sessions hold the answer until it is safe."""

        def safe(reason: int) -> None:
            self._done.setdefault(link.peer, []).extend((number, reason))
            self._wake()

        pending_ack = CallbackAck(self._reactor, safe)
        self._reactor.pending_ack = pending_ack.hold()
        deliver()
        self._reactor.pending_ack = None
        pending_ack.done(0)

    def flush(self) -> None:
        """Send the answers of this tick."""
        if not self._done:
            return
        done, self._done = self._done, {}
        for peer, answers in done.items():
            if self._links[peer].up:
                self._links[peer].send_control("run kept", answers)
