"""One link to another shard: frames out, frames in, bounded.

The transport is a pair of shared-memory rings where the compiled core is present, else a pair of
SEQPACKET sockets; both carry records of limited length, in order. Longer frames are split. Frames
that a full transport refuses wait in ``backlog``; the link is then ``full`` and the reactor stops
reading the connections that feed it, so the backlog is bounded by what those had already sent; if
ever new connections feed a stalled peer, messages are dropped beyond a limit. Frames for a peer
that is down are dropped: its sessions are gone with it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from fluxmq.net import frames
from fluxmq.net.link_ends import LinkEnds, LinkKind
from fluxmq.net.ports import Inbound, Inbox
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.run import PublishRun

RECORDS_PER_TURN = 256
BYTES_PER_TURN = 256 * 1024
"""Bytes taken from one link in one tick: as many as from one socket, so that a busy peer neither
starves this shard's own clients nor fills their output buffers before they are written."""
SOCKET_RECORD_MAX = 32768
"""Bytes per record on a socket pair, well below its buffer."""
SHARDS_MAX = 256
"""Maximum number of shards per node; links to other nodes' shards have higher numbers."""
BACKLOG_BYTES_MAX = 64 << 20
"""Bytes that may wait for a peer before messages to it are dropped: the last output of hundreds of
connections. A peer that leaves so much is about to be declared dead."""
FEED_FRAMES = 64
"""Frames of a bulk transfer (retained messages) sent at once."""


class LinkTransport(Protocol):
    """Records in order to and from one peer."""

    record_max: int

    def push(self, head: bytes, body: bytes | bytearray | None, start: int, end: int) -> bool:
        """Send one record, ``head`` and ``body[start:end]``; return False when it does not fit
        now."""

    def pop(self) -> bytes | None:
        """Return the next record, None when there is none."""

    def reset(self) -> None:
        """Discard records that arrived before this process started."""

    def used(self) -> int:
        """Return the bytes sent and not yet taken, 0 where unknown."""


class RingTransport:
    """Shared memory in both directions, with an eventfd to wake a sleeping peer."""

    def __init__(self, link: LinkEnds, peer_wake_fd: int) -> None:
        from fluxmq.net._ring import Ring

        self._send = Ring(mmap.mmap(link.send_fd, os.fstat(link.send_fd).st_size))
        self.arriving = Ring(mmap.mmap(link.receive_fd, os.fstat(link.receive_fd).st_size))
        self._wake_fd = peer_wake_fd
        self.record_max: int = self._send.record_max
        self.pop: Callable[[], bytes | None] = self.arriving.pop

    def push(self, head: bytes, body: bytes | bytearray | None, start: int, end: int) -> bool:
        """Send one record."""
        if not self._send.push(head, body, start, end):
            return False
        if self._send.take_sleeper():
            with contextlib.suppress(BlockingIOError):  # a full counter has woken it already
                os.eventfd_write(self._wake_fd, 1)
        return True

    def reset(self) -> None:
        """Skip records that an earlier process of this shard left unread."""
        self.arriving.reset_reader()

    def used(self) -> int:
        """Return the bytes in the outgoing ring."""
        return int(self._send.used)


class SocketTransport:
    """A SEQPACKET pair per direction, used without the compiled core."""

    def __init__(self, link: LinkEnds) -> None:
        self._send = socket.socket(fileno=link.send_fd)
        self._receive = socket.socket(fileno=link.receive_fd)
        self._send.setblocking(False)
        self._receive.setblocking(False)
        self.record_max = SOCKET_RECORD_MAX

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a record arrives."""
        return self._receive.fileno()

    def push(self, head: bytes, body: bytes | bytearray | None, start: int, end: int) -> bool:
        """Send one record."""
        parts: list[bytes | memoryview] = [head]
        if body is not None:
            parts.append(memoryview(body)[start:end])
        try:
            self._send.sendmsg(parts)
        except (BlockingIOError, ConnectionError):
            return False
        return True

    def pop(self) -> bytes | None:
        """Take one record."""
        try:
            return self._receive.recv(SOCKET_RECORD_MAX) or None
        except (BlockingIOError, ConnectionError):
            return None

    def reset(self) -> None:
        """Discard earlier records."""
        while self.pop() is not None:
            pass

    def used(self) -> int:
        """Return 0: unknown."""
        return 0


class FrameLink(Protocol):
    """A link to another shard, of this node or not, as parts of a shard see it."""

    @property
    def peer(self) -> int:
        """The other shard's number."""

    @property
    def up(self) -> bool:
        """True while the peer is connected."""

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait to be sent."""

    def send_control(self, name: str, *arguments: object) -> None:
        """Send a control frame."""

    def send_frame(self, frame: bytes) -> None:
        """Send a whole frame."""


class Link:
    """Frames to and from the shard ``peer``. ``up``: it has said hello and has not died since;
    ``epoch`` identifies its life."""

    def __init__(
        self,
        peer: int,
        transport: LinkTransport,
        reactor: Reactor,
        received: Callable[[Link, bytes], None],
        blocked: Callable[[Link], None],
    ) -> None:
        self.peer = peer
        self.transport = transport
        self.up = False
        self.epoch = 0
        self.backlog: deque[bytes] = deque()
        self.backlog_bytes = 0
        self.paused: set[Connection] = set()
        self.sent_bytes = 0
        self.full_count = 0
        self.dropped = 0
        self._reactor = reactor
        self._received = received
        self._blocked = blocked
        self._partial: list[bytes] = []
        self._feeds: deque[Iterator[bytes]] = deque()

    # Out

    def send_run(self, run: PublishRun) -> None:
        """Send the peer a run to deliver to its sessions."""
        if self.up and self.backlog_bytes <= BACKLOG_BYTES_MAX:
            self._send(frames.encode_run(run), run)
        else:
            self.dropped += run.count

    def send_shared(self, group: bytes, topic_filter: bytes, run: PublishRun) -> None:
        """Send the peer a run to deliver to its members of a shared group."""
        if self.up and self.backlog_bytes <= BACKLOG_BYTES_MAX:
            self._send(frames.encode_shared(group, topic_filter, run), run)
        else:
            self.dropped += run.count

    def send_retained(self, stamp: frames.RetainedStamp, run: PublishRun) -> None:
        """Send the peer a retained message; a run without bytes deletes it."""
        if self.up:
            self._send(frames.encode_retained(stamp, run), run)

    def send_control(self, name: str, *arguments: object) -> None:
        """Send a control frame, even while the peer is down: hello itself is one."""
        frame = frames.encode_control(name, *arguments)
        self._send_bytes(frame)

    def send_frame(self, frame: bytes) -> None:
        """Send a whole frame."""
        self._send_bytes(frame)

    def feed(self, source: Iterator[bytes]) -> None:
        """Send many frames as the link has room for them."""
        self._feeds.append(source)
        self.drain()

    def _send(self, head: bytes, run: PublishRun) -> None:
        length = run.end - run.start
        size = len(head) + length
        self.sent_bytes += size
        if size > self.transport.record_max:
            run.detach()
            self._send_pieces(head + bytes(memoryview(run.buffer)[run.start : run.end]))
        elif self.backlog or not self.transport.push(head, run.buffer, run.start, run.end):
            self._wait(head + bytes(memoryview(run.buffer)[run.start : run.end]))

    def _send_bytes(self, frame: bytes) -> None:
        self.sent_bytes += len(frame)
        if len(frame) > self.transport.record_max:
            self._send_pieces(frame)
        elif self.backlog or not self.transport.push(frame, None, 0, 0):
            self._wait(frame)

    def _send_pieces(self, frame: bytes) -> None:
        size = self.transport.record_max - 2
        for at in range(0, len(frame), size):
            place = 0 if at else frames.FIRST
            if at + size >= len(frame):
                place |= frames.LAST
            record = bytes((frames.PIECE, place)) + frame[at : at + size]
            if self.backlog or not self.transport.push(record, None, 0, 0):
                self._wait(record)

    def _wait(self, record: bytes) -> None:
        self.backlog.append(record)
        self.backlog_bytes += len(record)
        self._reactor.link_full = True
        if len(self.backlog) == 1:
            self.full_count += 1
            self._blocked(self)

    def drain(self) -> bool:
        """Send waiting frames; return True once none is left and connections are read again."""
        while self.backlog:
            record = self.backlog[0]
            if not self.transport.push(record, None, 0, 0):
                return False
            self.backlog.popleft()
            self.backlog_bytes -= len(record)
        while self._feeds:
            for _ in range(FEED_FRAMES):
                frame = next(self._feeds[0], None)
                if frame is None:
                    self._feeds.popleft()
                    break
                self._send_bytes(frame)
                if self.backlog:
                    return False
        return True

    def forget(self) -> None:
        """Discard everything for a peer that is gone."""
        self.up = False
        self.backlog.clear()
        self.backlog_bytes = 0
        self._feeds.clear()
        self._partial.clear()

    # In

    def receive(self) -> int:
        """Handle a bounded number of arrived records; return how many."""
        pop = self.transport.pop
        taken = 0
        for count in range(RECORDS_PER_TURN):
            record = pop() if taken < BYTES_PER_TURN else None
            if record is None:
                return count
            taken += len(record)
            if record[0] == frames.PIECE:
                self._piece(record)
            else:
                self._received(self, record)
        return RECORDS_PER_TURN

    def _piece(self, record: bytes) -> None:
        if record[1] & frames.FIRST:
            self._partial.clear()
        elif not self._partial:
            return  # its beginning was for this shard's previous life
        self._partial.append(record[2:])
        if record[1] & frames.LAST:
            whole = b"".join(self._partial)
            self._partial.clear()
            self._received(self, whole)


class EachLink:
    """Implements ``Inbox`` over sockets, which are in the poll set: so nothing is asked for."""

    def __init__(self, links: list[Link]) -> None:
        self._links = links

    def ready(self) -> Sequence[Inbound]:
        """Return all."""
        return self._links

    def sleep(self) -> bool:
        """Return True: an arrival ends the wait."""
        return True


def inbox_of(links: list[Link]) -> Inbox | None:
    """Return the inbox of a shard with these links; None without any."""
    if not links:
        return None
    rings = [each.transport.arriving for each in links if isinstance(each.transport, RingTransport)]
    if len(rings) < len(links):
        return EachLink(links)
    from fluxmq.net._ring import RingInbox

    return RingInbox(rings, [*links])


Received = Callable[[Link, bytes], None]
Blocked = Callable[[Link], None]
Connect = Callable[[Received, Blocked], dict[int, Link]]
"""Makes the links to all peers, given the callbacks for received frames and for a full link."""


def make_links(
    ends: Sequence[LinkEnds],
    kind: LinkKind,
    wake_fds: Sequence[int],
    reactor: Reactor,
    received: Received,
    blocked: Blocked,
) -> dict[int, Link]:
    """Make the links to all peers over the transport of this kind; ``wake_fds``: an eventfd of each
    shard."""
    links: dict[int, Link] = {}
    for each in ends:
        transport: LinkTransport
        if kind == "ring":
            transport = RingTransport(each, wake_fds[each.peer])
        else:
            transport = SocketTransport(each)
            reactor.watch(transport.fileno(), lambda: None)
        transport.reset()
        links[each.peer] = Link(each.peer, transport, reactor, received, blocked)
    return links
