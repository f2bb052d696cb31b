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
from typing import TYPE_CHECKING, NamedTuple

from fluxmq.model.outcomes import REFUSED_MIN
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.portion import Portion
from fluxmq.protocols.mqtt.tickets import Ticket
from fluxmq.shards.durable.homes import Home, RemoteHome, Store
from fluxmq.shards.durable.rows import Clock
from fluxmq.shards.groups import run_of
from fluxmq.storage.state_store import RECEIVED

if TYPE_CHECKING:
    from fluxmq.shards.durable.keeper import Owed, SessionKeeper

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


class CallbackTicket(Ticket):
    """A ticket that ends in a call instead of an answer to a client."""

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


class Gate:
    """A session's QoS 2 publishes that are not safe yet. ``others``: tickets of duplicates."""

    __slots__ = ("keeper", "others", "packet_ids", "ticket")

    def __init__(self, keeper: SessionKeeper, packet_ids: set[int], ticket: Ticket) -> None:
        self.keeper = keeper
        self.packet_ids = packet_ids
        self.ticket = ticket
        self.others: list[Ticket] = []


class Source(NamedTuple):
    """Origin of a run: its link (sender and receiver), the sender's life, the run's number."""

    link: int
    epoch: int
    number: int


class Safety:
    """This shard's waiting for the disk."""

    def __init__(
        self,
        shard: int,
        store: Store,
        reactor: Reactor,
        clock: Clock,
        later: Callable[[float, Callable[[], None]], None],
        count_drop: Callable[[str, int], None],
        remote: dict[int, RemoteHome],
        flushed: Callable[[], None],
    ) -> None:
        """``remote``: the homes on other shards; ``flushed`` is called at the end of a tick, when
        all homes have been told."""
        self.shard = shard
        self.clock = clock
        self.count_drop = count_drop
        self.store = store
        self.remote = remote
        self.source: Source | None = None
        """Origin of the run being delivered, if another shard would resend it."""
        self._flushed = flushed
        self._reactor = reactor
        self._later = later
        self._urgent = False
        self._lazy = False
        self._sweeping = False
        self._watched: deque[Owed] = deque()
        self._gates: list[Gate] = []
        """Gates that wait for their messages."""
        self._unwritten: dict[Gate, None] = {}
        """These, and the gates that wait for the disk."""
        self._fresh: dict[Ticket, int] = {}

    def hold(self) -> Ticket:
        """Hold the ticket of the run being published once more, and return it."""
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
            self._later(LAZY_SECONDS, self._flush_lazily)

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
            self._later(0.0, self._nothing)

    def _nothing(self) -> None:
        """Do nothing: only the tick that follows is wanted."""

    # Messages of connected clients

    def watch(self, owed: Owed) -> None:
        """Watch a message that is with a connected client, which should answer soon."""
        owed.since = self._reactor.tally.now
        self._watched.append(owed)
        if not self._sweeping:
            self._sweeping = True
            self._later(PROMPT_SECONDS, self.sweep)

    def sweep(self) -> None:
        """Write the messages that have waited too long."""
        watched = self._watched
        horizon = self.clock.now() - PROMPT_SECONDS
        while watched and (watched[0].finished or watched[0].since <= horizon):
            watched.popleft().write()
        self._sweeping = bool(watched)
        if watched:
            self._later(PROMPT_SECONDS, self.sweep)

    def pass_on(self, portion: Portion) -> None:
        """Pass on a shared group's messages from a member that has left, until others have them
        safe.

        If those refuse, the publisher is told if it still waits; otherwise the messages are offered
        again.
        """
        settle: Owed | None = portion.settle

        def safe(reason: int) -> None:
            if reason >= REFUSED_MIN:
                if settle is not None and settle.ticket is not None:
                    settle.safe(reason)
                else:
                    self._later(PASS_ON_SECONDS, lambda: self.pass_on(portion))
            elif settle is not None:
                settle.acknowledged(portion.base, portion.count)

        publishers = self._reactor.ticket
        ticket = CallbackTicket(self._reactor, safe)
        self._reactor.ticket = ticket.hold()
        portion.group.offer(run_of(portion))
        self._reactor.ticket = publishers
        ticket.done(0)

    # QoS 2 of publishers

    def fresh(self, ticket: Ticket, home: Home) -> None:
        """Note that a hold of this ticket ends with this tick's changes, if they are kept here."""
        if home is self.store:
            self._fresh[ticket] = self._fresh.get(ticket, 0) + 1

    def gate(self, keeper: SessionKeeper, packet_ids: set[int], ticket: Ticket) -> None:
        """Write received identifiers as soon as they may be on disk; this holds the ticket."""
        gate = Gate(keeper, packet_ids, ticket)
        self._gates.append(gate)
        self._unwritten[gate] = None
        self._reactor.unfinished = True

    def repeated(self, keeper: SessionKeeper, packet_ids: set[int]) -> None:
        """Delay the answer to a duplicate publish until the first is safe."""
        for gate in self._unwritten:
            if gate.keeper is keeper and gate.packet_ids & packet_ids:
                gate.others.append(self.hold())

    def unwritten(self, keeper: SessionKeeper) -> set[int]:
        """Return identifiers received by a session whose messages are not known to be safe."""
        found: set[int] = set()
        for gate in self._unwritten:
            if gate.keeper is keeper:
                found |= gate.packet_ids
        return found

    def _open_gates(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            others = gate.ticket.waiting - 1
            local = gate.keeper.home is self.store
            if others and not (local and others == self._fresh.get(gate.ticket)):
                self._gates.append(gate)
            elif gate.ticket.reason >= REFUSED_MIN:
                self._close(gate, gate.ticket.reason)
            else:
                self._write(gate)

    def _write(self, gate: Gate) -> None:
        keeper = gate.keeper
        for packet_id in gate.packet_ids:
            keeper.home.put(RECEIVED, (keeper.client_id, packet_id))

        def safe(reason: int) -> None:
            # The messages may have been refused in the same transaction.
            reason = max(reason, gate.ticket.reason)
            if reason >= REFUSED_MIN:
                for packet_id in gate.packet_ids:
                    keeper.home.remove(RECEIVED, (keeper.client_id, packet_id))
                self.lazily()
            self._close(gate, reason)

        keeper.home.when_safe(safe)
        self.wake()

    def _close(self, gate: Gate, reason: int) -> None:
        del self._unwritten[gate]
        session = gate.keeper.session
        if reason >= REFUSED_MIN and session.received:
            # The client may resend it, and then it is new, whether the client is still connected or
            # not.
            session.received -= gate.packet_ids
        gate.ticket.done(reason)
        for ticket in gate.others:
            ticket.done(reason)

    # Homes elsewhere

    def housekeeping(self) -> None:
        """Run periodic work; called every tenth of a second."""
        for home in self.remote.values():
            home.give_up()
        if not self.store.idle:
            self.store.flush()  # retry a full disk
