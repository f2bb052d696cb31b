"""A directory of exports: names, manifests, what is not in any, and the files that executors write."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from fluxmq_spark.exports import (
    ExportDirectory,
    ExportedFile,
    ExportedRange,
    ExportError,
    Manifest,
    continue_at,
    is_export,
    partition_of,
)
from fluxmq_spark.jobs import parquet_files
from fluxmq_spark.jobs.parquet_files import PartWriter

DAY = timedelta(days=1)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def rows_of(first: int, count: int, start: datetime, step: timedelta) -> pa.RecordBatch:
    offsets = range(first, first + count)
    columns = {
        "offset": list(offsets),
        "timestamp": [start + at * step for at in range(count)],
        "headers": [[("n", str(offset))] for offset in offsets],
        "payload": [f"{offset}".encode() for offset in offsets],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def writer_in(path: Path, rows_per_file: int = 1000, run: str = "r") -> PartWriter:
    directory = ExportDirectory(str(path))
    return PartWriter(
        *(directory, SCHEMA), run=run, task="0-0", compression="zstd", rows_per_file=rows_per_file
    )


def manifest(number: int, files: list[ExportedFile], queues: dict[str, ExportedRange]) -> Manifest:
    return Manifest(
        number, f"run-{number}", "2026-01-01T00:00:00+00:00", "/data", queues, tuple(files)
    )


def test_partitions_are_directories() -> None:
    """No name leaves its directory, hides, or is too long; others are themselves when %XX is undone."""
    assert partition_of("orders-1.eu_x") == "queue=orders-1.eu_x"
    assert partition_of("$dlq/a b") == "queue=%24dlq%2Fa%20b"
    assert partition_of("..") == "queue=.."
    assert partition_of("größe") == "queue=größe"
    long = [partition_of("é" * 120 + end) for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(each.encode()) <= 240 for each in long)


def test_rows_go_to_files_by_queue_and_day(tmp_path: Path) -> None:
    """A batch over midnight is cut, files end when they are full, and say truly what they hold."""
    writer = writer_in(tmp_path, rows_per_file=40)
    writer.add("a b", rows_of(0, 100, NEW_YEAR - timedelta(minutes=30), timedelta(minutes=1)))
    writer.add("7", rows_of(5, 10, NEW_YEAR, timedelta(seconds=1)))
    files = writer.finish()
    told = [(each.queue, each.date, each.rows, each.min_offset, each.max_offset) for each in files]
    assert sorted(told) == [
        ("7", "2026-01-01", 10, 5, 14),
        ("a b", "2025-12-31", 30, 0, 29),
        ("a b", "2026-01-01", 30, 70, 99),
        ("a b", "2026-01-01", 40, 30, 69),
    ]
    for each in files:
        path = tmp_path / each.path
        assert path.parent.name == f"date={each.date}"
        assert path.parent.parent.name == partition_of(each.queue)
        assert path.stat().st_size == each.bytes
        table = pq.read_table(path, partitioning=None)
        offsets = table.column("offset").to_pylist()
        assert offsets == list(range(each.min_offset, each.max_offset + 1))
        times = table.column("timestamp").cast(pa.int64()).to_pylist()
        assert (min(times), max(times)) == (each.min_time, each.max_time)
        assert table.column("payload").to_pylist() == [b"%d" % offset for offset in offsets]
        assert table.column("headers").to_pylist() == [[("n", str(offset))] for offset in offsets]
    parts = ds.partitioning(
        pa.schema([("queue", pa.string()), ("date", pa.string())]), flavor="hive"
    )
    whole = ds.dataset(tmp_path, partitioning=parts).to_table().to_pandas()
    assert whole.groupby("queue").size().to_dict() == {"7": 10, "a b": 100}


def test_row_groups_and_open_files_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that jumps makes more files, not more open ones; rows do not wait without bound."""
    monkeypatch.setattr(parquet_files, "OPEN_FILES_MAX", 2)
    monkeypatch.setattr(parquet_files, "ROW_GROUP_ROWS", 8)
    writer = writer_in(tmp_path)
    for first, day in enumerate((0, 1, 0, 2, 3, 0, 1)):
        writer.add("q", rows_of(first * 10, 10, NEW_YEAR + day * DAY, timedelta(seconds=1)))
        assert len(writer.open_parts) <= 2
        assert all(part.waiting_rows < 8 for part in writer.open_parts.values())
    files = writer.finish()
    assert sum(each.rows for each in files) == 70
    assert len({each.path for each in files}) == len(files)
    longest = max(files, key=lambda each: each.rows)
    assert (longest.rows, longest.date) == (20, "2026-01-01")
    assert pq.read_metadata(tmp_path / longest.path).num_row_groups > 1


def test_what_no_manifest_names_is_removed(tmp_path: Path) -> None:
    """A run that ended before its manifest leaves nothing behind; files of others stay."""
    done = writer_in(tmp_path, run="one")
    done.add("q", rows_of(0, 10, NEW_YEAR, timedelta(seconds=1)))
    kept = done.finish()
    directory = ExportDirectory(str(tmp_path))
    with directory.locked():
        path = directory.commit(manifest(1, kept, {"q": ExportedRange(0, 10, 10)}))
    crashed = writer_in(tmp_path, run="two")
    crashed.add("q", rows_of(10, 10, NEW_YEAR, timedelta(seconds=1)))
    crashed.give_up()
    foreign = tmp_path / "queue=q" / "date=2026-01-01" / "notes.txt"
    foreign.write_text("not ours")
    removed = directory.remove_unlisted(directory.manifests())
    assert len(removed) == 1
    assert removed[0].startswith("queue=q/date=2026-01-01/part-two-")
    assert (tmp_path / kept[0].path).exists()
    assert foreign.exists()
    assert Path(path).name == "00000001.json"
    assert directory.remove_unlisted(directory.manifests()) == []


def test_manifests_continue_each_other(tmp_path: Path) -> None:
    """What is written is read again; the next run goes on where the last one of each queue ended."""
    directory = ExportDirectory(str(tmp_path))
    assert directory.manifests() == []
    assert not is_export(str(tmp_path))
    file = ExportedFile(
        "queue=a/date=2026-01-01/part-x.parquet", "a", "2026-01-01", 5, 100, 0, 4, 1, 2
    )
    (tmp_path / file.path).parent.mkdir(parents=True)
    first = manifest(1, [file], {"a": ExportedRange(0, 5, 5), "b": ExportedRange(3, 9, 6)})
    second = manifest(2, [], {"a": ExportedRange(5, 12, 6, 1)})
    with directory.locked():
        directory.commit(first)
        directory.commit(second)
        with pytest.raises(ExportError, match="already exists"):
            directory.commit(second)
    assert directory.manifests() == [first, second]
    assert continue_at(directory.manifests()) == {"a": 12, "b": 9}
    assert is_export(str(tmp_path))
    assert sorted(each.name for each in (tmp_path / "_manifests").iterdir()) == [
        *(".lock", "00000001.json", "00000002.json"),
    ]


def test_only_one_run_at_a_time(tmp_path: Path) -> None:
    """A second run in the same directory is refused while the first is at work, and not afterwards."""
    one, other = ExportDirectory(str(tmp_path)), ExportDirectory(str(tmp_path))
    with (
        one.locked(),
        pytest.raises(ExportError, match="another export is running"),
        other.locked(),
    ):
        raise AssertionError("both are at work")
    with other.locked():
        assert (tmp_path / "_manifests" / ".lock").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not an export manifest"),
        ("[]", "is not an export manifest"),
        ('{"format": 1}', "is not an export manifest"),
        ('{"format": 2}', "another version"),
        (
            json.dumps({"format": 1, "queues": {"a": {"first": 0}}, "files": []}),
            "is not an export manifest",
        ),
    ],
)
def test_what_is_no_manifest(tmp_path: Path, content: str, text: str) -> None:
    """A manifest that cannot be read stops the export: its files would otherwise be taken for left-overs."""
    (tmp_path / "_manifests").mkdir()
    (tmp_path / "_manifests" / "00000001.json").write_text(content)
    with pytest.raises(ExportError, match=text):
        ExportDirectory(str(tmp_path)).manifests()


def test_a_manifest_that_is_missing(tmp_path: Path) -> None:
    """Without one of the manifests nobody knows which files count."""
    directory = ExportDirectory(str(tmp_path))
    with directory.locked():
        directory.commit(manifest(2, [], {}))
    with pytest.raises(ExportError, match="manifest 1 is missing"):
        directory.manifests()


def test_remote_directories(tmp_path: Path) -> None:
    """A URL of fsspec takes files and manifests as a local directory does."""
    import fsspec  # type: ignore[import-untyped]

    name = f"memory://exports-{tmp_path.name}"
    directory = ExportDirectory(name)
    writer = PartWriter(
        *(directory, SCHEMA), run="r", task="0", compression="none", rows_per_file=10
    )
    writer.add("q", rows_of(0, 15, NEW_YEAR, timedelta(seconds=1)))
    files = writer.finish()
    assert not directory.local
    with directory.locked():
        directory.commit(manifest(1, files[:1], {"q": ExportedRange(0, 10, 10)}))
    assert directory.remove_unlisted(directory.manifests()) == [files[1].path]
    with fsspec.open(directory.url_of(files[0].path), "rb") as source:
        assert pq.read_table(source).num_rows == 10
    with pytest.raises(ExportError, match="no-such-protocol"):
        ExportDirectory("no-such-protocol://x").open()
