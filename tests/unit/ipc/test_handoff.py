"""Connections from the acceptor to a shard."""

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.ipc import handoff
from fluxmq.ipc.handoff import Handoff

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Pair]:
    sender, receiver = handoff.pair()
    yield sender, receiver
    sender.close()
    receiver.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def close_all(connections: list[Handoff]) -> None:
    for connection in connections:
        os.close(connection.fd)


def test_a_connection_arrives_with_what_was_read(ends: Pair) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert (
            handoff.send(ends[0], [Handoff(ours.fileno(), 2, "127.0.0.1:4321", b"\x10\x00")]) == 1
        )
        (received,) = handoff.receive(ends[1])
        assert (received.listener, received.peer, received.data) == (
            2,
            "127.0.0.1:4321",
            b"\x10\x00",
        )
        assert fcntl.fcntl(received.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.write(received.fd, b"hello")
        assert theirs.recv(10) == b"hello"
        os.close(received.fd)
    assert handoff.receive(ends[1]) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.text("0123456789abcdef:.[]", max_size=50),
            st.binary(max_size=9000),
        ),
        min_size=1,
        max_size=130,
    )
)
def test_every_connection_arrives_in_order(descriptions: list[tuple[int, str, bytes]]) -> None:
    sender, receiver = handoff.pair()
    read_end, write_end = os.pipe()
    batch = [Handoff(read_end, *description) for description in descriptions]
    received: list[tuple[int, str, bytes]] = []
    try:
        while batch:
            sent = handoff.send(sender, batch)
            assert 0 < sent <= handoff.BATCH_CONNECTIONS_MAX
            batch = batch[sent:]
            connections = handoff.receive(receiver)
            assert len(connections) == sent
            received += [(each.listener, each.peer, each.data) for each in connections]
            close_all(connections)
    finally:
        for each in (sender, receiver):
            each.close()
        os.close(read_end)
        os.close(write_end)
    assert received == descriptions


def test_the_largest_first_bytes_fit_into_a_message(ends: Pair) -> None:
    read_end, write_end = os.pipe()
    connection = Handoff(read_end, 0, "p" * handoff.PEER_BYTES_MAX, bytes(handoff.DATA_BYTES_MAX))
    assert handoff.send(ends[0], [connection, connection]) == 1
    (received,) = handoff.receive(ends[1])
    assert received.data == connection.data
    for fd in (read_end, write_end, received.fd):
        os.close(fd)


def test_a_full_socket_is_an_outcome(ends: Pair) -> None:
    read_end, write_end = os.pipe()
    batch = [Handoff(read_end, 0, "127.0.0.1:1", bytes(1000))] * handoff.BATCH_CONNECTIONS_MAX
    sent = 0
    while count := handoff.send(ends[0], batch):
        sent += count
    assert sent > 0
    received = 0
    while connections := handoff.receive(ends[1]):
        received += len(connections)
        close_all(connections)
    assert received == sent
    assert handoff.send(ends[0], batch) > 0
    close_all(handoff.receive(ends[1]))
    os.close(read_end)
    os.close(write_end)


def test_a_receiver_short_of_descriptors_loses_only_what_does_not_fit(ends: Pair) -> None:
    read_end, write_end = os.pipe()
    batch = [Handoff(read_end, 0, f"127.0.0.1:{port}", b"x") for port in range(20)]
    assert handoff.send(ends[0], batch) == 20
    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = 5
    # listdir held one descriptor itself, and numbers may have holes: leave exactly ``free`` above the highest.
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = []
    while (filler := os.dup(read_end)) <= highest:
        fillers.append(filler)
    os.close(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler + free, hard))
    try:
        connections = handoff.receive(ends[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [each.peer for each in connections] == [each.peer for each in batch[:free]]
    close_all(connections)
    for fd in fillers:
        os.close(fd)
    assert open_descriptors() == before
    assert handoff.receive(ends[1]) == []
    os.close(read_end)
    os.close(write_end)


def test_the_other_end_gone(ends: Pair) -> None:
    sender, receiver = handoff.pair()
    sender.close()
    with pytest.raises(handoff.HandoffClosedError):
        handoff.receive(receiver)
    receiver.close()
    sender, receiver = handoff.pair()
    receiver.close()
    with pytest.raises(handoff.HandoffClosedError):
        handoff.send(sender, [Handoff(0, 0, "", b"")])
    sender.close()


@pytest.mark.parametrize(
    "body", [b"\x01", b"\x02\x00\x00\x00\x00\x00", b"\x01\x00\x00\x05\x00\x00ab"]
)
def test_a_damaged_message_closes_what_came_with_it(ends: Pair, body: bytes) -> None:
    read_end, write_end = os.pipe()
    before = open_descriptors()
    socket.send_fds(ends[0], [body], [read_end, read_end])
    with pytest.raises(handoff.HandoffDamagedError):
        handoff.receive(ends[1])
    assert open_descriptors() == before
    os.close(read_end)
    os.close(write_end)


def test_adopt_takes_an_inherited_end(ends: Pair) -> None:
    sender, receiver = handoff.pair()
    adopted = handoff.adopt(receiver.detach())
    read_end, write_end = os.pipe()
    assert handoff.send(sender, [Handoff(read_end, 1, "peer", b"")]) == 1
    close_all(handoff.receive(adopted))
    for end in (sender, adopted):
        end.close()
    os.close(read_end)
    os.close(write_end)
