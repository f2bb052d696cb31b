"""A node's file system: a directory in memory whose power can be cut, and whose process can die in any call.

Adds to `PowerCutFiles` what whole nodes do: directories are renamed and removed with what was not synced in them, and
a process ends while the machine goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random
from typing import Any, ParamSpec, TypeVar

from tests.faults import Naming, PowerCutFiles

P = ParamSpec("P")
T = TypeVar("T")


class NodeFiles(PowerCutFiles):
    """The disk of one machine, from one power cut to the next."""

    full = False
    """Whether it has room for nothing new; what is written into the files that it has already needs none."""

    def call(
        self, operation: str, path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.full and self._needs_room(operation, path, args):
            self.fail(operation, errno.ENOSPC)
        return super().call(operation, path, function, *args, **kwargs)

    @staticmethod
    def _needs_room(operation: str, path: str, arguments: tuple[Any, ...]) -> bool:
        if operation == "create":
            return not os.path.exists(path)
        if operation == "pwritev":
            fd, buffers, position = arguments
            return bool(position + sum(map(len, buffers)) > os.fstat(fd).st_size)
        return operation == "allocate"

    def _note_rename(self, path: str, source: str, target: str) -> Callable[[None], None]:
        if not os.path.isdir(path):
            return super()._note_rename(path, source, target)
        self._forget_names_below(path)

        def undo() -> None:
            if os.path.exists(target) and not os.path.exists(path):
                os.rename(target, path)

        return lambda _result: self._namings.append(Naming(os.path.dirname(path), undo))

    def _note_remove_directory(self, path: str, _path: str) -> None:
        self._forget_names_below(path)

    def _forget_names_below(self, path: str) -> None:
        """Names in a directory that moves or goes count as synced: a power cut could not find them to take them back."""
        below = path + "/"
        self._namings = [
            each for each in self._namings if not f"{each.directory}/".startswith(below)
        ]

    def kill(self) -> None:
        """The process ends; the kernel has everything that it wrote."""
        for fd in list(self._names):
            self.close(fd)
        self.work_again()
        self._crash_at.clear()
        self.dead = False

    def close_all(self) -> None:
        """Let go of every descriptor; the directory is about to be removed."""
        self.kill()
        self.dead = True
        for disk in self._disks.values():
            disk.close()
        self._disks.clear()

    def flip(self, path: str, random: Random) -> int:
        """Flip one bit of a file at rest; its position."""
        position = random.randrange(os.path.getsize(path))
        with open(path, "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0] ^ 1 << random.randrange(8)
            file.seek(position)
            file.write(bytes((byte,)))
        return position
