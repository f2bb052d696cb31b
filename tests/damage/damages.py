"""What can become of a file: torn, zeroed, overwritten with garbage, bits flipped, sectors gone, older, missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

SECTOR_BYTES = 512
BITS_MAX = 8


def kind_of(name: str) -> str:
    """The kind of a file, as it stands in the table."""
    for ending in ("wal.key", "wal.synced", ".wal", ".seg", ".idx", ".snap"):
        if name.endswith(ending):
            return ending.removeprefix(".")
    return os.path.basename(name)


@dataclass
class Target:
    """One file of a directory, and the same file as it was some time before."""

    path: Path
    older: bytes | None
    random: Random

    def __post_init__(self) -> None:
        self.data = bytearray(self.path.read_bytes())

    @property
    def used(self) -> int:
        """Bytes up to the last that is not zero: in what lies behind, damage does nothing."""
        return len(self.data.rstrip(b"\0"))

    def place(self) -> int:
        """A byte that means something, near the end more often than not."""
        used = max(self.used, 1)
        if self.random.random() < 0.5:
            return max(0, used - 1 - self.random.randrange(min(used, 400)))
        return self.random.randrange(used)

    def write(self) -> None:
        self.path.write_bytes(self.data)


Damage = Callable[[Target], str | None]
"""Damages a file and says how; None when it cannot be done to this one."""


def torn(target: Target) -> str | None:
    """The file ends within something."""
    if not target.data:
        return None
    at = target.place()
    del target.data[at:]
    return f"ends at byte {at}"


def zeroed(target: Target) -> str | None:
    """Zeroes from a byte on."""
    if not target.data:
        return None
    at = target.place()
    target.data[at:] = bytes(len(target.data) - at)
    return f"zeroes from byte {at}"


def garbage(target: Target) -> str | None:
    """Anything from a byte on, for a while."""
    if not target.data:
        return None
    at = target.place()
    end = min(len(target.data), at + target.random.randint(1, 2000))
    target.data[at:end] = target.random.randbytes(end - at)
    return f"garbage at bytes {at} to {end - 1}"


def appended(target: Target) -> str | None:
    """More than there was."""
    count = target.random.randint(1, 3000)
    target.data += target.random.randbytes(count)
    return f"{count} bytes behind the end"


def flipped(target: Target) -> str | None:
    """One to eight bits."""
    if not target.data:
        return None
    places = [
        (target.place(), target.random.randrange(8))
        for _ in range(target.random.randint(1, BITS_MAX))
    ]
    before = bytes(target.data)
    for at, bit in places:
        target.data[at] ^= 1 << bit
    if target.data == before:
        return None
    return f"bits {places}"


def sector_lost(target: Target) -> str | None:
    """One sector is zeroes."""
    start = target.place() // SECTOR_BYTES * SECTOR_BYTES
    end = min(len(target.data), start + SECTOR_BYTES)
    if not any(target.data[start:end]):
        return None
    target.data[start:end] = bytes(end - start)
    return f"zeroes in the sector at byte {start}"


def sector_older(target: Target) -> str | None:
    """One sector is as it was some time ago."""
    if target.older is None:
        return None
    start = target.place() // SECTOR_BYTES * SECTOR_BYTES
    old = target.older[start : start + SECTOR_BYTES]
    end = min(len(target.data), start + len(old))
    if not old or target.data[start:end] == old[: end - start]:
        return None
    target.data[start:end] = old[: end - start]
    return f"older contents in the sector at byte {start}"


def older(target: Target) -> str | None:
    """The file is as it was some time ago."""
    if target.older is None or target.older == target.data:
        return None
    target.data[:] = target.older
    return "older"


def missing(target: Target) -> str | None:
    """The file is gone."""
    target.path.unlink()
    return "missing"


DAMAGES: tuple[Damage, ...] = (
    torn,
    torn,
    zeroed,
    garbage,
    appended,
    flipped,
    flipped,
    sector_lost,
    sector_older,
    older,
    missing,
)


def damage(target: Target) -> str:
    """Do one of them."""
    while True:
        chosen = target.random.choice(DAMAGES)
        how = chosen(target)
        if how is not None:
            if chosen is not missing:
                target.write()
            return f"{chosen.__name__}: {how}"
