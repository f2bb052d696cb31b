"""Bounds to ranges, and ranges to tasks."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

import fluxmq_spark
from fluxmq_spark.catalog import QueueFiles
from fluxmq_spark.errors import Damage, DataLoss, OptionError, SparkSourceError
from fluxmq_spark.options import ReadOptions, given_options, read_options
from fluxmq_spark.partitions import TASK_SEGMENTS_MAX, Piece, Task, make_tasks
from fluxmq_spark.planning import Plan, make_plan, ranges_of, select_queues, selected
from fluxmq_spark.scan import SegmentRange, Selection
from fluxmq_spark.storage import LocalStorage
from tests.spark_queues import EPOCH_US, QueueOnDisk, messages_of

STORAGE = LocalStorage()


@pytest.fixture
def queue(tmp_path: Path) -> QueueOnDisk:
    """A queue of several segments."""
    made = QueueOnDisk(tmp_path / "data")
    made.fill(3000)
    return made


def plan(made: QueueOnDisk, /, **options: object) -> Plan:
    """What would be read of its directory."""
    return fluxmq_spark.plan(str(made.root), **options)


def options_of(made: QueueOnDisk, /, **options: object) -> ReadOptions:
    """Options for its directory."""
    return read_options(given_options(str(made.root), options))


def read(made: Plan) -> list[tuple[int, int]]:
    """The ranges of all segment ranges, in order of tasks."""
    return [(each.first, each.stop) for task in made.tasks for each in task.segment_ranges]


def covers(ranges: list[tuple[int, int]], first: int, stop: int) -> bool:
    """Whether ranges follow each other from `first` to `stop`."""
    bounds = [first, *(bound for each in ranges for bound in each), stop]
    return bounds[::2] == bounds[1::2] and all(low < high for low, high in ranges)


# --- queues ---


@pytest.fixture
def several(tmp_path: Path) -> QueueOnDisk:
    """Queues with dead letters and without."""
    for name in ("a", "ab", "b", "$dlq/a", "$dlq/b"):
        made = QueueOnDisk(tmp_path / "data", name)
        made.append(messages_of([b"1"]))
    return made


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["$dlq/a", "$dlq/b", "a", "ab", "b"]),
        ({"queue": "ab"}, ["ab"]),
        ({"queues": "b,a"}, ["a", "b"]),
        ({"queuePattern": "a.?"}, ["a", "ab"]),
        ({"queuePattern": "c.*"}, []),
        ({"state": "dead-lettered"}, ["$dlq/a", "$dlq/b"]),
        ({"state": "dead-lettered", "queuePattern": "a.*"}, ["$dlq/a"]),
        ({"state": "dead-lettered", "queues": "a,ab"}, ["$dlq/a"]),
    ],
)
def test_queues_by_name(several: QueueOnDisk, options: dict[str, str], names: list[str]) -> None:
    """One, some, those of a pattern that fits the whole name; dead letters by the queue they come from."""
    found = select_queues(STORAGE, str(several.root), options_of(several, **options))
    assert [files.queue for files in found] == names


def test_queues_that_are_not_there(several: QueueOnDisk) -> None:
    """All of them are named, and what there is."""
    with pytest.raises(OptionError, match=r"no queue 'x', 'y'; it has '\$dlq/a', .*'b'"):
        plan(several, queues="x,a,y")
    with pytest.raises(OptionError, match="no queue 'x'"):
        plan(several, queue="x", state="dead-lettered")


def test_a_name_in_two_groups(several: QueueOnDisk) -> None:
    """Which is meant cannot be known."""
    QueueOnDisk(several.root, "a", group="west")
    with pytest.raises(OptionError, match=r"queue 'a' occurs twice: .*west"):
        plan(several, queue="a")


def test_a_queue_without_a_head(queue: QueueOnDisk) -> None:
    """Nothing of it may be read; an empty directory is a queue that is being made."""
    (queue.directory / "head").write_bytes(bytes(128))
    with pytest.raises(Damage, match="head, byte 0: no slot of the head is valid"):
        plan(queue)
    assert plan(queue, failOnDataLoss=False).queues == ()
    for path in [*queue.segments(), *queue.directory.glob("*.idx")]:
        path.unlink()
    assert plan(queue).queues == ()


# --- ranges ---


@pytest.mark.parametrize(
    ("options", "first", "stop"),
    [
        ({}, 0, 3000),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, 3000),
        ({"startingOffsets": {"orders": 17}}, 17, 3000),
        ({"startingOffsets": {"orders": -2}, "endingOffsets": {"orders": -1}}, 0, 3000),
        ({"startingOffsets": {"orders": 900}, "endingOffsets": {"orders": 905}}, 900, 905),
        ({"startingTimestamp": EPOCH_US // 1000 + 900}, 900, 3000),
        ({"startingTimestamp": "2026-09-21T14:13:20.900Z", "endingOffsets": "latest"}, 900, 3000),
        ({"endingTimestamp": EPOCH_US // 1000 + 900}, 0, 900),
        (
            {
                "startingTimestamp": EPOCH_US // 1000 + 899,
                "endingTimestamp": EPOCH_US // 1000 + 901,
            },
            *(899, 901),
        ),
    ],
)
def test_bounds(queue: QueueOnDisk, options: dict[str, object], first: int, stop: int) -> None:
    """Exactly what was asked for, and only segments that have some of it."""
    made = plan(queue, **options)
    assert (made.queues[0].first, made.queues[0].stop) == (first, stop)
    assert covers(read(made), first, stop)
    bases = [int(path.stem) for path in queue.segments()]
    needed = sum(
        max(first, base) < min(stop, after)
        for base, after in itertools.pairwise([*bases, len(queue.messages)])
    )
    assert (made.segments, made.segments_considered) == (needed, len(bases))


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": {"orders": 3000}},
        {"endingOffsets": {"orders": 0}},
        {"startingTimestamp": EPOCH_US // 1000 + 3000},
        {"endingTimestamp": EPOCH_US // 1000},
        {"startingTimestamp": EPOCH_US // 1000 + 9, "endingTimestamp": EPOCH_US // 1000 + 5},
        {"startingTimestamp": EPOCH_US // 1000 + 9, "endingOffsets": {"orders": 5}},
    ],
)
def test_nothing_to_read(queue: QueueOnDisk, options: dict[str, object]) -> None:
    """No task, no mistake."""
    made = plan(queue, **options)
    assert (made.tasks, made.segments, made.bytes) == ((), 0, 0)
    assert "nothing of offsets 0 to 2999" in str(made)


def test_offsets_that_are_not_there_yet_are_all_named(queue: QueueOnDisk) -> None:
    """Beyond the end, the wrong way around, of other queues."""
    QueueOnDisk(queue.root, "other").fill(10)
    with pytest.raises(OptionError) as caught:
        plan(
            queue,
            startingOffsets={"orders": 3001, "ghost": 1},
            endingOffsets={"other": 11, "spirit": 1},
        )
    for text in (
        "queue 'orders': startingOffsets are 3001, and the offset after its last message is 3000",
        "queue 'other': endingOffsets are 11",
        "startingOffsets names queue 'ghost'",
        "endingOffsets names queue 'spirit'",
    ):
        assert text in str(caught.value)
    with pytest.raises(OptionError, match="startingOffsets are 20, behind endingOffsets, 10"):
        plan(queue, queue="orders", startingOffsets={"orders": 20}, endingOffsets={"orders": 10})


def test_offsets_that_retention_removed(queue: QueueOnDisk) -> None:
    """Loss for those who named them; ``earliest`` and times mean what is kept."""
    start = int(queue.segments()[1].stem)
    queue.trim(start)
    with pytest.raises(DataLoss, match=rf"'orders': offsets 5 to {start - 1} were removed.*=false"):
        plan(queue, startingOffsets={"orders": 5})
    assert covers(
        read(plan(queue, startingOffsets={"orders": 5}, failOnDataLoss=False)), start, 3000
    )
    assert covers(read(plan(queue)), start, 3000)
    assert covers(read(plan(queue, startingTimestamp=0)), start, 3000)
    # All of it is gone.
    assert plan(queue, endingOffsets={"orders": 3}).tasks == ()
    options = {"startingOffsets": {"orders": 1}, "endingOffsets": {"orders": 3}}
    assert plan(queue, **options, failOnDataLoss=False).tasks == ()
    with pytest.raises(DataLoss):
        plan(queue, **options)


def test_files_that_are_missing(queue: QueueOnDisk) -> None:
    """Although the head keeps them: at both ends, and not where nobody asks for them."""
    first, second, *_, last = queue.segments()
    first.unlink()
    last.unlink()
    begin, end = int(second.stem), int(last.stem)
    with pytest.raises(DataLoss, match=f"offsets 0 to {begin - 1} are missing"):
        plan(queue)
    with pytest.raises(DataLoss, match=f"offsets {end} to 2999 are missing"):
        plan(queue, startingOffsets={"orders": begin})
    assert covers(read(plan(queue, failOnDataLoss=False)), begin, end)
    inside = {"startingOffsets": {"orders": begin}, "endingOffsets": {"orders": end}}
    assert covers(read(plan(queue, **inside)), begin, end)


class Trimming(LocalStorage):
    """Retention removes more at the `at`th look at sizes; without `head`, nobody says so."""

    def __init__(self, queue: QueueOnDisk, start: int, *, head: bool = True) -> None:
        self._queue = queue
        self._start = start
        self._head = head

    def sizes(self, directory: str) -> dict[str, int]:
        """What is listed now is less than what was found before."""
        if self._head:
            self._queue.trim(self._start)
        else:
            self._queue.segments()[0].unlink(missing_ok=True)
        return super().sizes(directory)


def test_retention_while_planning(queue: QueueOnDisk) -> None:
    """The head tells: loss for explicit offsets, what is kept by now for ``earliest``."""
    start = int(queue.segments()[2].stem)
    files = [QueueFiles("orders", "default", str(queue.directory))]
    explicit = options_of(queue, startingOffsets={"orders": 3})
    with pytest.raises(DataLoss, match=f"offsets 3 to {start - 1} were removed"):
        ranges_of(Trimming(queue, start), files, explicit)
    start = int(queue.segments()[1].stem)
    (found,) = ranges_of(Trimming(queue, start), files, options_of(queue))
    assert (found.first, found.stop) == (start, 3000)
    assert found.pieces[0].segment_range.first == start


def test_a_file_that_vanishes_without_a_reason(queue: QueueOnDisk) -> None:
    """Loss, named with the file, because the head keeps it."""
    files = [QueueFiles("orders", "default", str(queue.directory))]
    with pytest.raises(DataLoss, match=r"0\.seg is missing, although the head keeps"):
        ranges_of(Trimming(queue, 0, head=False), files, options_of(queue))


def test_the_plan_stays_when_the_queue_goes_on(queue: QueueOnDisk) -> None:
    """Its end is that of the planned moment, also in a segment that is sealed by now."""
    made = plan(queue)
    last = made.tasks[-1].segment_ranges[-1]
    size = queue.segments()[-1].stat().st_size
    queue.fill(2000)
    assert (last.stop, last.segment_next, last.end, last.sealed) == (3000, 3000, size, False)
    assert plan(queue).queues[0].stop == 5000


# --- tasks ---


def test_small_segments_share_a_task(queue: QueueOnDisk) -> None:
    """And the plan says what it is."""
    made = plan(queue)
    assert made.partitions == 1
    assert len(made.tasks[0].segment_ranges) == made.segments == len(queue.segments())
    size = sum(path.stat().st_size for path in queue.segments())
    assert 0.8 * size < made.bytes <= size
    assert str(made).splitlines() == [
        f"1 queues, {made.segments} of {made.segments} segments, about {made.bytes:,} bytes, 1 partitions",
        f"  orders: offsets 0 to 2999 of 0 to 2999, {made.segments} of {made.segments} segments",
    ]


def test_large_segments_are_cut_where_the_index_has_entries(queue: QueueOnDisk) -> None:
    """Tasks are no larger than asked for, but by an index interval; most begin at an entry."""
    made = plan(queue, maxBytesPerPartition="16k")
    assert covers(read(made), 0, 3000)
    assert max(task.bytes for task in made.tasks) < 16384 + 2 * 4096
    entries = set()
    for path in queue.directory.glob("*.idx"):
        data = path.read_bytes()
        places = (data[at : at + 4] for at in range(0, len(data), 16))
        entries |= {int(path.stem) + int.from_bytes(place, "little") for place in places}
    starts = [
        first for first, _ in read(made) if first not in {int(p.stem) for p in queue.segments()}
    ]
    assert len(starts) > 10
    assert sum(first in entries for first in starts) > 0.8 * len(starts)


@pytest.mark.parametrize("least", [2, 7, 40, 999, 3000])
def test_at_least_as_many_tasks_as_asked_for(queue: QueueOnDisk, least: int) -> None:
    """Down to a message each; nothing is lost or doubled by cutting."""
    made = plan(queue, minPartitions=least)
    assert least <= made.partitions <= 2 * least + 10
    assert covers(read(made), 0, 3000)


def test_no_more_tasks_than_messages(queue: QueueOnDisk) -> None:
    """However many were asked for."""
    made = plan(queue, minPartitions=50, startingOffsets={"orders": 2990})
    assert made.partitions == 10
    assert covers(read(made), 2990, 3000)


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "noise", "backwards"])
def test_an_index_that_is_wrong_only_moves_cuts(queue: QueueOnDisk, damage: str) -> None:
    """Every message is still in just one task."""
    chance = random.Random(1)
    for path in queue.directory.glob("*.idx"):
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            changed = {
                "empty": b"",
                "torn": data[:-5],
                "noise": chance.randbytes(len(data)),
                "backwards": b"".join(data[at : at + 16] for at in range(len(data) - 16, -1, -16)),
            }
            path.write_bytes(changed[damage])
    made = plan(queue, maxBytesPerPartition="16k")
    assert made.partitions > 10
    assert covers(read(made), 0, 3000)


def segment_range(first: int, stop: int, *, queue: str = "q") -> SegmentRange:
    """A part of a segment that is on no disk."""
    return SegmentRange(queue, f"/{first}.seg", f"/{first}.idx", first, stop, -1, True, first, stop)


def tasks_of(pieces: list[Piece], size: int, least: int = 0) -> list[Task]:
    """Tasks without selections."""
    return make_tasks(STORAGE, pieces, size, least, {})


def test_thousands_of_segments_are_a_few_tasks() -> None:
    """But not one that takes for ever."""
    pieces = [Piece(segment_range(at, at + 1), 100) for at in range(5 * TASK_SEGMENTS_MAX + 1)]
    tasks = tasks_of(pieces, 1 << 30)
    assert [len(task.segment_ranges) for task in tasks] == [*[TASK_SEGMENTS_MAX] * 5, 1]
    assert [each.first for task in tasks for each in task.segment_ranges] == list(
        range(len(pieces))
    )


def test_a_segment_without_an_index_is_cut_evenly() -> None:
    """Nothing else is known of it."""
    tasks = tasks_of([Piece(segment_range(1000, 2000), 10_000)], 1000)
    bounds = [(each.first, each.stop) for task in tasks for each in task.segment_ranges]
    assert covers(bounds, 1000, 2000)
    assert [stop - first for first, stop in bounds] == [100] * 10


def test_wanted_ranges_cut_portions() -> None:
    """To between the first and the last that is wanted; segments without any are not read."""
    pieces = [Piece(segment_range(at, at + 100), 1000) for at in (0, 100, 200, 300)]
    found = selected(pieces, Selection(((10, 19), (90, 104), (250, 250), (400, 500))))
    assert [(each.segment_range.first, each.segment_range.stop, each.bytes) for each in found] == [
        (10, 100, 900),
        (100, 105, 50),
        (250, 251, 10),
    ]
    assert selected(pieces, Selection(None)) == pieces
    assert selected(pieces, Selection(())) == []


def test_selections_go_where_they_are_needed() -> None:
    """A task has those of its own queues only, and of them what concerns its offsets."""
    many = tuple((at, at) for at in range(0, 2000, 2))
    labels = tuple((at, at, "pending") for at in range(0, 2000, 2))
    wanted = {"q": Selection(many, labels, 1990), "r": Selection(None)}
    pieces = [
        Piece(segment_range(0, 10), 100),
        Piece(segment_range(0, 10, queue="s"), 100),
        Piece(segment_range(10, 20), 50),
        Piece(segment_range(20, 24), 50),
    ]
    first, second, third = make_tasks(STORAGE, pieces, 100, 0, wanted)
    assert first.selections == {"q": Selection(many[:5], labels[:5], 1990)}
    assert second.selections == {}
    assert third.selections == {"q": Selection(many[5:12], labels[5:12], 1990)}
    for task in (first, third):
        for each in task.segment_ranges:
            whole, own = wanted["q"], task.selections["q"]
            assert own.count(each.first, each.stop) == whole.count(each.first, each.stop)
            assert own.states(each.first, each.stop) == whole.states(each.first, each.stop)


def test_what_is_wrong_with_the_path(tmp_path: Path) -> None:
    """As the query would say it."""
    with pytest.raises(SparkSourceError, match="is not there"):
        fluxmq_spark.plan(str(tmp_path / "none"))
    options = read_options({"path": str(tmp_path / "none")})
    with pytest.raises(SparkSourceError, match="is not there"):
        make_plan(STORAGE, str(tmp_path / "none"), options)
