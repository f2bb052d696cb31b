"""Everything that processes share, created once by the supervisor: the descriptors between them.

Table, settings, an eventfd per shard, a hand-over socket per shard, and a link per ordered pair of
shards. The supervisor keeps all of them open, so that a restarted child gets the very same ones:
its peers notice only its absence, and clients handed over meanwhile wait in the socket.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from fluxmq.ipc import handoff
from fluxmq.ipc.launch import Launch, write_settings
from fluxmq.ipc.table import NOT_PINNED, ProcessTable
from fluxmq.net.link_ends import LinkEnds, LinkKind
from fluxmq.protocols.mqtt.scan import COMPILED
from fluxmq.supervisor.placement import Plan
from fluxmq.supervisor.tree import Child, Tree

RING_HEADER_BYTES = 4096
"""Size of the counter page of a ring's memfd; ``ring_bytes`` of records follow it."""

RING_BYTES_MAX = 4 << 20
"""Size of a ring that the settings leave open: holds 16 reads of a busy publisher."""
RING_BYTES_MIN = 128 << 10
"""Least size of such a ring: records of half of it travel in one piece."""
RINGS_BYTES_MAX = 512 << 20
"""Memory of all rings of a node, unless that is less than the least size for each."""


def ring_size(setting: int, workers: int) -> int:
    """Return the bytes of each ring of a node with so many shards; ``setting`` 0 leaves it open."""
    if setting:
        return setting
    share = RINGS_BYTES_MAX // max(1, workers * (workers - 1)) // 4096 * 4096
    return min(RING_BYTES_MAX, max(RING_BYTES_MIN, share))


def link_kind() -> LinkKind:
    """Return ``ring`` when the compiled hot path with its ring is available, else ``socket``."""
    if not COMPILED:
        return "socket"
    try:
        from fluxmq.net import _ring  # noqa: F401
    except ImportError:
        return "socket"
    return "ring"


@dataclass(slots=True, frozen=True)
class _Direction:
    """One link: the sender's and the receiver's descriptors, the same memfd for a ring."""

    send_fd: int
    receive_fd: int


class Fabric:
    """The descriptors, and the launch description of each child built from them."""

    def __init__(
        self,
        plan: Plan,
        tree: Tree,
        settings: bytes,
        ring_bytes: int,
        kind: LinkKind,
        data_dir: Path,
        run_dir: Path,
    ) -> None:
        workers = plan.workers
        self._plan = plan
        self._node_cores = sorted(os.sched_getaffinity(0))
        self._spare_cores = [core for core in self._node_cores if core not in plan.cores]
        self._kind = kind
        self._ring_bytes = ring_size(ring_bytes, workers)
        self._data_dir = data_dir
        self._run_dir = run_dir
        self.table = ProcessTable.create(len(tree.children))
        for child in tree.children:
            core = plan.cores[child.index] if child.role == "shard" and plan.bound else NOT_PINNED
            self.table.assign(child.slot, child.role, child.index, core)
        self._settings_fd = os.memfd_create("fluxmq-settings", os.MFD_CLOEXEC)
        self.write_settings(settings)
        self._wake_fds = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(workers)]
        self._handoff = [_detached(handoff.pair()) for _ in range(workers)]
        self._links = {
            (source, target): self._make_link(source, target)
            for source in range(workers)
            for target in range(workers)
            if source != target
        }

    def write_settings(self, settings: bytes) -> None:
        """Replace the settings that children read."""
        write_settings(self._settings_fd, settings)

    def launch(self, child: Child) -> Launch:
        """Return the launch description of a child."""
        handoff_fds: list[int] = []
        links: list[LinkEnds] = []
        bound = self._plan.bound and child.role == "shard"
        if child.role == "acceptor":
            handoff_fds = [sender for sender, _ in self._handoff]
        elif child.role == "shard":
            handoff_fds = [self._handoff[child.index][1]]
            links = [
                LinkEnds(
                    peer,
                    self._links[child.index, peer].send_fd,
                    self._links[peer, child.index].receive_fd,
                )
                for peer in range(self._plan.workers)
                if peer != child.index
            ]
        return Launch(
            role=child.role,  # type: ignore[arg-type]
            index=child.index,
            workers=self._plan.workers,
            parent_pid=os.getpid(),
            slot=child.slot,
            settings_fd=self._settings_fd,
            table_fd=self.table.fd,
            run_dir=str(self._run_dir),
            data_dir=str(self._data_dir),
            handoff_fds=handoff_fds,
            links=links,
            link_kind=self._kind,
            ring_bytes=self._ring_bytes,
            wake_fds=self._wake_fds if child.role == "shard" else [],
            cores=[self._plan.cores[child.index]] if bound else [],
            node_cores=self._node_cores if bound else [],
            spare_cores=self._spare_cores if bound else [],
            pins=self._plan.pins,
        )

    def close(self) -> None:
        """Close everything."""
        self.table.close()
        fds = {self.table.fd, self._settings_fd, *self._wake_fds}
        for ends in self._handoff:
            fds.update(ends)
        for link in self._links.values():
            fds.update((link.send_fd, link.receive_fd))
        for fd in fds:
            os.close(fd)

    def _make_link(self, source: int, target: int) -> _Direction:
        if self._kind == "ring":
            fd = os.memfd_create(f"fluxmq-ring-{source}-{target}", os.MFD_CLOEXEC)
            os.ftruncate(fd, RING_HEADER_BYTES + self._ring_bytes)
            return _Direction(fd, fd)
        sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sender.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, self._ring_bytes
        )  # the kernel caps it
        sender.setblocking(False)
        receiver.setblocking(False)
        return _Direction(*_detached((sender, receiver)))


def _detached(pair: tuple[socket.socket, socket.socket]) -> tuple[int, int]:
    return pair[0].detach(), pair[1].detach()
