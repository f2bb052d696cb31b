"""The ledger of a published stream: staged rows, and the micro-batches begun and done.

A directory, local or behind fsspec, of one query:

* ``part-<partition>-<uuid>.arrow``: rows of one task, an Arrow IPC file
* ``batch-<n>.json``: publishing of a micro-batch began: its parts in order, and its producer name
* ``batch-<n>.done``: all of it is safe

The files left by a crash determine the recovery: with a ``.json`` the parts it names are published
again in its order and under its name, so that queues drop duplicates; with a ``.done`` nothing is.
Both are written atomically if the file system renames (local, HDFS) or puts (object stores)
atomically; a truncated one counts as not written.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from fsspec.core import url_to_fs  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from fluxmq_spark.errors import SparkSourceError

DONE_KEPT: Final = 100
"""Marks of finished micro-batches kept for inspection; Spark itself repeats only the last one, and
keeps 100 by default."""

_BATCH: Final = re.compile(r"batch-([0-9]+)\.(json|done)")
_PART: Final = re.compile(r"part-[0-9]+-[0-9a-f]{32}\.arrow")

Publish = Callable[[str, Iterator[pa.RecordBatch]], int]
"""Publishes rows under a name and returns their number, once all are safe."""


class Part(NamedTuple):
    """A task's rows: the file's name, empty for no rows."""

    partition: int
    name: str
    rows: int


@dataclass(frozen=True)
class Staging:
    """The directory's files. Can be pickled. ``options``: of fsspec, for this file system."""

    url: str
    options: Mapping[str, object]

    def _open(self) -> tuple[Any, str]:
        """Return the file system, and the directory in it."""
        fs, root = url_to_fs(self.url, **self.options)
        fs.makedirs(root, exist_ok=True)
        return fs, root.rstrip("/")

    def names(self) -> list[str]:
        """Return the names of all files."""
        fs, root = self._open()
        fs.invalidate_cache()
        try:
            return sorted(path.rpartition("/")[2] for path in fs.ls(root, detail=False))
        except FileNotFoundError:  # an object store's directory exists once something is in it
            return []

    def write_part(self, partition: int, batches: Iterable[pa.RecordBatch]) -> Part:
        """Stage rows; when this returns they survive a crash of the machine."""
        fs, root = self._open()
        name = f"part-{partition:05}-{uuid.uuid4().hex}.arrow"
        rows = 0
        with contextlib.ExitStack() as stack:
            writer = None
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    file = stack.enter_context(fs.open(f"{root}/{name}", "wb"))
                    writer = stack.enter_context(pa.ipc.new_file(file, batch.schema))
                writer.write_batch(batch)
                rows += batch.num_rows
        if rows:
            _sync(fs, f"{root}/{name}", root)
        return Part(partition, name if rows else "", rows)

    def read_part(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part. Raises SparkSourceError when some are missing."""
        if not part.rows:
            return
        fs, root = self._open()
        path = f"{root}/{part.name}"
        try:
            with fs.open(path, "rb") as file, pa.ipc.open_file(file) as reader:
                rows = 0
                for index in range(reader.num_record_batches):
                    batch = reader.get_batch(index)
                    rows += batch.num_rows
                    yield batch
        except (OSError, pa.ArrowInvalid) as error:
            raise SparkSourceError(f"{path}: staged rows cannot be read: {error}") from None
        if rows != part.rows:
            raise SparkSourceError(f"{path}: {rows} rows instead of the {part.rows} staged")

    def save(self, name: str, content: Mapping[str, object]) -> None:
        """Write a small file atomically."""
        fs, root = self._open()
        data = json.dumps(content).encode()
        path = f"{root}/{name}"
        if not isinstance(fs, LocalFileSystem):
            fs.pipe_file(path, data)
            return
        with open(f"{path}.new", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)
        _sync_directory(root)

    def load(self, name: str) -> dict[str, Any] | None:
        """Return the content that `save` wrote; None when it is missing or incomplete."""
        fs, root = self._open()
        try:
            found = json.loads(fs.cat_file(f"{root}/{name}"))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; missing ones are ignored."""
        fs, root = self._open()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(f"{root}/{name}")


def _sync(fs: Any, path: str, root: str) -> None:
    """Sync a file to the disk; a remote one is durable when it is closed."""
    if not isinstance(fs, LocalFileSystem):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _sync_directory(root)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Ledger:
    """Publishes micro-batches exactly once, as far as queues recognise duplicates."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging

    def commit(self, batch_id: int, parts: Sequence[Part], producer: str, publish: Publish) -> int:
        """Publish a micro-batch, finish one that was begun, or do nothing when it is done; return
        its number of rows.

        Raises SparkSourceError when the directory is another query's, and the errors of
        ``publish``; the batch is begun then.
        """
        names = self._staging.names()
        begun, done = _marks(names, "json"), _marks(names, "done")
        self._check(batch_id, begun - done, begun | done)
        if batch_id in done:
            rows = int((self._staging.load(f"batch-{batch_id}.done") or {}).get("rows", 0))
        else:
            rows = self._publish(batch_id, parts, producer, publish)
        self._clean(batch_id)
        return rows

    def abort(self, batch_id: int, parts: Iterable[Part]) -> None:
        """Remove what tasks staged, except parts of a begun batch: Spark also aborts a batch whose
        commit failed."""
        manifest = self._staging.load(f"batch-{batch_id}.json")
        kept = {part.name for part in _parts_of(manifest)} if manifest else set()
        self._staging.remove(part.name for part in parts if part.rows and part.name not in kept)

    def _check(self, batch_id: int, open_: Collection[int], known: Collection[int]) -> None:
        """Check that Spark commits micro-batches one after another, and after a restart repeats
        only the last."""
        newest = max(known, default=batch_id)
        if newest > batch_id:
            raise SparkSourceError(
                f"{self._staging.url}: batch {batch_id} comes after batch {newest}: this stagingPath is that of "
                "another query, or of one whose checkpoint is gone. Give the query a stagingPath of its own"
            )
        for other in sorted(open_):
            if other < batch_id:
                raise SparkSourceError(
                    f"{self._staging.url}: batch {batch_id} comes while batch {other} is not published to its end: "
                    "this stagingPath is that of another query"
                )

    def _publish(
        self, batch_id: int, parts: Sequence[Part], producer: str, publish: Publish
    ) -> int:
        manifest = self._staging.load(f"batch-{batch_id}.json")
        if manifest is None:
            ordered = sorted(part for part in parts if part.rows)
            manifest = {"producer": producer, "parts": [list(part) for part in ordered]}
            self._staging.save(f"batch-{batch_id}.json", manifest)
        begun = _parts_of(manifest)

        def batches() -> Iterator[pa.RecordBatch]:
            for part in begun:
                yield from self._staging.read_part(part)

        rows = publish(f"{manifest['producer']}/{batch_id}", batches())
        self._staging.save(f"batch-{batch_id}.done", {"rows": rows})
        return rows

    def _clean(self, batch_id: int) -> None:
        """Remove files that a finished batch no longer needs, and parts of failed tasks."""
        names = self._staging.names()
        done = sorted(_marks(names, "done"))
        self._staging.remove(f"batch-{each}.json" for each in _marks(names, "json"))
        self._staging.remove(name for name in names if _PART.fullmatch(name))
        self._staging.remove(f"batch-{each}.done" for each in done[:-DONE_KEPT])


def _marks(names: Iterable[str], kind: str) -> set[int]:
    found = (_BATCH.fullmatch(name) for name in names)
    return {int(each[1]) for each in found if each is not None and each[2] == kind}


def _parts_of(manifest: Mapping[str, Any]) -> list[Part]:
    return [Part(*part) for part in manifest["parts"]]
