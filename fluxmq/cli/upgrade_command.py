"""``fluxmqctl upgrade-check``: what would stop or surprise an upgrade of this node, asked of the new
program.

Reads the node's settings, its data directory and, if the node runs, what its control process answers,
which is of the earlier version. Changes nothing. Each line begins with ``ok``, ``note`` (to be known)
or ``stop`` (to be done first).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import fluxmq
from fluxmq.cli import data_directory
from fluxmq.cli.exits import EXIT_USAGE, ExitError
from fluxmq.cli.node import CONFIG_VARIABLE, TargetNode
from fluxmq.cli.queue_commands import size
from fluxmq.cli.tables import duration
from fluxmq.ipc.clusters import CAN_STOP, GroupOutcomes
from fluxmq.ipc.node_messages import DESCRIBE_NODE, NodeDescription
from fluxmq.model.errors import FluxmqError
from fluxmq.settings import Settings, SettingsError, load, notes, refusals
from fluxmq.storage.directory import (
    FORMAT_VERSION,
    DataPaths,
    Placement,
    check_version,
    read_placement,
)
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NAME: Final = "upgrade-check"
BACKUP_SECONDS_MAX: Final = 86_400.0
"""Age of a backup from which it counts no more: a day's changes would be lost with it."""
OK, NOTE, STOP = "ok", "note", "stop"


class Finding(NamedTuple):
    """A line of the report."""

    kind: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.text}"


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    text = "say what would stop or surprise an upgrade of this node to the version of this program"
    added = commands.add_parser(
        NAME,
        help=text,
        description=f"{text.capitalize()}. Run the new version's fluxmqctl, with --config before the command; the"
        " node may run, and nothing is changed. Exits with 1 if something has to be done first.",
    )
    added.set_defaults(command=NAME)
    added.add_argument(
        "--backup", metavar="DIR", help="check that this is a backup, and not older than a day"
    )


def run(options: argparse.Namespace) -> tuple[list[str], str]:
    """Return the lines of the report, and a sentence if something stops the upgrade."""
    if options.url is not None:
        text = f"{NAME} works on the node's own files: run it on that machine"
        raise ExitError(EXIT_USAGE, text)
    config = options.config or (None if options.data_dir else os.environ.get(CONFIG_VARIABLE))
    if not config and options.data_dir is None:
        raise ExitError(EXIT_USAGE, "name the node's settings file: fluxmqctl --config FILE ...")
    found: list[Finding] = []
    settings = None
    if config:
        settings, more = _loaded(config)
        found += more
    else:
        found.append(Finding(NOTE, "settings", "not checked: name their file with --config"))
    directory = options.data_dir or (None if settings is None else settings.storage.data_dir)
    if directory is None:
        text = "not checked until the settings are valid; --data-dir in place of --config checks it alone"
        found.append(Finding(NOTE, "data directory", text))
    else:
        placement, more = _directory(directory)
        if settings is not None:
            found += _settings(settings, placement)
        found += more
        found += _disk(directory, settings)
    found += _backup(options.backup)
    if directory is not None:
        found += _running(options, Path(directory), settings)
    lines = [str(each) for each in found]
    if any(each.kind == STOP for each in found):
        return lines, "not to be upgraded yet: see the lines that begin with stop"
    return [*lines, f"nothing stops an upgrade to FluxMQ {fluxmq.__version__}"], ""


def _loaded(config: str) -> tuple[Settings | None, list[Finding]]:
    try:
        return load(Path(config), os.environ), []
    except SettingsError as error:
        return None, [Finding(STOP, "settings", f"{config}: {each}") for each in error.problems]


def _settings(settings: Settings, placement: Placement | None) -> Iterator[Finding]:
    """Yield what this version says about valid settings."""
    workers = 0 if placement is None else placement.workers
    stops = refusals(settings, workers)
    yield from (Finding(STOP, "settings", each) for each in stops)
    yield from (Finding(NOTE, "settings", each) for each in notes(settings, workers))
    if not stops:
        yield Finding(OK, "settings", f"valid in FluxMQ {fluxmq.__version__}")


def _directory(directory: str) -> tuple[Placement | None, list[Finding]]:
    """Return the placement of groups on shards, and what there is to say about the format."""
    subject, files, paths = "data directory", Files(), DataPaths(directory)
    if not files.exists(directory):
        return None, [Finding(NOTE, subject, f"{directory} does not exist: a new node")]
    try:
        version = check_version(files, paths)
        placement = read_placement(files, paths)
    except StorageError as problem:
        return None, [Finding(STOP, subject, str(problem))]
    if version == FORMAT_VERSION:
        return placement, [Finding(OK, subject, f"format {version}, which stays")]
    text = (
        f"format {version}, which the first start raises to {FORMAT_VERSION}: earlier versions refuse it"
        " then, and there is no way back without a backup"
    )
    return placement, [Finding(NOTE, subject, text)]


def _disk(directory: str, settings: Settings | None) -> Iterator[Finding]:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return  # there is no directory yet
    free = disk.f_bavail * disk.f_frsize
    if settings is None:
        yield Finding(NOTE, "disk", f"{size(free)} free")
        return
    least = settings.storage.min_free_bytes
    text = f"{size(free)} free, storage.min_free_bytes is {size(least)}"
    if free < least:
        yield Finding(STOP, "disk", f"{text}: the node would refuse messages; make room first")
    else:
        yield Finding(OK, "disk", text)


def _backup(directory: str | None) -> Iterator[Finding]:
    if directory is None:
        yield Finding(NOTE, "backup", "not checked: name it with --backup DIR, or take one")
        return
    paths = DataPaths(directory)
    try:
        check_version(Files(), paths)
        # Written last when a backup is made.
        age = max(0.0, time.time() - Path(paths.version).stat().st_mtime)
    except (StorageError, OSError) as problem:
        yield Finding(STOP, "backup", f"cannot be used: {problem}")
        return
    old = age > BACKUP_SECONDS_MAX
    text = f"{directory} is {duration(age)} old"
    yield Finding(STOP if old else OK, "backup", f"{text}: take another" if old else text)


def _running(
    options: argparse.Namespace, directory: Path, settings: Settings | None
) -> Iterator[Finding]:
    """Yield what the node says that runs on the directory, if one does."""
    here: dict[str, Any] = {**vars(options), "config": None, "data_dir": str(directory)}
    clustered = settings is not None and settings.cluster.enabled
    if not data_directory.is_locked(directory):
        others = ": whether the others can do without it was not checked" if clustered else ""
        yield Finding(NOTE, "node", f"does not run{others}")
        return
    try:
        with TargetNode(argparse.Namespace(**here)).require() as caller:
            found = NodeDescription.from_body(caller.call(DESCRIBE_NODE, {}))
            outcomes = None
            if found.clustered:
                outcomes = GroupOutcomes.from_body(caller.call(CAN_STOP, {}))
    except (ExitError, FluxmqError, OSError) as problem:
        reason = str(problem) or "no answer in time"
        kind = STOP if clustered else NOTE
        yield Finding(kind, "node", f"{reason}; ask it with its own fluxmqctl can-stop")
        return
    same = found.version == fluxmq.__version__
    yield Finding(NOTE, "node", f"runs FluxMQ {found.version}{', as this is' if same else ''}")
    yield from (Finding(STOP, "node", f"is not ready: {each}") for each in found.problems)
    yield from (Finding(NOTE, "node", f"has an alarm: {each}") for each in found.alarms)
    if outcomes is not None:
        yield from cluster_findings(found, outcomes)


def cluster_findings(found: NodeDescription, outcomes: GroupOutcomes) -> Iterator[Finding]:
    """Yield what a node knows of its cluster. ``outcomes``: its answer to can-stop."""
    missing = [each for each in found.nodes if each not in found.running]
    if missing:
        yield Finding(STOP, "cluster", f"{found.name} has no contact with {', '.join(missing)}")
    failed = [each for each in outcomes.rows if each.problem]
    for each in failed:
        yield Finding(STOP, "cluster", f"can-stop: group {each.group!r}: {each.problem}")
    if not failed:
        text = f"can-stop: {len(outcomes.rows)} groups keep their quorum without {found.name}"
        yield Finding(OK, "cluster", text)
    others = [each for each in found.nodes if each != found.name]
    if others:
        text = f"versions of {', '.join(others)}: run this there, one node after the other"
        yield Finding(NOTE, "cluster", text)
