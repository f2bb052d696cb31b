"""``fluxmqctl backup DIR``: make a data directory that a broker can start from while the node
runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.queue_commands import size
from fluxmq.cli.tables import grouped
from fluxmq.ipc.backups import BACKUP, BackedUp, Backup

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NAME: Final = "backup"
RATE_DEFAULT: Final = "64MiB"
"""Bytes per second; leaves most of an ordinary disk to clients."""
WAIT_SECONDS: Final = 86_400.0


def _rate(text: str) -> int:
    from fluxmq.settings.values import parse_size  # the whole of the settings

    try:
        return parse_size(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    text = "write a backup of the node: queues, sessions, retained messages, users, topology"
    added = commands.add_parser(
        NAME,
        help=text,
        description=f"{text.capitalize()}. The node keeps running. To use the backup, start a broker with DIR, or a"
        " copy of it, as storage.data_dir.",
    )
    added.set_defaults(command=NAME)
    added.add_argument("directory", metavar="DIR", help="directory to create; must not exist")
    added.add_argument(
        "--rate",
        metavar="SIZE",
        type=_rate,
        default=RATE_DEFAULT,
        help=f"queue bytes to copy per second, such as 200MiB; 0 for no limit (default: {RATE_DEFAULT})",
    )
    added.add_argument("--json", action="store_true", help="print one JSON object")


def run(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Make the backup and return lines about its contents."""
    target = Path(options.directory).absolute()
    done = BackedUp.from_body(caller.call(BACKUP, Backup(str(target), options.rate).to_body()))
    if options.json:
        return [orjson.dumps({"directory": str(target), **done.to_body()}).decode()]
    return [
        f"{target}: {grouped(done.queues)} queues in {grouped(done.groups)} groups, {size(done.bytes)}"
    ]
