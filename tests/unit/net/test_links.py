"""One link: frames cut into records, kept while the transport is full, forgotten with the peer."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.ipc.launch import Launch
from fluxmq.net import frames
from fluxmq.net import links as links_module
from fluxmq.net.link_ends import LinkEnds, LinkKind
from fluxmq.net.links import (
    BYTES_PER_TURN,
    FEED_FRAMES,
    RECORDS_PER_TURN,
    Link,
    Received,
    SocketTransport,
    inbox_of,
    make_links,
)
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.run import PublishRun, message_run
from fluxmq.protocols.mqtt.scan import COMPILED
from tests.unit.shards.pipes import RECORD_MAX, MemoryTransport, Pipe


class End:
    """A link and what it receives; also the host of its reactor, of which it needs one word."""

    def __init__(self, outgoing: Pipe, incoming: Pipe) -> None:
        self.received: list[bytes] = []
        self.blocked: list[Link] = []
        self.scheduled = 0
        self.reactor = Reactor(self, 4096, 1 << 20, 8192, 100)
        self.transport = MemoryTransport(outgoing, incoming)
        self.link = Link(
            1,
            self.transport,
            self.reactor,
            lambda _, frame: self.received.append(frame),
            self.blocked.append,
        )
        self.link.up = True

    def schedule(self) -> None:
        """A tick is wanted."""
        self.scheduled += 1


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    """Two ends of a link."""
    there, back = Pipe(), Pipe()
    pair = End(there, back), End(back, there)
    yield pair
    for end in pair:
        end.reactor.poller.close()


def payload_run(size: int, topic: bytes = b"t") -> PublishRun:
    """A run of one message."""
    return message_run(topic, bytes(number % 251 for number in range(size)), 1, 0)


def receive_all(end: End) -> list[bytes]:
    """Everything that has come."""
    while end.link.receive():
        pass
    return end.received


@given(st.lists(st.integers(0, 5 * RECORD_MAX), max_size=8))
def test_frames_of_any_length_arrive_in_order(sizes: list[int]) -> None:
    there, back = Pipe(), Pipe()
    sender, receiver = End(there, back), End(back, there)
    runs = [payload_run(size) for size in sizes]
    for number, run in enumerate(runs):
        sender.link.send_control("before", number)
        sender.link.send_run(run)
    received = receive_all(receiver)
    assert len(received) == 2 * len(runs)
    for number, run in enumerate(runs):
        assert frames.decode_control(received[2 * number]) == ["before", number]
        assert frames.decode_run(received[2 * number + 1]).payloads() == run.payloads()
    for end in (sender, receiver):
        end.reactor.poller.close()


@pytest.mark.parametrize("margin", [-1, 0, 1])
def test_a_frame_of_just_a_record(ends: tuple[End, End], margin: int) -> None:
    sender, receiver = ends
    head = len(frames.encode_run(payload_run(20_000)))
    wire_size = payload_run(20_000).end - 20_000
    run = payload_run(RECORD_MAX - head - wire_size + margin)
    sender.link.send_run(run)
    assert len(sender.transport.outgoing.records) == (2 if margin > 0 else 1)
    (frame,) = receive_all(receiver)
    assert frames.decode_run(frame).payloads() == run.payloads()


def test_a_run_in_the_receive_buffer_may_be_overwritten_after_sending(
    ends: tuple[End, End],
) -> None:
    """Whether it went, waits, or went in pieces: what arrives is what was sent."""
    sender, receiver = ends
    for size, room in ((100, None), (3 * RECORD_MAX, None), (100, 0)):
        sender.transport.outgoing.room = room
        template = payload_run(size)
        buffer = bytearray(template.buffer)
        run = PublishRun(
            buffer, 0, len(buffer), 1, 0, 4, 0x32, template.variable, 5, len(buffer), b"t"
        )
        sender.link.send_run(run)
        buffer[:] = bytes(len(buffer))
        sender.transport.outgoing.room = None
        assert sender.link.drain()
        frame = receive_all(receiver)[-1]
        assert frames.decode_run(frame).payloads() == template.payloads()


def test_what_does_not_fit_waits_in_order(ends: tuple[End, End]) -> None:
    sender, receiver = ends
    link, pipe = sender.link, sender.transport.outgoing
    pipe.room = 50
    for number in range(20):
        link.send_control("number", number)
    assert sender.blocked == [link], "told once, when it became full"
    assert sender.reactor.link_full
    assert link.backlog_bytes == sum(map(len, link.backlog)) > 0
    assert link.full_count == 1
    assert not link.drain()
    receive_all(receiver)
    pipe.room = 100
    assert not link.drain()
    receive_all(receiver)
    pipe.room = None
    assert link.drain()
    assert link.backlog_bytes == 0
    found = [frames.decode_control(frame)[1] for frame in receive_all(receiver)]
    assert found == list(range(20))


def test_a_long_frame_meets_a_full_transport(ends: tuple[End, End]) -> None:
    """Its first pieces have gone, the others wait, and a short frame does not overtake them."""
    sender, receiver = ends
    sender.transport.outgoing.room = 2 * RECORD_MAX
    run = payload_run(4 * RECORD_MAX)
    sender.link.send_run(run)
    sender.link.send_control("after")
    assert receive_all(receiver) == []
    sender.transport.outgoing.room = None
    assert sender.link.drain()
    whole, after = receive_all(receiver)
    assert frames.decode_run(whole).payloads() == run.payloads()
    assert frames.decode_control(after) == ["after"]


def test_half_a_frame_of_a_former_life_is_dropped(ends: tuple[End, End]) -> None:
    """A receiver that starts in the middle of a long frame waits for the next beginning."""
    sender, receiver = ends
    sender.link.send_run(payload_run(4 * RECORD_MAX))
    sender.transport.outgoing.records.popleft()
    sender.link.send_control("next")
    run = payload_run(2 * RECORD_MAX)
    sender.link.send_run(run)
    first, second = receive_all(receiver)
    assert frames.decode_control(first) == ["next"]
    assert frames.decode_run(second).payloads() == run.payloads()


def test_a_frame_cut_off_by_its_senders_death_is_dropped(ends: tuple[End, End]) -> None:
    sender, receiver = ends
    sender.link.send_run(payload_run(4 * RECORD_MAX))
    sender.transport.outgoing.records.pop()
    receive_all(receiver)
    run = payload_run(2 * RECORD_MAX)
    sender.link.send_run(run)
    (whole,) = receive_all(receiver)
    assert frames.decode_run(whole).payloads() == run.payloads()


def test_nothing_is_kept_for_a_peer_that_is_down(ends: tuple[End, End]) -> None:
    sender, receiver = ends
    link = sender.link
    sender.transport.outgoing.room = 0
    link.send_control("waits")
    link.feed(iter([b"\x04\x90"]))
    link.forget()
    assert not link.up
    assert not link.backlog
    assert link.backlog_bytes == 0
    sender.transport.outgoing.room = None
    link.send_run(payload_run(10))
    link.send_shared(b"g", b"f", payload_run(10))
    link.send_retained((0, 1, 0), payload_run(10))
    assert link.dropped == 2
    assert link.drain()
    assert receive_all(receiver) == []
    link.send_control("hello", 1)
    assert len(receive_all(receiver)) == 1, "hello is said to those who are down, too"


def test_messages_are_dropped_rather_than_piled_up(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a limit; what shards say about themselves is not messages."""
    sender, receiver = ends
    monkeypatch.setattr(links_module, "BACKLOG_BYTES_MAX", 10_000)
    sender.transport.outgoing.room = 0
    for _ in range(30):
        sender.link.send_run(payload_run(1000))
        sender.link.send_shared(b"g", b"f", payload_run(1000))
    assert sender.link.backlog_bytes < 11_100
    assert sender.link.dropped > 45
    sender.link.send_control("claim", 1)
    sender.transport.outgoing.room = None
    assert sender.link.drain()
    assert frames.decode_control(receive_all(receiver)[-1]) == ["claim", 1]
    sender.link.send_run(payload_run(10))
    assert receive_all(receiver)[-1][0] == frames.RUN


def test_a_feed_takes_what_room_there_is(ends: tuple[End, End]) -> None:
    sender, receiver = ends
    link, pipe = sender.link, sender.transport.outgoing
    pipe.room = 2000
    count = 10 * FEED_FRAMES
    taken = []

    def source() -> Iterator[bytes]:
        for number in range(count):
            taken.append(number)
            yield frames.encode_control("number", number)

    link.feed(source())
    assert len(taken) < count, "the feed is not read beyond what fits"
    assert sender.blocked == [link]
    assert len(link.backlog) == 1
    link.send_control("meanwhile")
    while not link.drain():
        receive_all(receiver)
    found = [frames.decode_control(frame) for frame in receive_all(receiver)]
    numbers = [arguments[0] for name, *arguments in found if name == "number"]
    assert numbers == list(range(count))
    assert ["meanwhile"] in found


def test_a_turn_is_bounded(ends: tuple[End, End]) -> None:
    """A busy peer starves nobody: so many records, so many bytes."""
    sender, receiver = ends
    for number in range(RECORDS_PER_TURN + 5):
        sender.link.send_control("number", number)
    assert receiver.link.receive() == RECORDS_PER_TURN
    assert receiver.link.receive() == 5
    assert receiver.link.receive() == 0
    for _ in range(40):
        sender.link.send_run(payload_run(20_000))
    turn = receiver.link.receive()
    assert BYTES_PER_TURN // 20_100 <= turn <= BYTES_PER_TURN // 20_000 + 1


def launch(index: int, link: LinkEnds, link_kind: LinkKind, wake_fds: Sequence[int] = ()) -> Launch:
    """One of two shards that know each other."""
    return Launch(
        role="shard",
        index=index,
        workers=2,
        parent_pid=os.getpid(),
        slot=0,
        settings_fd=-1,
        table_fd=-1,
        run_dir="",
        data_dir="",
        links=[link],
        link_kind=link_kind,
        wake_fds=list(wake_fds),
    )


@pytest.fixture
def fabric() -> tuple[Launch, Launch]:
    """Launch descriptions of two shards, as the supervisor would make them of sockets or rings."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    (a_send, b_receive), (b_send, a_receive) = pairs
    return (
        launch(0, LinkEnds(1, a_send.detach(), a_receive.detach()), "socket"),
        launch(1, LinkEnds(0, b_send.detach(), b_receive.detach()), "socket"),
    )


def make(
    launch: Launch, reactor: Reactor, received: Received, blocked: Callable[[Link], None]
) -> dict[int, Link]:
    """The links of a shard, as its launch says."""
    return make_links(launch.links, launch.link_kind, launch.wake_fds, reactor, received, blocked)


def test_links_over_sockets(fabric: tuple[Launch, Launch], ends: tuple[End, End]) -> None:
    """The fallback transport: records in order, full when the kernel says so, readable in the poll set."""
    left, right = fabric
    received: list[bytes] = []
    blocked: list[Link] = []
    one, other = ends
    sender = make(left, one.reactor, lambda *_: None, blocked.append)[1]
    receiver = make(right, other.reactor, lambda _, frame: received.append(frame), blocked.append)[
        0
    ]
    sender.up = True
    runs = [payload_run(size) for size in (10, 20_000, 200_000)] * 20
    for run in runs:
        sender.send_run(run)
    assert blocked == [sender]
    assert other.reactor.poller.poll(0), "the poll set sees that something has come"
    while not sender.drain() or receiver.receive():
        receiver.receive()
    assert [frames.decode_run(frame).payloads() for frame in received] == [
        run.payloads() for run in runs
    ]
    assert sender.transport.used() == 0
    inbox = inbox_of([receiver])
    assert inbox is not None
    assert inbox.sleep()
    assert [*inbox.ready()] == [receiver], "sockets are asked each time"
    sender.send_control("late")
    receiver.transport.reset()
    assert receiver.receive() == 0
    for link in (sender, receiver):
        assert isinstance(link.transport, SocketTransport)
        link.transport._send.close()
        link.transport._receive.close()


@pytest.mark.skipif(not COMPILED, reason="rings need the compiled core")
def test_links_over_rings(ends: tuple[End, End]) -> None:
    """Shared memory: in order, with pieces, full when there is no room, the sleeper woken once."""
    descriptors = [os.memfd_create("ring") for _ in range(2)]
    for fd in descriptors:
        os.ftruncate(fd, 1 << 16)
    wake = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
    received: list[bytes] = []
    blocked: list[Link] = []
    one, other = ends
    sender = make(
        launch(0, LinkEnds(1, *descriptors), "ring", wake),
        one.reactor,
        lambda *_: None,
        blocked.append,
    )[1]
    receiver = make(
        launch(1, LinkEnds(0, *descriptors[::-1]), "ring", wake),
        other.reactor,
        lambda _, frame: received.append(frame),
        blocked.append,
    )[0]
    sender.up = True
    inbox = inbox_of([receiver])
    assert inbox is not None
    assert inbox.sleep()
    assert [*inbox.ready()] == []
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wake[1])
    runs = [payload_run(size) for size in (10, 3_000, 50_000, 150_000)] * 5
    for run in runs:
        sender.send_run(run)
    assert os.eventfd_read(wake[1]) == 1
    assert [*inbox.ready()] == [receiver]
    assert not inbox.sleep()
    assert blocked == [sender]
    assert sender.transport.used() > 0
    while not sender.drain() or receiver.receive():
        receiver.receive()
    assert [frames.decode_run(frame).payloads() for frame in received] == [
        run.payloads() for run in runs
    ]
    sender.send_control("late")
    receiver.transport.reset()
    assert receiver.receive() == 0
    for fd in (*descriptors, *wake):
        os.close(fd)
