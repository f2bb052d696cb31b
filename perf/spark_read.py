"""``python -m perf.spark_read``: how fast Spark reads a queue, against native Parquet and a row-at-a-time source.

Messages of 256 bytes are logged by the broker's own log, once in batches of 16 and once in batches of 256, in segments of
64 MiB. Spark writes the same rows and columns as uncompressed Parquet. Then every case is read to the end into Spark's
``noop`` sink, which takes rows and keeps nothing, case after case and round after round in one session of two threads.

A rate is rows by seconds of one query; ratios are taken within a round, and what counts is their median. Processor time is
that of the whole process tree, Java and Python workers. The first round warms up and is not counted. Exit status 0: every
goal is met.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

import fluxmq_spark
from fluxmq.model.batch_format import parse
from fluxmq.model.batches import BatchMessage, encode
from fluxmq.model.properties import Item, PropertyKind, text
from fluxmq.model.properties import encode as encode_block
from fluxmq.storage.files import Files
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog, SegmentOptions
from fluxmq_spark.schema import column_names
from perf import processes, report
from perf.progress import display
from perf.spark_rows import RowSource

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = 4_000_000
ROUNDS: Final = 7
PAYLOAD_BYTES: Final = 256
BATCHES: Final = (256, 16)
SEGMENT_BYTES: Final = 64 << 20
INDEX_BYTES: Final = 64 << 10
PUBLISHERS: Final = 50
ROW_SEGMENTS: Final = 2
"""Segments that the row-at-a-time source reads: one for each thread. It is slow, and a rate needs no more."""

EPOCH_US: Final = 1_790_000_000_000_000
NOISE_BYTES: Final = 1 << 22
ALL: Final = "all columns"
PLAIN: Final = "all columns but the maps"
SOME: Final = "offset and payload"
ONE: Final = "offset"
COLUMNS: Final = {
    ALL: column_names(),
    PLAIN: column_names(headers=False),
    SOME: ("offset", "payload"),
    ONE: ("offset",),
}
PARQUET: Final = "Parquet"
BY_ROW: Final = "row at a time"


@dataclass(frozen=True)
class Case:
    """One query of every round."""

    source: str
    columns: str

    @property
    def title(self) -> str:
        """Name in tables."""
        return f"{self.source}, {self.columns}"


@dataclass(frozen=True)
class Run:
    """One query that was run: its rows, its seconds, and processor seconds of all processes."""

    rows: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Rows by second."""
        return self.rows / self.seconds


@dataclass(frozen=True)
class Goal:
    """Share of another case's rate that a case has to reach in the median of rounds; `least` 0: for
    information."""

    case: Case
    against: Case
    least: float = 0.0


def segments(batch: int) -> str:
    """Return what cases call segments of batches of that size."""
    return f"segments, batches of {batch}"


WHOLE: Final = Case(PARQUET, ALL)
GOALS: Final = (
    *(Goal(Case(segments(batch), ALL), WHOLE, 0.3) for batch in BATCHES),
    *(Goal(Case(segments(batch), ALL), Case(BY_ROW, ALL), 4.0) for batch in BATCHES),
    *(Goal(Case(segments(batch), SOME), WHOLE, 0.45) for batch in BATCHES),
    *(Goal(Case(segments(batch), ONE), WHOLE, 1.0) for batch in BATCHES),
    *(Goal(Case(segments(16), each), Case(segments(256), each), 0.8) for each in (ALL, SOME, ONE)),
    *(Goal(Case(segments(256), each), Case(PARQUET, each)) for each in (PLAIN, SOME, ONE)),
)


# --- data ---


def messages(rows: int) -> Iterator[BatchMessage]:
    """Yield messages of sensors: a topic and a property block for each of some publishers, payloads of noise."""
    noise = os.urandom(NOISE_BYTES)
    blocks = [
        encode_block(
            [
                Item(PropertyKind.HEADER, text(b"eu"), b"region"),
                Item(PropertyKind.PUBLISHER, b"meter-%d" % publisher),
                Item(PropertyKind.PROTOCOL, 1),
            ]
        )
        for publisher in range(PUBLISHERS)
    ]
    keys = [b"site/%d/meter/%d" % (publisher % 7, publisher) for publisher in range(PUBLISHERS)]
    for row in range(rows):
        # A publisher's messages come in runs, as they do from a socket; the longest batch is one such run.
        publisher = row // max(BATCHES) % PUBLISHERS
        at = row * PAYLOAD_BYTES % (NOISE_BYTES - PAYLOAD_BYTES)
        payload = noise[at : at + PAYLOAD_BYTES]
        yield BatchMessage(keys[publisher], blocks[publisher], payload, EPOCH_US + row)


def write_queue(directory: Path, batch: int, rows: int) -> None:
    """Log messages in batches of one size, as the broker does."""
    options = SegmentOptions(segment_bytes=SEGMENT_BYTES, index_bytes=INDEX_BYTES)
    log = QueueLog.open(Files(), str(directory), "meters", options, LogState(0, 0, ()))
    offset = 0
    made = messages(rows)
    while together := list(islice(made, batch)):
        stamped = parse(encode(together))
        stamped.stamp(offset, together[0].time_us, 1)
        log.append(stamped)
        log.flush()
        offset += len(together)
    log.close()


# --- queries ---


def session(directory: Path) -> SparkSession:
    """Start a session of two threads; everything that it writes is below `directory`."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    builder = SparkSession.builder.master("local[2]").appName("perf.spark_read")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    fluxmq_spark.register(spark)
    spark.dataSource.register(RowSource)
    return spark


def frame(spark: SparkSession, directory: Path, case: Case) -> DataFrame:
    """Return what a case reads."""
    names = COLUMNS[case.columns]
    if case.source == PARQUET:
        return spark.read.parquet(str(directory / "parquet")).select(*names)
    if case.source == BY_ROW:
        reader = spark.read.format(RowSource.name()).option("segments", ROW_SEGMENTS)
        return reader.load(str(directory / f"batches-{BATCHES[0]}"))
    batch = next(batch for batch in BATCHES if segments(batch) == case.source)
    reader = spark.read.format(fluxmq_spark.SOURCE_NAME)
    if case.columns != ALL:
        reader = reader.option("columns", ",".join(names))
    return reader.load(str(directory / f"batches-{batch}"))


def run(spark: SparkSession, directory: Path, case: Case, rows: int) -> Run:
    """Read a case to the end, into nothing."""
    data = frame(spark, directory, case)
    # Of processes that come or go meanwhile only those that are there at the end are counted: Spark keeps its workers.
    cpu = processes.cpu_seconds(processes.tree([os.getpid()]))
    started = time.perf_counter()
    data.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started
    return Run(rows, seconds, processes.cpu_seconds(processes.tree([os.getpid()])) - cpu)


@dataclass
class Result:
    """All runs of all cases, by round."""

    rows: int
    runs: dict[Case, list[Run]] = field(default_factory=dict)

    def ratios(self, case: Case, against: Case) -> list[float]:
        """Return how many times the other case's rate a case had, round by round."""
        pairs = zip(self.runs[case], self.runs[against], strict=True)
        return [one.rate / other.rate for one, other in pairs]

    def met(self, goal: Goal) -> bool:
        """Tell whether a goal is reached."""
        return median(self.ratios(goal.case, goal.against)) >= goal.least


def measure(spark: SparkSession, directory: Path, rows: int, rounds: int) -> Result:
    """Run every case in every round, and once before."""
    result = Result(rows)
    cases = list(dict.fromkeys(case for goal in GOALS for case in (goal.against, goal.case)))
    counts = {case: frame(spark, directory, case).count() for case in cases}
    wrong = {
        case.title: count
        for case, count in counts.items()
        if count != rows and case.source != BY_ROW
    }
    if wrong:
        raise SystemExit(f"of {rows} rows: {wrong}")
    with display() as announce:
        for number in range(rounds + 1):
            # Back and forth, so that no case always follows the same one.
            for case in cases if number % 2 else reversed(cases):
                progress = announce(f"round {number} of {rounds}: {case.title}")
                done = run(spark, directory, case, counts[case])
                if progress is not None:
                    progress(number, rounds)
                if number:
                    result.runs.setdefault(case, []).append(done)
    return result


# --- results ---

GOAL_HEAD: Final = ["case", "against", "ratio", "range", "at least", "verdict"]
FIGURE_HEAD: Final = ["case", "rows/s, median", "best", "range", "rows by CPU second"]


def goal_rows(result: Result, goals: Iterable[Goal]) -> list[list[str]]:
    """Return a row of cells for each ratio."""
    rows = []
    for goal in goals:
        ratios = result.ratios(goal.case, goal.against)
        cells = [goal.case.title, goal.against.title, report.number(median(ratios))]
        cells += [f"{report.number(min(ratios))} to {report.number(max(ratios))}"]
        if goal.least:
            cells += [f"≥ {goal.least:g}", report.SIGNS["pass" if result.met(goal) else "fail"]]
        rows.append(cells)
    return rows


def figure_rows(result: Result) -> list[list[str]]:
    """Return a row of cells for each case."""
    rows = []
    for case, runs in result.runs.items():
        rates = [each.rate for each in runs]
        cpu = median(each.rows / each.cpu_seconds for each in runs if each.cpu_seconds)
        cells = [case.title, report.number(median(rates)), report.number(max(rates))]
        cells += [f"{report.number(min(rates))} to {report.number(max(rates))}"]
        rows.append([*cells, report.number(cpu)])
    return rows


def markdown(result: Result, about: dict[str, Any]) -> str:
    """Return the whole page."""
    rounds = len(next(iter(result.runs.values())))
    heading = (
        f"{about['time']}; {about['processor']}, {about['cores']} cores, kernel {about['kernel']}, "
        f"Python {about['python']}, Spark {about['spark']}, local[2]; {result.rows:,} messages of "
        f"{PAYLOAD_BYTES} bytes, {rounds} rounds. Medians of ratios paired by round."
    )
    asked = goal_rows(result, [goal for goal in GOALS if goal.least])
    others = goal_rows(result, [goal for goal in GOALS if not goal.least])
    parts = [
        "# Reading with Spark",
        heading,
        "Parquet is uncompressed, written by Spark from the same rows. All queries end in Spark's noop sink.",
        "## What was asked",
        report.markdown_table(GOAL_HEAD, asked),
        "## For information",
        report.markdown_table(GOAL_HEAD[:4], others),
        "## Figures",
        report.markdown_table(FIGURE_HEAD, figure_rows(result)),
    ]
    return "\n\n".join(parts) + "\n"


def write(result: Result, about: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Write JSON and Markdown; return the paths."""
    runs = {case.title: [asdict(each) for each in each] for case, each in result.runs.items()}
    record = {"about": about, "rows": result.rows, "runs": runs}
    paths = [folder / f"{name}.json", folder / f"{name}.md"]
    report.write_json(paths[0], record)
    paths[1].write_text(markdown(result, about))
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.spark_read", description="measure how fast Spark reads a queue"
    )
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")
    parser.add_argument("--name", default="spark-read", help="of the files written")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fluxmq-spark-read-") as scratch:
        directory = Path(scratch)
        for batch in BATCHES:
            write_queue(directory / f"batches-{batch}", batch, given.rows)
        spark = session(directory)
        try:
            source = frame(spark, directory, Case(segments(BATCHES[0]), ALL))
            source.write.option("compression", "none").parquet(str(directory / "parquet"))
            result = measure(spark, directory, given.rows, given.rounds)
            about = {"time": report.now(), **report.machine(()), "spark": spark.version}
        finally:
            spark.stop()
    page = markdown(result, about)
    sys.stdout.write(page)
    for path in write(result, about, given.results, given.name):
        sys.stdout.write(f"{path}\n")
    return 0 if all(result.met(goal) for goal in GOALS) else 1


if __name__ == "__main__":
    sys.exit(main())
