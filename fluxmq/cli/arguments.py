"""Command line of `fluxmqctl`: commands, options and their help, nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import fluxmq
from fluxmq.cli.verb_arguments import add_verbs

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

TIMEOUT_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 1.0

_FILTERS: Final = (
    "may be given several times; {client_id} and {username} stand for the client's own"
)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("must be 0.1 to 3600 seconds")
    return seconds


_BEFORE_VERB: Final = {"-p", "--vhost", "--formatter"}
_FLAGS_BEFORE_VERB: Final = {"-q", "--quiet", "-s", "--silent", "--no-table-headers"}
_WITH_VALUE: Final = _BEFORE_VERB | {
    *("--config", "--data-dir", "-t", "--timeout"),
    *("--node", "--user", "--password-file", "--ca-file"),
}
CLUSTER_COMMANDS: Final = (
    *("raft", "members", "transfer", "rebalance", "can-stop", "audit"),
    *("grow", "shrink", "forget_node"),
)
USER_COMMANDS: Final = tuple(
    f"user {verb}" for verb in ("add", "passwd", "permit", "enable", "disable", "delete", "list")
)


def ordered(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with options that precede a verb moved behind it, as rabbitmqctl accepts
    them."""
    first: list[str] = []
    moved: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name, equals, _ = rest[0].partition("=")
        known = name in _BEFORE_VERB or name in _FLAGS_BEFORE_VERB
        alone = bool(equals) or name in _FLAGS_BEFORE_VERB or name not in _WITH_VALUE
        taken = rest[: 1 if alone else 2]
        del rest[: len(taken)]
        (moved if known else first).extend(taken)
    return [*first, *rest[:1], *moved, *rest[1:]]


def command_of(arguments: Sequence[str]) -> str | None:
    """Return the word that names the command in arguments that are `ordered`; None without one."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in _WITH_VALUE else 1]
    return rest[0] if rest else None


def parser(wanted: str | None = None, program: str = "fluxmqctl") -> argparse.ArgumentParser:
    """Return the parser; the chosen command is in `command` (``user add`` for ``user`` ``add``).

    With the name of a command, others that take long to load may be missing.
    """
    top = argparse.ArgumentParser(prog=program, description="Inspect and administer a FluxMQ node.")
    top.add_argument("--version", action="version", version=f"{program} {fluxmq.__version__}")
    where = top.add_mutually_exclusive_group()
    where.add_argument(
        "--config", metavar="FILE", help="settings file of the node, for its storage.data_dir"
    )
    where.add_argument(
        "--data-dir", metavar="DIR", help="data directory of the node (default: ./data)"
    )
    where.add_argument(
        "--node",
        dest="url",
        metavar="URL",
        help="management interface of a node on another machine: https://HOST[:15671] (default:"
        " FLUXMQ_NODE in the environment, unless the node is named otherwise)",
    )
    _login(top)
    top.add_argument(
        "-t",
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=TIMEOUT_SECONDS,
        help="how long to wait for the broker's answer (default: %(default)s)",
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    status = commands.add_parser("status", help="show the node's processes")
    status.set_defaults(command="status")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_seconds,
        const=WATCH_SECONDS,
        help="refresh every SECONDS (default: 1), with message rates, until Ctrl-C",
    )
    _queue_commands(commands)
    user = commands.add_parser("user", help="add, change, list and delete users")
    _user_commands(user.add_subparsers(metavar="COMMAND", required=True))
    add_verbs(commands)
    _others(commands, wanted)
    return top


def _others(commands: Commands, wanted: str | None) -> None:
    """Add the commands of modules that take long to load: one, if it is wanted, or all."""
    if wanted in commands.choices:
        return
    adders = [add for add, names in _ADDERS.items() if wanted in names]
    for add in adders or _ADDERS:
        add(commands)


def _add_cluster(commands: Commands) -> None:
    from fluxmq.cli import cluster_commands

    cluster_commands.add_parser(commands)


def _add_backup(commands: Commands) -> None:
    from fluxmq.cli import backup_command

    backup_command.add_parser(commands)


def _add_queue_backup(commands: Commands) -> None:
    from fluxmq.cli import queue_backup_command

    queue_backup_command.add_parser(commands)


def _add_force(commands: Commands) -> None:
    from fluxmq.cli import force_command

    force_command.add_parser(commands)


def _add_join(commands: Commands) -> None:
    from fluxmq.cli import join_command

    join_command.add_parser(commands)


def _add_migrate(commands: Commands) -> None:
    from fluxmq.cli import migrate_command

    migrate_command.add_parser(commands)


def _add_log(commands: Commands) -> None:
    from fluxmq.cli import log_command

    log_command.add_parser(commands)


def _add_snapshot(commands: Commands) -> None:
    from fluxmq.cli import snapshot_command

    snapshot_command.add_parser(commands)


def _add_mosquitto(commands: Commands) -> None:
    from fluxmq.cli import mosquitto_command

    mosquitto_command.add_parser(commands)


def _add_completion(commands: Commands) -> None:
    from fluxmq.cli import completion

    completion.add_parser(commands)


def _add_upgrade(commands: Commands) -> None:
    from fluxmq.cli import upgrade_command

    upgrade_command.add_parser(commands)


def _add_bench(commands: Commands) -> None:
    from fluxmq.cli import bench_command

    bench_command.add_parser(commands)


_ADDERS: Final[dict[Callable[[Commands], None], tuple[str, ...]]] = {
    _add_cluster: CLUSTER_COMMANDS,
    _add_backup: ("backup",),
    _add_queue_backup: ("backup-queue", "restore-queue"),
    _add_force: ("force-quorum",),
    _add_join: ("join", "leave"),
    _add_migrate: ("migrate-queue",),
    _add_log: ("log",),
    _add_snapshot: ("snapshot",),
    _add_mosquitto: ("import-mosquitto",),
    _add_upgrade: ("upgrade-check",),
    _add_completion: ("completion",),
    _add_bench: ("bench",),
}
"""Commands of modules of their own, in the order of the help."""


def _login(top: argparse.ArgumentParser) -> None:
    top.add_argument(
        "--user",
        dest="login",
        metavar="NAME",
        help="user to log in to --node as, an administrator; its password is in FLUXMQ_PASSWORD, in"
        " --password-file, or asked for",
    )
    top.add_argument(
        "--password-file",
        dest="login_password_file",
        metavar="FILE",
        help="read the password of --user from FILE",
    )
    top.add_argument(
        "--ca-file",
        metavar="FILE",
        help="authorities that may have issued the certificate of --node (default: the system's)",
    )
    top.add_argument(
        "--insecure-http",
        action="store_true",
        help="send the password to another machine although --node is http://",
    )


def _queue_commands(commands: Commands) -> None:
    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        added.set_defaults(command=name)
        return added

    groups = command("groups", "show the replication groups with the shard and the state of each")
    queues = command("queues", "show the queues and their consumer groups")
    for listing in (groups, queues):
        listing.add_argument("--json", action="store_true", help="print one JSON object")
    pin = command("pin", "move a replication group to a core, without downtime, and keep it there")
    pin.add_argument("group", metavar="GROUP", help="the group's name")
    pin.add_argument(
        "place",
        metavar="CORE",
        type=_place,
        help="core that a shard runs on, or shard-N for the shard with that number",
    )
    unpin = command("unpin", "return a replication group to the shard that its name hashes to")
    unpin.add_argument("group", metavar="GROUP", help="the group's name")


def _place(text: str) -> tuple[str, int]:
    """Return ("core", number) or ("shard", number)."""
    kind, number = ("shard", text[6:]) if text.startswith("shard-") else ("core", text)
    if not (number.isascii() and number.isdigit() and len(number) < 6):
        raise argparse.ArgumentTypeError("must be a core number or shard-N")
    return kind, int(number)


def _user_commands(commands: Commands) -> None:
    def command(name: str, text: str, *, named: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        added.set_defaults(command=f"user {name}")
        if named:
            added.add_argument("name", metavar="NAME", help="the user's name")
        return added

    add = command("add", "add a user")
    _filters(add)
    _password(add)
    _password(command("passwd", "change a user's password"))
    permit = command("permit", "replace a user's publish and subscribe filters")
    _filters(permit)
    permit.add_argument("--no-publish", action="store_true", help="remove all publish filters")
    permit.add_argument("--no-subscribe", action="store_true", help="remove all subscribe filters")
    command("enable", "allow a user to log in again")
    command("disable", "stop a user from logging in")
    command("delete", "delete a user")
    listing = command("list", "list all users", named=False)
    listing.add_argument("--json", action="store_true", help="print one JSON object per user")


def _filters(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--publish",
        metavar="FILTER",
        action="append",
        help=f"topic filter the user may publish to; {_FILTERS}",
    )
    command.add_argument(
        "--subscribe",
        metavar="FILTER",
        action="append",
        help=f"topic filter that covers what the user may subscribe to; {_FILTERS}",
    )


def _password(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--password-file",
        metavar="FILE",
        help="read the password from FILE, without its final newline (default: ask)",
    )
    source.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )
