"""``fluxmqctl backup-queue QUEUE DIR`` and ``fluxmqctl restore-queue DIR``: one queue with its
messages, out of a running broker and into one.

The broker says what the queue contains at one moment; the files are copied here, without it. A
restore reads the copy and sends the messages to the broker, each batch under a name of its own, so
that one that has to be sent again is kept once.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

import fluxmq
from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.migrate_command import place_of
from fluxmq.cli.node import TargetNode
from fluxmq.cli.queue_commands import size
from fluxmq.cli.tables import grouped
from fluxmq.ipc.definition_messages import IMPORT_DEFINITIONS, DefinitionsText
from fluxmq.ipc.messages import ERROR_AWAY
from fluxmq.ipc.polling_client import CallError
from fluxmq.ipc.queue_backups import (
    PIECE_BYTES_MAX,
    QUEUE_POSITION,
    RESTORE_BATCH,
    RESTORE_QUEUE,
    QueuePlace,
    QueuePosition,
    RestoreBatch,
    RestoreQueue,
)
from fluxmq.ipc.row_messages import AffectedCount
from fluxmq.model.group_states import GROUPS_NAME, decode
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.settings.clustering import BUFFERED
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.queue_backup import (
    MANIFEST_NAME,
    STREAM_TYPE,
    QueueBackup,
    QueueManifest,
    wanted_ranges,
)
from fluxmq.storage.queue_copy import copy_queue

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

BACKUP_NAME: Final = "backup-queue"
RESTORE_NAME: Final = "restore-queue"
NAMES: Final = (BACKUP_NAME, RESTORE_NAME)
MAKING: Final = ".incomplete"
"""Suffix of the directory's name until the backup is complete, as in ``fluxmqctl backup``."""
WAIT_SECONDS: Final = 120.0
"""Time for an answer: longer than control waits for a shard."""
AWAY_SECONDS: Final = 120.0
"""Time for which a batch is sent again while nobody takes it: a cluster without a leader."""
AGAIN_SECONDS: Final = 0.5


def add_parser(commands: Commands) -> None:
    """Add both commands to the command line."""
    text = "write a backup of a queue: its definition, and its messages at one moment"
    added = commands.add_parser(
        BACKUP_NAME,
        help=text,
        description=f"{text.capitalize()}. The broker keeps running, and nothing is consumed. Run it on the node that"
        " leads the queue; full segments are hard links where DIR is on the same file system.",
    )
    added.set_defaults(command=BACKUP_NAME)
    added.add_argument(
        "queue", metavar="QUEUE", help="the queue's name, or VHOST/NAME; omit the vhost '/'"
    )
    added.add_argument(
        "-p",
        "--vhost",
        metavar="VHOST",
        help=f"virtual host; QUEUE is then taken literally (default: {DEFAULT_VHOST})",
    )
    added.add_argument("directory", metavar="DIR", help="directory to create; must not exist")
    added.add_argument(
        "--copy", action="store_true", help="copy full segments also where they can be linked"
    )
    text = (
        "append the messages of a queue's backup to that queue, which is declared if it is missing"
    )
    added = commands.add_parser(RESTORE_NAME, help=text, description=text.capitalize() + ".")
    added.set_defaults(command=RESTORE_NAME)
    added.add_argument("directory", metavar="DIR", help=f"what {BACKUP_NAME} has written")
    added.add_argument(
        "-p", "--vhost", metavar="VHOST", help="another virtual host than the queue's"
    )
    added.add_argument("--name", metavar="NAME", help="another name than the queue's")
    added.add_argument(
        "--append", action="store_true", help="also if the queue has messages: behind these"
    )
    added.add_argument(
        "--continue",
        dest="continued",
        metavar="PLACE",
        type=_place,
        help="go on with a restore that was interrupted, where it said",
    )
    added.add_argument(
        "--no-bindings", action="store_true", help="do not bind the queue to exchanges"
    )


def _place(text: str) -> tuple[int, int]:
    """Return origin and number of the batch from which a restore goes on."""
    origin, colon, number = text.partition(":")
    try:
        found = int(origin, 16), int(number)
    except ValueError:
        colon = ""
        found = 0, 0
    if not colon or not 0 < found[0] < 1 << 63 or found[1] < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not what {RESTORE_NAME} has said")
    return found


def run(node: TargetNode, options: argparse.Namespace) -> list[str]:
    """Make or restore a backup; return lines about it. Exits when it is refused."""
    node.wait_at_least(WAIT_SECONDS)
    if options.command == BACKUP_NAME:
        return _back_up(node, options)
    return _restore(node, options)


# Backup


def _back_up(node: TargetNode, options: argparse.Namespace) -> list[str]:
    vhost, name = place_of(options)
    target = Path(options.directory).absolute()
    making = target.with_name(target.name + MAKING)
    for path in (target, making):
        if path.exists():
            raise ExitError(EXIT_REFUSED, f"{path} exists already; name another directory")
    with node.require() as caller:
        place = QueuePlace(vhost, name)
        found = QueuePosition.from_body(caller.call(QUEUE_POSITION, place.to_body()))
    try:
        manifest, copied = _write(node.data_dir, making, found, link=not options.copy)
        making.rename(target)
        Files().fsync_directory(str(target.parent))
    except (StorageError, OSError) as problem:
        shutil.rmtree(making, ignore_errors=True)
        raise ExitError(EXIT_REFUSED, f"no backup was made: {problem}") from problem
    return [f"{target}: {grouped(manifest.messages)} messages of queue '{name}', {size(copied)}"]


def _write(
    data_dir: Path, making: Path, found: QueuePosition, *, link: bool
) -> tuple[QueueManifest, int]:
    """Write a backup; return what its manifest says, and the bytes of its segments. Raises
    StorageError."""
    files = Files()
    source = DataPaths(str(data_dir)).queue(found.group, found.internal)
    target = DataPaths(str(making)).queue(found.group, found.internal)
    # A power cut may take back the last writes of a buffered group.
    link = link and not found.group.startswith(BUFFERED)
    copy = copy_queue(files, source, target, link=link)
    state = decode(found.state)
    if copy.head.committed < state.next_offset:
        raise StorageError(f"{source} lacks messages that the broker has: is it the broker's?")
    files.write_whole(f"{target}/{GROUPS_NAME}", found.state)
    definition = orjson.loads(found.definition)
    kept = state._replace(start=max(state.start, copy.head.start))
    ranges = wanted_ranges(kept, stream=definition["queues"][0]["type"] == STREAM_TYPE)
    manifest = QueueManifest(
        definition,
        *(found.group, found.internal, state.next_offset),
        sum(each.last - each.first + 1 for each in ranges),
        datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
        fluxmq.__version__,
    )
    files.write_whole(f"{making}/{MANIFEST_NAME}", manifest.encode())
    return manifest, copy.linked_bytes + copy.copied_bytes


# Restore


def _restore(node: TargetNode, options: argparse.Namespace) -> list[str]:
    backup = QueueBackup(Files(), str(Path(options.directory).absolute()))
    definition = _renamed(backup.manifest, options.vhost, options.name)
    queue = definition["queues"][0]
    vhost, name = str(queue["vhost"]), str(queue["name"])
    continued = options.continued or (secrets.randbits(62) + 1, 0)
    with contextlib.closing(_Restore(node, vhost, name, *continued)) as restore:
        count = restore.declare({"queues": [queue]})
        if count and not (options.append or options.continued):
            raise ExitError(
                EXIT_REFUSED,
                f"queue '{name}' has {grouped(count)} messages: purge it, restore to another name,"
                " or append behind them with --append",
            )
        try:
            total = restore.append(backup)
        except StorageError as problem:
            text = f"{problem}: the queue has the messages before the damage"
            raise ExitError(EXIT_REFUSED, text) from problem
        except (ExitError, CallError, OSError, KeyboardInterrupt) as problem:
            raise ExitError(
                EXIT_REFUSED,
                f"{str(problem) or 'interrupted'}: the queue has a part of the backup; go on with"
                f" --continue {restore.place}",
            ) from problem
        complaints = [] if options.no_bindings else restore.bind(definition["bindings"])
    node.complaints += complaints
    return [f"queue '{name}' in vhost '{vhost}': {grouped(total)} messages appended"]


def _renamed(manifest: QueueManifest, vhost: str | None, name: str | None) -> dict[str, Any]:
    """Return the definition for another virtual host or name."""
    queue, bindings = dict(manifest.queue), manifest.bindings
    place = {"vhost": vhost if vhost is not None else queue["vhost"]}
    queue |= {**place, "name": name or queue["name"]}
    if not queue["name"] or not queue["vhost"]:
        raise ExitError(EXIT_USAGE, "which queue?")
    bindings = [{**each, **place, "destination": queue["name"]} for each in bindings]
    return {"queues": [queue], "bindings": bindings}


class _Restore:
    """A restore under way. ``number``: of the batch from which it goes on."""

    def __init__(self, node: TargetNode, vhost: str, name: str, origin: int, number: int) -> None:
        self._node = node
        self._vhost = vhost
        self._name = name
        self._origin = origin
        self._number = number
        self._opened = contextlib.ExitStack()
        self._caller: BrokerCaller | None = None

    @property
    def place(self) -> str:
        """The place to continue from."""
        return f"{self._origin:x}:{self._number}"

    def close(self) -> None:
        """Close the connection."""
        self._caller = None
        self._opened.close()

    def _call(self, kind: str, body: dict[str, Any]) -> Any:
        if self._caller is None:
            self._caller = self._opened.enter_context(self._node.require())
        return self._caller.call(kind, body)

    def declare(self, definition: dict[str, Any]) -> int:
        """Declare the queue if it is missing; return the number of its messages."""
        wanted = RestoreQueue(self._vhost, self._name, orjson.dumps(definition))
        return AffectedCount.from_body(self._call(RESTORE_QUEUE, wanted.to_body())).count

    def append(self, backup: QueueBackup) -> int:
        """Append the messages; return how many, without those of a restore that is continued."""
        total = 0
        for number, (count, batch) in enumerate(backup.batches()):
            if number < self._number:
                continue
            self._append(number, batch)
            self._number = number + 1
            total += count
        return total

    def _append(self, number: int, batch: bytes) -> None:
        """Append a batch, again and again while nobody takes it."""
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                for piece, last in _pieces(batch):
                    wanted = RestoreBatch(
                        *(self._vhost, self._name, self._origin, number), piece, last
                    )
                    self._call(RESTORE_BATCH, wanted.to_body())
                return
            except (CallError, ExitError, OSError) as problem:
                # A batch that was taken although no answer came is known to the queue by its name.
                if isinstance(problem, CallError) and problem.code != ERROR_AWAY:
                    raise
                self.close()
                if time.monotonic() > deadline:
                    raise
                sys.stderr.write(f"fluxmqctl: {problem}; trying again\n")
                time.sleep(AGAIN_SECONDS)

    def bind(self, bindings: list[dict[str, Any]]) -> list[str]:
        """Bind the queue; return what is to be said of bindings that are refused."""
        try:
            self._bind(bindings)
        except CallError:
            return list(self._each(bindings))
        return []

    def _each(self, bindings: list[dict[str, Any]]) -> Iterator[str]:
        for binding in bindings:
            try:
                self._bind([binding])
            except CallError as problem:
                yield f"not bound to exchange '{binding['source']}': {problem}"

    def _bind(self, bindings: list[dict[str, Any]]) -> None:
        text = orjson.dumps({"bindings": bindings})
        self._call(IMPORT_DEFINITIONS, DefinitionsText(text).to_body())


def _pieces(batch: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield a batch in pieces that fit into messages, and whether each is the last."""
    for at in range(0, len(batch), PIECE_BYTES_MAX):
        yield batch[at : at + PIECE_BYTES_MAX], at + PIECE_BYTES_MAX >= len(batch)
