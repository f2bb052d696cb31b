"""Queues exported to Parquet: the manifests in a directory define its content.

::

    queue=<name>/date=<YYYY-MM-DD>/part-<run>-<task>-<number>.parquet
    _manifests/<number, 8 digits>.json

Every run of the export adds files first and then one manifest, which appears atomically. A file
that no manifest names is left from an interrupted run, or from a task that Spark ran twice; readers
that go by the manifests never see it, and the next run removes it. The names of directories are as
Hive writes them, so that ``spark.read.parquet(directory)`` works as well, between two runs.

Directories are local paths or URLs that fsspec knows. On local ones a lock keeps two runs apart;
elsewhere the second one to write a manifest of the same number fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import xxhash

from fluxmq_spark.errors import SparkSourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = 1
MANIFESTS: Final = "_manifests"
SUFFIX: Final = ".parquet"

DIRECTORY_BYTES_MAX: Final = 240
"""Maximum bytes of ``queue=<name>``: file systems take 255, and some programs prepend something."""

_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class ExportError(SparkSourceError):
    """A directory of exports contradicts its manifests, or another run is at work in it."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file. Its path is below the directory; offsets and times (µs since the epoch) are minimum
    and maximum."""

    path: str
    queue: str
    date: str
    rows: int
    bytes: int
    min_offset: int
    max_offset: int
    min_time: int
    max_time: int


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """A run's export of a queue: offsets from `first` up to before `next`; `lost` of them were
    unavailable."""

    first: int
    next: int
    rows: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """Additions of one run. `written`: time in ISO 8601."""

    number: int
    run: str
    written: str
    source: str
    queues: Mapping[str, ExportedRange]
    files: tuple[ExportedFile, ...]

    def encode(self) -> bytes:
        """Return the manifest as stored in its file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Manifest:
        """Decode a manifest file. Raises `ExportError`."""
        try:
            found = json.loads(data)
            if found.pop("format") != FORMAT:
                raise ExportError(f"{path} was written by another version of the export")
            queues = {name: ExportedRange(**each) for name, each in found.pop("queues").items()}
            files = tuple(ExportedFile(**each) for each in found.pop("files"))
            return cls(queues=queues, files=files, **found)
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise ExportError(f"{path} is not an export manifest: {problem}") from None


def partition_of(queue: str) -> str:
    """Return the directory of a queue: ``queue=`` and its name, in which every other ASCII
    character than A-Z a-z 0-9 . _ - is %XX.

    Non-ASCII ones stay, because readers that undo %XX take each for a character of its own. A long
    name is truncated, and ends with ~ and its hash; the manifest has its whole name.
    """
    text = "".join(
        each if each in _PLAIN or not each.isascii() else f"%{ord(each):02X}" for each in queue
    )
    name = f"queue={text}"
    if len(name.encode()) > DIRECTORY_BYTES_MAX:
        end = "~" + xxhash.xxh3_128_hexdigest(queue.encode())
        name = name.encode()[: DIRECTORY_BYTES_MAX - len(end)].decode("utf-8", "ignore") + end
    return name


@dataclass(slots=True)
class ExportDirectory:
    """A directory of exports. `options`: fsspec's for its URL."""

    url: str
    options: Mapping[str, object] = field(default_factory=dict)
    _filesystem: Any = field(default=None, init=False, repr=False)
    _root: str = field(default="", init=False, repr=False)

    def open(self) -> Any:
        """Return fsspec's file system. Raises `ExportError` for a URL that it does not know."""
        if self._filesystem is None:
            import fsspec  # type: ignore[import-untyped]

            try:
                self._filesystem, root = fsspec.core.url_to_fs(self.url, **self.options)
            except (ValueError, ImportError) as problem:
                raise ExportError(f"{self.url}: {problem}") from None
            self._root = root.rstrip("/")
        return self._filesystem

    @property
    def local(self) -> bool:
        """True for a file system of the operating system, where files can be synced and locked."""
        protocol = self.open().protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else tuple(protocol))

    def path(self, *parts: str) -> str:
        """Return the path of an entry below, as the file system takes it."""
        self.open()
        return "/".join((self._root, *parts))

    def url_of(self, *parts: str) -> str:
        """Return the same for Spark."""
        return str(self.open().unstrip_protocol(self.path(*parts)))

    def manifests(self) -> list[Manifest]:
        """Return all manifests in order. Raises `ExportError`."""
        filesystem, found = self.open(), []
        for name in self._names(MANIFESTS):
            number, dot, suffix = name.partition(".")
            if not (number.isdigit() and dot and suffix == "json"):
                continue
            path = self.path(MANIFESTS, name)
            found.append(Manifest.decode(path, filesystem.cat_file(path)))
        found.sort(key=lambda each: each.number)
        for expected, manifest in enumerate(found, 1):
            if manifest.number != expected:
                raise ExportError(f"{self.url}: manifest {expected} is missing")
        return found

    def _names(self, directory: str) -> list[str]:
        filesystem = self.open()
        # fsspec caches listings of remote stores, and another process may have written since.
        filesystem.invalidate_cache()
        try:
            paths = filesystem.ls(self.path(directory) if directory else self.path(), detail=False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out. Raises `ExportError` when one is at work."""
        if not self.local:
            yield
            return
        os.makedirs(self.path(MANIFESTS), exist_ok=True)
        descriptor = os.open(self.path(MANIFESTS, ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ExportError(f"another export is running in {self.url}") from None
            yield
        finally:
            os.close(descriptor)

    def remove_unlisted(self, manifests: Iterable[Manifest]) -> list[str]:
        """Remove the files that no manifest names; return them. Touches only files named like an
        export's."""
        filesystem = self.open()
        listed = {each.path for manifest in manifests for each in manifest.files}
        removed = []
        for queue in self._names(""):
            if not queue.startswith("queue="):
                continue
            for date in self._names(queue):
                for name in self._names(f"{queue}/{date}"):
                    path = f"{queue}/{date}/{name}"
                    if name.startswith("part-") and name.endswith(SUFFIX) and path not in listed:
                        filesystem.rm_file(self.path(path))
                        removed.append(path)
        return removed

    def commit(self, manifest: Manifest) -> str:
        """Write a manifest, with which its files become part of the export; return its path. Raises
        `ExportError`."""
        path = self.path(MANIFESTS, f"{manifest.number:08d}.json")
        filesystem = self.open()
        if not self.local:
            if filesystem.exists(path):
                raise ExportError(f"{path} already exists: another export is running")
            filesystem.pipe_file(path, manifest.encode())
            return path
        for directory in sorted({os.path.dirname(each.path) for each in manifest.files}):
            _sync_directories(self.path(), directory)
        beside = self.path(MANIFESTS, f".{manifest.number:08d}.json.new")
        with open(beside, "wb") as target:
            target.write(manifest.encode())
            target.flush()
            os.fsync(target.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            raise ExportError(f"{path} already exists: another export is running") from None
        finally:
            os.unlink(beside)
        _sync_directories(self.path(), MANIFESTS)
        return path


def _sync_directories(root: str, below: str) -> None:
    """Make names durable: sync a directory, and the directories up to the root."""
    while True:
        descriptor = os.open(f"{root}/{below}" if below else root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not below:
            return
        below = os.path.dirname(below)


def continue_at(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the offset after the last exported one, by queue."""
    return {name: each.next for manifest in manifests for name, each in manifest.queues.items()}


def is_export(url: str, options: Mapping[str, object] | None = None) -> bool:
    """Return whether a directory has manifests."""
    names = ExportDirectory(url, options or {})._names(MANIFESTS)
    return any(name.endswith(".json") for name in names)


def read(
    spark: SparkSession,
    url: str,
    queues: Iterable[str] = (),
    *,
    options: Mapping[str, object] | None = None,
) -> DataFrame:
    """Return the rows of an export, of all queues or the given ones: the source's columns and
    ``date``.

    Raises `ExportError` when there is no export, or none of such a queue.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import DateType, StringType, StructField, StructType

    directory = ExportDirectory(url, options or {})
    wanted = set(queues)
    files = [
        each
        for manifest in directory.manifests()
        for each in manifest.files
        if not wanted or each.queue in wanted
    ]
    if not files:
        what = f"of {', '.join(sorted(wanted))} " if wanted else ""
        raise ExportError(f"{url}: no export {what}is there")
    urls = [directory.url_of(each.path) for each in files]
    # Otherwise Spark would guess that directory names that look like numbers are numbers.
    inside = spark.read.parquet(urls[0]).schema
    partitions = [
        StructField("queue", StringType(), nullable=False),
        StructField("date", DateType(), nullable=False),
    ]
    reader = spark.read.option("basePath", directory.url_of())
    rows = reader.schema(StructType([*inside.fields, *partitions])).parquet(*urls)
    cut = {partition_of(each.queue): each.queue for each in files}
    names = {key.removeprefix("queue="): name for key, name in cut.items() if "~" in key}
    queue = f.col("queue")
    for key, name in names.items():
        queue = f.when(f.col("queue") == key, f.lit(name)).otherwise(queue)
    columns = [f.col(each.name) for each in inside.fields]
    return rows.select(queue.alias("queue"), *columns, f.col("date"))
