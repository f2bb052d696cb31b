"""The process table: one shared page of vital signs, one fixed row per child.

The supervisor creates it as a memfd and writes which child lives where; each child writes only into
its own row, from inside its own loop; everybody reads. There is no lock: every number is an aligned
64-bit word, stored at once, and no reader needs two words to agree.

Layout, in little-endian signed 64-bit words; a row is 512 bytes and row 0 starts at byte 512::

    header  word 0 magic   1 version   2 rows
    row     word 0 role    1 index     2 pid       3 core (-1: not pinned)   4 state
                 5 started_at, ns since the epoch  6 restarts
                 7 last exit (negative: signal)    8 heartbeat, CLOCK_MONOTONIC ns
                 9 ready  10..17 connections per listener
                18 last exit known (0 or 1)       19 memory held, bytes
                20 alarms, as bits of ``ALARMS``  21 taking connections
                22..29 connections received per listener, in all lives
            bytes 256..511: reason of the last failure, length byte then UTF-8
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
from collections.abc import Collection
from dataclasses import dataclass

from fluxmq.model.errors import FluxmqError

ROW_BYTES = 512
ROW_WORDS = ROW_BYTES // 8
REASON_OFFSET = 256
REASON_BYTES_MAX = ROW_BYTES - REASON_OFFSET - 1
LISTENERS_MAX = 8
"""Listener indexes a row has room for; six are in use, see ``handoff.LISTENERS``."""

NOT_PINNED = -1

_MAGIC = 0x31585546_54424C45
_VERSION = 2

_ROLE, _INDEX, _PID, _CORE, _STATE, _STARTED, _RESTARTS, _EXIT, _BEAT, _READY = range(10)
_CONNECTIONS = 10
_EXIT_KNOWN = _CONNECTIONS + LISTENERS_MAX
_MEMORY = _EXIT_KNOWN + 1
_ALARMS = _MEMORY + 1
_TAKING = _ALARMS + 1
_RECEIVED = _TAKING + 1

assert (_RECEIVED + LISTENERS_MAX) * 8 <= REASON_OFFSET
assert REASON_BYTES_MAX <= 255

MEMORY, DISK = "memory", "disk"
ALARMS = (MEMORY, DISK)
"""Resources that a node can run short of, by their bit."""

ROLES = ("", "shard", "acceptor", "control", "etcd")
"""Roles of a row; the empty one means unused."""


class ProcessState(enum.IntEnum):
    """The supervisor's view of a child."""

    STOPPED = 0
    STARTING = 1
    READY = 2
    STOPPING = 3
    BACKING_OFF = 4


class ProcessTableError(FluxmqError):
    """The descriptor does not hold a process table of this version."""


@dataclass(slots=True)
class ProcessRow:
    """A reading of one row.

    ``started_at`` is in seconds since the epoch, 0 when never started; ``heartbeat`` is
    CLOCK_MONOTONIC in nanoseconds, 0 before the first beat; ``last_exit`` is an exit code, negative
    for a signal, None while the child has never ended; ``connections`` is indexed by listener, and so
    is ``received``, the number of those that all processes in the slot have received and counted;
    ``reason`` explains the last failure, if the child has explained it.
    """

    slot: int
    role: str
    index: int
    pid: int
    core: int
    state: ProcessState
    started_at: float
    restarts: int
    last_exit: int | None
    heartbeat: int
    ready: bool
    connections: tuple[int, ...]
    reason: str
    received: tuple[int, ...] = (0,) * LISTENERS_MAX


class ProcessTable:
    """The mapped table. Cheap to keep open; one per process."""

    def __init__(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size < 2 * ROW_BYTES:
            raise ProcessTableError(f"descriptor {fd} is too small for a process table")
        self.fd = fd
        self._map = mmap.mmap(fd, size)
        self._words = memoryview(self._map).cast("q")
        if self._words[0] != _MAGIC or self._words[1] != _VERSION:
            self.close()
            raise ProcessTableError(
                f"descriptor {fd} does not hold a process table of version {_VERSION}"
            )
        self.slots = self._words[2]
        if size < (self.slots + 1) * ROW_BYTES:
            self.close()
            raise ProcessTableError(f"the process table on descriptor {fd} is cut off")

    @classmethod
    def create(cls, slots: int) -> ProcessTable:
        """Create a table of ``slots`` empty rows in a new memfd, sealed against shrinking."""
        fd = os.memfd_create("fluxmq-processes", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, (slots + 1) * ROW_BYTES)
        # A child that shrank the file would end every reader with SIGBUS.
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        with mmap.mmap(fd, ROW_BYTES) as header, memoryview(header).cast("q") as words:
            words[0], words[1], words[2] = _MAGIC, _VERSION, slots
        return cls(fd)

    def close(self) -> None:
        """Unmap. The descriptor stays open; it belongs to the caller."""
        self._words.release()
        self._map.close()

    # Written by the supervisor.

    def assign(self, slot: int, role: str, index: int, core: int = NOT_PINNED) -> None:
        """Assign ``slot`` to a child."""
        base = self._base(slot)
        self._words[base + _ROLE] = ROLES.index(role)
        self._words[base + _INDEX] = index
        self._words[base + _CORE] = core

    def set_started(self, slot: int, pid: int, started_at_ns: int, restarts: int) -> None:
        """Note a new process in ``slot``. ``started_at_ns`` is in nanoseconds since the epoch."""
        base = self._base(slot)
        self._words[base + _PID] = pid
        self._words[base + _STARTED] = started_at_ns
        self._words[base + _RESTARTS] = restarts

    def set_state(self, slot: int, state: ProcessState) -> None:
        """Set the supervisor's view of the child."""
        self._words[self._base(slot) + _STATE] = int(state)

    def clear_readings(self, slot: int) -> None:
        """Clear heartbeat, readiness, connections, memory, alarms and reason: before a start and
        after an end."""
        base = self._base(slot)
        self._words[base + _BEAT] = 0
        self._words[base + _READY] = 0
        self._words[base + _MEMORY] = 0
        self._words[base + _ALARMS] = 0
        self._words[base + _TAKING] = 0
        for listener in range(LISTENERS_MAX):
            self._words[base + _CONNECTIONS + listener] = 0
        self.set_reason(slot, "")

    def set_exited(self, slot: int, code: int) -> None:
        """Note that the child in ``slot`` ended with ``code`` (negative: killed by that signal)."""
        base = self._base(slot)
        self._words[base + _PID] = 0
        self._words[base + _EXIT] = code
        self._words[base + _EXIT_KNOWN] = 1

    # Written by the child that lives in the row.

    def beat(self, slot: int, now_ns: int) -> None:
        """Write a heartbeat from the child's own loop. ``now_ns`` is CLOCK_MONOTONIC in
        nanoseconds."""
        self._words[(slot + 1) * ROW_WORDS + _BEAT] = now_ns

    def set_ready(self, slot: int, ready: bool = True) -> None:
        """Publish that the child serves (or, while draining, no longer)."""
        self._words[self._base(slot) + _READY] = int(ready)

    def set_connections(
        self, slot: int, listener: int, count: int, received: int | None = None
    ) -> None:
        """Publish the number of connections of ``listener`` that this shard holds now, and then how
        many all processes in ``slot`` have received and counted."""
        assert 0 <= listener < LISTENERS_MAX
        self._words[self._base(slot) + _CONNECTIONS + listener] = count
        if received is not None:
            self._words[self._base(slot) + _RECEIVED + listener] = received

    def set_taking(self, slot: int, taking: bool) -> None:
        """Publish that this shard receives connections which ``set_connections`` does not include
        yet."""
        self._words[self._base(slot) + _TAKING] = int(taking)

    def set_memory(self, slot: int, held: int) -> None:
        """Publish the bytes that this process holds."""
        self._words[self._base(slot) + _MEMORY] = held

    def set_alarms(self, slot: int, kinds: Collection[str]) -> None:
        """Publish the alarms that this process raises."""
        bits = sum(1 << ALARMS.index(kind) for kind in kinds)
        self._words[self._base(slot) + _ALARMS] = bits

    def set_reason(self, slot: int, reason: str) -> None:
        """Leave one sentence about a failure, truncated to the row's space."""
        encoded = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX]
        start = (slot + 1) * ROW_BYTES + REASON_OFFSET
        self._map[start] = 0  # a reader in between sees no reason rather than a torn one
        self._map[start + 1 : start + 1 + len(encoded)] = encoded
        self._map[start] = len(encoded)

    # Read by everybody.

    def ready(self, slot: int) -> bool:
        """Return whether the child in ``slot`` serves."""
        return self._words[self._base(slot) + _READY] != 0

    def connections(self, listener: int) -> int:
        """Return the connections of ``listener`` over all rows."""
        words = self._words
        first = ROW_WORDS + _CONNECTIONS + listener
        return sum(words[first + slot * ROW_WORDS] for slot in range(self.slots))

    def taking(self, slot: int) -> bool:
        """Return whether the shard in ``slot`` may hold connections that its row does not count."""
        return self._words[self._base(slot) + _TAKING] != 0

    def memory(self) -> int:
        """Return the bytes that the processes of all rows hold."""
        words = self._words
        first = ROW_WORDS + _MEMORY
        return sum(words[first + slot * ROW_WORDS] for slot in range(self.slots))

    def alarms(self) -> tuple[str, ...]:
        """Return the alarms that at least one process raises, in the order of ``ALARMS``."""
        words = self._words
        bits = 0
        for slot in range(self.slots):
            bits |= words[(slot + 1) * ROW_WORDS + _ALARMS]
        return tuple(kind for bit, kind in enumerate(ALARMS) if bits >> bit & 1)

    def row(self, slot: int) -> ProcessRow:
        """Read one row."""
        base = self._base(slot)
        words = self._words[base : base + _RECEIVED + LISTENERS_MAX].tolist()
        return ProcessRow(
            slot=slot,
            role=ROLES[words[_ROLE] % len(ROLES)],
            index=words[_INDEX],
            pid=words[_PID],
            core=words[_CORE],
            state=ProcessState(words[_STATE])
            if 0 <= words[_STATE] < len(ProcessState)
            else ProcessState.STOPPED,
            started_at=words[_STARTED] / 1e9,
            restarts=words[_RESTARTS],
            last_exit=words[_EXIT] if words[_EXIT_KNOWN] else None,
            heartbeat=words[_BEAT],
            ready=words[_READY] != 0,
            connections=tuple(words[_CONNECTIONS : _CONNECTIONS + LISTENERS_MAX]),
            received=tuple(words[_RECEIVED : _RECEIVED + LISTENERS_MAX]),
            reason=self._reason(slot),
        )

    def rows(self) -> list[ProcessRow]:
        """Read every row, in the order of the slots."""
        return [self.row(slot) for slot in range(self.slots)]

    def _reason(self, slot: int) -> str:
        start = (slot + 1) * ROW_BYTES + REASON_OFFSET
        return self._map[start + 1 : start + 1 + self._map[start]].decode("utf-8", "replace")

    def _base(self, slot: int) -> int:
        assert 0 <= slot < self.slots, slot
        return (slot + 1) * ROW_WORDS
