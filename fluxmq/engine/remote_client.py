"""Hosts on other shards: requests of this shard's clients over the links.

Requests are kept until answered. While a host is away (its shard restarts) callers wait; appends
are sent again when it returns, since their fate is unknown: the queue may then hold a message
twice, but never misses it. Consumers are cancelled and reattach.

Frames beside the control frames named in ``group_server``::

    APPEND   u8 kind, u64 number, u64 origin (0: none), its u64 number and u64 floor,
             u64 term of the requested leader (0: any), u16 length of queue's name, name, batch
    DELIVER  u8 kind, u64 consumer, u32 attempts, i64 primary group's progress, batch of messages
    REFER    as DELIVER up to the batch; u64 offset of the first message, u32 count

Longer than 500 lines because requests, answers and retries on one link share its numbering.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from fluxmq.engine.answers import ResultCallback
from fluxmq.engine.batch_slices import received
from fluxmq.engine.names import QueueInfo, QueueNames
from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GetCallback,
    GroupClient,
    QueueStats,
    Range,
    StatusCallback,
)
from fluxmq.model.outcomes import Outcome, QueueOutcome
from fluxmq.net import frames
from fluxmq.net.links import FrameLink
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Code, Result

APPEND_HEAD = struct.Struct("<BQQQQQH")
DELIVER_HEAD = struct.Struct("<BQIq")
REFER = struct.Struct("<BQIqQI")
NO_IDENTITY = Identity(0, 0, 0)
WAITING_BYTES_MAX = 16 << 20
"""Unanswered bytes per host above which publishers pause; at four times, appends are refused."""
ASTRAY = Attached(Outcome.MOVED, outcome=QueueOutcome.UNAVAILABLE)
"""The host does not lead the queue's group."""
AWAY_SECONDS = 10.0
"""Time for which requests wait for a host that is away before they are refused."""


class RemoteClient:
    """One other shard, as a host of queues."""

    def __init__(self, link: FrameLink, now: Callable[[], float]) -> None:
        self._link = link
        self._now = now
        self._numbers = itertools.count(1)
        self._once: set[int] = set()
        """Numbers of appends and attaches that are not retried if the host is lost or wrong."""
        self._appends: dict[int, tuple[bytes, AppendCallback | None]] = {}
        """Unanswered appends in order: frame and callback."""
        self._bytes = 0
        self._ports: dict[int, ConsumerPort] = {}
        self._attaching: dict[
            int, tuple[AttachRequest, Callable[[Attached, ConsumerHandle | None], None]]
        ] = {}
        self._requests: dict[int, AppendCallback] = {}
        self._told: dict[int, StatusCallback] = {}
        self._taken: dict[int, GetCallback] = {}
        self._carried: dict[int, ResultCallback] = {}
        self.astray: list[
            tuple[AttachRequest, ConsumerPort, Callable[[Attached, ConsumerHandle | None], None]]
        ] = []
        """Consumers that asked the wrong shard and will retry at the right one soon."""
        self.serving = False
        """True once the restarted host has announced its queues."""
        self._away_since = now()

    # Requests

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
        once: bool = False,
    ) -> bool:
        """Append a batch there. ``fail_fast``: answer `MOVED` instead of keeping it for a retry."""
        if once and not self.serving:
            if done is not None:
                done(Outcome.MOVED)
            return True
        if self._hopeless() or self._bytes > 4 * WAITING_BYTES_MAX:
            if done is not None:
                done(Outcome.FAILED)
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
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
        once: bool = False,
    ) -> None:
        """Attach a consumer there. ``fail_fast``: as in `append`."""
        if once and not self.serving:
            done(ASTRAY, None)
            return
        if self._hopeless():
            done(Attached(Outcome.FAILED, outcome=QueueOutcome.UNAVAILABLE), None)
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
        done: AppendCallback | None,
    ) -> None:
        """Settle messages there."""
        flat = [offset for span in ranges for offset in span]
        request = self._request(done)
        self._link.send_control("settle", number, int(verb), flat, delay, reason, request)

    def commit(self, number: int, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream's offset there."""
        self._link.send_control("commit", number, offset, self._request(done))

    def detach(self, number: int) -> None:
        """Detach a consumer."""
        if self._ports.pop(number, None) is not None:
            self._link.send_control("detach", number)

    def set_limit(self, number: int, limit: int) -> None:
        """Set a consumer's maximum number of unacked messages."""
        self._link.send_control("limit", number, limit)

    def take(self, number: int, done: GetCallback) -> None:
        """Get one message for a consumer there."""
        if not self.serving or number not in self._ports:
            done(False, 0)
            return
        request = next(self._numbers)
        self._taken[request] = done
        self._link.send_control("take", number, request)

    def stop(self, number: int) -> None:
        """Stop deliveries to a consumer."""
        self._link.send_control("stop", number)

    def status(self, queue: str, done: StatusCallback) -> None:
        """Count a queue's messages and consumers there."""
        self._ask(done, "status", queue)

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Drop ready messages there."""
        self._ask(done, "purge", queue)

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Delete a queue there."""
        self._ask(done, "delete queue", queue, if_unused, if_empty)

    def carry(self, group: str, queue: str, kind: int, body: bytes, done: ResultCallback) -> None:
        """Carry out a command there about a queue that is moving to a group."""
        if not self.serving:
            done(Result(Code.LOST))
            return
        request = next(self._numbers)
        self._carried[request] = done
        self._link.send_control("carry", request, group, queue, kind, body)

    def _ask(self, done: StatusCallback, name: str, *arguments: Any) -> None:
        if not self.serving:
            done(QueueStats(QueueOutcome.UNAVAILABLE))
            return
        request = next(self._numbers)
        self._told[request] = done
        self._link.send_control(name, request, *arguments)

    def _request(self, done: AppendCallback | None) -> int:
        if done is None:
            return 0
        request = next(self._numbers)
        self._requests[request] = done
        return request

    def _hopeless(self) -> bool:
        return not self.serving and self._now() > self._away_since + AWAY_SECONDS

    @property
    def above_high_watermark(self) -> bool:
        """True while unanswered appends exceed the high watermark."""
        return self._bytes > WAITING_BYTES_MAX

    @property
    def last_number(self) -> int:
        """Number of the newest unanswered append; 0 if there is none."""
        return next(reversed(self._appends), 0)

    def has_pending(self, last: int) -> bool:
        """Return whether an append up to this number is unanswered."""
        return next(iter(self._appends), last + 1) <= last

    # Answers

    def on_appended(self, numbers: list[int], refused: list[int]) -> None:
        """Handle appends that became durable or were refused (alternating number and reason)."""
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
        """Handle the answer to an attach."""
        found = self._attaching.pop(number, None)
        if found is None:
            return
        once = number in self._once
        self._once.discard(number)
        if reason == Outcome.MOVED and once:
            self._ports.pop(number, None)
            found[1](ASTRAY, None)
        elif reason == Outcome.MOVED:
            self.astray.append((found[0], self._ports.pop(number), found[1]))
        elif reason:
            self._ports.pop(number, None)
            found[1](Attached(reason, outcome=outcome), None)
        else:
            found[1](Attached(0, group, stream, primary), RemoteHandle(self, number))

    def on_settled(self, request: int, reason: int) -> None:
        """Handle the answer to a settlement or a commit."""
        done = self._requests.pop(request, None)
        if done is not None:
            done(reason)

    def on_told(
        self, request: int, outcome: int, ready: int, unsettled: int, consumers: int
    ) -> None:
        """Handle the answer to a status, purge or delete request."""
        done = self._told.pop(request, None)
        if done is not None:
            done(QueueStats(QueueOutcome(outcome), ready, unsettled, consumers))

    def on_carried(self, request: int, code: int, value: int) -> None:
        """Handle the answer to a command about a moving queue."""
        done = self._carried.pop(request, None)
        if done is not None:
            done(Result(code, value))

    def on_taken(self, request: int, found: bool, ready: int) -> None:
        """Handle the answer to a get."""
        done = self._taken.pop(request, None)
        if done is not None:
            done(found, ready)

    def on_deliver(self, frame: bytes) -> None:
        """Deliver messages to a consumer of this shard."""
        _, number, attempts, committed = DELIVER_HEAD.unpack_from(frame)
        port = self._ports.get(number)
        if port is not None:
            batch = received(frame, DELIVER_HEAD.size)
            port.deliver(batch, 0, batch.count, attempts, committed)

    def on_refer(self, frame: bytes) -> None:
        """Refer a consumer of this shard to messages in its node's replica."""
        _, number, attempts, committed, offset, count = REFER.unpack(frame)
        port: Any = self._ports.get(number)
        if port is not None:
            port.refer(offset, count, attempts, committed)

    def on_cancelled(self, number: int) -> None:
        """Handle the cancellation of a consumer there."""
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
        """Send all unanswered requests to a host that is ready."""
        self.serving = True
        for frame, _ in self._appends.values():
            self._link.send_frame(frame)
        for number, (wanted, _) in self._attaching.items():
            self._link.send_control("attach", number, *astuple(wanted))

    def lose(self) -> None:
        """Handle the loss of the host's shard."""
        self.serving = False
        self._away_since = self._now()
        requests, self._requests = self._requests, {}
        for done in requests.values():
            done(Outcome.FAILED)
        told, self._told = self._told, {}
        for tell in told.values():
            tell(QueueStats(QueueOutcome.UNAVAILABLE))
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
        """Answer fail-fast requests, whose fate is unknown: their callers ask elsewhere."""
        once, self._once = self._once, set()
        for number in sorted(once):
            self._answer(number, Outcome.MOVED)
            attaching = self._attaching.pop(number, None)
            if attaching is not None:
                self._ports.pop(number, None)
                attaching[1](ASTRAY, None)

    def give_up(self) -> None:
        """Refuse requests to a host that has not come back in time."""
        if not self._hopeless():
            return
        appends, self._appends = self._appends, {}
        self._bytes = 0
        for _, done in appends.values():
            if done is not None:
                done(Outcome.FAILED)
        attaching, self._attaching = self._attaching, {}
        for number, (_, attached) in attaching.items():
            self._ports.pop(number, None)
            attached(Attached(Outcome.FAILED, outcome=QueueOutcome.UNAVAILABLE), None)


class RemoteHandle:
    """A consumer attached on another shard."""

    def __init__(self, host: RemoteClient, number: int) -> None:
        self._host = host
        self._number = number

    def settle(
        self,
        verb: int,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: AppendCallback | None,
    ) -> None:
        """Settle messages."""
        self._host.settle(self._number, verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream's offset."""
        self._host.commit(self._number, offset, done)

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages."""
        self._host.set_limit(self._number, limit)

    def take(self, done: GetCallback) -> None:
        """Get one message."""
        self._host.take(self._number, done)

    def stop(self) -> None:
        """Stop deliveries."""
        self._host.stop(self._number)

    def detach(self) -> None:
        """Detach."""
        self._host.detach(self._number)


class RemoteClients:
    """All other shards."""

    def __init__(
        self,
        links: Mapping[int, FrameLink],
        names: QueueNames,
        now: Callable[[], float],
        host: Callable[[str], GroupClient],
    ) -> None:
        self._names = names
        self._host = host
        self._now = now
        self.answered: Callable[[], None] = lambda: None
        """Called when a host has answered appends."""
        self.hosts = {peer: RemoteClient(link, now) for peer, link in links.items()}

    def add(self, peer: int, link: FrameLink) -> None:
        """Add a shard of another node."""
        self.hosts[peer] = RemoteClient(link, self._now)

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames."""
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
        """Learn queues that a shard hosts; it is ready once the announcement is complete."""
        for queue in queues:
            self._on_queue(link, *queue)
        if complete:
            self.hosts[link.peer].serve()

    def _on_queue(
        self, _link: FrameLink, name: str, group: str, kind: int, topics: list[bytes]
    ) -> None:
        self._names.add(QueueInfo(name, group, kind, tuple(topics)))

    def _on_no_queue(self, _link: FrameLink, name: str, group: str) -> None:
        if self._names.info(name).group == group:  # otherwise it is in another group by now
            self._names.remove(name)

    def deliver(self, link: FrameLink, frame: bytes) -> None:
        """Handle a DELIVER frame."""
        self.hosts[link.peer].on_deliver(frame)

    def refer(self, link: FrameLink, frame: bytes) -> None:
        """Handle a REFER frame."""
        self.hosts[link.peer].on_refer(frame)

    def lose(self, peer: int) -> None:
        """Handle the loss of a shard."""
        self.hosts[peer].lose()

    @property
    def above_high_watermark(self) -> bool:
        """True while any host's unanswered appends exceed the high watermark."""
        return any(host.above_high_watermark for host in self.hosts.values())

    def housekeeping(self) -> None:
        """Do periodic work; runs every tenth of a second."""
        for host in self.hosts.values():
            host.give_up()
            astray, host.astray = host.astray, []
            for wanted, port, done in astray:
                self._host(self._names.info(wanted.queue).group).attach(wanted, port, done)
