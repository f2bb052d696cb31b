"""Memory and CPU time of the node's processes, as the kernel counts them (``/proc/<pid>``), and who a process is.

Read at each scrape, by the control process, for all: a process that hangs is still measured.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Vitals:
    """Resident memory in bytes and CPU seconds, user and system together."""

    resident_bytes: int
    cpu_seconds: float


def read(pid: int) -> Vitals | None:
    """Return the vitals of a process, None when it is gone."""
    fields = _stat(pid)
    if fields is None:
        return None
    user, system, resident_pages = int(fields[11]), int(fields[12]), int(fields[21])
    return Vitals(resident_pages * _PAGE_BYTES, (user + system) / _TICKS_PER_SECOND)


def identity(pid: int) -> str:
    """Return what no other process of this machine is called, ever: boot, process id and when it was started.

    A process that is gone has an identity of which only the boot is told.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    fields = _stat(pid)
    return f"{boot}/{pid}/{'' if fields is None else int(fields[19])}"


def _stat(pid: int) -> list[bytes] | None:
    """The fields of a process from its state on; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold spaces and parentheses.
    return stat[stat.rindex(b")") + 2 :].split()
