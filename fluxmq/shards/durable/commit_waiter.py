"""Waiting for the disk on one shard, and the times at which gathered changes are written.

At the end of each tick with a waiter, all changes go to their homes. Changes without a waiter (a
message that was answered, a session's new expiry) go along, or within ``LAZY_SECONDS``. A message
that a connected client has not answered after ``PROMPT_SECONDS`` is written, so that its publisher
need not wait for a slow reader.

QoS 2 identifiers of publishers are written in the same transaction as the messages if both are kept
here, or else after them: were they on disk alone, the message would be taken for a duplicate after
a restart, and be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from fluxmq.model.outcomes import REFUSED_MIN
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.identifiers import IdentifierRanges
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.durable.range_rows import RangeRows
from fluxmq.shards.durable.row_router import LocalRows, RemoteRows, RowHome
from fluxmq.shards.durable.rows import Clock
from fluxmq.shards.groups import run_of
from fluxmq.shards.run_numbers import RunNumbers

PROMPT_SECONDS = 0.05
"""Time that a publisher waits for a connected subscriber's answer before its message is written:
far more than a round trip on a healthy network, too short to be noticed.
"""
LAZY_SECONDS = 0.05
"""Maximum delay of changes without a waiter: they cause at most 20 commits a second."""
PASS_ON_SECONDS = 1.0
"""Interval at which messages of a shared group that other members refused are offered again: a full
disk may have room by then.
"""


class CallbackAck(PendingAck):
    """A pending ack that ends in a call instead of an answer to a client."""

    def __init__(self, reactor: Reactor, done: Callable[[int], object]) -> None:
        super().__init__(reactor)
        self._ended = done

    def done(self, reason: int = 0) -> int:
        """Count one completion; after the last, call back with the highest reason."""
        self.waiting -= 1
        self.reason = max(self.reason, reason)
        if self.waiting == 0:
            self._ended(self.reason)
        return 0


class WatchedMessages(Protocol):
    """Messages of a connected client that are written if it does not answer soon."""

    since: float
    finished: bool
    pending_ack: PendingAck | None

    def write(self) -> None:
        """Write them."""

    def safe(self, reason: int) -> None:
        """Note that they are safe, or have been refused."""

    def acknowledged(self, base: int, count: int) -> None:
        """Note that a part of them is answered."""


class ReceivedJournal(Protocol):
    """The rows of a session that has received QoS 2 publishes."""

    @property
    def ended(self) -> bool:
        """True when the session has ended, or has left this shard."""

    @property
    def received_rows(self) -> RangeRows:
        """Its rows of received identifiers."""

    @property
    def home(self) -> RowHome:
        """The shard on whose disk the rows are."""

    @property
    def session(self) -> Session:
        """The session."""


class ReleaseGate:
    """A session's QoS 2 publishes that are not safe yet. ``others``: pending acks of duplicates."""

    __slots__ = ("journal", "others", "packet_ids", "pending_ack")

    def __init__(
        self, journal: ReceivedJournal, packet_ids: IdentifierRanges, pending_ack: PendingAck
    ) -> None:
        self.journal = journal
        self.packet_ids = packet_ids
        self.pending_ack = pending_ack
        self.others: list[PendingAck] = []


class CommitWaiter:
    """This shard's waiting for the disk."""

    def __init__(
        self,
        shard: int,
        store: LocalRows,
        reactor: Reactor,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], None],
        count_drop: Callable[[str, int], None],
        remote: dict[int, RemoteRows],
        flushed: Callable[[], None],
    ) -> None:
        """``remote``: the homes on other shards; ``flushed`` is called at the end of a tick, when
        all homes have been told."""
        self.shard = shard
        self.numbers = RunNumbers()
        self.clock = clock
        self.count_drop = count_drop
        self.store = store
        self.remote = remote
        self._flushed = flushed
        self._reactor = reactor
        self._call_later = call_later
        self._urgent = False
        self._lazy = False
        self._sweeping = False
        self._watched: deque[WatchedMessages] = deque()
        self._gates: list[ReleaseGate] = []
        """Gates that wait for their messages."""
        self._unwritten: dict[ReleaseGate, None] = {}
        """These, and the gates that wait for the disk."""
        self._fresh: dict[PendingAck, int] = {}

    def hold(self) -> PendingAck:
        """Hold the pending ack of the run being published once more, and return it."""
        return self._reactor.hold()

    def wake(self) -> None:
        """Send changes with a waiter to their homes at the end of the tick."""
        self._urgent = True
        self._reactor.unfinished = True
        self._reactor.host.schedule()

    def lazily(self) -> None:
        """Send a change without a waiter soon."""
        if not self._lazy:
            self._lazy = True
            self._call_later(LAZY_SECONDS, self._flush_lazily)

    def _flush_lazily(self) -> None:
        self._lazy = False
        self._flush()

    def _flush(self) -> None:
        self.store.flush()
        for home in self.remote.values():
            home.flush()

    def finish(self) -> None:
        """End a tick."""
        if self._gates:
            self._open_gates()
        if self._fresh:
            self._fresh.clear()
        if self._urgent:
            self._urgent = False
            self._flush()
        self._flushed()
        if self._gates:
            self._reactor.unfinished = True
        if self._urgent:
            self._call_later(0.0, self._nothing)

    def _nothing(self) -> None:
        """Do nothing: only the tick that follows is wanted."""

    # Messages of connected clients

    def watch(self, undelivered: WatchedMessages) -> None:
        """Watch a message that is with a connected client, which should answer soon."""
        undelivered.since = self._reactor.tally.now
        self._watched.append(undelivered)
        if not self._sweeping:
            self._sweeping = True
            self._call_later(PROMPT_SECONDS, self.sweep)

    def sweep(self) -> None:
        """Write the messages that have waited too long."""
        watched = self._watched
        horizon = self.clock.now() - PROMPT_SECONDS
        while watched and (watched[0].finished or watched[0].since <= horizon):
            watched.popleft().write()
        self._sweeping = bool(watched)
        if watched:
            self._call_later(PROMPT_SECONDS, self.sweep)

    def pass_on(self, inflight: InflightRange) -> None:
        """Pass on a shared group's messages from a member that has left, until others have them
        safe.

        If those refuse, the publisher is told if it still waits; otherwise the messages are offered
        again.
        """
        settle: WatchedMessages | None = inflight.settle

        def safe(reason: int) -> None:
            if reason >= REFUSED_MIN:
                if settle is not None and settle.pending_ack is not None:
                    settle.safe(reason)
                else:
                    self._call_later(PASS_ON_SECONDS, lambda: self.pass_on(inflight))
            elif settle is not None:
                settle.acknowledged(inflight.base, inflight.count)

        publishers = self._reactor.pending_ack
        pending_ack = CallbackAck(self._reactor, safe)
        self._reactor.pending_ack = pending_ack.hold()
        inflight.group.offer(run_of(inflight))
        self._reactor.pending_ack = publishers
        pending_ack.done(0)

    # QoS 2 of publishers

    def fresh(self, pending_ack: PendingAck, home: RowHome) -> None:
        """Note that a hold of this pending ack ends with this tick's changes, if they are kept
        here."""
        if home is self.store:
            self._fresh[pending_ack] = self._fresh.get(pending_ack, 0) + 1

    def gate(
        self, journal: ReceivedJournal, packet_ids: IdentifierRanges, pending_ack: PendingAck
    ) -> None:
        """Write received identifiers as soon as they may be on disk; this holds the pending ack."""
        gate = ReleaseGate(journal, packet_ids, pending_ack)
        self._gates.append(gate)
        self._unwritten[gate] = None
        self._reactor.unfinished = True

    def repeated(self, journal: ReceivedJournal, packet_ids: IdentifierRanges) -> None:
        """Delay the answer to a duplicate publish until the first is safe."""
        ranges = packet_ids.ranges()
        for gate in self._unwritten:
            if gate.journal is journal and any(gate.packet_ids.overlaps(*each) for each in ranges):
                gate.others.append(self.hold())

    def unwritten(self, journal: ReceivedJournal) -> set[int]:
        """Return identifiers received by a session whose messages are not known to be safe."""
        found: set[int] = set()
        for gate in self._unwritten:
            if gate.journal is journal:
                found.update(gate.packet_ids.numbers())
        return found

    def _open_gates(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            others = gate.pending_ack.waiting - 1
            local = gate.journal.home is self.store
            if others and not (local and others == self._fresh.get(gate.pending_ack)):
                self._gates.append(gate)
            elif gate.pending_ack.reason >= REFUSED_MIN:
                self._close(gate, gate.pending_ack.reason)
            else:
                self._write(gate)

    def _write(self, gate: ReleaseGate) -> None:
        journal = gate.journal
        if journal.ended:  # its rows are deleted, or another shard's by now
            self._close(gate, gate.pending_ack.reason)
            return
        for first, count in gate.packet_ids.ranges():
            journal.received_rows.add(first, count)

        def safe(reason: int) -> None:
            # The messages may have been refused in the same transaction.
            reason = max(reason, gate.pending_ack.reason)
            if reason >= REFUSED_MIN and not journal.ended:
                for first, count in gate.packet_ids.ranges():
                    journal.received_rows.remove(first, count)
                self.lazily()
            self._close(gate, reason)

        journal.home.when_safe(safe)
        self.wake()

    def _close(self, gate: ReleaseGate, reason: int) -> None:
        del self._unwritten[gate]
        session = gate.journal.session
        if reason >= REFUSED_MIN and session.received is not None:
            # The client may resend it, and then it is new, whether the client is still connected or
            # not.
            for first, count in gate.packet_ids.ranges():
                session.received.remove(first, count)
        gate.pending_ack.done(reason)
        for pending_ack in gate.others:
            pending_ack.done(reason)

    # Homes elsewhere

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        for home in self.remote.values():
            home.give_up()
        if not self.store.idle:
            self.store.flush()  # retry a full disk
