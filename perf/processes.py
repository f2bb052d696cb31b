"""Cost of processes, read from /proc: processor time, memory, and the processes below one.

Everything is a sum over a broker's whole process tree, so that a broker with helpers is charged for them.
Kernel memory of sockets belongs to no process and is read for the whole machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
PAGE_BYTES: int = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: proportional and resident set over the processes; kernel memory of the whole machine."""

    pss: int
    rss: int
    kernel_tcp: int
    kernel_slab: int


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name; empty when the process is gone."""
    try:
        content = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return content.rpartition(")")[2].split()


def tree(roots: Iterable[int]) -> list[int]:
    """The processes given and all below them that live now."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found and stat_fields(pid):
            found.append(pid)
            waiting.extend(children.get(pid, ()))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time used so far by these processes and their threads, in seconds: the scheduler's own count, which is
    exact where ``/proc`` has clock ticks. A process that is gone counts nothing."""
    used = 0.0
    for pid in pids:
        # The kernel's number of the clock of a process: CPUCLOCK_SCHED, see clock_getcpuclockid(3).
        with suppress(OSError):
            used += time.clock_gettime((~pid << 3) | 2)
    return used


def cpu_by_name(pids: Sequence[int]) -> dict[str, float]:
    """Seconds of processor time used so far, by the processes' names without a number at their end."""
    found: dict[str, float] = {}
    for pid in pids:
        try:
            name = (PROC / str(pid) / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name = name.rstrip("0123456789").rstrip("-")
        found[name] = found.get(name, 0.0) + cpu_seconds((pid,))
    return found


def memory(pids: Sequence[int]) -> Memory:
    """Memory of these processes now."""
    pss = rss = 0
    for pid in pids:
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            name, _, rest = line.partition(":")
            if name == "Pss":
                pss += int(rest.split()[0]) * 1024
            elif name == "Rss":
                rss += int(rest.split()[0]) * 1024
    return Memory(pss, rss, *_kernel_memory())


def _kernel_memory() -> tuple[int, int]:
    tcp = slab = 0
    for line in (PROC / "net" / "sockstat").read_text().splitlines():
        words = line.split()
        if words[0] == "TCP:":
            tcp = int(words[words.index("mem") + 1]) * PAGE_BYTES
    for line in (PROC / "meminfo").read_text().splitlines():
        if line.startswith("Slab:"):
            slab = int(line.split()[1]) * 1024
    return tcp, slab
