"""What the measurement of reading rests on: its data, its row-at-a-time source, its verdicts. Without a session."""

from __future__ import annotations

from pathlib import Path

from fluxmq_spark.catalog import find_queues, read_log
from fluxmq_spark.scan import SegmentRange
from fluxmq_spark.storage import LocalStorage
from perf import spark_read
from perf.spark_read import ALL, BY_ROW, GOALS, PARQUET, Case, Result, Run, goal_rows, markdown
from perf.spark_rows import RowReader, SegmentPartition
from tests.unit.spark.segment_files import ALL as NAMES
from tests.unit.spark.segment_files import SegmentOnDisk, read


def test_the_row_at_a_time_source_reads_what_the_columnar_one_reads(tmp_path: Path) -> None:
    directory = tmp_path / "queue"
    spark_read.write_queue(directory, 16, 1000)
    storage = LocalStorage()
    [files] = find_queues(storage, str(directory))
    log = read_log(storage, files)
    assert log is not None
    [segment] = log.segments
    assert (files.queue, log.head.committed) == ("meters", 1000)
    segment_range = SegmentRange("meters", *segment, first=0, stop=1000)
    expected = read(SegmentOnDisk(segment_range, b"", b"", [], [], []))
    # The source takes sealed segments only; this one has no footer, so that something has to stand for it.
    sealed = tmp_path / "sealed.seg"
    sealed.write_bytes(Path(segment.path).read_bytes() + bytes(64))
    rows = RowReader(str(tmp_path), 1).read(SegmentPartition(str(sealed)))
    found = [dict(zip(NAMES, row, strict=True)) for row in rows]
    for row in found:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1e6)
    assert found == expected


def _result(rates: dict[str, float]) -> Result:
    """Three rounds in which each source has a rate, the second round a bad one."""
    cases = {case for goal in GOALS for case in (goal.case, goal.against)}
    return Result(
        1000,
        {
            case: [Run(1000, 1000 / rates[case.source] * slow, 1.0) for slow in (1, 3, 1)]
            for case in cases
        },
    )


def test_a_goal_is_judged_by_the_median_of_rounds() -> None:
    quick = {PARQUET: 100.0, BY_ROW: 10.0, spark_read.segments(256): 120.0}
    result = _result({**quick, spark_read.segments(16): 110.0})
    assert all(result.met(goal) for goal in GOALS)
    result = _result({**quick, spark_read.segments(16): 30.0})
    missed = [goal for goal in GOALS if not result.met(goal)]
    assert {goal.case.source for goal in missed} == {spark_read.segments(16)}
    whole = next(goal for goal in GOALS if goal.against == Case(PARQUET, ALL))
    assert goal_rows(result, [whole])[0][2:] == ["1.2", "1.2 to 1.2", "≥ 0.3", "pass"]
    about = dict.fromkeys(("time", "processor", "cores", "kernel", "python", "spark"), "x")
    page = markdown(result, about)
    assert page.count("FAIL") == len(missed)
    assert all(case.title in page for case in result.runs)
