"""What the jobs do with segments by themselves: ranges, tasks of an export, checks, and what an audit finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from fluxmq_spark.errors import Damage
from fluxmq_spark.exports import ExportDirectory
from fluxmq_spark.jobs.arguments import Bound, JobError, Selection, UsageError
from fluxmq_spark.jobs.audit import (
    Finding,
    damage_findings,
    difference_finding,
    order_findings,
    shared,
)
from fluxmq_spark.jobs.export_parquet import due, lists_of, manifest_of, schema_of
from fluxmq_spark.jobs.ranges import QueueRange, ranges_of
from fluxmq_spark.jobs.tasks import Check, Checked, Export, segment_ranges_of
from fluxmq_spark.storage import storage_of
from tests.spark_queues import EPOCH_US, QueueOnDisk

NOW = datetime(2026, 9, 21, tzinfo=UTC)
Make = Callable[..., QueueOnDisk]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes queues below one data directory, filled."""
    made: list[QueueOnDisk] = []

    def one(name: str = "orders", count: int = 3000, size: int = 200) -> QueueOnDisk:
        made.append(QueueOnDisk(tmp_path / "data", name))
        made[-1].fill(count, size=size)
        return made[-1]

    yield one
    for each in made:
        each.close()


def selection(root: Path, *queues: str, **bounds: Bound) -> Selection:
    return Selection(str(root), queues, None, None, **bounds)


def export_of(root: Path, output: Path, ranges: list[QueueRange], **changes: Any) -> Export:
    storage, _ = storage_of(str(root))
    details: dict[str, Any] = {
        "compression": "zstd",
        "rows_per_file": 1000,
        "fail_on_data_loss": True,
        "attempt": lambda: "0",
    }
    return Export(
        storage,
        lists_of(segment_ranges_of(ranges), 1000),
        ExportDirectory(str(output)),
        schema_of(True),
        "run",
        **{**details, **changes},
    )


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_ranges(make: Make) -> None:
    """Offsets and times become offsets of each queue, within what is kept."""
    root = make().root
    make("other", 100)
    late = Bound(time=EPOCH_US + 2_500_000)
    assert [(each.queue, each.first, each.stop) for each in ranges_of(selection(root))] == [
        *(("orders", 0, 3000), ("other", 0, 100)),
    ]
    assert [(each.first, each.stop) for each in ranges_of(selection(root, start=late))] == [
        *((2500, 3000), (100, 100)),
    ]
    (one,) = ranges_of(selection(root, "orders", start=Bound(offset=10), stop=Bound(offset=9999)))
    assert (one.first, one.stop, one.start, one.committed) == (10, 3000, 0, 3000)
    by_pattern = Selection(str(root), (), "o.*s", None)
    assert [each.queue for each in ranges_of(by_pattern)] == ["orders"]
    with pytest.raises(UsageError, match="has no queue 'gone'"):
        ranges_of(selection(root, "orders", "gone"))


def test_portions_cover_ranges(make: Make) -> None:
    """Every offset of the range is in just one segment range, and tasks are of one queue and bounded."""
    queue = make()
    make("other", 100)
    ranges = [
        each.between(each.first + 7, each.stop - 5) for each in ranges_of(selection(queue.root))
    ]
    lists = lists_of(segment_ranges_of(ranges), 500)
    assert len(queue.segments()) > 5
    assert len(lists) > 3
    covered: dict[str, list[int]] = {}
    for segment_ranges in lists:
        assert len({each.queue for each in segment_ranges}) == 1
        for each in segment_ranges:
            covered.setdefault(each.queue, []).extend(range(each.first, each.stop))
    assert covered == {"orders": list(range(7, 2995)), "other": list(range(7, 95))}


def test_export_writes_what_there_is(make: Make, tmp_path: Path) -> None:
    """Tasks write every message once; the manifest adds up, and the next run is due from where it ends."""
    queue = make()
    ranges = ranges_of(selection(queue.root))
    exported = due(ranges, {}, skip_lost=False)
    work = export_of(queue.root, tmp_path / "out", [each for each, _ in exported])
    results = [work(number) for number in range(len(work.lists))]
    manifest = manifest_of(1, "run", NOW, selection(queue.root), exported, results)
    assert (manifest.queues["orders"].rows, manifest.queues["orders"].lost) == (3000, 0)
    payloads: dict[int, bytes] = {}
    for file in manifest.files:
        table = pq.read_table(tmp_path / "out" / file.path, partitioning=None)
        assert "queue" not in table.column_names
        payloads.update(
            zip(
                table.column("offset").to_pylist(), table.column("payload").to_pylist(), strict=True
            )
        )
        assert table.num_rows == file.rows
    assert payloads == {at: message.payload for at, message in enumerate(queue.messages)}
    assert due(ranges, {"orders": 3000}, skip_lost=False) == []
    queue.fill(50)
    ((rest, lost),) = due(ranges_of(selection(queue.root)), {"orders": 3000}, skip_lost=False)
    assert (rest.first, rest.stop, lost) == (3000, 3050, 0)


def test_an_export_that_does_not_add_up_is_no_export(make: Make, tmp_path: Path) -> None:
    """Results that lack a task's, or have one twice, commit nothing."""
    queue = make()
    exported = due(ranges_of(selection(queue.root)), {}, skip_lost=False)
    work = export_of(queue.root, tmp_path / "out", [each for each, _ in exported])
    results = [work(number) for number in range(len(work.lists))]
    for wrong in (results[1:], [*results, results[0]]):
        with pytest.raises(JobError, match="nothing was committed"):
            manifest_of(1, "run", NOW, selection(queue.root), exported, wrong)


def test_what_retention_took(make: Make) -> None:
    """A gap to what was exported is an error or told as lost; a queue made anew is an error."""
    queue = make()
    queue.trim(1500)
    ranges = ranges_of(selection(queue.root))
    start = ranges[0].start
    assert 0 < start <= 1500
    with pytest.raises(JobError, match=f"offsets 100 to {start - 1} were removed by retention"):
        due(ranges, {"orders": 100}, skip_lost=False)
    ((rest, lost),) = due(ranges, {"orders": 100}, skip_lost=True)
    assert (rest.first, rest.stop, lost) == (start, 3000, start - 100)
    with pytest.raises(JobError, match="was created again"):
        due(ranges, {"orders": 3001}, skip_lost=True)
    ((new, lost),) = due(ranges, {}, skip_lost=False)
    assert (new.first, lost) == (start, 0)


def test_damage_stops_an_export_or_is_counted(make: Make, tmp_path: Path) -> None:
    """A damaged batch fails the task; skipped, it is told and the rows are counted as lost."""
    queue = make()
    flip(queue.segments()[0], 5000)
    ranges = ranges_of(selection(queue.root))
    with pytest.raises(Damage, match=queue.segments()[0].name):
        export_of(queue.root, tmp_path / "out", ranges)(0)
    work = export_of(queue.root, tmp_path / "out", ranges, fail_on_data_loss=False)
    results = [work(number) for number in range(len(work.lists))]
    exported = [(each, 0) for each in ranges]
    manifest = manifest_of(1, "run", NOW, selection(queue.root), exported, results)
    assert (manifest.queues["orders"].rows, manifest.queues["orders"].lost) == (2990, 10)
    assert queue.segments()[0].name in results[0]["damage"][0]  # type: ignore[index]


def test_checks(make: Make) -> None:
    """A check reads every message: sound segments are whole, a flipped bit is found with file and byte."""
    queue = make()
    storage, _ = storage_of(str(queue.root))
    segment_ranges = segment_ranges_of(ranges_of(selection(queue.root)))
    flip(queue.segments()[1], 6000)
    queue.segments()[2].unlink()
    checked = [Checked(**Check(storage, segment_ranges)(number)) for number in range(3)]  # type: ignore[arg-type]
    assert checked[0].rows == checked[0].stop - checked[0].first
    assert not checked[0].damage
    assert checked[1].rows == checked[1].stop - checked[1].first - 10
    assert checked[2].gone
    found = list(damage_findings("/n", checked))
    assert [each.kind for each in found] == ["damage", "gone"]
    assert f"{queue.segments()[1]}, byte " in found[0].text


def range_from(first: int, stop: int, queue: str = "q") -> QueueRange:
    return QueueRange(queue, "/n/q", first, stop, first, stop, ())


def test_order() -> None:
    """Gaps inside and at both ends, and offsets that are there twice, with the place where they show."""
    breaks = [
        {
            "queue": "q",
            "base_offset": 30,
            "next_offset": 40,
            "due": 20,
            "segment": "s1",
            "position": 8,
        },
        {
            "queue": "q",
            "base_offset": 35,
            "next_offset": 50,
            "due": 40,
            "segment": "s2",
            "position": 9,
        },
    ]
    totals = {"q": {"first": 5, "next": 50}}
    ranges = [range_from(0, 60), range_from(7, 9, "empty"), range_from(3, 3, "none")]
    found = list(order_findings("/n", ranges, totals, breaks))
    told = [(each.kind, each.queue, each.offset, each.text) for each in found]
    assert told == [
        ("gap", "q", 20, "offsets 20 to 29 are missing before it"),
        ("double", "q", 35, "offsets 35 to 39 occur twice"),
        ("gap", "q", 0, "offsets 0 to 4 are missing, where the queue begins"),
        ("gap", "q", 50, "offsets 50 to 59 are missing, where the queue ends"),
        ("gap", "empty", 7, "offsets 7 to 8 are missing, where the queue begins"),
    ]
    assert found[0].where == "s1, byte 8"
    assert (
        list(order_findings("/n", [range_from(0, 50)], {"q": {"first": 0, "next": 50}}, [])) == []
    )


def test_differences() -> None:
    """The first difference names both sides' files and checks; what only one has says who."""
    header = dict.fromkeys(("count", "first_time", "last_time", "bytes", "key_bytes"), 1)
    header.update(dict.fromkeys(("property_bytes", "payload_bytes", "term", "flags"), 1))
    left = {"segment": "/a/0.seg", "position": 4096, "payload_check": "aa"}
    right = {"segment": "/b/0.seg", "position": 4096, "payload_check": "bb"}
    sides = {
        "left": left,
        "right": right,
        "left_header": {**header, "payload_check": "aa"},
        "right_header": {**header, "payload_check": "bb"},
    }
    row = {"queue": "q", "offset": 7, "differing": 3, "sides": sides}
    assert difference_finding("/a", "/b", row) == Finding(
        *("differs", "/a", "q", 7, "/a/0.seg, byte 4096"),
        "headers differ in payload_check: check aa here, bb in /b (/b/0.seg, byte 4096); 3 batches of the queue in all",
    )
    alone = {**row, "sides": {**sides, "left": None, "left_header": None}}
    assert (
        "a batch begins there in /b (/b/0.seg) and none in /a"
        in difference_finding("/a", "/b", alone).text
    )
    both = shared([range_from(5, 50), range_from(0, 1, "mine")], [range_from(0, 40)])
    assert both == {"q": (5, 40)}
