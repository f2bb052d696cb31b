"""`fluxmqctl log`: inspect the logs of a stopped node, or a copy of them, without changing
anything.

Responsible for the command's options, for refusing a directory that a broker uses, and for
presenting findings; ``fluxmq.storage`` judges the files. A running broker changes its files while
they are read, so apparent damage may be none; `--force-read-only` reads them all the same.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Final

import orjson

from fluxmq.cli.tables import Column, TextTable, grouped
from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.batch_format import Batch
from fluxmq.model.properties import Item, PropertyError, PropertyKind, Value, decode
from fluxmq.model.segments import TIME_NONE
from fluxmq.storage.directory import DataPaths, DirectoryError, check_version, locked, name_of
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import Defect, LogReport, log_batches, queue_name, scan_log
from fluxmq.storage.snapshots import SUFFIX, read_snapshot
from fluxmq.storage.verify import (
    NOTHING_PROMISED,
    directories,
    log_at,
    promised_of,
    verify_groups,
    verify_log,
    verify_wals,
)

EXIT_DONE: Final = 0
EXIT_DAMAGED: Final = 1
EXIT_USAGE: Final = 2
EXIT_IN_USE: Final = 4

PARENTS_MAX: Final = 5
"""Levels above a path to search for its data directory: groups/<group>/queues/<queue>/<file>."""

SHOWN_BYTES_MAX: Final = 60
"""Maximum bytes of a payload that a line shows; `--json` shows all."""

Commands = argparse._SubParsersAction  # argparse has no public name for this type
Writer = Callable[[str], None]


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command and its verbs; `command` is ``log verify``, ``log stat`` or ``log dump``."""
    log = commands.add_parser("log", help="inspect the logs of a stopped node")
    verbs = log.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text.capitalize() + ".")
        added.set_defaults(command=f"log {name}")
        added.add_argument(
            "path",
            metavar="PATH",
            nargs="?",
            help="data directory, directory of a queue, or one of their files (default: the node's data directory)",
        )
        added.add_argument(
            "--force-read-only",
            action="store_true",
            help="inspect even while a broker uses the directory; files that it is writing may look damaged",
        )
        return added

    verb("verify", "verify every byte of every file; exit 1 on damage")
    stat = verb("stat", "show what the queues hold")
    dump = verb("dump", "print the records of a queue")
    stat.add_argument("--json", action="store_true", help="print one JSON object per queue")
    dump.add_argument("--queue", metavar="NAME", help="the queue, if PATH holds several")
    dump.add_argument("--from", dest="first", metavar="OFFSET", type=int, help="first offset")
    dump.add_argument("--limit", metavar="N", type=int, help="maximum number of records")
    dump.add_argument("--json", action="store_true", help="print one JSON object per record")


def run(options: argparse.Namespace, data_dir: Path, out: Writer, complain: Writer) -> int:
    """Run one verb; return its exit code: 0 no damage, 1 damaged or unreadable, 2 not found, 4 in
    use.

    `data_dir` is searched when no path is given. `out` and `complain` take whole lines.
    """
    files = Files()
    path = str(data_dir) if options.path is None else options.path.rstrip("/") or "/"
    verbs = {"log verify": _verify, "log stat": _stat, "log dump": _dump}
    try:
        if not files.exists(path):
            complain(f"fluxmqctl: {path} is not there")
            return EXIT_USAGE
        with _kept_still(files, path, forced=options.force_read_only):
            return verbs[options.command](files, path, options, out, complain)
    except DirectoryError as error:
        complain(f"fluxmqctl: {error}")
        return EXIT_IN_USE
    except StorageError as error:
        complain(f"fluxmqctl: {error}")
        return EXIT_DAMAGED


@contextlib.contextmanager
def _kept_still(files: Files, path: str, *, forced: bool) -> Iterator[None]:
    """Hold the lock of the data directory that contains a path, so that no broker starts
    meanwhile."""
    root = Path(path).absolute()
    if not root.is_dir():
        root = root.parent
    for _ in range(PARENTS_MAX + 1):
        paths = DataPaths(str(root))
        if files.exists(paths.version):
            check_version(files, paths)
            if forced:
                break
            with locked(files, paths):
                yield
            return
        root = root.parent
    yield


# --- verify ----------------------------------------------------------------------------------------------------------


def _verify(files: Files, path: str, _: argparse.Namespace, out: Writer, complain: Writer) -> int:
    found = _Findings(out, complain)
    directory = log_at(files, path)
    if directory is not None:
        found.log(verify_log(files, directory, promised_of(files, directory)))
    elif path.endswith(SUFFIX):
        snapshot = read_snapshot(files, path)
        out(
            f"{path}: snapshot {snapshot.index}, term {snapshot.term}, {len(snapshot.content)} bytes"
        )
    elif _has_logs(files, path):
        _verify_node(files, DataPaths(path), found, out)
    else:
        complain(
            f"fluxmqctl: {path} is neither a data directory, a queue's directory, nor a file of one"
        )
        return EXIT_USAGE
    out(f"{found.damages} damaged, {found.notes} to be repaired by the next start")
    return EXIT_DAMAGED if found.damages else EXIT_DONE


def _has_logs(files: Files, path: str) -> bool:
    names = ("VERSION", "groups", "shards")
    return Path(path).is_dir() and any(files.exists(f"{path}/{name}") for name in names)


def _verify_node(files: Files, paths: DataPaths, found: _Findings, out: Writer) -> None:
    entries: dict[str, tuple[int, int]] = {}
    for wal in verify_wals(files, paths):
        entries |= wal.entries
        held = sum(max(0, last - first + 1) for first, last in wal.entries.values())
        out(f"{wal.directory}: {wal.files} files, {grouped(held)} entries")
        found.problems(wal.problems)
    for group in verify_groups(files, paths, entries):
        snapshot = "no snapshot" if group.snapshot is None else f"snapshot {group.snapshot}"
        out(f"group {group.name}: {snapshot}, {len(group.logs)} queues")
        found.problems(group.problems)
        for log, promised in group.logs:
            found.log(verify_log(files, log, promised))


class _Findings:
    """Shows and counts findings."""

    def __init__(self, out: Writer, complain: Writer) -> None:
        self._out = out
        self._complain = complain
        self.damages = 0
        self.notes = 0

    def log(self, report: LogReport) -> None:
        """Show the findings of one log."""
        held = report.next_offset - report.start
        self._out(
            f"{report.directory}: {len(report.segments)} segments, {grouped(report.bytes)} bytes,"
            f" {grouped(held)} messages from offset {report.start}"
        )
        self.problems(report.problems)

    def problems(self, problems: list[Defect]) -> None:
        """Show problems."""
        for problem in problems:
            if problem.mended:
                self.notes += 1
                self._out(f"note: {problem} (the next start repairs it)")
            else:
                self.damages += 1
                self._complain(f"damaged: {problem}")


# --- stat ------------------------------------------------------------------------------------------------------------


def _logs(files: Files, path: str) -> Iterator[tuple[str, str]]:
    """Yield group and directory of every log under a path."""
    directory = log_at(files, path)
    if directory is not None:
        group = Path(directory).absolute().parent.parent.name
        yield name_of(group) or group, directory
        return
    root = DataPaths(path).groups
    for group in directories(files, root):
        for queue in directories(files, f"{root}/{group}/queues"):
            yield name_of(group) or group, f"{root}/{group}/queues/{queue}"


def _name(files: Files, directory: str) -> str:
    """Return a queue's name, from its segments or else from its directory."""
    encoded = directory.rpartition("/")[2]
    return queue_name(files, directory) or name_of(encoded) or encoded


def _stat(
    files: Files, path: str, options: argparse.Namespace, out: Writer, complain: Writer
) -> int:
    titles = ("GROUP", "QUEUE", "SEGMENTS", "BYTES", "MESSAGES", "FIRST", "LAST", "FIRST TIME")
    table = TextTable(
        [*(Column(title, 1 < at < 7) for at, title in enumerate(titles)), Column("LAST TIME")]
    )
    shown, damaged = 0, False
    for group, directory in _logs(files, path):
        report = scan_log(files, directory, NOTHING_PROMISED, headers_only=True)
        name = _name(files, directory)
        segments = [segment for segment in report.segments if segment.first_time != TIME_NONE]
        times = (
            _time(segments[0].first_time if segments else TIME_NONE),
            _time(max((segment.last_time for segment in segments), default=TIME_NONE)),
        )
        start, end = report.start, report.next_offset
        if options.json:
            out(
                orjson.dumps(
                    {
                        "group": group,
                        "queue": name,
                        "segments": len(report.segments),
                        "bytes": report.bytes,
                        "first_offset": start,
                        "next_offset": end,
                        "first_time": times[0],
                        "last_time": times[1],
                    }
                ).decode()
            )
        else:
            numbers = (len(report.segments), report.bytes, end - start)
            ends = (str(start), str(end - 1)) if end > start else ("-", "-")
            table.rows.append([group, name, *map(grouped, numbers), *ends, *times])
        for problem in report.problems:
            damaged = True
            complain(f"not counted: {problem}")
        shown += 1
    if not options.json:
        out("\n".join(table.lines(colour=False)) if shown else f"{path} holds no queues")
    return EXIT_DAMAGED if damaged else EXIT_DONE


def _time(time: int) -> str:
    """Return a time in µs as ISO 8601, or as the number when no calendar date fits."""
    if time == TIME_NONE:
        return "-"
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time)
    except OverflowError:
        return str(time)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# --- dump ------------------------------------------------------------------------------------------------------------


def _dump(
    files: Files, path: str, options: argparse.Namespace, out: Writer, complain: Writer
) -> int:
    logs = [directory for _, directory in _logs(files, path)]
    if options.queue is not None:
        logs = [each for each in logs if _name(files, each) == options.queue]
    if len(logs) != 1:
        names = ", ".join(_name(files, each) for each in logs[:20])
        complain(f"fluxmqctl: {path} has {len(logs)} such queues; say which: --queue ({names})")
        return EXIT_USAGE
    first = -1 if options.first is None else options.first
    records = (
        (batch, index)
        for batch in log_batches(files, logs[0], options.first)
        for index in range(max(0, first - batch.base_offset), batch.count)
    )
    show = _as_json if options.json else _as_line
    for batch, index in islice(records, options.limit):
        out(show(batch, index))
    return EXIT_DONE


def _as_line(batch: Batch, index: int) -> str:
    payload = batch.payload(index)
    shown = ascii(payload[:SHOWN_BYTES_MAX])[1:] + ("…" if len(payload) > SHOWN_BYTES_MAX else "")
    key = ascii(batch.key(index))[1:]
    sizes = f"{len(payload)} bytes, {len(batch.properties(index))} of properties"
    offset = batch.base_offset + index
    return f"{offset}  {_time(batch.time(index))}  key {key}  {sizes}  {shown}"


def _as_json(batch: Batch, index: int) -> str:
    record: dict[str, object] = {
        "offset": batch.base_offset + index,
        "time": _time(batch.time(index)),
        "term": batch.term,
        "key": _text(batch.key(index)),
        "size": len(batch.payload(index)),
        "properties": _properties(batch.properties(index)),
        "expiry": batch.expiry(index) or None,
        "delay": batch.delay(index) or None,
        "payload": _text(batch.payload(index)),
    }
    return orjson.dumps(record).decode()


def _text(data: bytes) -> str | dict[str, str]:
    """Return the bytes as text when they are UTF-8, else their base64 under that name."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _properties(block: bytes) -> object:
    try:
        items = expanded(decode(block), SectionReader.TABLE)
    except PropertyError:
        return _text(block)
    return [_item(item) for item in items]


def _item(item: Item) -> dict[str, object]:
    shown: dict[str, object] = {"kind": item.kind.name.lower(), "value": _shown(item.value)}
    if item.name or item.kind == PropertyKind.HEADER:
        shown["name"] = _text(item.name)
    return shown


def _shown(value: object) -> object:
    """Return a property's value as JSON; tables and arrays become lists."""
    if isinstance(value, Value):
        return _shown(value.content)
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    return value
