"""Counts of the tasks' reads: one JSON file for each completed task, and their sums.

Spark offers Python sources no way to report anything. A file is written when a task has read its
partition, or when its consumer had enough (``limit``); not when it failed. Each action on a
DataFrame reads anew and adds its files: for the sums of one action, use a directory of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import fsspec  # type: ignore[import-untyped]

from fluxmq_spark.errors import SparkSourceError
from fluxmq_spark.scan import Statistics

_SUFFIX = ".json"


@dataclass(frozen=True)
class Metrics:
    """Sums over tasks; of `damage` the texts, in order. `tasks`: number of files."""

    tasks: int
    segments: int
    bytes: int
    batches: int
    rows: int
    skipped_rows: int
    damage: tuple[str, ...]


def write_statistics(path: str, statistics: Statistics, queues: Iterable[str]) -> None:
    """Write one task's counts into a directory, created if missing; a path of this machine or an
    fsspec URL."""
    system, root = fsspec.core.url_to_fs(path)
    system.makedirs(root, exist_ok=True)
    name = uuid.uuid4().hex
    content = json.dumps({**asdict(statistics), "queues": sorted(set(queues))}).encode()
    # Renamed last, so that nobody reads half a file.
    system.pipe_file(f"{root}/.{name}", content)
    system.mv(f"{root}/.{name}", f"{root}/{name}{_SUFFIX}")


def read_metrics(path: str) -> Metrics:
    """Return the sums of the tasks' files in the directory of option ``metricsPath``; zeros if
    there are none.

    Raises SparkSourceError for any other file there.
    """
    system, root = fsspec.core.url_to_fs(path)
    if not system.exists(root):
        return Metrics(0, 0, 0, 0, 0, 0, ())
    system.invalidate_cache(root)
    names = sorted(name for name in system.ls(root, detail=False) if name.endswith(_SUFFIX))
    found = [_statistics(system, name) for name in names]
    return Metrics(
        len(found),
        sum(each.segments for each in found),
        sum(each.bytes for each in found),
        sum(each.batches for each in found),
        sum(each.rows for each in found),
        sum(each.skipped_rows for each in found),
        tuple(sorted(what for each in found for what in each.damage)),
    )


def _statistics(system: Any, name: str) -> Statistics:
    try:
        content = json.loads(system.cat_file(name))
        return Statistics(**{field.name: content[field.name] for field in fields(Statistics)})
    except (ValueError, KeyError, TypeError) as error:
        raise SparkSourceError(f"{name} is not a metrics file: {error}") from None
