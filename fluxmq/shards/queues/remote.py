"""Hosts on other shards: what this shard's clients ask of them, over the links.

What is asked is kept until it is answered. A host that is away (its shard restarts) is waited for; appends are sent
again when it is back, since nobody can say what became of them: the queue may then hold a message twice, never not at
all. Consumers are cancelled and attach themselves anew.

Frames beside the control frames named in ``hosting``::

    APPEND   u8 kind, u64 number, u64 origin (0: none), u64 number and u64 floor of it, u64 term of the leadership that is asked
             (0: whichever), u16 length of the queue's name, name, batch
    DELIVER  u8 kind, u64 consumer, u32 attempts, i64 primary group's progress, batch with just the messages delivered
    REFER    as DELIVER up to the batch; u64 offset of the first message, u32 how many
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from fluxmq.net import frames
from fluxmq.net.links import FrameLink
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Code, Result
from fluxmq.shards.queues.answers import Done
from fluxmq.shards.queues.cutting import received
from fluxmq.shards.queues.names import QueueInfo, QueueNames
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

APPEND_HEAD = struct.Struct("<BQQQQQH")
DELIVER_HEAD = struct.Struct("<BQIq")
REFER = struct.Struct("<BQIqQI")
NO_IDENTITY = Identity(0, 0, 0)
WAITING_BYTES_MAX = 16 << 20
"""Batches kept for a host that has not answered; publishers pause above it, and are refused at four times as much."""
ASTRAY = Attached(MOVED, outcome=Outcome.UNAVAILABLE)
"""The host is not where the queue's group is."""
PATIENCE_SECONDS = 10.0
"""How long a host that is away is waited for before what it is asked is refused."""


class RemoteHost:
    """One other shard, as the host of queues."""

    def __init__(self, link: FrameLink, now: Callable[[], float]) -> None:
        self._link = link
        self._now = now
        self._numbers = itertools.count(1)
        self._once: set[int] = set()
        """Numbers of appends and attachments that are not kept for a host that goes away, or is the wrong one."""
        self._appends: dict[int, tuple[bytes, Answer | None]] = {}
        """Appends not answered, in the order made: frame, and who is answered."""
        self._bytes = 0
        self._ports: dict[int, ConsumerPort] = {}
        self._attaching: dict[int, tuple[Wanted, Callable[[Attached, Held | None], None]]] = {}
        self._requests: dict[int, Answer] = {}
        self._told: dict[int, Told] = {}
        self._taken: dict[int, Taken] = {}
        self._carried: dict[int, Done] = {}
        self.astray: list[tuple[Wanted, ConsumerPort, Callable[[Attached, Held | None], None]]] = []
        """Consumers that asked the wrong shard; they ask the right one soon."""
        self.serving = False
        """Whether the host has said which queues it has since its shard started."""
        self._away_since = now()

    # What is asked

    def append(
        self,
        queue: str,
        batch: bytes,
        done: Answer | None,
        identity: Identity | None = None,
        by_address: bool = False,
        once: bool = False,
    ) -> bool:
        """Store a batch there. ``once``: answered with `MOVED` where it would be kept and sent again."""
        if once and not self.serving:
            if done is not None:
                done(MOVED)
            return True
        if self._hopeless() or self._bytes > 4 * WAITING_BYTES_MAX:
            if done is not None:
                done(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
            return True
        number = next(self._numbers)
        name = queue.encode()
        own = identity or NO_IDENTITY
        kind = frames.APPEND_BY_ADDRESS if by_address else frames.APPEND
        once_only = (own.origin, own.number, own.floor, own.term)
        head = APPEND_HEAD.pack(kind, number, *once_only, len(name))
        frame = head + name + batch
        self._appends[number] = (frame, done)
        if once:
            self._once.add(number)
        self._bytes += len(frame)
        if self.serving:
            self._link.send_frame(frame)
        return self._bytes <= WAITING_BYTES_MAX

    def attach(
        self,
        wanted: Wanted,
        port: ConsumerPort,
        done: Callable[[Attached, Held | None], None],
        once: bool = False,
    ) -> None:
        """Attach a consumer there. ``once``: as in `append`."""
        if once and not self.serving:
            done(ASTRAY, None)
            return
        if self._hopeless():
            done(Attached(Reason.IMPLEMENTATION_SPECIFIC_ERROR, outcome=Outcome.UNAVAILABLE), None)
            return
        number = next(self._numbers)
        self._ports[number] = port
        self._attaching[number] = (wanted, done)
        if once:
            self._once.add(number)
        if self.serving:
            self._link.send_control("attach", number, *astuple(wanted))

    def settle(
        self,
        number: int,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: Answer | None,
    ) -> None:
        """Settle messages there."""
        flat = [offset for span in ranges for offset in span]
        request = self._request(done)
        self._link.send_control("settle", number, int(verb), flat, delay, reason, request)

    def commit(self, number: int, offset: int, done: Answer | None) -> None:
        """Commit a stream's offset there."""
        self._link.send_control("commit", number, offset, self._request(done))

    def detach(self, number: int) -> None:
        """A consumer goes."""
        if self._ports.pop(number, None) is not None:
            self._link.send_control("detach", number)

    def set_limit(self, number: int, limit: int) -> None:
        """A consumer holds at most so many unsettled messages from now on."""
        self._link.send_control("limit", number, limit)

    def take(self, number: int, done: Taken) -> None:
        """One message for a consumer there."""
        if not self.serving or number not in self._ports:
            done(False, 0)
            return
        request = next(self._numbers)
        self._taken[request] = done
        self._link.send_control("take", number, request)

    def stop(self, number: int) -> None:
        """A consumer is given nothing more."""
        self._link.send_control("stop", number)

    def status(self, queue: str, done: Told) -> None:
        """Count a queue's messages and consumers there."""
        self._ask(done, "status", queue)

    def purge(self, queue: str, done: Told) -> None:
        """Drop what is ready there."""
        self._ask(done, "purge", queue)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: Told) -> None:
        """Delete a queue there."""
        self._ask(done, "delete queue", queue, if_unused, if_empty)

    def carry(self, group: str, queue: str, kind: int, body: bytes, done: Done) -> None:
        """Carry out there a command about a queue that moves to a group."""
        if not self.serving:
            done(Result(Code.LOST))
            return
        request = next(self._numbers)
        self._carried[request] = done
        self._link.send_control("carry", request, group, queue, kind, body)

    def _ask(self, done: Told, name: str, *arguments: Any) -> None:
        if not self.serving:
            done(Status(Outcome.UNAVAILABLE))
            return
        request = next(self._numbers)
        self._told[request] = done
        self._link.send_control(name, request, *arguments)

    def _request(self, done: Answer | None) -> int:
        if done is None:
            return 0
        request = next(self._numbers)
        self._requests[request] = done
        return request

    def _hopeless(self) -> bool:
        return not self.serving and self._now() > self._away_since + PATIENCE_SECONDS

    @property
    def crowded(self) -> bool:
        """Whether more is unanswered than is good."""
        return self._bytes > WAITING_BYTES_MAX

    @property
    def last_number(self) -> int:
        """Number of the newest append that is not answered; 0 when there is none."""
        return next(reversed(self._appends), 0)

    def owes(self, last: int) -> bool:
        """Whether an append up to this number is not answered."""
        return next(iter(self._appends), last + 1) <= last

    # What comes back

    def on_appended(self, numbers: list[int], refused: list[int]) -> None:
        """Appends became durable, or (number and reason in turn) were refused."""
        for number in numbers:
            self._answer(number, 0)
        for at in range(0, len(refused), 2):
            self._answer(refused[at], refused[at + 1])

    def _answer(self, number: int, reason: int) -> None:
        found = self._appends.pop(number, None)
        if found is not None:
            self._once.discard(number)
            frame, done = found
            self._bytes -= len(frame)
            if done is not None:
                done(reason)

    def on_attached(
        self, number: int, reason: int, group: str, stream: bool, primary: str, outcome: int
    ) -> None:
        """A consumer is attached, or not."""
        found = self._attaching.pop(number, None)
        if found is None:
            return
        once = number in self._once
        self._once.discard(number)
        if reason == MOVED and once:
            self._ports.pop(number, None)
            found[1](ASTRAY, None)
        elif reason == MOVED:
            self.astray.append((found[0], self._ports.pop(number), found[1]))
        elif reason:
            self._ports.pop(number, None)
            found[1](Attached(reason, outcome=outcome), None)
        else:
            found[1](Attached(0, group, stream, primary), RemoteHeld(self, number))

    def on_settled(self, request: int, reason: int) -> None:
        """What was settled or committed is durable, or was refused."""
        done = self._requests.pop(request, None)
        if done is not None:
            done(reason)

    def on_told(
        self, request: int, outcome: int, ready: int, unsettled: int, consumers: int
    ) -> None:
        """What a queue was asked is answered."""
        done = self._told.pop(request, None)
        if done is not None:
            done(Status(Outcome(outcome), ready, unsettled, consumers))

    def on_carried(self, request: int, code: int, value: int) -> None:
        """A command about a queue that moves was carried out, or not."""
        done = self._carried.pop(request, None)
        if done is not None:
            done(Result(code, value))

    def on_taken(self, request: int, found: bool, ready: int) -> None:
        """A message that was to be taken has come, or there is none."""
        done = self._taken.pop(request, None)
        if done is not None:
            done(found, ready)

    def on_deliver(self, frame: bytes) -> None:
        """Messages for a consumer of this shard."""
        _, number, attempts, committed = DELIVER_HEAD.unpack_from(frame)
        port = self._ports.get(number)
        if port is not None:
            batch = received(frame, DELIVER_HEAD.size)
            port.deliver(batch, 0, batch.count, attempts, committed)

    def on_refer(self, frame: bytes) -> None:
        """It is said which messages are for a consumer of this shard, which has a copy of them."""
        _, number, attempts, committed, offset, count = REFER.unpack(frame)
        port: Any = self._ports.get(number)
        if port is not None:
            port.refer(offset, count, attempts, committed)

    def on_cancelled(self, number: int) -> None:
        """The consumer's queue is gone there."""
        port = self._ports.pop(number, None)
        attaching = self._attaching.pop(number, None)
        if port is not None and attaching is not None and number in self._once:
            self._once.discard(number)
            attaching[1](ASTRAY, None)
        elif port is not None and attaching is not None:
            self.astray.append((attaching[0], port, attaching[1]))
        elif port is not None:
            port.cancelled()

    # Coming and going

    def serve(self) -> None:
        """The host is there with its queues: it gets what it has not answered."""
        self.serving = True
        for frame, _ in self._appends.values():
            self._link.send_frame(frame)
        for number, (wanted, _) in self._attaching.items():
            self._link.send_control("attach", number, *astuple(wanted))

    def lose(self) -> None:
        """The host's shard has died."""
        self.serving = False
        self._away_since = self._now()
        requests, self._requests = self._requests, {}
        for done in requests.values():
            done(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        told, self._told = self._told, {}
        for tell in told.values():
            tell(Status(Outcome.UNAVAILABLE))
        taken, self._taken = self._taken, {}
        for take in taken.values():
            take(False, 0)
        carried, self._carried = self._carried, {}
        for carry in carried.values():
            carry(Result(Code.LOST))
        gone = [number for number in self._ports if number not in self._attaching]
        for number in gone:
            self._ports.pop(number).cancelled()
        self._lose_once()

    def _lose_once(self) -> None:
        """Nobody can say what became of what the host was asked for: who asked asks somebody else."""
        once, self._once = self._once, set()
        for number in sorted(once):
            self._answer(number, MOVED)
            attaching = self._attaching.pop(number, None)
            if attaching is not None:
                self._ports.pop(number, None)
                attaching[1](ASTRAY, None)

    def give_up(self) -> None:
        """Refuse what has waited in vain for a host that does not come back."""
        if not self._hopeless():
            return
        appends, self._appends = self._appends, {}
        self._bytes = 0
        for _, done in appends.values():
            if done is not None:
                done(Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        attaching, self._attaching = self._attaching, {}
        for number, (_, attached) in attaching.items():
            self._ports.pop(number, None)
            attached(
                Attached(Reason.IMPLEMENTATION_SPECIFIC_ERROR, outcome=Outcome.UNAVAILABLE), None
            )


class RemoteHeld:
    """A consumer attached on another shard."""

    def __init__(self, host: RemoteHost, number: int) -> None:
        self._host = host
        self._number = number

    def settle(
        self, verb: int, ranges: Sequence[Range], delay: int, reason: bytes, done: Answer | None
    ) -> None:
        """Settle messages."""
        self._host.settle(self._number, verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: Answer | None) -> None:
        """Commit a stream's offset."""
        self._host.commit(self._number, offset, done)

    def set_limit(self, limit: int) -> None:
        """Set how many messages it may hold."""
        self._host.set_limit(self._number, limit)

    def take(self, done: Taken) -> None:
        """Take one message."""
        self._host.take(self._number, done)

    def stop(self) -> None:
        """Be given nothing more."""
        self._host.stop(self._number)

    def detach(self) -> None:
        """Go."""
        self._host.detach(self._number)


class RemoteHosts:
    """All other shards."""

    def __init__(
        self,
        links: Mapping[int, FrameLink],
        names: QueueNames,
        now: Callable[[], float],
        host: Callable[[str], QueueHost],
    ) -> None:
        self._names = names
        self._host = host
        self._now = now
        self.answered: Callable[[], None] = lambda: None
        """Called when a host has answered appends."""
        self.hosts = {peer: RemoteHost(link, now) for peer, link in links.items()}

    def add(self, peer: int, link: FrameLink) -> None:
        """There is another shard, of another node."""
        self.hosts[peer] = RemoteHost(link, self._now)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Who takes which control frame."""
        return {
            "appended": self._on_appended,
            "attached": self._to("on_attached"),
            "settled": self._to("on_settled"),
            "told": self._to("on_told"),
            "taken": self._to("on_taken"),
            "cancelled": self._to("on_cancelled"),
            "queues": self._on_queues,
            "queue": self._on_queue,
            "no queue": self._on_no_queue,
            "carried": self._to("on_carried"),
        }

    def _to(self, name: str) -> Callable[..., None]:
        def handle(link: FrameLink, *arguments: Any) -> None:
            getattr(self.hosts[link.peer], name)(*arguments)

        return handle

    def _on_appended(self, link: FrameLink, numbers: list[int], refused: list[int]) -> None:
        self.hosts[link.peer].on_appended(numbers, refused)
        self.answered()

    def _on_queues(self, link: FrameLink, queues: Iterable[list[Any]], complete: bool) -> None:
        """A shard tells which queues it hosts; it serves them when it has told all."""
        for queue in queues:
            self._on_queue(link, *queue)
        if complete:
            self.hosts[link.peer].serve()

    def _on_queue(
        self, _link: FrameLink, name: str, group: str, kind: int, topics: list[bytes]
    ) -> None:
        self._names.add(QueueInfo(name, group, kind, tuple(topics)))

    def _on_no_queue(self, _link: FrameLink, name: str, group: str) -> None:
        if self._names.info(name).group == group:  # else it is in another group by now
            self._names.remove(name)

    def deliver(self, link: FrameLink, frame: bytes) -> None:
        """A DELIVER frame has come."""
        self.hosts[link.peer].on_deliver(frame)

    def refer(self, link: FrameLink, frame: bytes) -> None:
        """A REFER frame has come."""
        self.hosts[link.peer].on_refer(frame)

    def lose(self, peer: int) -> None:
        """A shard has died."""
        self.hosts[peer].lose()

    @property
    def crowded(self) -> bool:
        """Whether more is unanswered anywhere than is good."""
        return any(host.crowded for host in self.hosts.values())

    def housekeeping(self) -> None:
        """A tenth of a second has passed."""
        for host in self.hosts.values():
            host.give_up()
            astray, host.astray = host.astray, []
            for wanted, port, done in astray:
                self._host(self._names.info(wanted.queue).group).attach(wanted, port, done)
