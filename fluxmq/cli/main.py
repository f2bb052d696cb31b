"""`fluxmqctl`: inspect a node, place its groups, manage its users, virtual hosts and policies.

Talks to the control process over the socket in the data directory. When no broker runs there, user
commands change the database directly, under the directory's lock. Passwords are read and hashed
here, and forgotten. Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no broker runs, 4 the broker
does not answer.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from fluxmq.auth.users import User, name_problem, rules_problem
from fluxmq.cli import (
    backup_command,
    cluster_commands,
    force_command,
    log_command,
    migrate_command,
    mosquitto_command,
    queue_commands,
    snapshot_command,
    status_view,
    verbs,
)
from fluxmq.cli.arguments import ordered, parser
from fluxmq.cli.data_directory import LockedError
from fluxmq.cli.node import (
    EXIT_DONE,
    EXIT_NO_ANSWER,
    EXIT_REFUSED,
    EXIT_USAGE,
    ExitError,
    TargetNode,
)
from fluxmq.cli.passwords import PasswordError, read_password
from fluxmq.cli.tables import TextTable, columns
from fluxmq.control.metadata import ChangeError, MetadataError
from fluxmq.control.password_hashes import store_password
from fluxmq.ipc.control_frames import FramingError
from fluxmq.ipc.messages import (
    STATUS,
    USER_ADD,
    USER_DELETE,
    USER_ENABLE,
    USER_PASSWORD,
    USER_PERMIT,
    MessageError,
    NodeStatus,
)
from fluxmq.ipc.polling_client import CallError, ControlCaller
from fluxmq.ipc.user_messages import (
    UserAdd,
    UserDelete,
    UserEnable,
    UserPassword,
    UserPermit,
)

_WAITS: Final = {
    "pin": queue_commands.MOVE_SECONDS,
    "unpin": queue_commands.MOVE_SECONDS,
    backup_command.NAME: backup_command.WAIT_SECONDS,
}
"""Commands that take longer than most, with the minimum time to wait for their answer."""
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
    if as_json:
        print(orjson.dumps(status_view.to_json(status)).decode(), flush=True)
        return
    lines = status_view.lines(status, colour=_colour(), before=before, elapsed=elapsed)
    print("\n".join(lines), flush=True)


def _ask(
    node: TargetNode,
    options: argparse.Namespace,
    command: Callable[[ControlCaller, argparse.Namespace, bool], list[str]],
) -> None:
    """Run a command that needs a running broker and print its lines."""
    node.wait_at_least(_WAITS.get(options.command, 0.0))
    with node.require() as caller:
        print("\n".join(command(caller, options, _colour())), flush=True)


def _complain(line: str) -> None:
    print(line, file=sys.stderr)


def _log(node: TargetNode, options: argparse.Namespace) -> None:
    code = log_command.run(options, node.data_dir, print, _complain)
    if code != EXIT_DONE:
        raise SystemExit(code)


def _snapshot(node: TargetNode, options: argparse.Namespace) -> None:
    code = snapshot_command.run(options, node.data_dir, print, _complain)
    if code != EXIT_DONE:
        raise SystemExit(code)


def _force(node: TargetNode, options: argparse.Namespace) -> None:
    print("\n".join(force_command.run(node, options)), flush=True)


def _import_mosquitto(_node: TargetNode, options: argparse.Namespace) -> None:
    print("\n".join(mosquitto_command.run(options)), flush=True)


def _colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _user_add(node: TargetNode, options: argparse.Namespace) -> None:
    publish, subscribe = tuple(options.publish or ()), tuple(options.subscribe or ())
    _check(name_problem(options.name), rules_problem(publish), rules_problem(subscribe))
    stored = store_password(read_password(options), node.hash_parameters())
    user = User(options.name, stored.hash, stored.scram, publish, subscribe, enabled=True)
    node.change(USER_ADD, UserAdd(user).to_body())
    print(f"user {options.name!r} added")
    if not publish and not subscribe:
        print(
            "the user may not publish or subscribe to anything yet; see: fluxmqctl user permit -h"
        )


def _user_passwd(node: TargetNode, options: argparse.Namespace) -> None:
    stored = store_password(read_password(options), node.hash_parameters())
    body = UserPassword(options.name, stored.hash, stored.scram).to_body()
    node.change(USER_PASSWORD, body)
    print(f"password of {options.name!r} changed")


def _user_permit(node: TargetNode, options: argparse.Namespace) -> None:
    publish = () if options.no_publish else options.publish and tuple(options.publish)
    subscribe = () if options.no_subscribe else options.subscribe and tuple(options.subscribe)
    if publish is None and subscribe is None:
        raise ExitError(
            EXIT_USAGE, "say what to permit: --publish, --subscribe or their --no- forms"
        )
    _check(rules_problem(publish or ()), rules_problem(subscribe or ()))
    body = UserPermit(options.name, publish, subscribe).to_body()
    node.change(USER_PERMIT, body)
    print(f"permissions of {options.name!r} changed")


def _user_enable(node: TargetNode, options: argparse.Namespace) -> None:
    body = UserEnable(options.name, enabled=True).to_body()
    node.change(USER_ENABLE, body)
    print(f"user {options.name!r} enabled")


def _user_disable(node: TargetNode, options: argparse.Namespace) -> None:
    body = UserEnable(options.name, enabled=False).to_body()
    node.change(USER_ENABLE, body)
    print(f"user {options.name!r} disabled")


def _user_delete(node: TargetNode, options: argparse.Namespace) -> None:
    body = UserDelete(options.name).to_body()
    node.change(USER_DELETE, body)
    print(f"user {options.name!r} deleted")


def _user_list(node: TargetNode, options: argparse.Namespace) -> None:
    users = node.users()
    if options.json:
        for user in users:
            print(
                orjson.dumps(
                    {
                        "name": user.name,
                        "enabled": user.enabled,
                        "scram": user.scram,
                        "publish": user.publish,
                        "subscribe": user.subscribe,
                    }
                ).decode()
            )
        return
    table = TextTable(columns("USER, LOGIN, PUBLISH, SUBSCRIBE"))
    for number, user in enumerate(users):
        table.colours[number, 1] = "green" if user.enabled else "red"
        login = "enabled" if user.enabled else "disabled"
        rules = [" ".join(rules) or "-" for rules in (user.publish, user.subscribe)]
        table.rows.append([user.name, login, *rules])
    print("\n".join(table.lines(colour=_colour())) if users else "there are no users")


def _check(*problems: str | None) -> None:
    for problem in problems:
        if problem is not None:
            raise ExitError(EXIT_REFUSED, problem)


def _verb(node: TargetNode, options: argparse.Namespace) -> None:
    lines = verbs.VERBS[options.command](node, options)
    if lines:
        print("\n".join(lines), flush=True)


_COMMANDS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], None]]] = {
    "status": _status,
    "groups": lambda node, options: _ask(node, options, queue_commands.groups),
    "queues": lambda node, options: _ask(node, options, queue_commands.queues),
    "pin": lambda node, options: _ask(node, options, queue_commands.pin),
    "unpin": lambda node, options: _ask(node, options, queue_commands.unpin),
    **dict.fromkeys(
        cluster_commands.COMMANDS,
        lambda node, options: _ask(node, options, cluster_commands.COMMANDS[options.command]),
    ),
    backup_command.NAME: lambda node, options: _ask(node, options, backup_command.run),
    migrate_command.NAME: lambda node, options: _ask(node, options, migrate_command.run),
    force_command.NAME: _force,
    mosquitto_command.NAME: _import_mosquitto,
    "log verify": _log,
    "log stat": _log,
    "log dump": _log,
    "snapshot": _snapshot,
    "user add": _user_add,
    "user passwd": _user_passwd,
    "user permit": _user_permit,
    "user enable": _user_enable,
    "user disable": _user_disable,
    "user delete": _user_delete,
    "user list": _user_list,
    **dict.fromkeys(verbs.VERBS, _verb),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. Entry point of ``fluxmqctl``."""
    raise SystemExit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; messages go to standard output and standard
    error."""
    options = parser().parse_args(ordered(sys.argv[1:] if arguments is None else arguments))
    try:
        node = TargetNode(options)
        _COMMANDS[options.command](node, options)
        for complaint in node.complaints:
            print(complaint, file=sys.stderr)
    except ExitError as end:
        return _fail(end.code, str(end))
    except (CallError, ChangeError, PasswordError, MetadataError, ValueError) as refusal:
        return _fail(EXIT_REFUSED, str(refusal))
    except LockedError as locked:
        return _fail(EXIT_NO_ANSWER, str(locked))
    except TimeoutError:
        return _fail(EXIT_NO_ANSWER, "the broker did not answer in time")
    except (FramingError, MessageError, ConnectionError) as problem:
        return _fail(EXIT_NO_ANSWER, f"the broker's answer is malformed: {problem}")
    except (OSError, sqlite3.Error) as problem:
        return _fail(EXIT_REFUSED, str(problem))
    except KeyboardInterrupt:
        return EXIT_DONE if options.command == "status" else 130
    return EXIT_DONE


def _fail(code: int, text: str) -> int:
    print(f"fluxmqctl: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
