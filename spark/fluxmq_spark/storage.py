"""Access to queues' files: on this machine or mounted, read by ``pread``, or behind fsspec.

Local files are read by position through one descriptor, which stays valid when retention unlinks
the file meanwhile; a mapping would end the process if the file were truncated. Paths with a
protocol other than ``file://`` go to fsspec, with its ``storage_options``; the supported protocols
depend on what is installed on the driver and on every executor.

Caches of fsspec (``simplecache::``) keep what they saw: they are for copies, not for a broker's own
directory.

Knows nothing of queues. All objects but open files can be pickled, and go to executors.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import fsspec  # type: ignore[import-untyped]

from fluxmq_spark.errors import OptionError, SparkSourceError


class OpenFile(ABC):
    """One open file, to be read by position. `path`: as it was opened. A context manager."""

    path: str

    @abstractmethod
    def size(self) -> int:
        """Return the file's present size in bytes."""

    @abstractmethod
    def read_into(self, target: memoryview, position: int) -> int:
        """Read into `target` from `position`; return the bytes read, fewer than requested at the
        end of the file."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Storage(ABC):
    """Files by path, read-only. Can be pickled."""

    @abstractmethod
    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; none when there is no such directory."""

    @abstractmethod
    def sizes(self, directory: str) -> dict[str, int]:
        """Return a directory's files with their sizes in bytes, at the cost of a listing if
        possible."""

    @abstractmethod
    def open(self, path: str) -> OpenFile:
        """Open a file. Raises FileNotFoundError."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of that path."""

    def read(self, path: str) -> bytes:
        """Return a small file's bytes. Raises FileNotFoundError."""
        with self.open(path) as file:
            target = bytearray(file.size())
            read = file.read_into(memoryview(target), 0)
            return bytes(target[:read])


# --- files of this machine -----------------------------------------------------------------------------------------


class _LocalFile(OpenFile):
    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_into(self, target: memoryview, position: int) -> int:
        done = 0
        # One call returns at most 2 GiB, and less when a signal arrives.
        while done < len(target):
            read = os.preadv(self._descriptor, [target[done:]], position + done)
            if not read:
                break
            done += read
        return done

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalStorage(Storage):
    """Files of this machine: its own disks and mounted ones."""

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; none when there is no such directory."""
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, directory: str) -> dict[str, int]:
        """Return a directory's files with their sizes in bytes."""
        found = {}
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    # Retention may remove listed files.
                    with contextlib.suppress(FileNotFoundError):
                        found[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return found

    def open(self, path: str) -> OpenFile:
        """Open a file. Raises FileNotFoundError."""
        return _LocalFile(path)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of that path."""
        return os.path.exists(path)


# --- fsspec --------------------------------------------------------------------------------------------------------


class _RemoteFile(OpenFile):
    """A file behind fsspec: fetches just the requested range, without fsspec's read-ahead."""

    def __init__(self, system: Any, path: str) -> None:
        self.path = path
        self._system = system
        # A live broker's files grow: do not trust a size from an earlier listing.
        system.invalidate_cache(path.rpartition("/")[0])
        size = system.info(path).get("size")
        if size is None:
            raise SparkSourceError(f"{path}: {system.protocol} does not say how large files are")
        self._size = int(size)

    def size(self) -> int:
        return self._size

    def read_into(self, target: memoryview, position: int) -> int:
        end = min(position + len(target), self._size)
        if end <= position:
            return 0
        data = self._system.cat_file(self.path, start=position, end=end)
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        pass


class RemoteStorage(Storage):
    """Files behind a file system of fsspec, pickled as its protocol and options; connects on
    use."""

    def __init__(self, system: Any) -> None:
        self.system = system

    def list(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; none when there is no such directory."""
        return sorted(self._listed(directory))

    def sizes(self, directory: str) -> dict[str, int]:
        """Return a directory's files with their sizes in bytes, 0 if the system does not report
        one."""
        return {
            name: int(entry.get("size") or 0) for name, entry in self._listed(directory).items()
        }

    def _listed(self, directory: str) -> dict[str, dict[str, Any]]:
        directory = directory.rstrip("/")
        self.system.invalidate_cache(directory)
        try:
            entries = self.system.ls(directory, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        # Object stores sometimes list the directory itself as an object.
        found = {str(entry["name"]).rstrip("/"): entry for entry in entries}
        return {
            path.rpartition("/")[2]: entry for path, entry in found.items() if path != directory
        }

    def open(self, path: str) -> OpenFile:
        """Open a file. Raises FileNotFoundError; without descriptors, `read_into` may raise it
        too."""
        return _RemoteFile(self.system, path)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory of that path."""
        return bool(self.system.exists(path))


def storage_of(
    path: str, storage_options: Mapping[str, object] | None = None
) -> tuple[Storage, str]:
    """Return the storage for a path or URL, and the path inside it.

    `storage_options` are fsspec's for that protocol. Raises OptionError for an unknown protocol or
    one that is not installed, and for storage options with a local path, where they would be
    ignored.
    """
    options = dict(storage_options or {})
    protocol, is_url, _ = path.partition("://")
    if not is_url or protocol == "file":
        if options:
            raise OptionError(f"storageOptions are for URLs; {path!r} is a local path")
        local = unquote(urlsplit(path).path) if is_url else path
        return LocalStorage(), os.path.abspath(local)
    try:
        system, root = fsspec.core.url_to_fs(path, **options)
    except (ImportError, ValueError, TypeError) as error:
        raise OptionError(f"path {path!r} cannot be used: {error}") from None
    return RemoteStorage(system), root
