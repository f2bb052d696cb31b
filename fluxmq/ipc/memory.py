"""Available memory, the memory that a process holds, and the marks above which the node refuses
work.

Only memory counts that the kernel cannot reclaim without killing a process: anonymous pages,
swapped out or not, and shared pages without a file (the rings between shards). Mapped files and the
page cache do not. Each process measures itself and writes the figure into its row of the process
table, where all read the sum. The processes of a node are forks of its supervisor and share the
pages that none has written to since; each counts its part of those.

Source: proc(5), ``/proc/<pid>/status``, ``/proc/<pid>/smaps_rollup`` and ``/proc/meminfo``; the
kernel's control groups, versions 1 and 2.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fluxmq.settings.schema import Memory

STATUS_BYTES_MAX = 8192
"""Longer than the kernel's text about a process, whose lists of processors and memory nodes grow
with the machine."""
MEMORY_INFO = "/proc/meminfo"
OWN_GROUPS = "/proc/self/cgroup"
GROUPS_ROOT = "/sys/fs/cgroup"
SAMPLE_SECONDS = 1.0
"""Interval at which an idle process measures itself; a reading takes some 20 µs."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Marks in bytes: all memory available, and the use at which publishers stop, resume, and new
    work is refused."""

    available: int
    high: int
    resume: int
    critical: int

    @classmethod
    def of(cls, settings: Memory, available: int) -> Watermarks:
        """Return the marks for a machine with ``available`` bytes.

        The critical mark lies at most halfway between the high one and all memory, so that it is
        reached before the end.
        """
        high = settings.high_watermark_bytes or int(settings.high_watermark * available)
        critical = int(high * settings.critical)
        if high < available:
            critical = min(critical, (high + available) // 2)
        return cls(available, high, int(high * settings.resume), critical)


class Watermark:
    """The memory alarm with its hysteresis: raised from the high mark until use falls below the
    resume mark."""

    def __init__(self, watermarks: Watermarks) -> None:
        self.watermarks = watermarks
        self.above = False
        self.critical = False

    def update(self, used: int) -> bool:
        """Take a measurement and return whether the alarm is on."""
        self.above = used >= (self.watermarks.resume if self.above else self.watermarks.high)
        self.critical = used >= self.watermarks.critical
        return self.above


class ProcessMemory:
    """Measures a process, by default this one; keeps its status file open.

    Its part of shared pages is measured once, when it is ``settled``: a start writes to what it
    does not share. The kernel walks all pages for it, some 2 ms for those of an idle shard.
    """

    def __init__(self, pid: int | None = None, settled: Callable[[], bool] = lambda: True) -> None:
        """Raises OSError when there is no such process."""
        self._folder = f"/proc/{'self' if pid is None else pid}"
        self._fd = os.open(f"{self._folder}/status", os.O_RDONLY | os.O_CLOEXEC)
        self._settled = settled
        self._counted_by_others: int | None = None

    def read(self) -> int:
        """Return the bytes that the process holds. Raises OSError when it has ended."""
        if self._counted_by_others is None and self._settled():
            self._counted_by_others = shared(Path(self._folder, "smaps_rollup").read_bytes())
        status = os.pread(self._fd, STATUS_BYTES_MAX, 0)
        return max(0, held(status) - (self._counted_by_others or 0))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def held(status: bytes) -> int:
    """Return the bytes that a process holds, given the text of its ``status`` file.

    Two processes map each ring between shards, so each counts half of its shared pages.
    """
    return (
        _kibibytes(status, b"RssAnon:")
        + _kibibytes(status, b"RssShmem:") // 2
        + _kibibytes(status, b"VmSwap:")
    ) * 1024


def shared(rollup: bytes) -> int:
    """Return the bytes of a process's anonymous pages that others count, given the text of its
    ``smaps_rollup`` file; 0 when the kernel (before 5.4) does not report its part."""
    part = _kibibytes(rollup, b"Pss_Anon:")
    return max(0, _kibibytes(rollup, b"Anonymous:") - part) * 1024 if part else 0


def available(
    memory_info: str = MEMORY_INFO, own_groups: str = OWN_GROUPS, root: str = GROUPS_ROOT
) -> int:
    """Return the bytes available to this node: the machine's memory, or the lowest limit of its
    control groups."""
    total = _kibibytes(Path(memory_info).read_bytes(), b"MemTotal:") * 1024
    return min([total, *_group_limits(own_groups, root)])


def _group_limits(own_groups: str, root: str) -> list[int]:
    """Return the limits of this process's control groups, from its own to the outermost visible
    one."""
    try:
        lines = Path(own_groups).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # a kernel without control groups
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, name = Path(root), "memory.max"
        elif "memory" in controllers.split(","):
            base, name = Path(root, "memory"), "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, while only the container's own group is
        # mounted, at the top.
        place = base / path.lstrip("/")
        for directory in (place, *place.parents):
            limit = _limit(directory / name)
            if limit is not None:
                limits.append(limit)
            if directory == base:
                break
    return limits


def _limit(file: Path) -> int | None:
    """Return a group's limit, None where there is none."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _kibibytes(text: bytes, name: bytes) -> int:
    """Return the number after a name at the beginning of a line, 0 where the kernel does not report
    it."""
    at = text.find(b"\n" + name)
    if at < 0 and not text.startswith(name):
        return 0
    start = at + 1 + len(name)
    return int(text[start : text.index(b"kB", start)])
