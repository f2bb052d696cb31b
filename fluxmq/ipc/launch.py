"""Launch description of a child, and a child's first steps.

A child is a fork of the supervisor. Everything it must know is in its launch description:
descriptor numbers and facts. The descriptors themselves are inherited. This module knows their
meaning but opens none of them; it does not know the settings' schema and handles them as bytes.

The settings live in a memfd that the supervisor may rewrite while a child starts. They are framed,
so that a reader notices a write in progress and reads again::

    0        4        8
    | length | crc32  | JSON ... |        both u32, little endian; the checksum is over the JSON
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from fluxmq.model.errors import FluxmqError
from fluxmq.net.link_ends import LinkEnds, LinkKind

if TYPE_CHECKING:
    from fluxmq.ipc.table import ProcessTable

EXIT_OK = 0
EXIT_BOOT_FAILURE = 3
"""Exit code of a child that cannot start for a lasting reason (address in use, unreadable key)."""

SETTINGS_BYTES_MAX = 16 * 1024 * 1024
"""Larger settings are a mistake; the frame's length is not trusted beyond this."""

SETTINGS_READ_SECONDS = 2.0
"""Time a reader waits for a rewrite in progress; writing takes microseconds."""

CONTROL_SOCKET = "control.sock"
"""File name of the control process's socket inside ``run_dir``."""

Role = Literal["shard", "acceptor", "control", "etcd"]

_FRAME = struct.Struct("<II")
_PR_SET_PDEATHSIG = 1


class LaunchError(FluxmqError):
    """The settings are damaged, or a child cannot be bound to its parent."""


@dataclass(slots=True, frozen=True)
class Launch:
    """Description of one child. ``slot`` is its row in the table.

    ``handoff_fds``: the acceptor's sending ends, index = shard; a shard's one receiving end.
    ``wake_fds``: an eventfd per shard, index = shard; a shard reads its own and writes the others.
    ``cores``: the processors the child is bound to by the supervisor; informative.
    ``node_cores``: all of the node's; a bound child's mostly idle threads run on them.
    ``spare_cores``: those of them that no shard is bound to, for busy threads.
    ``pins``: groups pinned to shards by the operator, group name to shard index.
    """

    role: Role
    index: int
    workers: int
    parent_pid: int
    slot: int
    settings_fd: int
    table_fd: int
    run_dir: str
    data_dir: str
    handoff_fds: list[int] = field(default_factory=list)
    links: list[LinkEnds] = field(default_factory=list)
    link_kind: LinkKind = "socket"
    ring_bytes: int = 0
    wake_fds: list[int] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    node_cores: list[int] = field(default_factory=list)
    spare_cores: list[int] = field(default_factory=list)
    pins: dict[str, int] = field(default_factory=dict)

    @property
    def process_name(self) -> str:
        """Name of this process in logs and in the process table: ``shard-0``, ``acceptor``,
        ``control``, ``etcd``."""
        return process_name(self.role, self.index)

    @property
    def control_socket(self) -> Path:
        """Path of the control process's socket."""
        return Path(self.run_dir) / CONTROL_SOCKET

    def descriptors(self) -> list[int]:
        """Return every descriptor that the child inherits."""
        found = {self.settings_fd, self.table_fd, *self.handoff_fds, *self.wake_fds}
        for link in self.links:
            found.update((link.send_fd, link.receive_fd))
        return sorted(found)


def process_name(role: str, index: int) -> str:
    """Return the name of a process in logs and in the process table."""
    return f"shard-{index}" if role == "shard" else role


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent, which should be `parent_pid`, ends. Raises
    LaunchError.

    SIGKILL instead of SIGTERM: a successor supervisor may already be starting on the same data
    directory, and an orphan that drains for half a minute would write into it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise LaunchError(f"cannot bind to the parent process: {os.strerror(code)}")
    if os.getppid() != parent_pid:  # it died before the line above took effect
        os._exit(1)


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard limit and return it: a connection is a
    descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def finish_ticks(launch: Launch) -> None:
    """Keep a shard that shares its cores from preempting others, and from being preempted, on
    wake-ups.

    A leader wakes its followers in the middle of a tick, with the entries it sends; followers on
    its core, as on nodes of one machine, would each preempt it for work that can wait until the
    tick has ended. Threads created later inherit this. Source: sched(7), SCHED_BATCH.
    """
    if not launch.cores:
        with contextlib.suppress(OSError):  # otherwise it is scheduled normally
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def fail_boot(reason: str, table: ProcessTable | None = None, slot: int = 0) -> NoReturn:
    """End this process as one that could not start.

    The reason goes to standard error and to the table's row, where the supervisor picks it up.
    """
    if table is not None:
        table.set_reason(slot, reason)
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    raise SystemExit(EXIT_BOOT_FAILURE)


def write_settings(fd: int, payload: bytes) -> None:
    """Replace the settings in the memfd ``fd``. Readers never see a mixture: they check the
    frame."""
    if len(payload) > SETTINGS_BYTES_MAX:
        raise LaunchError(f"settings take {len(payload)} bytes, more than {SETTINGS_BYTES_MAX}")
    framed = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
    if os.fstat(fd).st_size < len(framed):
        os.ftruncate(fd, len(framed))
    written = 0
    while written < len(framed):
        written += os.pwrite(fd, framed[written:], written)


def read_settings(fd: int) -> bytes:
    """Return the settings' JSON. Raises LaunchError when no consistent copy can be read."""
    deadline = time.monotonic() + SETTINGS_READ_SECONDS
    while True:
        header = os.pread(fd, _FRAME.size, 0)
        if len(header) == _FRAME.size:
            length, checksum = _FRAME.unpack(header)
            if length <= SETTINGS_BYTES_MAX:
                payload = os.pread(fd, length, _FRAME.size)
                if len(payload) == length and zlib.crc32(payload) == checksum:
                    return payload
        if time.monotonic() > deadline:
            raise LaunchError("the settings handed over by the supervisor are damaged")
        time.sleep(0.001)
