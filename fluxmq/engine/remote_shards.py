"""Other shards as targets of requests, which go over the links.

They keep nothing: a request whose outcome is unknown, since the shard is lost or does not serve the
queue's group, is answered with `MOVED`, and its consumers are cancelled. `GroupClient` retries.

Frames beside the control frames named in ``group_server``::

    APPEND   u8 kind, u64 number, u64 origin (0: none), its u64 number and u64 floor,
             u64 term of the requested leader (0: any), u16 length of queue's name, name, batch
    DELIVER  u8 kind, u64 consumer, u32 attempts, i64 primary group's progress, batch of messages
    REFER    as DELIVER up to the batch; u64 offset of the first message, u32 count
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, Protocol, cast

from fluxmq.engine.answers import ResultCallback
from fluxmq.engine.batch_slices import received
from fluxmq.engine.names import QueueInfo, QueueNames
from fluxmq.engine.ports import (
    ActivityPort,
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    GetCallback,
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
ASTRAY = Attached(Outcome.MOVED, outcome=QueueOutcome.UNAVAILABLE)
"""Answer to a consumer by a shard that does not serve the queue's group."""
AWAY_SECONDS = 10.0
"""Time for which requests wait for a shard of this node that is away before they are refused."""


class RemoteShard:
    """One other shard, as a target of requests."""

    def __init__(self, link: FrameLink, now: Callable[[], float]) -> None:
        self._link = link
        self._now = now
        self._numbers = itertools.count(1)
        self._appends: dict[int, AppendCallback | None] = {}
        """Unanswered appends, in order."""
        self._ports: dict[int, ConsumerPort] = {}
        self._attaching: dict[int, Callable[[Attached, ConsumerHandle | None], None]] = {}
        self._requests: dict[int, AppendCallback] = {}
        self._told: dict[int, StatusCallback] = {}
        self._taken: dict[int, GetCallback] = {}
        self._carried: dict[int, ResultCallback] = {}
        self.serving = False
        """True once the restarted shard has announced its queues."""
        self._away_since = now()

    # Requests

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Append a batch there."""
        if not self.serving:
            if done is not None:
                done(Outcome.MOVED)
            return True
        number = next(self._numbers)
        name = queue.encode()
        own = identity or NO_IDENTITY
        kind = frames.APPEND_BY_ADDRESS if by_address else frames.APPEND
        once_only = (own.origin, own.number, own.floor, own.term)
        head = APPEND_HEAD.pack(kind, number, *once_only, len(name))
        self._appends[number] = done
        self._link.send_frame(head + name + batch)
        return True

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Attach a consumer there."""
        if not self.serving:
            done(ASTRAY, None)
            return
        number = next(self._numbers)
        self._ports[number] = port
        self._attaching[number] = done
        # All but `abroad`, which the link says, and the failover, which the consumer's shard notices.
        self._link.send_control("attach", number, *astuple(wanted)[:-2])

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

    @property
    def given_up(self) -> bool:
        """Whether the shard has been away for longer than requests wait for it."""
        return not self.serving and self._now() > self._away_since + AWAY_SECONDS

    # Answers

    def on_appended(self, numbers: list[int], refused: list[int]) -> None:
        """Handle appends that became durable or were refused (alternating number and reason)."""
        for number in numbers:
            self._answer(number, 0)
        for at in range(0, len(refused), 2):
            self._answer(refused[at], refused[at + 1])

    def _answer(self, number: int, reason: int) -> None:
        done = self._appends.pop(number, None)
        if done is not None:
            done(reason)

    def on_attached(
        self, number: int, reason: int, group: str, stream: bool, primary: str, outcome: int
    ) -> None:
        """Handle the answer to an attach."""
        done = self._attaching.pop(number, None)
        if done is None:
            return
        if not reason:
            done(Attached(0, group, stream, primary), RemoteHandle(self, number))
            return
        self._ports.pop(number, None)
        moved = reason == Outcome.MOVED
        done(ASTRAY if moved else Attached(reason, outcome=outcome), None)

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

    def _on_active(self, number: int, active: bool) -> None:
        """Handle that a consumer of this shard has become the active one, or is not."""
        port = self._ports.get(number)
        if port is not None:
            cast(ActivityPort, port).activity(active)

    def on_cancelled(self, number: int) -> None:
        """Handle the cancellation of a consumer there."""
        port = self._ports.pop(number, None)
        attaching = self._attaching.pop(number, None)
        if attaching is not None:
            attaching(ASTRAY, None)
        elif port is not None:
            port.cancelled()

    # Coming and going

    def serve(self) -> None:
        """Accept requests: the shard is ready."""
        self.serving = True

    def lose(self) -> None:
        """Handle the loss of the shard."""
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
        attaching, self._attaching = self._attaching, {}
        ports, self._ports = self._ports, {}
        for number, port in ports.items():
            if number not in attaching:
                port.cancelled()
        for number in list(self._appends):
            self._answer(number, Outcome.MOVED)
        for attached in attaching.values():
            attached(ASTRAY, None)


class RemoteHandle:
    """A consumer attached on another shard."""

    def __init__(self, shard: RemoteShard, number: int) -> None:
        self._shard = shard
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
        self._shard.settle(self._number, verb, ranges, delay, reason, done)

    def commit(self, offset: int, done: AppendCallback | None) -> None:
        """Commit a stream's offset."""
        self._shard.commit(self._number, offset, done)

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of unacked messages."""
        self._shard.set_limit(self._number, limit)

    def take(self, done: GetCallback) -> None:
        """Get one message."""
        self._shard.take(self._number, done)

    def stop(self) -> None:
        """Stop deliveries."""
        self._shard.stop(self._number)

    def detach(self) -> None:
        """Detach."""
        self._shard.detach(self._number)


class RemoteShardObserver(Protocol):
    """Follows the answers of other shards."""

    def answered(self) -> None:
        """Note that a shard has answered appends."""

    def serves(self) -> None:
        """Note that a shard has become ready for requests."""


class RemoteShards:
    """All other shards."""

    def __init__(
        self,
        links: Mapping[int, FrameLink],
        names: QueueNames,
        now: Callable[[], float],
        observer: RemoteShardObserver,
    ) -> None:
        self._names = names
        self._now = now
        self._observer = observer
        self.shards = {peer: RemoteShard(link, now) for peer, link in links.items()}

    def add(self, peer: int, link: FrameLink) -> None:
        """Add a shard of another node."""
        self.shards[peer] = RemoteShard(link, self._now)

    def serving(self, peer: int) -> RemoteShard | None:
        """Return a shard; None while it cannot be sent requests."""
        shard = self.shards.get(peer)
        return shard if shard is not None and shard.serving else None

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames."""
        return {
            "appended": self._on_appended,
            "attached": self._to("on_attached"),
            "settled": self._to("on_settled"),
            "told": self._to("on_told"),
            "taken": self._to("on_taken"),
            "active": self._to("_on_active"),
            "cancelled": self._to("on_cancelled"),
            "queues": self._on_queues,
            "queue": self._on_queue,
            "no queue": self._on_no_queue,
            "carried": self._to("on_carried"),
        }

    def _to(self, name: str) -> Callable[..., None]:
        def handle(link: FrameLink, *arguments: Any) -> None:
            getattr(self.shards[link.peer], name)(*arguments)

        return handle

    def _on_appended(self, link: FrameLink, numbers: list[int], refused: list[int]) -> None:
        self.shards[link.peer].on_appended(numbers, refused)
        self._observer.answered()

    def _on_queues(self, link: FrameLink, queues: Iterable[list[Any]], complete: bool) -> None:
        """Learn queues that a shard hosts; it is ready once the announcement is complete."""
        for queue in queues:
            self._on_queue(link, *queue)
        if complete:
            self.shards[link.peer].serve()
            self._observer.serves()

    def _on_queue(
        self, _link: FrameLink, name: str, group: str, kind: int, topics: list[bytes]
    ) -> None:
        self._names.add(QueueInfo(name, group, kind, tuple(topics)))

    def _on_no_queue(self, _link: FrameLink, name: str, group: str) -> None:
        if self._names.info(name).group == group:  # otherwise it is in another group by now
            self._names.remove(name)

    def deliver(self, link: FrameLink, frame: bytes) -> None:
        """Handle a DELIVER frame."""
        self.shards[link.peer].on_deliver(frame)

    def refer(self, link: FrameLink, frame: bytes) -> None:
        """Handle a REFER frame."""
        self.shards[link.peer].on_refer(frame)

    def lose(self, peer: int) -> None:
        """Handle the loss of a shard."""
        self.shards[peer].lose()
