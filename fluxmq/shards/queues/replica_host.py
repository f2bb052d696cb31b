"""A group that is led on another node and has its copy on this shard: consumers here are given messages out of the copy.

Who leads decides as ever which messages a consumer gets, and takes what it settles; only what crosses to here says which
messages those are, instead of carrying them (`distribution_mode: replicate`). A message that is not in the copy yet is waited
for: it was committed before it was handed out, so it is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fluxmq.model.errors import FluxmqError
from fluxmq.queues.commands import Verb
from fluxmq.queues.origins import Identity
from fluxmq.shards.queues.ports import (
    MOVED,
    Answer,
    Attached,
    ConsumerPort,
    Held,
    Outcome,
    QueueHost,
    Range,
    Status,
    Taken,
    Told,
    Wanted,
)
from fluxmq.storage.errors import Corruption

if TYPE_CHECKING:
    from fluxmq.shards.queues.group import Group

ASTRAY = Attached(MOVED, outcome=Outcome.UNAVAILABLE)


class ReplicaHost:
    """Implements ``QueueHost`` for consumers of a copy. ``leader`` gives who leads the group, None while nobody is known."""

    def __init__(self, group: Group, leader: Callable[[], QueueHost | None]) -> None:
        self._group = group
        self._leader = leader
        self._waiting: dict[ReplicaPort, None] = {}
        self._ports: dict[ReplicaPort, None] = {}
        """All consumers of this copy."""
        self._closed = False
        self._forwarding = False
        """Whether messages are not read from the copy any more: it is damaged."""

    def append(
        self,
        queue: str,
        batch: bytes,
        done: Answer | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Not here: appends go to who leads."""
        if done is not None:
            done(MOVED)
        return True

    def attach(
        self, wanted: Wanted, port: ConsumerPort, done: Callable[[Attached, Held | None], None]
    ) -> None:
        """Attach a consumer to who leads, and give it messages out of the copy."""
        leader = None if self._closed else self._leader()
        if leader is None:
            done(ASTRAY, None)
            return
        if self._forwarding:
            leader.attach(wanted, port, done)
            return
        reading = ReplicaPort(self, wanted.queue, port)
        self._ports[reading] = None

        def attached(answer: Attached, held: Held | None) -> None:
            if self._closed and held is not None:
                held.detach()
                done(ASTRAY, None)
                return
            reading.held = held
            if held is None:
                self.leave(reading)
            done(answer, None if held is None else ReplicaHeld(held, reading))

        # What it is told of is no batch: it is taken as one that is handed references.
        leader.attach(replace(wanted, references=True), reading, attached)

    def status(self, queue: str, done: Told) -> None:
        """Not here."""
        done(Status(Outcome.UNAVAILABLE))

    def purge(self, queue: str, done: Told) -> None:
        """Not here."""
        done(Status(Outcome.UNAVAILABLE))

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Not here."""
        done(Status(Outcome.UNAVAILABLE))

    def applied(self) -> None:
        """The copy has more than before."""
        for port in list(self._waiting):
            if port.pump():
                self.forget(port)

    def wait(self, port: ReplicaPort) -> None:
        """A consumer has been told of messages that are not here yet."""
        self._waiting[port] = None

    def forget(self, port: ReplicaPort) -> None:
        """A consumer waits no longer."""
        self._waiting.pop(port, None)

    def leave(self, port: ReplicaPort) -> None:
        """A consumer has gone."""
        self._ports.pop(port, None)
        self.forget(port)

    def close(self) -> None:
        """There is another copy from now on, or none: every consumer is let go, and has to be attached to that."""
        self._closed = True
        self._let_go()

    def damaged(self, why: str) -> None:
        """The copy is damaged: consumers are let go, and get what the leader itself sends when they come again."""
        self._forwarding = True
        self._let_go()
        self._group.on_damaged(why)

    def _let_go(self) -> None:
        for port in list(self._ports):
            port.let_go()

    @property
    def group(self) -> Group:
        """The copy."""
        return self._group


class ReplicaPort:
    """A consumer that reads from the copy. ``held``: as whom it is attached."""

    def __init__(self, host: ReplicaHost, queue: str, port: ConsumerPort) -> None:
        self._host = host
        self._queue = queue
        self._port = port
        self._told: deque[tuple[int, int, int, int]] = deque()
        """What it was told of and is not here yet; bounded by what a consumer may hold."""
        self._behind: deque[tuple[Taken, int]] = deque()
        """Who took a message that is not here yet, and how many more are ready."""
        self._missed = False
        """Whether a message was told of that there is none of any more."""
        self.held: Held | None = None

    def refer(self, offset: int, count: int, attempts: int, committed: int) -> None:
        """These messages are for the consumer."""
        self._told.append((offset, count, attempts, committed))
        if not self.pump():
            self._host.wait(self)

    def pump(self) -> bool:
        """Hand on what is here; whether nothing is missing."""
        state = self._host.group.machine.queue(self._queue)
        while self._told:
            offset, count, attempts, committed = self._told[0]
            if state is None or state.next_offset < offset + count:
                return False
            self._told.popleft()
            self._hand_on(state.id, offset, count, attempts, committed)
        behind, self._behind = self._behind, deque()
        for done, ready in behind:
            self.taken(done, True, ready)
        return True

    def taken(self, done: Taken, found: bool, ready: int) -> None:
        """Who leads has answered a take: it is told when the message was delivered."""
        if found and self._told:
            self._behind.append((done, ready))
            return
        missed, self._missed = self._missed, False
        done(found and not missed, ready)

    def end(self) -> None:
        """Nothing more is handed on; whoever waits for a message is told that there is none."""
        self._told.clear()
        self._host.leave(self)
        behind, self._behind = self._behind, deque()
        for done, _ in behind:
            done(False, 0)

    def _hand_on(
        self, queue_id: int, offset: int, count: int, attempts: int, committed: int
    ) -> None:
        log = self._host.group.logs[queue_id]
        end = offset + count
        while offset < end:
            try:
                batch = log.read(offset)
            except Corruption as damage:
                self._host.damaged(str(damage))
                return
            except FluxmqError:
                # Retention has taken it meanwhile: others may be given what is left.
                self._missed = True
                if self.held is not None:
                    span = [(offset, end - 1)]
                    self.held.settle(Verb.RELEASE, span, 0, b"", None)
                return
            first = offset - batch.base_offset
            here = min(batch.count - first, end - offset)
            self._port.deliver(batch, first, here, attempts, committed)
            offset += here

    def deliver(
        self, batch: object, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Messages themselves have come although references were asked for."""
        raise AssertionError("a host that was asked for references sends no messages")

    def cancelled(self) -> None:
        """Who leads has let the consumer go."""
        self.end()
        self._port.cancelled()

    def let_go(self) -> None:
        """The copy is closed: what was not handed on is the leader's again, and whoever consumes looks for another host."""
        held, self.held = self.held, None
        self.end()
        if held is not None:
            held.detach()
            self._port.cancelled()


class ReplicaHeld:
    """A consumer that reads from the copy, from the side of who asked for it."""

    def __init__(self, held: Held, port: ReplicaPort) -> None:
        self._held = held
        self._port = port

    def settle(
        self, verb: int, ranges: Sequence[Range], delay: int, reason: bytes, done: Answer | None
    ) -> None:
        """Settle messages, where the group is led."""
        self._held.settle(verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: Answer | None) -> None:
        """Commit a stream's offset there."""
        self._held.commit(offset, done)

    def set_limit(self, limit: int) -> None:
        """At most so many unsettled messages from now on."""
        self._held.set_limit(limit)

    def take(self, done: Taken) -> None:
        """One message now; it may be known there and not be here yet."""
        self._held.take(lambda found, ready: self._port.taken(done, found, ready))

    def stop(self) -> None:
        """Be given nothing more."""
        self._held.stop()

    def detach(self) -> None:
        """Go; what has not come yet does not come any more."""
        self._port.end()
        self._held.detach()
