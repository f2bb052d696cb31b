"""`fluxmqctl snapshot`: copy one queue at one moment, while the broker runs and without involving
it.

Responsible for the command's options, for finding the queue, and for reporting the result.
``fluxmq.storage.queue_copy`` knows how to copy a log consistently.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from fluxmq.cli.log_command import Commands, Writer
from fluxmq.cli.tables import grouped
from fluxmq.storage.directory import DataPaths, check_version, name_of
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.queue_copy import QueueCopy, copy_queue
from fluxmq.storage.verify import directories

EXIT_DONE: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2

_BUFFERED: Final = "buffered"
"""Name prefix of groups that acknowledge writes before they are on disk."""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "take a consistent copy of a queue while the broker runs"
    added = commands.add_parser("snapshot", help=text, description=text.capitalize() + ".")
    added.set_defaults(command="snapshot")
    added.add_argument("queue", metavar="QUEUE", help="the queue's name")
    added.add_argument(
        "target",
        metavar="DIR",
        help="directory to create groups/<group>/queues/<queue> in; it may hold copies of other queues."
        " On the data directory's file system, full segments are hard links and take no extra space",
    )


def run(options: argparse.Namespace, data_dir: Path, out: Writer, complain: Writer) -> int:
    """Make the copy; return the exit code: 0 made, 1 refused or failed, 2 no such queue or
    directory.

    `out` and `complain` take whole lines.
    """
    files, paths = Files(), DataPaths(str(data_dir))
    try:
        check_version(files, paths)
        groups = _groups_of(files, paths, options.queue)
        if len(groups) != 1:
            where = f"in the groups {', '.join(groups)}" if groups else "not there"
            complain(f"fluxmqctl: queue {options.queue!r} is {where}")
            return EXIT_USAGE
        (group,) = groups
        target = DataPaths(str(Path(options.target))).queue(group, options.queue)
        # A power cut may take back such a group's last writes; the files it then changes must not
        # be hard links shared with the copy.
        link = not group.startswith(_BUFFERED)
        copy = copy_queue(files, paths.queue(group, options.queue), target, link=link)
    except StorageError as error:
        complain(f"fluxmqctl: {error}")
        return EXIT_REFUSED
    _tell(options.queue, copy, out, linked=link)
    return EXIT_DONE


def _groups_of(files: Files, paths: DataPaths, queue: str) -> list[str]:
    """Return the groups with a queue of this name: one, unless the queue was never declared."""
    names = (name_of(directory) for directory in directories(files, paths.groups))
    return [name for name in names if name and files.exists(paths.queue(name, queue))]


def _tell(queue: str, copy: QueueCopy, out: Writer, *, linked: bool) -> None:
    out(
        f"{queue}: {grouped(copy.messages)} messages, offsets {copy.head.start} to before"
        f" {copy.head.committed}"
    )
    out(
        f"{grouped(copy.linked)} segments linked ({grouped(copy.linked_bytes)} bytes),"
        f" {grouped(copy.copied)} copied ({grouped(copy.copied_bytes)} bytes)"
    )
    if not linked:
        out("full segments were copied: the queue's group acknowledges before its data is synced")
    elif copy.unlinkable:
        out("full segments were copied: they cannot be hard-linked here (another file system?)")
    out(copy.directory)
