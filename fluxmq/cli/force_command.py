"""``fluxmqctl force-quorum``: declare a stopped node's copies of groups authoritative after their
majority is permanently lost.

A program of the shards (`fluxmq.shards.force_quorum`) forces queue groups, and one of the supervisor
(`fluxmq.supervisor.force_etcd`) the node's member of etcd. Without ``--this-copy-is-the-truth`` the command only reports what exists and
what would be given up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from fluxmq.cli import data_directory
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.node import TargetNode
from fluxmq.cli.tables import grouped
from fluxmq.settings import Settings
from fluxmq.settings.membership import effective, read_nodes

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NAME: Final = "force-quorum"
PROGRAM: Final = ("-m", "fluxmq.shards.force_quorum")
ETCD_PROGRAM: Final = ("-m", "fluxmq.supervisor.force_etcd")
ETCD: Final = "etcd"
"""Stands for the node's member of etcd among the names of groups."""

_WARNING: Final = """\
This makes this node's copy authoritative. Anything that other members acknowledged and this copy does not hold is lost,
and members that return set their copies aside. Use it only when a majority of the members is lost for good; stop the
remaining ones first. To go ahead, run the command again with --this-copy-is-the-truth."""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    text = "make this node's copy of a replicated group authoritative after a majority was lost for good"
    added = commands.add_parser(
        NAME,
        help=text,
        description=f"{text.capitalize()}. The node must be stopped; --config names its settings.",
    )
    added.set_defaults(command=NAME)
    which = added.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "group",
        metavar="GROUP",
        nargs="?",
        help=f"the group's name; {ETCD}: users, topology, sessions and retained messages",
    )
    which.add_argument(
        "--all",
        action="store_true",
        help=f"every replicated group of this node, and {ETCD}",
    )
    added.add_argument(
        "--this-copy-is-the-truth",
        action="store_true",
        dest="apply",
        help="do it; without this option the command only says what it would do",
    )


def run(node: TargetNode, options: argparse.Namespace) -> list[str]:
    """Inspect the groups, or force them; return the lines to print. Exits when that is
    impossible."""
    settings = node.settings
    if settings is None:
        raise ExitError(EXIT_USAGE, "name the node's settings file: fluxmqctl --config FILE ...")
    if not settings.cluster.enabled:
        raise ExitError(EXIT_REFUSED, "cluster.enabled is false: there are no replicated groups")
    if data_directory.is_locked(node.data_dir):
        raise ExitError(EXIT_REFUSED, "the broker is running; stop this node first")
    known = read_nodes(node.data_dir)
    settings = effective(settings, known.nodes, known.sets)
    lines: list[str] = []
    if options.group != ETCD:
        storage = settings.storage.model_copy(update={"data_dir": str(node.data_dir.absolute())})
        wanted = [] if options.all else [options.group]
        found = _of_shards(settings.model_copy(update={"storage": storage}), wanted, options.apply)
        lines += [_line(each, options.apply) for each in found]
    etcd = settings.cluster.member
    member = None if etcd is None else Path(etcd.directory(str(node.data_dir))) / "member"
    forced = member is not None and member.is_dir() and (options.all or options.group == ETCD)
    if forced:
        lines.append(_etcd(node, settings, apply=options.apply))
    elif options.group == ETCD:
        raise ExitError(
            EXIT_REFUSED, f"there is no member of etcd here: {member or 'see cluster.etcd'}"
        )
    elif member is not None:
        lines.append(f"{ETCD}: no member here; it begins with users and topology of this node")
    if not options.apply:
        raise ExitError(EXIT_USAGE, "\n".join((*lines, _WARNING)))
    nodes = "fluxmqctl grow GROUP NODE"
    if forced:
        lines.append(
            "Before you start other nodes, remove etcd in their data directories: they were left behind."
        )
    return [
        *lines,
        f"Start this node now. It is the only member of these groups; add others with: {nodes}",
    ]


def _of_shards(settings: Settings, groups: list[str], apply: bool) -> list[dict[str, Any]]:
    asked = {"settings": settings.model_dump_json(), "groups": groups, "apply": apply}
    ended = subprocess.run(
        [sys.executable, *PROGRAM], input=orjson.dumps(asked), capture_output=True, check=False
    )
    if ended.returncode:
        lines = ended.stderr.decode().strip().splitlines()
        raise ExitError(EXIT_REFUSED, lines[-1] if lines else f"code {ended.returncode}")
    return [orjson.loads(line) for line in ended.stdout.splitlines()]


def _line(found: dict[str, Any], apply: bool) -> str:
    done = "this copy is authoritative now" if apply else "would become authoritative"
    others = ", ".join(found["nodes"]) or "nobody"
    return (
        f"group {found['group']}: {done}, with entries up to {grouped(found['last'])} of term"
        f" {found['term']}; discarded: anything that {others} had beyond that"
    )


def _etcd(node: TargetNode, settings: Settings, *, apply: bool) -> str:
    if not apply:
        return f"{ETCD}: users, topology, sessions and retained messages of this node would become authoritative"
    ended = subprocess.run(
        [sys.executable, *ETCD_PROGRAM, str(node.data_dir.absolute())],
        input=settings.model_dump_json().encode(),
        capture_output=True,
        check=False,
    )
    if ended.returncode:
        lines = ended.stderr.decode().strip().splitlines()
        raise ExitError(EXIT_REFUSED, lines[-1] if lines else f"code {ended.returncode}")
    return f"{ETCD}: users, topology, sessions and retained messages of this node are authoritative now"
