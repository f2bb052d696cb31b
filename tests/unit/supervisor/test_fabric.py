"""What processes share: every end goes to the right one, and nothing leaks."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.ipc import handoff
from fluxmq.ipc.launch import read_settings
from fluxmq.net.link_ends import LinkKind
from fluxmq.supervisor.fabric import RING_HEADER_BYTES, RINGS_BYTES_MAX, Fabric, ring_size
from fluxmq.supervisor.placement import plan
from fluxmq.supervisor.tree import Tree

WORKERS = 3


@pytest.fixture(params=["ring", "socket"])
def kind(request: pytest.FixtureRequest) -> LinkKind:
    found: LinkKind = request.param
    return found


@pytest.fixture
def made(kind: LinkKind, tmp_path: Path) -> Iterator[tuple[Fabric, Tree]]:
    before = len(os.listdir("/proc/self/fd"))
    tree = Tree(WORKERS, 1.0)
    placed = plan(WORKERS, [4, 5], ["orders=5"])
    fabric = Fabric(placed, tree, b"{}", 8192, kind, tmp_path, tmp_path / "run")
    yield fabric, tree
    fabric.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_rows(made: tuple[Fabric, Tree]) -> None:
    fabric, _ = made
    found = [(row.role, row.index, row.core) for row in fabric.table.rows()]
    assert found == [
        ("shard", 0, 4),
        ("shard", 1, 5),
        ("shard", 2, 4),
        ("acceptor", 0, -1),
        ("control", 0, -1),
    ]


def test_launches(made: tuple[Fabric, Tree], kind: LinkKind, tmp_path: Path) -> None:
    fabric, tree = made
    launches = {child.name: fabric.launch(child) for child in tree.children}
    for launch in launches.values():
        assert (launch.workers, launch.parent_pid) == (WORKERS, os.getpid())
        assert (launch.run_dir, launch.data_dir) == (str(tmp_path / "run"), str(tmp_path))
        assert launch.pins == {"orders": 1}
        assert read_settings(launch.settings_fd) == b"{}"
        assert all(not os.get_inheritable(fd) for fd in launch.descriptors())
        assert fabric.launch(tree.children[launch.slot]) == launch  # a restart gets the same
    assert launches["control"].handoff_fds == []
    assert launches["control"].links == []
    assert [launches[f"shard-{index}"].cores for index in range(WORKERS)] == [[4], [5], [4]]
    usable = sorted(os.sched_getaffinity(0))
    assert launches["shard-0"].node_cores == usable
    assert launches["shard-0"].spare_cores == [core for core in usable if core not in (4, 5)]
    assert launches["acceptor"].spare_cores == launches["control"].node_cores == []
    for index in range(WORKERS):
        shard = launches[f"shard-{index}"]
        assert [link.peer for link in shard.links] == [
            peer for peer in range(WORKERS) if peer != index
        ]
        assert (shard.link_kind, shard.ring_bytes) == (kind, 8192)
        assert len(shard.wake_fds) == WORKERS
    assert launches["shard-0"].wake_fds == launches["shard-1"].wake_fds


def test_shards_that_are_not_bound_have_no_cores(kind: LinkKind, tmp_path: Path) -> None:
    tree = Tree(WORKERS, 1.0)
    placed = plan(WORKERS, [4, 5], [], bound=False)
    fabric = Fabric(placed, tree, b"{}", 8192, kind, tmp_path, tmp_path / "run")
    try:
        assert {row.core for row in fabric.table.rows()} == {-1}
        for child in tree.children:
            launch = fabric.launch(child)
            assert (launch.cores, launch.node_cores, launch.spare_cores) == ([], [], [])
    finally:
        fabric.close()


def test_spare_cores_are_those_without_a_shard(kind: LinkKind, tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    for workers in (1, len(usable)):
        tree = Tree(workers, 1.0)
        fabric = Fabric(
            plan(workers, usable, []), tree, b"{}", 8192, kind, tmp_path, tmp_path / "run"
        )
        try:
            assert fabric.launch(tree.children[0]).spare_cores == usable[workers:]
        finally:
            fabric.close()


def test_hand_over_reaches_its_shard(made: tuple[Fabric, Tree]) -> None:
    fabric, tree = made
    sender = socket.socket(fileno=os.dup(fabric.launch(tree.children[WORKERS]).handoff_fds[1]))
    receiver = socket.socket(fileno=os.dup(fabric.launch(tree.children[1]).handoff_fds[0]))
    with sender, receiver:
        assert handoff.send(sender, [handoff.Handoff(0, 0, "peer", b"x")]) == 1
        (received,) = handoff.receive(receiver)
        os.close(received.fd)


def test_links_join_the_right_shards(made: tuple[Fabric, Tree], kind: LinkKind) -> None:
    fabric, tree = made
    launches = [fabric.launch(child) for child in tree.children[:WORKERS]]
    for source in launches:
        for out in source.links:
            (back,) = [link for link in launches[out.peer].links if link.peer == source.index]
            if kind == "ring":
                assert out.send_fd == back.receive_fd
                assert os.fstat(out.send_fd).st_size == RING_HEADER_BYTES + 8192
            else:
                assert out.send_fd != back.receive_fd
                message = f"{source.index} to {out.peer}".encode()
                os.write(out.send_fd, message)
                assert os.read(back.receive_fd, 100) == message


def test_wake_fds_do_not_block(made: tuple[Fabric, Tree]) -> None:
    fabric, tree = made
    wake_fd = fabric.launch(tree.children[0]).wake_fds[0]
    with pytest.raises(BlockingIOError):
        os.eventfd_read(wake_fd)
    os.eventfd_write(wake_fd, 1)
    assert os.eventfd_read(wake_fd) == 1


@pytest.mark.parametrize(
    ("workers", "size"),
    [(1, 4 << 20), (2, 4 << 20), (11, 4 << 20), (16, 2_236_416), (64, 131_072), (256, 131_072)],
)
def test_rings_of_many_shards_are_smaller(workers: int, size: int) -> None:
    assert ring_size(0, workers) == size
    assert size % 4096 == 0
    assert ring_size(8192, workers) == 8192
    if workers <= 64:
        assert size * workers * (workers - 1) <= RINGS_BYTES_MAX
