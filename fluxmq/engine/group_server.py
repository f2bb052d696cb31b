"""This shard as the server of groups for clients on other shards.

Control frames from the clients' shard: ``attach``, ``settle``, ``commit``, ``limit``, ``take``,
``stop``, ``detach``, ``status``, ``purge``, ``delete queue``; to it: ``appended``, ``attached``,
``settled``, ``taken``, ``told``, ``cancelled``, ``queues``, ``queue``, ``no queue``. Answers to
appends are sent once per tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

from fluxmq.engine.batch_slices import cut
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.names import QueueNames
from fluxmq.engine.ports import (
    Attached,
    AttachRequest,
    ConsumerHandle,
    GroupTarget,
    QueueStats,
    StatusCallback,
)
from fluxmq.engine.remote_shards import APPEND_HEAD, DELIVER_HEAD, REFER
from fluxmq.engine.replica_client import ReplicaClient
from fluxmq.engine.service import QueueService
from fluxmq.model.batch_format import Batch
from fluxmq.model.outcomes import Outcome
from fluxmq.net import frames
from fluxmq.net.links import BACKLOG_BYTES_MAX, SHARDS_MAX, FrameLink
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.limits import UNSETTLED_MAX
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Code, Result
from fluxmq.settings.clustering import OWN_GROUP_PREFIXES

QUEUES_PER_FRAME = 500
"""Maximum number of queues announced in one frame."""


def is_own(group: str) -> bool:
    """Return whether a group is of a kind that each node has for itself."""
    return group.startswith(OWN_GROUP_PREFIXES)


class RemotePort:
    """A consumer on another shard. ``limit``: maximum unacked messages; ``slow``: called with a
    port whose messages have to wait; ``references``: it has a replica and is sent offsets only."""

    def __init__(
        self,
        link: FrameLink,
        number: int,
        limit: int,
        gone: Callable[[], object],
        slow: Callable[[RemotePort], None],
        references: bool,
    ) -> None:
        self._references = references
        self._link = link
        self._number = number
        self._limit = limit or UNSETTLED_MAX
        self._gone = gone
        self._slow = slow
        self._waiting: deque[tuple[Batch, int, int, int, int]] = deque()
        self._behind: list[Callable[[], object]] = []
        self._count = 0
        self.handle: ConsumerHandle | None = None

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Send messages when the link has room for them.

        They are not requeued meanwhile: that would count as a delivery towards the delivery limit.
        """
        if not self._waiting and self._has_room:
            self._send(batch, first, count, attempts, committed)
            return
        self._waiting.append((batch, first, count, attempts, committed))
        self._count += count
        while self._count > self._limit and len(self._waiting) > 1:
            # A consumer holds no more than its limit: these have timed out.
            self._count -= self._waiting.popleft()[2]
        self._slow(self)

    def set_limit(self, limit: int) -> None:
        """Raise the maximum number of unacked messages."""
        self._limit = max(self._limit, limit or UNSETTLED_MAX)

    def pump(self) -> bool:
        """Send waiting messages while the link has room; return whether none is left."""
        while self._waiting and self._has_room:
            waited = self._waiting.popleft()
            self._count -= waited[2]
            self._send(*waited)
        if not self._waiting and self._behind:
            behind, self._behind = self._behind, []
            for action in behind:
                action()
        return not self._waiting

    def after_messages(self, action: Callable[[], object]) -> None:
        """Run ``action`` once every message given so far is sent."""
        if self._waiting:
            self._behind.append(action)
        else:
            action()

    @property
    def _has_room(self) -> bool:
        return self._link.up and self._link.backlog_bytes <= BACKLOG_BYTES_MAX

    def _send(self, batch: Batch, first: int, count: int, attempts: int, committed: int) -> None:
        if self._references:
            offset = batch.base_offset + first
            self._link.send_frame(
                REFER.pack(frames.REFER, self._number, attempts, committed, offset, count)
            )
            return
        head = DELIVER_HEAD.pack(frames.DELIVER, self._number, attempts, committed)
        self._link.send_frame(head + cut(batch, first, count))

    def activity(self, active: bool) -> None:
        """Tell the remote consumer whether it is the active one: it has asked for that."""
        if self._link.up:
            self._link.send_control("active", self._number, active)

    def cancelled(self) -> None:
        """Cancel the remote consumer."""
        self._waiting.clear()
        self._behind.clear()
        self._gone()
        if self._link.up:
            self._link.send_control("cancelled", self._number)


class GroupServer:
    """Requests of other shards for this one's groups."""

    def __init__(
        self,
        links: Mapping[int, FrameLink],
        service: QueueService,
        names: QueueNames,
        target_of: Callable[[str], GroupTarget],
    ) -> None:
        self._links = dict(links)
        self._service = service
        self._names = names
        self._arrived = target_of
        self._consumers: dict[int, dict[int, RemotePort]] = {peer: {} for peer in links}
        self._slow: dict[RemotePort, None] = {}
        """Consumers whose messages wait for room in a link."""
        self._done: dict[int, list[int]] = {}
        self._refused: dict[int, list[int]] = {}
        self._epochs = dict.fromkeys(links, 0)
        """Number of times each peer was lost: requests from before a loss get no answer."""
        service.observers.append(self)

    def add(self, peer: int, link: FrameLink) -> None:
        """Add a shard of another node."""
        self._links[peer] = link
        self._consumers[peer] = {}
        self._epochs[peer] = 0

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames."""
        return {
            "attach": self._on_attach,
            "settle": self._on_settle,
            "commit": self._on_commit,
            "detach": self._on_detach,
            "limit": self._on_limit,
            "take": self._on_take,
            "stop": self._on_stop,
            "status": self._on_status,
            "purge": self._on_purge,
            "delete queue": self._on_delete,
            "carry": self._on_carry,
        }

    # Appends

    def append(self, link: FrameLink, frame: bytes) -> None:
        """Handle an APPEND or APPEND_BY_ADDRESS frame."""
        kind, number, *origin, length = APPEND_HEAD.unpack_from(frame)
        at = APPEND_HEAD.size + length
        queue = frame[APPEND_HEAD.size : at].decode()
        peer, epoch = link.peer, self._epochs[link.peer]

        def answered(reason: int) -> None:
            if self._epochs[peer] != epoch:
                return
            if reason:
                self._refused.setdefault(peer, []).extend((number, reason))
            else:
                self._done.setdefault(peer, []).append(number)
            self._service.wake()

        identity = Identity(*origin) if origin[0] else None
        by_address = kind == frames.APPEND_BY_ADDRESS
        self._target_of(queue).append(queue, frame[at:], answered, identity, by_address)

    def _target_of(self, queue: str) -> GroupTarget:
        """Return the target of a queue. A moving queue may be here before this shard learns of it."""
        target = self._arrived(self._names.info(queue).group)
        if (
            isinstance(target, ReplicationGroup)
            and not target.absent
            and target.machine.queue(queue) is not None
        ):
            return target
        for hosted in self._service.groups.values():
            group = hosted.group
            if group.replicated and not group.closed and group.machine.queue(queue) is not None:
                return group
        return target

    def flush(self) -> None:
        """Send this tick's answers and messages that waited for room."""
        if self._slow:
            self._slow = {port: None for port in self._slow if not port.pump()}
        if not self._done and not self._refused:
            return
        done, self._done = self._done, {}
        refused, self._refused = self._refused, {}
        for peer in done.keys() | refused.keys():
            self._links[peer].send_control("appended", done.get(peer, []), refused.get(peer, []))

    # Consumers

    def _on_attach(
        self,
        link: FrameLink,
        number: int,
        queue: str,
        group: str,
        member: str,
        pattern: bytes,
        start: list[Any] | None,
        limit: int,
        qos: int,
        explicit: bool,
        *kind: Any,
    ) -> None:
        peer = link.peer
        target = self._target_of(queue)
        if not isinstance(
            target, (ReplicationGroup, ReplicaClient)
        ):  # it has moved, or is about to
            link.send_control("attached", number, *astuple(Attached(Outcome.MOVED)))
            return
        where = None if start is None else (str(start[0]), int(start[1]))
        wanted = replace(
            AttachRequest(queue, group, member, pattern, where, limit, qos, explicit, *kind),
            abroad=peer >= SHARDS_MAX,
        )
        most = 0 if wanted.taking else limit
        port = RemotePort(
            link,
            number,
            most,
            lambda: self._forget(peer, number),
            self._wait,
            wanted.references,
        )
        self._consumers[peer][number] = port

        def attached(answer: Attached, handle: ConsumerHandle | None) -> None:
            if self._consumers[peer].get(number) is not port:
                if handle is not None:
                    handle.detach()
                return
            port.handle = handle
            if handle is None:
                self._forget(peer, number)
            link.send_control("attached", number, *astuple(answer))

        target.attach(wanted, port, attached)

    def _forget(self, peer: int, number: int) -> RemotePort | None:
        port = self._consumers[peer].pop(number, None)
        if port is not None:
            self._slow.pop(port, None)
        return port

    def _wait(self, port: RemotePort) -> None:
        self._slow[port] = None

    def _on_settle(
        self,
        link: FrameLink,
        number: int,
        verb: int,
        flat: Sequence[int],
        delay: int,
        reason: bytes,
        request: int,
    ) -> None:
        port = self._consumers[link.peer].get(number)
        if port is None or port.handle is None:
            if request:
                link.send_control("settled", request, Outcome.NOT_PENDING)
            return
        ranges = list(zip(flat[::2], flat[1::2], strict=True))
        port.handle.settle(verb, ranges, delay, reason, self._settled(link, request))

    def _on_commit(self, link: FrameLink, number: int, offset: int, request: int) -> None:
        port = self._consumers[link.peer].get(number)
        if port is not None and port.handle is not None:
            port.handle.commit(offset, self._settled(link, request))
        elif request:
            link.send_control("settled", request, Outcome.NOT_PENDING)

    def _settled(self, link: FrameLink, request: int) -> Callable[[int], None] | None:
        if not request:
            return None
        epoch = self._epochs[link.peer]

        def answered(reason: int) -> None:
            if self._epochs[link.peer] == epoch and link.up:
                link.send_control("settled", request, reason)

        return answered

    def _on_detach(self, link: FrameLink, number: int) -> None:
        port = self._forget(link.peer, number)
        if port is not None and port.handle is not None:
            port.handle.detach()

    def _on_limit(self, link: FrameLink, number: int, limit: int) -> None:
        port = self._consumers[link.peer].get(number)
        if port is not None and port.handle is not None:
            port.set_limit(limit)
            port.handle.set_limit(limit)

    def _on_take(self, link: FrameLink, number: int, request: int) -> None:
        port = self._consumers[link.peer].get(number)
        if port is None or port.handle is None:
            link.send_control("taken", request, False, 0)
            return
        epoch = self._epochs[link.peer]

        def taken(found: bool, ready: int) -> None:
            if self._epochs[link.peer] == epoch and link.up:
                port.after_messages(lambda: link.send_control("taken", request, found, ready))

        port.handle.take(taken)

    def _on_stop(self, link: FrameLink, number: int) -> None:
        port = self._consumers[link.peer].get(number)
        if port is not None and port.handle is not None:
            port.handle.stop()

    # Queues

    def _on_status(self, link: FrameLink, request: int, queue: str) -> None:
        self._target_of(queue).status(queue, self._told(link, request))

    def _on_purge(self, link: FrameLink, request: int, queue: str) -> None:
        self._target_of(queue).purge(queue, self._told(link, request))

    def _on_delete(
        self, link: FrameLink, request: int, queue: str, if_unused: bool, if_empty: bool
    ) -> None:
        target = self._target_of(queue)
        target.delete(queue, if_unused, if_empty, self._told(link, request))

    def _on_carry(
        self, link: FrameLink, request: int, group: str, queue: str, kind: int, body: bytes
    ) -> None:
        """Handle a command about a moving queue; names the target group, as the queue still is in
        another."""
        epoch = self._epochs[link.peer]

        def carried(result: Result) -> None:
            if self._epochs[link.peer] == epoch and link.up:
                link.send_control("carried", request, int(result.code), result.value)

        found = self._service.find(self._names.own_name(group))
        if found is None:
            carried(Result(Code.LOST))
        else:
            found.carry(queue, kind, body, carried)

    def _told(self, link: FrameLink, request: int) -> StatusCallback:
        epoch = self._epochs[link.peer]

        def told(status: QueueStats) -> None:
            if self._epochs[link.peer] == epoch and link.up:
                link.send_control("told", request, *status)

        return told

    # Coming and going

    def tell_everything(self, link: FrameLink) -> None:
        """Announce this shard's queues to a peer that has connected."""
        abroad = link.peer >= SHARDS_MAX
        here = [
            self._described(info.name)
            for info in self._names.all()
            if self._is_here(info.group) and not (abroad and is_own(info.group))
        ]
        for at in range(0, len(here), QUEUES_PER_FRAME):
            link.send_control("queues", here[at : at + QUEUES_PER_FRAME], False)
        link.send_control("queues", [], True)

    def queue_declared(self, config: QueueConfig) -> None:
        """Announce a queue of this shard to the peers."""
        own = is_own(self._names.info(config.name).group)
        for link in self._links.values():
            if link.up and not (own and link.peer >= SHARDS_MAX):
                link.send_control("queue", *self._described(config.name))

    def queue_deleted(self, queue: str, by_leader: bool) -> None:
        """Announce to this node's shards that a queue is deleted."""
        group = self._names.info(queue).group
        for link in self._links.values():
            if link.up and link.peer < SHARDS_MAX:
                link.send_control("no queue", queue, group)

    def queue_unused(self, queue: str) -> None:
        """Ignore: only the shard that has the queue needs to know."""

    def _is_here(self, group: str) -> bool:
        return self._service.find(group) is not None

    def _described(self, name: str) -> list[Any]:
        info = self._names.info(name)
        return [info.name, info.group, info.type, list(info.topics)]

    def lose(self, peer: int) -> None:
        """Detach the consumers of a shard that has died."""
        self._epochs[peer] += 1
        self._done.pop(peer, None)
        self._refused.pop(peer, None)
        ports, self._consumers[peer] = self._consumers[peer], {}
        for port in ports.values():
            self._slow.pop(port, None)
            if port.handle is not None:
                port.handle.detach()
