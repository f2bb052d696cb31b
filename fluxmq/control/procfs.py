"""Memory and CPU time of the node's processes from the kernel (``/proc/<pid>``), and their
identity.

The control process reads them at each scrape, for all: a hanging process is still measured.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """Resident memory in bytes and CPU seconds, user and system together."""

    resident_bytes: int
    cpu_seconds: float


def read(pid: int) -> ProcessStats | None:
    """Return the readings of a process, None when it is gone."""
    fields = _stat(pid)
    if fields is None:
        return None
    user, system, resident_pages = int(fields[11]), int(fields[12]), int(fields[21])
    return ProcessStats(resident_pages * _PAGE_BYTES, (user + system) / _TICKS_PER_SECOND)


def identity(pid: int) -> str:
    """Return an identity unique on this machine for all time: boot, process id and start time.

    For a process that is gone only the boot is given.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    fields = _stat(pid)
    return f"{boot}/{pid}/{'' if fields is None else int(fields[19])}"


def _stat(pid: int) -> list[bytes] | None:
    """Return a process's fields from its state on; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold spaces and parentheses.
    return stat[stat.rindex(b")") + 2 :].split()
