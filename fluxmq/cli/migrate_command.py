"""``fluxmqctl migrate-queue``: move a queue to another replication group while it is in use, or
cancel; or make a classic queue a quorum queue, which moves it.

The command waits until the queue has arrived. A move that has begun continues when the command is
interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Final

from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.ipc.migrations import MIGRATE_QUEUE, MIGRATION, Migrate, Migrating
from fluxmq.routing.topology.arguments import QUORUM
from fluxmq.routing.topology.names import DEFAULT_VHOST

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NAME: Final = "migrate-queue"
LOOK_SECONDS: Final = 0.1
"""Time between two polls of the queue's location."""
SAY_SECONDS: Final = 1.0
"""Time between two progress lines."""
WAIT_SECONDS: Final = 3600.0
"""Default time to wait for the queue's arrival."""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    text = "move a queue to another replication group, or make it a quorum queue, without downtime"
    added = commands.add_parser(NAME, help=text, description=text.capitalize() + ".")
    added.set_defaults(command=NAME)
    added.add_argument(
        "queue", metavar="QUEUE", help="the queue's name, or VHOST/NAME; omit the vhost '/'"
    )
    added.add_argument(
        "-p",
        "--vhost",
        metavar="VHOST",
        help=f"virtual host; QUEUE is then taken literally (default: {DEFAULT_VHOST})",
    )
    what = added.add_mutually_exclusive_group()
    what.add_argument("--to", "--group", metavar="GROUP", help="the destination group")
    what.add_argument(
        "--abort", action="store_true", help="cancel the move of a queue, which stays where it is"
    )
    added.add_argument(
        "--type",
        metavar="quorum",
        type=_type,
        help="make a classic queue, mirrored or not, a quorum queue; without a group, in the one that a new"
        " quorum queue would get",
    )
    added.add_argument(
        "--no-wait", action="store_true", help="do not wait until the move is complete"
    )
    added.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        default=WAIT_SECONDS,
        help="how long to wait until the move is complete (default: %(default)s)",
    )


def run(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Move a queue and wait until it has arrived."""
    vhost, name = place_of(options)
    wanted = wanted_of(options, vhost, name)
    begun = time.monotonic()
    where = Migrating.from_body(caller.call(MIGRATE_QUEUE, wanted.to_body()))
    if options.abort:
        return [f"queue {name!r} stays in group {where.group!r}"]
    source, target = where.group, options.to or where.moving_to or where.group
    if options.no_wait:
        return [f"queue {name!r} moves from group {source!r} to {target!r}"]
    said, next_say = "", 0.0
    while where.moving_to and time.monotonic() < begun + options.wait:
        line = f"queue {name!r} moves from {where.group!r} to {where.moving_to!r}"
        line += f": {where.progress}" if where.progress else ""
        if line != said and time.monotonic() >= next_say:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            said, next_say = line, time.monotonic() + SAY_SECONDS
        time.sleep(LOOK_SECONDS)
        where = Migrating.from_body(caller.call(MIGRATION, wanted.to_body()))
    if where.moving_to:
        raise ExitError(
            EXIT_REFUSED, f"queue {name!r} is still being moved; `{NAME} --abort` cancels the move"
        )
    if where.group != target or options.type not in (None, where.type):
        raise ExitError(EXIT_REFUSED, f"the move was aborted: {name!r} is in {where.group!r}")
    kind = f" as a {where.type} queue" if options.type else ""
    return [f"queue {name!r} is in group {where.group!r}{kind} ({time.monotonic() - begun:.1f} s)"]


def wanted_of(options: argparse.Namespace, vhost: str, name: str) -> Migrate:
    """Return the request. Exits when the options do not say what to do, or contradict each other."""
    if options.abort and options.type:
        raise ExitError(EXIT_USAGE, "--abort goes without --type")
    if not (options.to or options.abort or options.type):
        raise ExitError(EXIT_USAGE, "--to GROUP, --type quorum or --abort is missing")
    return Migrate(vhost, name, options.to or "", options.abort, options.type or "")


def _type(text: str) -> str:
    if text != QUORUM:
        raise argparse.ArgumentTypeError(
            f"{text!r}: classic queues can be made quorum queues, and no other change is possible"
        )
    return text


def place_of(options: argparse.Namespace) -> tuple[str, str]:
    """Return virtual host and name. Exits when the name is missing."""
    vhost, name = options.vhost, str(options.queue)
    if vhost is None:
        before, slash, after = name.rpartition("/")
        vhost, name = (before or DEFAULT_VHOST, after) if slash else (DEFAULT_VHOST, name)
    if not name:
        raise ExitError(EXIT_USAGE, "which queue?")
    return str(vhost), name
