"""Placement of groups at start: created, or reconciled with the shards and pins of this start.

The supervisor is the placement's only writer until it starts its children; from then on the control
process is. When shards or pins differ from the last start, a separate program, which ends before
the shards start, first takes groups out of the old logs; then the placement is written, and only
then are the logs of shards that no longer exist removed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson

import fluxmq
from fluxmq import logs
from fluxmq.ipc.placements import placement_to_body
from fluxmq.model.errors import FluxmqError
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import (
    DataPaths,
    Placement,
    check_unplaced,
    delete_directory,
    read_placement,
    write_placement,
)
from fluxmq.storage.files import Files
from fluxmq.supervisor.placement import Plan

RELOCATE = ("-m", "fluxmq.shards.relocate")
"""Interpreter arguments for the program that takes groups out of old logs."""
UNFINISHED = ""
"""Not a group's name: listed among the moving groups until a start with another number of shards is
complete."""
LOGS = ("wal", "wal-buffered")
"""Log directories in a shard's directory."""

_INSTALLED = frozenset({"site-packages", "dist-packages"})

_log = logs.get_logger("fluxmq.supervisor")


class RelocationError(FluxmqError):
    """Groups could not be brought to their new shards; the reason is on standard error."""


def place(data_dir: Path, settings: Settings, plan: Plan) -> Placement:
    """Create or renew the placement of an opened data directory. Raises StorageError,
    RelocationError."""
    files, paths = Files(), DataPaths(str(data_dir))
    found = read_placement(files, paths)
    if found is None:
        check_unplaced(files, paths)
        first = Placement(plan.workers, settings.queue_manager.local_groups, plan.pins, revision=1)
        write_placement(files, paths, first)
        return first
    wanted = replace(
        found,
        workers=plan.workers,
        pins={**found.pins, **plan.pins},
        moving={},
        revision=found.revision + 1,
    )
    moves = (wanted.workers, wanted.pins) != (found.workers, found.pins)
    superfluous = _superfluous(files, paths, plan.workers)
    if found.workers != wanted.workers:
        # From here on sessions are between shards: the next start, whatever its options, must
        # finish the move.
        write_placement(files, paths, replace(found, moving={**found.moving, UNFINISHED: 0}))
    if moves or superfluous or found.moving:
        _relocate(data_dir, settings, wanted)
    if moves or found.moving:
        files.reach("placement.relocated")
        write_placement(files, paths, wanted)
    for directory in superfluous:
        delete_directory(files, directory)
    return read_placement(files, paths) or wanted


def notes(settings: Settings, placement: Placement) -> list[str]:
    """Return sentences about settings that the data directory does not follow."""
    wanted = settings.queue_manager.local_groups
    if wanted == placement.local_groups:
        return []
    kept = placement.local_groups
    return [
        f"queue_manager.local_groups is {wanted}; the data directory was created with {kept}, which it keeps"
    ]


def _superfluous(files: Files, paths: DataPaths, workers: int) -> list[str]:
    """Return the logs of shards that this start does not have."""
    if not files.exists(paths.shards):
        return []
    return [
        f"{paths.shards}/{name}/{log}"
        for name in files.listdir(paths.shards)
        if name.isdecimal() and int(name) >= workers
        for log in LOGS
        if files.exists(f"{paths.shards}/{name}/{log}")
    ]


def _relocate(data_dir: Path, settings: Settings, placement: Placement) -> None:
    """Run the program and wait for it; a stop signal ends it, and the start with it."""
    storage = settings.storage.model_copy(update={"data_dir": str(data_dir)})
    asked = {
        "parent": os.getpid(),
        "settings": settings.model_copy(update={"storage": storage}).model_dump_json(),
        "placement": placement_to_body(placement),
    }
    _log.info("moving groups to their shards", extra={"workers": placement.workers})
    try:
        ended = subprocess.run(
            [sys.executable, "-P", *RELOCATE],
            input=orjson.dumps(asked),
            stdout=subprocess.PIPE,
            env=_environment(),
            process_group=0,
            check=False,
        )
    except OSError as problem:
        raise RelocationError(f"groups could not be moved to their shards: {problem}") from problem
    if ended.returncode:
        how = (
            f"code {ended.returncode}"
            if ended.returncode > 0
            else signal.Signals(-ended.returncode).name
        )
        raise RelocationError(f"groups could not be moved to their shards: ended with {how}")
    moved = ended.stdout.decode().split()
    _log.info("groups moved to their shards", extra={"groups": len(moved)})


def _environment() -> dict[str, str]:
    """Return our environment, plus this package's location unless it is installed."""
    environment = dict(os.environ)
    root = Path(fluxmq.__file__).parent.parent
    if root.name not in _INSTALLED:
        known = environment.get("PYTHONPATH", "")
        if str(root) not in known.split(os.pathsep):
            environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else str(root)
    return environment
