"""The ledger of a stream that is published: a crash between any two steps loses and doubles nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from fluxmq_spark.errors import SparkSourceError
from fluxmq_spark.staging import DONE_KEPT, Ledger, Part, Staging


class StoppedError(Exception):
    """The publishing process ended here."""


class Queue:
    """What a queue with deduplication does: keeps a name's row once. ``stop``: rows after which publishing ends."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.names: set[tuple[str, int]] = set()
        self.stop = -1

    def publish(self, producer: str, batches: Iterator[pa.RecordBatch]) -> int:
        count = 0
        for batch in batches:
            for row in batch.column(0).to_pylist():
                if count == self.stop:
                    raise StoppedError
                if (producer, count) not in self.names:
                    self.names.add((producer, count))
                    self.rows.append(row)
                count += 1
        if count == self.stop:
            raise StoppedError
        return count


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"n": pa.array([number], pa.int64())}) for number in numbers]


@pytest.fixture(params=["local", "memory"])
def staging(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Staging]:
    if request.param == "local":
        yield Staging(f"file://{tmp_path}/staged", {})
        return
    yield Staging("memory://ledger/staged", {})
    fsspec.filesystem("memory").rm("/ledger", recursive=True)


def stage(staging: Staging, *parts: list[int]) -> list[Part]:
    """Stage partitions, told in no order."""
    made = [staging.write_part(at, rows(*numbers)) for at, numbers in enumerate(parts)]
    return made[::-1]


def test_a_batch_is_published_in_the_order_of_its_partitions(staging: Staging) -> None:
    queue = Queue()
    parts = stage(staging, [1, 2], [], [3], [4, 5])
    assert Ledger(staging).commit(7, parts, "p", queue.publish) == 5
    assert queue.rows == [1, 2, 3, 4, 5]
    assert {name for name, _ in queue.names} == {"p/7"}
    assert staging.names() == ["batch-7.done"]


def test_a_batch_without_rows_is_done_too(staging: Staging) -> None:
    assert Ledger(staging).commit(0, stage(staging, [], []), "p", Queue().publish) == 0
    assert staging.names() == ["batch-0.done"]


@pytest.mark.parametrize("stop", range(5))
def test_publishing_that_ends_anywhere_is_finished(staging: Staging, stop: int) -> None:
    """With the rows, the order and the name it began with, whatever the tasks stage the second time."""
    queue = Queue()
    queue.stop = stop
    ledger = Ledger(staging)
    parts = stage(staging, [1, 2], [3, 4])
    with pytest.raises(StoppedError):
        ledger.commit(0, parts, "first", queue.publish)
    # Spark has a batch whose commit failed aborted, unless it is killed.
    if stop % 2:
        ledger.abort(0, parts)
    queue.stop = -1
    assert ledger.commit(0, stage(staging, [4, 3], [2, 1]), "second", queue.publish) == 4
    assert queue.rows == [1, 2, 3, 4]
    assert staging.names() == ["batch-0.done"]


def test_a_crash_before_the_commit_leaves_parts_that_the_next_one_removes(staging: Staging) -> None:
    queue = Queue()
    stage(staging, [1, 2], [3])
    Ledger(staging).commit(0, stage(staging, [1, 2], [3]), "p", queue.publish)
    assert queue.rows == [1, 2, 3]
    assert staging.names() == ["batch-0.done"]


def test_a_crash_between_the_last_confirm_and_its_mark(tmp_path: Path) -> None:
    """The directory as it was before the mark, and after it with nothing removed yet."""
    here, before = tmp_path / "staged", tmp_path / "before"
    staging = Staging(str(here), {})
    queue = Queue()

    def publish(producer: str, batches: Iterator[pa.RecordBatch]) -> int:
        count = queue.publish(producer, batches)
        shutil.copytree(here, before)
        return count

    Ledger(staging).commit(3, stage(staging, [1], [2]), "p", publish)
    for mark in (False, True):
        shutil.rmtree(here)
        shutil.copytree(before, here)
        if mark:
            staging.save("batch-3.done", {"rows": 2})
        Ledger(staging).commit(3, stage(staging, [2], [1]), "other", queue.publish)
        assert queue.rows == [1, 2]
        assert staging.names() == ["batch-3.done"]


def test_a_manifest_cut_short_was_not_written(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), {})
    (tmp_path / "batch-0.json").write_text('{"producer": "p", "parts": [[0, "pa')
    queue = Queue()
    Ledger(staging).commit(0, stage(staging, [1]), "p", queue.publish)
    assert queue.rows == [1]


def test_a_batch_that_is_done_is_not_published_again(staging: Staging) -> None:
    queue = Queue()
    for _ in range(2):
        assert Ledger(staging).commit(0, stage(staging, [1, 2]), "p", queue.publish) == 2
        queue.names.clear()
    assert queue.rows == [1, 2]


def test_an_aborted_batch_leaves_nothing(staging: Staging) -> None:
    Ledger(staging).abort(0, stage(staging, [1], [], [2]))
    assert staging.names() == []


def test_the_directory_of_another_query_is_refused(staging: Staging) -> None:
    """Its batches have numbers too, and a batch of ours must not be taken for one of them."""
    queue = Queue()
    ledger = Ledger(staging)
    ledger.commit(5, stage(staging, [1]), "p", queue.publish)
    with pytest.raises(SparkSourceError, match="batch 0 comes after batch 5"):
        ledger.commit(0, stage(staging, [2]), "p", queue.publish)
    queue.stop = 0
    with pytest.raises(StoppedError):
        ledger.commit(6, stage(staging, [3]), "p", queue.publish)
    with pytest.raises(SparkSourceError, match="batch 7 comes while batch 6 is not published"):
        ledger.commit(7, stage(staging, [4]), "p", queue.publish)
    assert queue.rows == [1]


def test_staged_rows_that_are_gone_or_cut_are_told(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), {})
    queue = Queue()
    for number, spoil in enumerate([Path.unlink, lambda path: path.write_bytes(b"ARROW1\0\0ab")]):
        (part,) = stage(staging, list(range(100)))
        spoil(tmp_path / part.name)
        with pytest.raises(SparkSourceError, match=r"part-00000-.*: staged rows cannot be read"):
            Ledger(staging).commit(number, [part], "p", queue.publish)
        (tmp_path / f"batch-{number}.json").unlink()
    (part,) = stage(staging, [1, 2])
    with pytest.raises(SparkSourceError, match="2 rows instead of the 3 staged"):
        Ledger(staging).commit(2, [part._replace(rows=3)], "p", queue.publish)


def test_a_hundred_marks_are_kept(staging: Staging) -> None:
    for number in range(DONE_KEPT + 3):
        Ledger(staging).commit(number, [], "p", Queue().publish)
    assert staging.names() == sorted(f"batch-{number}.done" for number in range(3, DONE_KEPT + 3))
