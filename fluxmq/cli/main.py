"""`fluxmqctl`: inspect a node, place its groups, manage its users, virtual hosts and policies.

Talks to the control process over the socket in the data directory. When no broker runs there, user
commands change the database directly, under the directory's lock. Passwords are read and hashed
here, and forgotten. Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no broker runs, 4 the broker
does not answer.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from fluxmq.cli.arguments import CLUSTER_COMMANDS, USER_COMMANDS, command_of, ordered, parser
from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.data_directory import LockedError
from fluxmq.cli.exits import EXIT_DONE, EXIT_NO_ANSWER, EXIT_REFUSED, ExitError, leave
from fluxmq.cli.node import TargetNode
from fluxmq.cli.tables import colour_allowed
from fluxmq.ipc.control_frames import FramingError
from fluxmq.ipc.messages import STATUS, MessageError, NodeStatus
from fluxmq.model.errors import FluxmqError

_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"


def _status(node: TargetNode, options: argparse.Namespace) -> None:
    with node.require() as caller:
        if options.watch is None:
            _show(NodeStatus.from_body(caller.call(STATUS, {})), options.json)
            return
        before: NodeStatus | None = None
        asked = 0.0
        while True:
            now = time.monotonic()
            status = NodeStatus.from_body(caller.call(STATUS, {}))
            if sys.stdout.isatty() and not options.json:
                sys.stdout.write(_CLEAR_SCREEN)
            _show(status, options.json, before, now - asked)
            before, asked = status, now
            time.sleep(options.watch)


def _show(
    status: NodeStatus, as_json: bool, before: NodeStatus | None = None, elapsed: float = 0.0
) -> None:
    from fluxmq.cli import status_view  # no other command needs it

    if as_json:
        print(orjson.dumps(status_view.to_json(status)).decode(), flush=True)
        return
    lines = status_view.lines(status, colour=colour_allowed(), before=before, elapsed=elapsed)
    print("\n".join(lines), flush=True)


def _ask(
    node: TargetNode,
    options: argparse.Namespace,
    command: Callable[[BrokerCaller, argparse.Namespace, bool], list[str]],
) -> None:
    """Run a command that needs a running broker and print its lines."""
    with node.require() as caller:
        print("\n".join(command(caller, options, colour_allowed())), flush=True)


def _complain(line: str) -> None:
    print(line, file=sys.stderr)


def _log(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import log_command  # takes long

    node.require_here(options.command)
    code = log_command.run(options, node.data_dir, print, _complain)
    if code != EXIT_DONE:
        raise SystemExit(code)


def _snapshot(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import snapshot_command  # takes long

    node.require_here(options.command)
    code = snapshot_command.run(options, node.data_dir, print, _complain)
    if code != EXIT_DONE:
        raise SystemExit(code)


def _force(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import force_command  # takes long

    node.require_here(options.command)
    print("\n".join(force_command.run(node, options)), flush=True)


def _queues(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import queue_commands

    if options.command in ("pin", "unpin"):
        node.wait_at_least(queue_commands.MOVE_SECONDS)
    _ask(node, options, getattr(queue_commands, options.command))


def _cluster(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import cluster_commands

    _ask(node, options, cluster_commands.COMMANDS[options.command])


def _backup(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import backup_command

    node.require_here(options.command)
    node.wait_at_least(backup_command.WAIT_SECONDS)
    _ask(node, options, backup_command.run)


def _queue_backup(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import queue_backup_command

    if options.command == queue_backup_command.BACKUP_NAME:
        node.require_here(options.command)
    print("\n".join(queue_backup_command.run(node, options)), flush=True)


def _migrate(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import migrate_command

    _ask(node, options, migrate_command.run)


def _import_mosquitto(_node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import mosquitto_command  # takes long

    print("\n".join(mosquitto_command.run(options)), flush=True)


def _upgrade_check(options: argparse.Namespace) -> None:
    from fluxmq.cli import upgrade_command  # takes long

    lines, refusal = upgrade_command.run(options)
    print("\n".join(lines), flush=True)
    if refusal:
        raise ExitError(EXIT_REFUSED, refusal)


def _join(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import join_command

    if options.command == join_command.JOIN:
        node.require_here(options.command)
        print("\n".join(join_command.join(node, options)), flush=True)
    else:
        print("\n".join(join_command.leave(node, options)), flush=True)


def _completion(_node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import completion
    from fluxmq.cli.rabbitmq_commands import COMMANDS

    sys.stdout.write(completion.script(options.shell, parser(), COMMANDS))


def _bench(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import bench_command

    print("\n".join(bench_command.run(node, options)), flush=True)


def _user(node: TargetNode, options: argparse.Namespace) -> None:
    from fluxmq.cli import user_commands

    print("\n".join(user_commands.COMMANDS[options.command](node, options)), flush=True)


def _verb(node: TargetNode, options: argparse.Namespace) -> None:
    lines = verb_of(options.command)(node, options)
    if lines:
        print("\n".join(lines), flush=True)


def verb_of(name: str) -> Callable[[TargetNode, argparse.Namespace], list[str]]:
    """Return a verb named after one of rabbitmqctl's, from the modules that load fastest first."""
    from fluxmq.cli import node_verbs

    if name in node_verbs.VERBS:
        return node_verbs.VERBS[name]
    from fluxmq.cli import health_verbs

    if name in health_verbs.VERBS:
        return health_verbs.VERBS[name]
    from fluxmq.cli import user_verbs

    if name in user_verbs.VERBS:
        return user_verbs.VERBS[name]
    from fluxmq.cli import verbs

    return verbs.VERBS[name]


_COMMANDS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], None]]] = {
    "status": _status,
    **dict.fromkeys(("groups", "queues", "pin", "unpin"), _queues),
    **dict.fromkeys(CLUSTER_COMMANDS, _cluster),
    "backup": _backup,
    "backup-queue": _queue_backup,
    "restore-queue": _queue_backup,
    "migrate-queue": _migrate,
    "force-quorum": _force,
    **dict.fromkeys(("join", "leave"), _join),
    "import-mosquitto": _import_mosquitto,
    "completion": _completion,
    "bench": _bench,
    "log verify": _log,
    "log stat": _log,
    "log dump": _log,
    "snapshot": _snapshot,
    **dict.fromkeys(USER_COMMANDS, _user),
}
"""Commands by name; all others are verbs."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. Entry point of ``fluxmqctl``."""
    leave(lambda: run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; messages go to standard output and standard
    error."""
    given = ordered(sys.argv[1:] if arguments is None else arguments)
    options = parser(command_of(given)).parse_args(given)
    try:
        execute(options)
    except ExitError as end:
        return _fail(end.code, str(end))
    except LockedError as locked:
        return _fail(EXIT_NO_ANSWER, str(locked))
    except TimeoutError:
        return _fail(EXIT_NO_ANSWER, "the broker did not answer in time")
    except BrokenPipeError:
        raise  # of the output, see `leave`
    except (FramingError, MessageError, ConnectionError) as problem:
        return _fail(EXIT_NO_ANSWER, f"the broker's answer is malformed: {problem}")
    except (FluxmqError, ValueError, OSError) as problem:
        return _fail(EXIT_REFUSED, str(problem))
    except KeyboardInterrupt:
        return EXIT_DONE if options.command == "status" else 130
    return EXIT_DONE


def execute(options: argparse.Namespace) -> None:
    """Run the command of a parsed command line. Raises what `run` turns into messages."""
    if options.command == "upgrade-check":
        # Settings that are not valid are part of its answer.
        _upgrade_check(options)
        return
    node = TargetNode(options)
    _COMMANDS.get(options.command, _verb)(node, options)
    for complaint in node.complaints:
        print(complaint, file=sys.stderr)


def _fail(code: int, text: str) -> int:
    print(f"fluxmqctl: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
