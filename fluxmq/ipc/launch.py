"""Launch description of a child, and a child's first steps.

A child is executed, not forked from a running program, so everything it must know crosses in one
environment variable: a JSON object of descriptor numbers and facts. The descriptors themselves are
inherited. This module knows their meaning but opens none of them; it does not know the settings'
schema and handles them as bytes.

The settings live in a memfd that the supervisor may rewrite while a child starts. They are framed,
so that a reader notices a write in progress and reads again::

    0        4        8
    | length | crc32  | JSON ... |        both u32, little endian; the checksum is over the JSON

A child may also be started before its role is known: a *standby* has done its imports and waits on
a socket for its description and descriptors. It lets a killed shard come back at once.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

from fluxmq.model.errors import FluxmqError
from fluxmq.net.link_ends import LinkEnds, LinkKind

if TYPE_CHECKING:
    from fluxmq.ipc.table import ProcessTable

ENVIRONMENT_KEY = "FLUXMQ_LAUNCH"
"""Name of the environment variable with the launch description."""

STANDBY_KEY = "FLUXMQ_STANDBY"
"""Name of a standby's environment variable with the descriptor to wait on."""

DESCRIPTORS_PER_MESSAGE = 250
"""Descriptors in one message to a standby; the kernel takes 253."""

DESCRIPTION_BYTES_MAX = 128 * 1024
"""A launch description as JSON: 100 bytes per peer shard, within the limit of one environment
variable."""

EXIT_OK = 0
EXIT_BOOT_FAILURE = 3
"""Exit code of a child that cannot start for a lasting reason (address in use, unreadable key)."""

SETTINGS_BYTES_MAX = 16 * 1024 * 1024
"""Larger settings are a mistake; the frame's length is not trusted beyond this."""

SETTINGS_READ_SECONDS = 2.0
"""Time a reader waits for a rewrite in progress; writing takes microseconds."""

CONTROL_SOCKET = "control.sock"
"""File name of the control process's socket inside ``run_dir``."""

Role = Literal["shard", "acceptor", "control"]

_FRAME = struct.Struct("<II")
_PR_SET_PDEATHSIG = 1


class LaunchError(FluxmqError):
    """The launch description or a descriptor it names is missing or malformed."""


@dataclass(slots=True, frozen=True)
class Launch:
    """Description of one child. Descriptor numbers are valid in the child; ``slot`` is its row in
    the table.

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
        ``control``."""
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

    def renumbered(self, ours: Mapping[int, int]) -> Launch:
        """Return the same description with other descriptor numbers."""
        return replace(
            self,
            settings_fd=ours[self.settings_fd],
            table_fd=ours[self.table_fd],
            handoff_fds=[ours[fd] for fd in self.handoff_fds],
            wake_fds=[ours[fd] for fd in self.wake_fds],
            links=[
                LinkEnds(link.peer, ours[link.send_fd], ours[link.receive_fd])
                for link in self.links
            ],
        )

    def to_json(self) -> str:
        """Encode for the environment variable."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        """Decode the output of ``to_json``. Raises LaunchError."""
        try:
            raw = json.loads(text)
            links = [LinkEnds(**link) for link in raw.pop("links")]
            return cls(links=links, **raw)
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise LaunchError(f"malformed launch description: {exc}") from exc


def process_name(role: str, index: int) -> str:
    """Return the name of a process in logs and in the process table."""
    return f"shard-{index}" if role == "shard" else role


def from_environment(environ: Mapping[str, str] | None = None) -> Launch:
    """Return this process's launch description; a standby waits here until it gets one.

    Raises LaunchError when the process was not started by a supervisor; a standby whose supervisor
    ends exits.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(ENVIRONMENT_KEY)
    if text is not None:
        return Launch.from_json(text)
    waiting = environ.get(STANDBY_KEY)
    if waiting is None:
        raise LaunchError(
            f"{ENVIRONMENT_KEY} is not set: this program is started by fluxmq-supervisor"
        )
    with socket.socket(fileno=int(waiting)) as sock:
        return _receive_launch(sock)


def send_launch(sock: socket.socket, launch: Launch) -> None:
    """Send a standby its description, over the other end of its SEQPACKET pair. Raises OSError,
    LaunchError."""
    text = launch.to_json().encode()
    if len(text) > DESCRIPTION_BYTES_MAX:
        raise LaunchError(f"launch description of {len(text)} bytes")
    fds = launch.descriptors()
    for start in range(0, len(fds), DESCRIPTORS_PER_MESSAGE):
        socket.send_fds(
            sock, [b"+" if start else text], fds[start : start + DESCRIPTORS_PER_MESSAGE]
        )


def _receive_launch(sock: socket.socket) -> Launch:
    """Wait for a description and give its descriptors their numbers in this process."""
    text, received = _receive(sock, DESCRIPTION_BYTES_MAX)
    if not text:
        raise SystemExit(EXIT_OK)
    described = Launch.from_json(text.decode())
    theirs = described.descriptors()
    while len(received) < len(theirs):
        more, fds = _receive(sock, 1)
        if not more:
            raise SystemExit(EXIT_OK)
        received += fds
    return described.renumbered(dict(zip(theirs, received, strict=True)))


def _receive(sock: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, close-on-exec (socket.recv_fds ignores its flags in
    3.11)."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(DESCRIPTORS_PER_MESSAGE * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content)
    return data, fds.tolist()


def bind_to_parent(launch: Launch | None = None) -> None:
    """Die with the supervisor. The first thing a child does.

    SIGKILL instead of SIGTERM: a successor supervisor may already be starting on the same data
    directory, and an orphan that drains for half a minute would write into it.
    """
    if launch is None:
        launch = from_environment()
    die_with_parent(launch.parent_pid)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent, which should be `parent_pid`, ends. Raises
    LaunchError."""
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
