"""``fluxmqctl force-quorum``: declare a stopped node's copies of groups authoritative after their
majority is permanently lost.

A program of the shards (`fluxmq.shards.force_quorum`) forces queue groups; ``_meta`` is forced
here, in the database. Without ``--this-copy-is-the-truth`` the command only reports what exists and
what would be given up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import orjson

from fluxmq.cli import data_directory
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.node import TargetNode
from fluxmq.cli.tables import grouped
from fluxmq.settings import Settings
from fluxmq.settings.clustering import META_GROUP
from fluxmq.settings.plans import member_number

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NAME: Final = "force-quorum"
PROGRAM: Final = ("-m", "fluxmq.shards.force_quorum")

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
        help=f"the group's name; {META_GROUP}: users and topology",
    )
    which.add_argument(
        "--all", action="store_true", help=f"every replicated group of this node, and {META_GROUP}"
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
    lines: list[str] = []
    if options.group != META_GROUP:
        storage = settings.storage.model_copy(update={"data_dir": str(node.data_dir.absolute())})
        wanted = [] if options.all else [options.group]
        found = _of_shards(settings.model_copy(update={"storage": storage}), wanted, options.apply)
        lines += [_line(each, options.apply) for each in found]
    if options.all or options.group == META_GROUP:
        lines.append(_meta(node, settings, apply=options.apply))
    if not options.apply:
        raise ExitError(EXIT_USAGE, "\n".join((*lines, _WARNING)))
    nodes = "fluxmqctl grow GROUP NODE"
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


def _meta(node: TargetNode, settings: Settings, *, apply: bool) -> str:
    if not apply:
        return f"group {META_GROUP}: users and topology of this node would become authoritative"
    from fluxmq.control.meta.tables import MetaTables  # no other command needs it

    with data_directory.opened_store(node.data_dir) as store:
        name = settings.cluster.node_id
        last, term = MetaTables(store, name, member_number(name)).force()
    return (
        f"group {META_GROUP}: users and topology of this node are authoritative now, up to entry"
        f" {grouped(last)} of term {term}"
    )
