"""A file system of its own that can lose power: ext4 in a file, mounted through a loop device.

``cut`` shuts the file system down at once and without flushing its journal: what was synced is on the image, all
else that was written is gone, and every further write fails. That is what a power cut does to a disk; killing a
process does not, because the kernel keeps what it wrote. Mounting again replays the journal, as a boot does.

Source: Linux, EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ioctl.c).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Self

SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
IMAGE_BYTES = 2 << 30
"""Sparse: it takes what is written to it."""

UNMOUNT_DEADLINE_S = 10.0


class NotPermittedError(RuntimeError):
    """Loop mounts cannot be made here; the text says why."""


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        said = (result.stderr or result.stdout).strip()
        raise NotPermittedError(f"{' '.join(command[:2])} failed: {said or result.returncode}")


def tool(name: str) -> str:
    """Where a program is. Raises ``NotPermittedError``."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise NotPermittedError(f"{name} is not installed")
    return found


class Image:
    """One image and its mount point, both in ``folder``. A context manager: left, it is unmounted and removed."""

    def __init__(self, folder: Path, size: int = IMAGE_BYTES) -> None:
        """Make and mount. Raises ``NotPermittedError`` where that is not allowed."""
        if os.geteuid() != 0:
            raise NotPermittedError("loop mounts need root")
        self.file = folder / "image"
        self.place = folder / "mount"
        self.mounted = False
        self.place.mkdir()
        with self.file.open("wb") as image:
            image.truncate(size)
        _run(tool("mkfs.ext4"), "-q", "-F", "-E", "lazy_itable_init=1", str(self.file))
        self.mount()

    def mount(self) -> None:
        """Mount, which replays the journal after a cut."""
        _run(tool("mount"), "-o", "loop", str(self.file), str(self.place))
        self.mounted = True

    def cut(self) -> None:
        """Shut the file system down as it is; nothing is flushed."""
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Unmount, waiting for the last process that has a file open there. Raises ``RuntimeError``."""
        if not self.mounted:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        deadline = time.monotonic() + UNMOUNT_DEADLINE_S
        while libc.umount2(os.fsencode(self.place), 0):
            if time.monotonic() > deadline:
                error = ctypes.get_errno()
                raise RuntimeError(f"{self.place} stays mounted: {os.strerror(error)}")
            time.sleep(0.01)
        self.mounted = False

    def remount(self) -> None:
        """Unmount and mount again."""
        self.unmount()
        self.mount()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
        self.file.unlink(missing_ok=True)
        self.place.rmdir()
