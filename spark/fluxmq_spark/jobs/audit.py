"""Audit of the data on disk: no gaps, no duplicates, no damage, and all replicas equal.

Three checks of each directory: the headers of batches, whose offsets must follow each other from
the queue's start to the committed end; every byte against its checks, segment by segment in the
executors; and, with several directories, the headers of one against those of the others. A header
holds the check of its messages, so that equal headers over intact messages are equal messages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fluxmq_spark.jobs import arguments
from fluxmq_spark.jobs.arguments import EXIT_DONE, EXIT_FOUND, JobError, Selection, UsageError
from fluxmq_spark.jobs.console import Console, plural, size
from fluxmq_spark.jobs.ranges import QueueRange, ranges_of
from fluxmq_spark.jobs.session import run, session, tasks
from fluxmq_spark.jobs.tasks import Checked, check_segments

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME: Final = "audit"

FINDINGS_MAX: Final = 1000
"""Maximum findings of a kind that are listed; all are counted."""

ORDERED: Final = ("queue", "segment", "position", "base_offset", "count", "bytes")
"""Columns of a batch's header that give its place in the order."""

COMPARED: Final = (
    *("count", "first_time", "last_time", "bytes", "key_bytes", "property_bytes", "payload_bytes"),
    *("term", "flags", "payload_check"),
)
"""Columns of a batch's header in which replicas must agree."""

TEXT = """Audit queues: offsets without gaps or duplicates, every message's checksum, and replicas against each other.

With --path given several times, once per node's directory (or a copy of it), data that two nodes share must be
the same; the first difference of each queue is named with its file. Exit code 1 when something was found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect. `node`: the directory; `offset`: where it begins, -1 if unknown."""

    kind: str
    node: str
    queue: str
    offset: int
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Audited:
    """The examined part of a queue at a node."""

    node: str
    queue: str
    first: int
    next: int
    batches: int
    rows: int | None
    bytes: int


def parser() -> arguments.Parser:
    """Return the parser of the command line."""
    found = arguments.Parser(NAME, TEXT)
    arguments.add_source(found, several_paths=True)
    arguments.add_range(found)
    found.add_argument(
        "--headers-only",
        action="store_true",
        help="check headers only, not each message's checksum: fast",
    )
    arguments.add_session(found, output="directory for audit.json")
    return found


def batches_of(
    spark: SparkSession, selection: Selection, ranges: Sequence[QueueRange], *, compared: bool
) -> DataFrame:
    """Return the headers of the batches with messages in the ranges; damaged headers are omitted.

    `compared`: whether all of a header is needed, or only its place in the order.
    """
    from pyspark.sql import functions as f

    reader = spark.read.format("fluxmq").options(**selection.where())
    names = dict.fromkeys((*ORDERED, *COMPARED)) if compared else ORDERED
    reader = reader.option("view", "batches").option("columns", ",".join(names))
    rows = reader.option("failOnDataLoss", "false").load()
    inside: Column = f.lit(False)
    next_offset = f.col("base_offset") + f.col("count")
    for each in ranges:
        here = (f.col("base_offset") < each.stop) & (next_offset > each.first)
        inside = inside | ((f.col("queue") == each.queue) & here)
    return rows.where(inside).withColumn("next_offset", next_offset)


def breaks_of(batches: DataFrame) -> list[Mapping[str, Any]]:
    """Return the batches of each queue that do not begin where those before end; `FINDINGS_MAX` at
    most."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = (
        Window.partitionBy("queue")
        .orderBy("base_offset", "segment", "position")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    rows = batches.withColumn("due", f.max("next_offset").over(before))
    wrong = rows.where("due is not null and base_offset <> due")
    names = ("queue", "base_offset", "next_offset", "due", "segment", "position")
    found = wrong.orderBy("queue", "base_offset").select(*names).limit(FINDINGS_MAX).collect()
    return [row.asDict() for row in found]


def totals_of(batches: DataFrame) -> dict[str, Mapping[str, Any]]:
    """Return batches, bytes, start and end by queue."""
    from pyspark.sql import functions as f

    rows = batches.groupBy("queue").agg(
        f.count("*").alias("batches"),
        f.sum("bytes").alias("bytes"),
        f.min("base_offset").alias("first"),
        f.max("next_offset").alias("next"),
    )
    return {row["queue"]: row.asDict() for row in rows.collect()}


def order_findings(
    node: str,
    ranges: Sequence[QueueRange],
    totals: Mapping[str, Mapping[str, Any]],
    breaks: Sequence[Mapping[str, Any]],
) -> Iterator[Finding]:
    """Yield gaps, duplicates, and messages missing at either end of a range."""
    for each in breaks:
        queue, base, due = each["queue"], each["base_offset"], each["due"]
        where = f"{each['segment']}, byte {each['position']}"
        if base > due:
            yield Finding(
                "gap", node, queue, due, where, f"offsets {due} to {base - 1} are missing before it"
            )
        else:
            last = min(each["next_offset"], due) - 1
            yield Finding(
                "double", node, queue, base, where, f"offsets {base} to {last} occur twice"
            )
    for kept in ranges:
        if kept.first >= kept.stop:
            continue
        total = totals.get(kept.queue)
        first, after = (total["first"], total["next"]) if total else (kept.stop, kept.stop)
        if first > kept.first:
            text = f"offsets {kept.first} to {first - 1} are missing, where the queue begins"
            yield Finding("gap", node, kept.queue, kept.first, kept.directory, text)
        if after < kept.stop:
            text = f"offsets {after} to {kept.stop - 1} are missing, where the queue ends"
            yield Finding("gap", node, kept.queue, after, kept.directory, text)


def damage_findings(node: str, checked: Sequence[Checked]) -> Iterator[Finding]:
    """Yield the findings of the message checks."""
    for each in checked:
        for text in each.damage:
            yield Finding("damage", node, each.queue, each.first, each.path, text)
        if each.gone:
            yield Finding(
                "gone", node, each.queue, each.first, each.path, "the segment is not there"
            )
        elif each.rows != each.stop - each.first and not each.damage:
            text = f"{each.rows:,} of {each.stop - each.first:,} messages could be read"
            yield Finding("short", node, each.queue, each.first, each.path, text)


def shared(one: Sequence[QueueRange], other: Sequence[QueueRange]) -> dict[str, tuple[int, int]]:
    """Return the offsets that two nodes both have, by queue."""
    theirs = {each.queue: each for each in other}
    return {
        each.queue: (
            max(each.first, theirs[each.queue].first),
            min(each.stop, theirs[each.queue].stop),
        )
        for each in one
        if each.queue in theirs
    }


def differences(
    one: DataFrame, other: DataFrame, both: Mapping[str, tuple[int, int]]
) -> list[Mapping[str, Any]]:
    """Return each queue's first batch that differs between two nodes, of those entirely in the
    common range.

    A row has queue, offset, differing (number of batches) and for either side its file and check,
    None if no batch begins there.
    """
    from pyspark.sql import functions as f

    inside: Column = f.lit(False)
    for queue, (low, high) in both.items():
        here = (f.col("base_offset") >= low) & (f.col("next_offset") <= high)
        inside = inside | ((f.col("queue") == queue) & here)

    def side(rows: DataFrame, name: str) -> DataFrame:
        place = f.struct("segment", "position", "payload_check")
        return rows.where(inside).select(
            "queue", "base_offset", place.alias(name), f.struct(*COMPARED).alias(f"{name}_header")
        )

    joined = side(one, "left").join(side(other, "right"), ["queue", "base_offset"], "full")
    unequal = ~f.col("left_header").eqNullSafe(f.col("right_header"))
    first = (
        joined.where(unequal)
        .groupBy("queue")
        .agg(
            f.min("base_offset").alias("offset"),
            f.count("*").alias("differing"),
            f.min_by(f.struct("left", "right", "left_header", "right_header"), "base_offset").alias(
                "sides"
            ),
        )
    )
    return [row.asDict(recursive=True) for row in first.orderBy("queue").collect()]


def difference_finding(node: str, other: str, row: Mapping[str, Any]) -> Finding:
    """Return the first difference of a queue as a finding, with both sides' files and checks."""
    sides = row["sides"]
    left, right = sides["left"], sides["right"]
    if left is None or right is None:
        has, lacks, there = (node, other, left) if right is None else (other, node, right)
        text = f"a batch begins there in {has} ({there['segment']}) and none in {lacks}"
    else:
        mine, theirs = sides["left_header"], sides["right_header"]
        names = ", ".join(name for name in COMPARED if mine[name] != theirs[name])
        text = (
            f"headers differ in {names}: check {left['payload_check']} here, {right['payload_check']} in {other}"
            f" ({right['segment']}, byte {right['position']})"
        )
    place = left or right
    text += f"; {plural(row['differing'], 'batch', 'batches')} of the queue in all"
    where = f"{place['segment']}, byte {place['position']}"
    return Finding("differs", node, row["queue"], row["offset"], where, text)


def compare(
    nodes: Sequence[str], batches: Sequence[DataFrame], ranges: Sequence[Sequence[QueueRange]]
) -> Iterator[Finding]:
    """Compare the first node with each of the others."""
    for at in range(1, len(nodes)):
        both = shared(ranges[0], ranges[at])
        for mine, theirs, lacking in ((0, at, nodes[at]), (at, 0, nodes[0])):
            there = {each.queue for each in ranges[theirs]}
            for each in ranges[mine]:
                if each.queue not in there and each.first < each.stop:
                    text = f"the queue is in {nodes[mine]} and not in {lacking}"
                    yield Finding("absent", lacking, each.queue, each.first, each.directory, text)
        for row in differences(batches[0], batches[at], both):
            yield difference_finding(nodes[0], nodes[at], row)


def look(
    console: Console,
    spark: SparkSession,
    node: str,
    selection: Selection,
    options: argparse.Namespace,
) -> tuple[DataFrame, list[QueueRange], list[Audited], list[Finding]]:
    """Examine one directory: return its batches, its contents, and its defects."""
    doing = tasks(spark)
    ranges = ranges_of(selection, skip_damage=True)
    compared = len(options.path) > 1
    batches = batches_of(spark, selection, ranges, compared=compared).persist()
    with console.stage(f"{node}: headers", doing):
        totals, breaks = totals_of(batches), breaks_of(batches)
    findings = list(order_findings(node, ranges, totals, breaks))
    rows: dict[str, int] | None = None
    if not options.headers_only:
        with console.stage(f"{node}: messages", doing):
            checked = check_segments(spark, selection, ranges)
        findings += damage_findings(node, checked)
        rows = {}
        for each in checked:
            rows[each.queue] = rows.get(each.queue, 0) + each.rows
    # Retention may have removed the beginning meanwhile, which is no finding.
    now = {each.queue: each.first for each in ranges_of(selection, skip_damage=True)}
    findings = [
        each for each in findings if each.offset >= now.get(each.queue, 0) or each.offset < 0
    ]
    audited = [
        Audited(
            *(
                node,
                each.queue,
                each.first,
                each.stop,
                totals.get(each.queue, {}).get("batches", 0),
            ),
            None if rows is None else rows.get(each.queue, 0),
            totals.get(each.queue, {}).get("bytes", 0),
        )
        for each in ranges
    ]
    return batches, ranges, audited, findings


def show(console: Console, audited: Sequence[Audited], findings: Sequence[Finding]) -> None:
    """Write the tables."""
    console.title("Examined")
    columns = (
        "queue",
        "directory",
        "first",
        "next",
        "batches",
        "bytes",
        "messages checked",
        "findings",
    )
    console.table(
        columns,
        [
            (
                *(
                    each.queue,
                    each.node,
                    each.first,
                    each.next,
                    each.batches,
                    size(each.bytes),
                    each.rows,
                ),
                sum(1 for one in findings if (one.queue, one.node) == (each.queue, each.node)),
            )
            for each in audited
        ],
    )
    if not findings:
        console.write("\nNo problems found.")
        return
    console.title(plural(len(findings), "finding"))
    for each in findings[:FINDINGS_MAX]:
        console.write(f"{each.kind}: queue {each.queue}, offset {each.offset}: {each.text}")
        if each.where not in each.text:
            console.write(f"    {each.where}")


def save(folder: Path, audited: Sequence[Audited], findings: Sequence[Finding]) -> Path:
    """Write contents and findings as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "audit.json"
    content = {
        "audited": [asdict(each) for each in audited],
        "findings": [asdict(each) for each in findings],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def main(words: Sequence[str] | None = None) -> int:
    """Run the job with these arguments; return the exit code."""
    options = arguments.parse(parser(), words)

    def job(console: Console, now: datetime) -> int:
        nodes = [path.rstrip("/") for path in options.path]
        if len(set(nodes)) != len(nodes):
            raise UsageError("a --path is given twice")
        selections = [arguments.selection_of(options, now, path=path) for path in nodes]
        with session(NAME, options.master) as spark:
            looks = [
                look(console, spark, node, selection, options)
                for node, selection in zip(nodes, selections, strict=True)
            ]
            audited = [each for one in looks for each in one[2]]
            findings = [each for one in looks for each in one[3]]
            if len(nodes) > 1:
                with console.stage("replicas", tasks(spark)):
                    findings += compare(nodes, [one[0] for one in looks], [one[1] for one in looks])
        if not audited:
            raise JobError("there is no queue to audit")
        show(console, audited, findings)
        if options.output is not None:
            console.write(f"\nwritten: {save(Path(options.output), audited, findings)}")
        return EXIT_FOUND if findings else EXIT_DONE

    return run(NAME, job, quiet=options.quiet)


if __name__ == "__main__":
    raise SystemExit(main())
