"""Export of queues to Parquet, by queue and day, each run from the end of the last one.

Executors read segments and write files; the driver writes one manifest for all of them, and only
that makes them part of the export (``fluxmq_spark.exports``). The next run removes the files of a
run that ended before its manifest.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from fluxmq_spark.exports import ExportDirectory, ExportedRange, Manifest, continue_at
from fluxmq_spark.jobs import arguments
from fluxmq_spark.jobs.arguments import EXIT_DONE, JobError, Selection, UsageError
from fluxmq_spark.jobs.console import Console, moment, plural, size
from fluxmq_spark.jobs.parquet_files import COMPRESSIONS
from fluxmq_spark.jobs.ranges import QueueRange, ranges_of
from fluxmq_spark.jobs.session import run, session, tasks
from fluxmq_spark.jobs.tasks import Export, attempt_number, files_of, run_tasks, segment_ranges_of
from fluxmq_spark.scan import SegmentRange
from fluxmq_spark.storage import storage_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "export_parquet"

ROWS_PER_FILE: Final = 1_000_000

TASK_ROWS: Final = 1_000_000
"""Messages of one task unless a segment holds more: several small segments of a queue become one
file."""

TEXT = """Export queues to Parquet files, DIR/queue=<name>/date=<YYYY-MM-DD>/part-....parquet (dates in UTC).

Each run goes on after the last offset of the one before. Files count once a manifest in DIR/_manifests names them;
fluxmq_spark.exports.read(spark, DIR) reads what the manifests name, exactly the messages that were exported, none
twice. Only one run at a time may work in a directory."""

EPILOG = """examples:
  export_parquet.py --path /var/lib/fluxmq --output /srv/export
  export_parquet.py --path /var/lib/fluxmq --queue orders --output /srv/export --compression snappy --to now-1h
"""


def parser() -> arguments.Parser:
    """Return the parser of the command line."""
    found = arguments.Parser(NAME, TEXT, epilog=EPILOG)
    arguments.add_source(found)
    arguments.add_range(found)
    found.add_argument(
        "--output",
        required=True,
        metavar="DIR",
        help="where to write: a directory, or a URL that fsspec supports",
    )
    found.add_argument(
        "--output-options", metavar="JSON", help="fsspec options for opening the output's URL"
    )
    found.add_argument(
        "--compression", choices=COMPRESSIONS, default="zstd", help="of the files (default: zstd)"
    )
    found.add_argument(
        "--rows-per-file",
        type=arguments.positive,
        default=ROWS_PER_FILE,
        metavar="N",
        help=f"maximum number of messages per file (default: {ROWS_PER_FILE:,})",
    )
    found.add_argument(
        "--no-headers", action="store_true", help="leave out the columns headers and properties"
    )
    found.add_argument(
        "--skip-lost",
        action="store_true",
        help="skip messages that retention removed or damage made unreadable, instead of failing",
    )
    arguments.add_session(found)
    return found


def schema_of(headers: bool) -> pa.Schema:
    """Return the columns of a file: the source's without the queue, which the directory gives."""
    from fluxmq_spark.schema import arrow_schema

    left_out = {"queue"} if headers else {"queue", "headers", "properties"}
    return pa.schema([each for each in arrow_schema() if each.name not in left_out])


def due(
    ranges: Iterable[QueueRange], begin: Mapping[str, int], skip_lost: bool
) -> list[tuple[QueueRange, int]]:
    """Return the range to export of each queue, with the number of offsets before it that retention
    removed.

    `begin`: where to continue queues that were exported before. Raises `JobError` for a gap after
    the previous export that is not to be skipped, and for a queue shorter than its export.
    """
    found = []
    for each in ranges:
        at = begin.get(each.queue)
        if at is None:
            if each.first < each.stop:
                found.append((each, 0))
            continue
        if each.committed < at:
            raise JobError(
                f"queue {each.queue!r} ends at {each.committed:,} and was exported up to {at:,}:"
                " it was created again; export it to another directory"
            )
        lost = max(0, each.start - at)
        if lost and not skip_lost:
            raise JobError(
                f"queue {each.queue!r}: offsets {at} to {each.start - 1} were removed by retention before they were"
                " exported; --skip-lost continues without them"
            )
        first = max(at, each.start)
        if first < each.stop:
            found.append((each.between(first, each.stop), lost))
    return found


def lists_of(segment_ranges: Iterable[SegmentRange], rows: int) -> list[list[SegmentRange]]:
    """Return segment ranges by task: consecutive ones of a queue, up to so many rows."""
    lists: list[list[SegmentRange]] = []
    count = 0
    for segment_range in segment_ranges:
        length = segment_range.stop - segment_range.first
        if not lists or lists[-1][-1].queue != segment_range.queue or count + length > rows:
            lists.append([])
            count = 0
        lists[-1].append(segment_range)
        count += length
    return lists


def manifest_of(
    number: int,
    run_name: str,
    now: datetime,
    selection: Selection,
    exported: Sequence[tuple[QueueRange, int]],
    results: Sequence[Any],
) -> Manifest:
    """Return the manifest of a run. Raises `JobError` unless files and losses add up to every
    range."""
    files = sorted(files_of(results), key=lambda one: (one.queue, one.min_offset, one.path))
    rows: dict[str, int] = {}
    for file in files:
        rows[file.queue] = rows.get(file.queue, 0) + file.rows
    queues = {}
    for each, lost in exported:
        missing = sum(result["lost"].get(each.queue, 0) for result in results)
        count = rows.get(each.queue, 0)
        if count + missing != each.stop - each.first:
            raise JobError(
                f"queue {each.queue!r}: {count:,} messages were written of offsets {each.first} to"
                f" {each.stop - 1}; nothing was committed"
            )
        queues[each.queue] = ExportedRange(each.first - lost, each.stop, count, missing + lost)
    return Manifest(number, run_name, now.isoformat(), selection.path, queues, tuple(files))


def export(
    console: Console,
    spark: SparkSession,
    selection: Selection,
    directory: ExportDirectory,
    options: argparse.Namespace,
    now: datetime,
) -> Manifest | None:
    """Export new messages; return the manifest, None when there are none."""
    manifests = directory.manifests()
    removed = directory.remove_unlisted(manifests)
    if removed:
        console.note(f"removed {plural(len(removed), 'file')} that an earlier run left unfinished")
    exported = due(ranges_of(selection), continue_at(manifests), options.skip_lost)
    if not exported:
        return None
    storage, _ = storage_of(selection.path, selection.filesystem())
    lists = lists_of(segment_ranges_of(each for each, _ in exported), TASK_ROWS)
    run_name = f"{len(manifests) + 1:08d}-{uuid.uuid4().hex[:8]}"
    work = Export(
        *(storage, lists, directory, schema_of(not options.no_headers), run_name),
        *(options.compression, options.rows_per_file, not options.skip_lost, attempt_number),
    )
    with console.stage("writing", tasks(spark)):
        results = run_tasks(spark, len(lists), work)
    for text in (each for result in results for each in result["damage"]):
        console.note(f"skipped: {text}")
    manifest = manifest_of(len(manifests) + 1, run_name, now, selection, exported, results)
    directory.commit(manifest)
    return manifest


def show(console: Console, directory: ExportDirectory, manifest: Manifest | None) -> None:
    """Report what was exported."""
    if manifest is None:
        console.write("Nothing new to export.")
        return
    console.title(f"Exported to {directory.url}, manifest {manifest.number}")
    rows = []
    for queue, each in sorted(manifest.queues.items()):
        files = [one for one in manifest.files if one.queue == queue]
        since = min((one.min_time for one in files), default=None)
        until = max((one.max_time for one in files), default=None)
        rows.append(
            (
                *(queue, each.first, each.next, each.rows, each.lost, len(files)),
                *(size(sum(one.bytes for one in files)), moment(since), moment(until)),
            )
        )
    columns = (
        "queue",
        "first",
        "next",
        "messages",
        "lost",
        "files",
        "bytes",
        "from (UTC)",
        "to (UTC)",
    )
    console.table(columns, rows)


def main(words: Sequence[str] | None = None) -> int:
    """Run the job with these arguments; return the exit code."""
    options = arguments.parse(parser(), words)

    def job(console: Console, now: datetime) -> int:
        selection = arguments.selection_of(options, now)
        output_options = arguments.object_of(options.output_options, "--output-options")
        directory = ExportDirectory(options.output, output_options or {})
        if directory.local and output_options:
            raise UsageError("--output-options are for URLs")
        with directory.locked(), session(NAME, options.master) as spark:
            manifest = export(console, spark, selection, directory, options, now)
        show(console, directory, manifest)
        return EXIT_DONE

    return run(NAME, job, quiet=options.quiet)


if __name__ == "__main__":
    raise SystemExit(main())
