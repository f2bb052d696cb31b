"""`fluxmqctl`: look at a node, place its groups and keep its users.

Talks to the control process over the socket in the data directory; when no broker runs there, `user`
commands change the database directly, under the directory's lock. Passwords are read, hashed and
forgotten here. Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no broker runs, 4 the broker does not
answer.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import orjson

from fluxmq.admin import data_directory, log_command, queue_commands, status_view
from fluxmq.admin.arguments import parser
from fluxmq.admin.data_directory import LockedError
from fluxmq.admin.directory import change_of
from fluxmq.admin.hashing import parameters_of, store_password
from fluxmq.admin.metadata import ChangeError, MetadataError
from fluxmq.admin.passwords import PasswordError, read_password
from fluxmq.admin.tables import Column, Table
from fluxmq.auth.credentials import HashParameters
from fluxmq.auth.users import User, name_problem, rules_problem
from fluxmq.control.framing import FramingError
from fluxmq.control.messages import (
    HASHING,
    STATUS,
    USER_ADD,
    USER_DELETE,
    USER_ENABLE,
    USER_LIST,
    USER_PASSWORD,
    USER_PERMIT,
    Body,
    Message,
    MessageError,
    NodeStatus,
)
from fluxmq.control.polling import CallError, ControlCaller
from fluxmq.control.user_messages import (
    Hashing,
    UserAdd,
    UserChanged,
    UserDelete,
    UserEnable,
    UserListing,
    UserPassword,
    UserPermit,
    UserSummary,
)
from fluxmq.settings import Settings, SettingsError, load

EXIT_DONE: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_RUNNING: Final = 3
EXIT_NO_ANSWER: Final = 4

DATA_DIR_DEFAULT: Final = Path("./data")

_CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"


class _ExitError(Exception):
    """Ends the program with a code and a sentence on standard error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Node:
    """The node a command is about: its data directory, and its control process if one answers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._settings = _settings(options.config)
        if options.data_dir is not None:
            self.data_dir = Path(options.data_dir)
        elif self._settings is not None:
            self.data_dir = Path(self._settings.storage.data_dir)
        else:
            self.data_dir = DATA_DIR_DEFAULT
        self._timeout: float = options.timeout

    def wait_at_least(self, seconds: float) -> None:
        """Give the broker this long to answer, or longer when that was asked for."""
        self._timeout = max(self._timeout, seconds)

    def connect(self) -> ControlCaller | None:
        """Return a connection to the control process, None when no broker runs here.

        Ends the program when a broker runs but cannot be reached.
        """
        path = data_directory.control_socket(self.data_dir)
        try:
            return ControlCaller(path, self._timeout)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            if data_directory.is_locked(self.data_dir):
                raise _ExitError(
                    EXIT_NO_ANSWER,
                    f"the broker on {self.data_dir} is starting, stopping or restarting its"
                    " control process; try again in a moment",
                ) from None
            return None
        except OSError as problem:
            raise _ExitError(EXIT_NO_ANSWER, f"{path}: {problem.strerror or problem}") from None

    def hash_parameters(self) -> HashParameters:
        """Return the parameters the node hashes with: the broker's own, else the settings'."""
        caller = self.connect()
        if caller is not None:
            with caller:
                return Hashing.from_body(caller.call(HASHING, {})).parameters
        return HashParameters() if self._settings is None else parameters_of(self._settings)

    def change(self, kind: str, body: Body) -> UserChanged:
        """Make a change, through the broker or directly."""
        caller = self.connect()
        if caller is not None:
            with caller:
                return UserChanged.from_body(caller.call(kind, body))
        if kind == USER_ADD:
            # The first user is often made before the first start.
            self.data_dir.mkdir(mode=0o700, exist_ok=True)
        change = change_of(Message(kind, 1, body))
        with data_directory.opened_store(self.data_dir) as store:
            return UserChanged(change(store).revision, ())

    def users(self) -> tuple[UserSummary, ...]:
        """Return all users."""
        caller = self.connect()
        if caller is not None:
            with caller:
                return UserListing.from_body(caller.call(USER_LIST, {})).users
        if not self.data_dir.is_dir():
            raise _ExitError(EXIT_REFUSED, f"there is no data directory {self.data_dir}")
        with data_directory.opened_store(self.data_dir) as store:
            return tuple(UserSummary.of(user) for user in store.users().users)


def _settings(config: str | None) -> Settings | None:
    if config is None:
        return None
    try:
        return load(Path(config), os.environ)
    except SettingsError as error:
        problems = "\n".join(f"  {problem}" for problem in error.problems)
        raise _ExitError(EXIT_USAGE, f"{config} has problems:\n{problems}") from None


def _status(node: _Node, options: argparse.Namespace) -> None:
    caller = node.connect()
    if caller is None:
        raise _ExitError(EXIT_NOT_RUNNING, f"no broker is running on {node.data_dir}")
    with caller:
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
    node: _Node,
    options: argparse.Namespace,
    command: Callable[[ControlCaller, argparse.Namespace, bool], list[str]],
) -> None:
    """Run a command that only a running broker can answer, and print its lines."""
    if options.command in ("pin", "unpin"):
        node.wait_at_least(queue_commands.MOVE_SECONDS)
    caller = node.connect()
    if caller is None:
        raise _ExitError(EXIT_NOT_RUNNING, f"no broker is running on {node.data_dir}")
    with caller:
        print("\n".join(command(caller, options, _colour())), flush=True)


def _log(node: _Node, options: argparse.Namespace) -> None:
    def complain(line: str) -> None:
        print(line, file=sys.stderr)

    code = log_command.run(options, node.data_dir, print, complain)
    if code != EXIT_DONE:
        raise SystemExit(code)


def _colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _user_add(node: _Node, options: argparse.Namespace) -> None:
    publish, subscribe = tuple(options.publish or ()), tuple(options.subscribe or ())
    _check(name_problem(options.name), rules_problem(publish), rules_problem(subscribe))
    stored = store_password(read_password(options), node.hash_parameters())
    user = User(options.name, stored.hash, stored.scram, publish, subscribe, enabled=True)
    _changed(node.change(USER_ADD, UserAdd(user).to_body()), f"user {options.name!r} added")
    if not publish and not subscribe:
        print(
            "the user may not publish or subscribe to anything yet; see: fluxmqctl user permit -h"
        )


def _user_passwd(node: _Node, options: argparse.Namespace) -> None:
    stored = store_password(read_password(options), node.hash_parameters())
    body = UserPassword(options.name, stored.hash, stored.scram).to_body()
    _changed(node.change(USER_PASSWORD, body), f"password of {options.name!r} changed")


def _user_permit(node: _Node, options: argparse.Namespace) -> None:
    publish = () if options.no_publish else options.publish and tuple(options.publish)
    subscribe = () if options.no_subscribe else options.subscribe and tuple(options.subscribe)
    if publish is None and subscribe is None:
        raise _ExitError(
            EXIT_USAGE, "say what to permit: --publish, --subscribe or their --no- forms"
        )
    _check(rules_problem(publish or ()), rules_problem(subscribe or ()))
    body = UserPermit(options.name, publish, subscribe).to_body()
    _changed(node.change(USER_PERMIT, body), f"permissions of {options.name!r} changed")


def _user_enable(node: _Node, options: argparse.Namespace) -> None:
    body = UserEnable(options.name, enabled=True).to_body()
    _changed(node.change(USER_ENABLE, body), f"user {options.name!r} enabled")


def _user_disable(node: _Node, options: argparse.Namespace) -> None:
    body = UserEnable(options.name, enabled=False).to_body()
    _changed(node.change(USER_ENABLE, body), f"user {options.name!r} disabled")


def _user_delete(node: _Node, options: argparse.Namespace) -> None:
    body = UserDelete(options.name).to_body()
    _changed(node.change(USER_DELETE, body), f"user {options.name!r} deleted")


def _user_list(node: _Node, options: argparse.Namespace) -> None:
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
    table = Table([Column("USER"), Column("LOGIN"), Column("PUBLISH"), Column("SUBSCRIBE")])
    for number, user in enumerate(users):
        table.colours[number, 1] = "green" if user.enabled else "red"
        login = "enabled" if user.enabled else "disabled"
        rules = [" ".join(rules) or "-" for rules in (user.publish, user.subscribe)]
        table.rows.append([user.name, login, *rules])
    print("\n".join(table.lines(colour=_colour())) if users else "there are no users")


def _check(*problems: str | None) -> None:
    for problem in problems:
        if problem is not None:
            raise _ExitError(EXIT_REFUSED, problem)


def _changed(change: UserChanged, done: str) -> None:
    print(done)
    if change.unconfirmed:
        print(
            f"not confirmed in time by {', '.join(change.unconfirmed)}; takes effect there as soon"
            " as the process answers again",
            file=sys.stderr,
        )


_COMMANDS: Final[dict[str, Callable[[_Node, argparse.Namespace], None]]] = {
    "status": _status,
    "groups": lambda node, options: _ask(node, options, queue_commands.groups),
    "queues": lambda node, options: _ask(node, options, queue_commands.queues),
    "pin": lambda node, options: _ask(node, options, queue_commands.pin),
    "unpin": lambda node, options: _ask(node, options, queue_commands.unpin),
    "log verify": _log,
    "log stat": _log,
    "log dump": _log,
    "user add": _user_add,
    "user passwd": _user_passwd,
    "user permit": _user_permit,
    "user enable": _user_enable,
    "user disable": _user_disable,
    "user delete": _user_delete,
    "user list": _user_list,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. The entry of ``fluxmqctl``."""
    raise SystemExit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; messages go to standard output and error."""
    options = parser().parse_args(arguments)
    try:
        _COMMANDS[options.command](_Node(options), options)
    except _ExitError as end:
        return _fail(end.code, str(end))
    except (CallError, ChangeError, PasswordError, MetadataError, ValueError) as refusal:
        return _fail(EXIT_REFUSED, str(refusal))
    except LockedError as locked:
        return _fail(EXIT_NO_ANSWER, str(locked))
    except TimeoutError:
        return _fail(EXIT_NO_ANSWER, "the broker did not answer in time")
    except (FramingError, MessageError, ConnectionError) as problem:
        return _fail(EXIT_NO_ANSWER, f"the broker did not answer properly: {problem}")
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
