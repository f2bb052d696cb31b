"""fluxmqctl under the names ``rabbitmqctl``, ``rabbitmq-diagnostics`` and ``rabbitmq-queues``, for scripts
written for them.

Commands, options, headings and exit codes are those of RabbitMQ 3.10's programs; RabbitMQ's commands
that have no meaning here are refused with a sentence that names what to use instead
(`fluxmq.cli.rabbitmq_commands`). Options may stand anywhere, as there. ``-n`` takes the name of the node
on this machine, or the address of a management interface.

Exit codes (sysexits): 0 done, 64 wrong usage, 65 bad value, 67 no such user, 69 refused or no answer,
70 failed, 75 no answer in time.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fluxmq.cli.arguments import parser
from fluxmq.cli.data_directory import LockedError
from fluxmq.cli.exits import EXIT_USAGE, ExitError, leave
from fluxmq.cli.formats import FORMATTERS
from fluxmq.cli.main import execute
from fluxmq.cli.node import CONFIG_VARIABLE, DATA_DIR_VARIABLE, NODE_VARIABLE
from fluxmq.cli.rabbitmq_commands import COMMANDS, REFUSED
from fluxmq.cli.rabbitmq_errors import EX_UNAVAILABLE, EX_USAGE, away, heading, worded
from fluxmq.cli.rabbitmq_output import OUTPUT
from fluxmq.ipc.control_frames import FramingError
from fluxmq.ipc.messages import MessageError
from fluxmq.model.errors import FluxmqError

EX_TEMPFAIL: Final = 75
TIMEOUT_SECONDS: Final = 60.0
CONFIG_DEFAULT: Final = Path("/etc/fluxmq/fluxmq.yaml")
"""Settings file that names the node if nothing else does, and if it exists."""

_WITH_VALUE: Final = {
    **dict.fromkeys(("-n", "--node"), "node"),
    **dict.fromkeys(("-t", "--timeout"), "timeout"),
    **dict.fromkeys(("-p", "--vhost"), "vhost"),
    **{
        f"--{name}": name.replace("-", "_")
        for name in ("formatter", "config", "data-dir", "ca-file")
    },
    **{f"--{name}": name for name in ("user",)},
}
_FLAGS: Final = {
    **dict.fromkeys(("-q", "--quiet"), "quiet"),
    **dict.fromkeys(("-s", "--silent"), "silent"),
    **dict.fromkeys(("-?", "--help"), "help"),
    "--insecure-http": "insecure_http",
    "--no-table-headers": "no_table_headers",
}
_IGNORED: Final = ("-l", "--longnames", "--print-stacktrace", "--online")
_IGNORED_WITH_VALUE: Final = (
    *("--printer", "--script-name", "--erlang-cookie", "--rabbitmq-home", "--mnesia-dir"),
    *("--plugins-dir", "--enabled-plugins-file", "--aliases-file"),
)
"""Options about Erlang, which say nothing here."""
_RENAMED: Final = {"forget_cluster_node": "forget_node"}


class CommandLine(NamedTuple):
    """A command line: its command, the command's arguments, and the options that all commands have."""

    command: str
    arguments: list[str]
    options: dict[str, str]


def rabbitmqctl() -> None:
    """Run one command and exit with its code. Entry point of ``rabbitmqctl``."""
    leave(lambda: run("rabbitmqctl", sys.argv[1:]))


def rabbitmq_diagnostics() -> None:
    """Run one command and exit with its code. Entry point of ``rabbitmq-diagnostics``."""
    leave(lambda: run("rabbitmq-diagnostics", sys.argv[1:]))


def rabbitmq_queues() -> None:
    """Run one command and exit with its code. Entry point of ``rabbitmq-queues``."""
    leave(lambda: run("rabbitmq-queues", sys.argv[1:]))


def run(program: str, arguments: Sequence[str]) -> int:
    """Run one command under a program's name and return its exit code."""
    try:
        given = split(arguments)
    except ExitError as problem:
        return _complain(EX_USAGE, f"Error (argument validation): {problem}")
    command = given.command
    if command in ("", "help") or "help" in given.options:
        return _help(program, given)
    if command in REFUSED:
        return _complain(EX_UNAVAILABLE, f"Error:\n{command} is not supported: {REFUSED[command]}")
    if command not in COMMANDS:
        return _complain(EX_USAGE, _unknown(command))
    try:
        options = _parsed(program, given)
    except SystemExit as end:  # the parser has said why
        return EX_USAGE if end.code else 0
    except ExitError as problem:
        return _complain(EX_USAGE, f"Error (argument validation): {problem}")
    return _run(given, options)


def split(arguments: Sequence[str]) -> CommandLine:
    """Take the options that all commands have out of a command line. Raises ExitError."""
    options: dict[str, str] = {}
    left: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            left += [word, *rest]
            break
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            options[_FLAGS[word]] = "true"
        elif name in _WITH_VALUE or name in _IGNORED_WITH_VALUE:
            if not equals and not rest:
                raise ExitError(EXIT_USAGE, f"{name} needs a value")
            found = value if equals else rest.pop(0)
            if name in _WITH_VALUE:
                options[_WITH_VALUE[name]] = found
        elif word not in _IGNORED:
            left.append(word)
    return CommandLine(left[0] if left else "", left[1:], options)


def _parsed(program: str, given: CommandLine) -> argparse.Namespace:
    """Return the options of a command, as fluxmqctl's parser has them. Raises ExitError or
    SystemExit."""
    command = _RENAMED.get(given.command, given.command)
    if command == "version":
        options = argparse.Namespace(command=command)
    else:
        options = parser(command, program).parse_args([command, *given.arguments])
    for name, default in _DEFAULTS.items():
        if not hasattr(options, name):
            setattr(options, name, default)
    for flag in ("quiet", "silent", "no_table_headers", "insecure_http"):
        setattr(options, flag, flag in given.options)
    options.command = command
    options.timeout = _seconds(given.options.get("timeout", ""))
    if command == "await_startup" and "timeout" in given.options:
        options.wait = options.timeout
    if command == "list_user_topic_permissions":
        options.no_table_headers = True  # RabbitMQ's has none
    options.vhost = given.options.get("vhost", options.vhost)
    options.formatter = given.options.get("formatter", options.formatter)
    if options.formatter not in FORMATTERS:
        raise ExitError(EXIT_USAGE, f"the formatter is none of {', '.join(FORMATTERS)}")
    options.login = given.options.get("user")
    options.ca_file = given.options.get("ca_file")
    options.data_dir, options.config = given.options.get("data_dir"), given.options.get("config")
    _place(options, given.options.get("node", ""))
    return options


_DEFAULTS: Final[dict[str, object]] = {
    "vhost": "/",
    "formatter": "table",
    "url": None,
    "login_password_file": None,
}


def _place(options: argparse.Namespace, node: str) -> None:
    """Say which node is meant: by address, or this machine's. Raises ExitError for another."""
    options.url = node if "://" in node else None
    if options.url is None and node and not _is_here(node):
        raise ExitError(
            EXIT_USAGE,
            f"{node} is not on this machine: name its management interface, -n https://HOST:15671"
            " --user NAME",
        )
    named = options.data_dir or options.config or options.url
    if named or any(
        each in os.environ for each in (NODE_VARIABLE, CONFIG_VARIABLE, DATA_DIR_VARIABLE)
    ):
        return
    if CONFIG_DEFAULT.is_file():
        options.config = str(CONFIG_DEFAULT)


def _is_here(node: str) -> bool:
    """Return whether a node's name, ``rabbit@host`` or ``rabbit``, may be that of this machine's."""
    _, at, host = node.partition("@")
    own = socket.gethostname()
    return not at or host in ("localhost", own, own.partition(".")[0], socket.getfqdn())


def _seconds(text: str) -> float:
    if text in ("", "infinity"):
        return TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise ExitError(EXIT_USAGE, f"--timeout: {text!r} is not a number of seconds")
    return seconds


def _run(given: CommandLine, options: argparse.Namespace) -> int:
    """Run a command; turn what goes wrong into RabbitMQ's words and codes."""
    node = given.options.get("node") or socket.gethostname()
    try:
        output = OUTPUT.get(options.command)
        if output is None:
            execute(options)
        else:
            output(options)
    except TimeoutError:
        return _complain(
            EX_TEMPFAIL,
            f"Error: operation {given.command} on node {node} timed out. Timeout value used:"
            f" {options.timeout:g}",
        )
    except BrokenPipeError:
        raise  # of the output, see `leave`
    except (FramingError, MessageError, LockedError, ConnectionError) as problem:
        return _complain(EX_UNAVAILABLE, away(node, str(problem)))
    except (ExitError, FluxmqError, ValueError, OSError) as problem:
        code, text = worded(problem, node, options)
        title = heading(options) if code != EX_USAGE or options.command == "delete_queue" else ""
        if title:
            sys.stdout.write(title + "\n")
        return _complain(code, text) if code else 0
    except KeyboardInterrupt:
        return 130
    return 0


def _unknown(command: str) -> str:
    import difflib  # no command that exists needs it

    near = difflib.get_close_matches(command, COMMANDS, 1)
    return f"\nCommand '{command}' not found. " + (f"\nDid you mean '{near[0]}'? " if near else "")


def _help(program: str, given: CommandLine) -> int:
    wanted = given.command if given.command not in ("", "help") else "".join(given.arguments[:1])
    if wanted in COMMANDS and wanted != "version":
        try:
            parser(_RENAMED.get(wanted, wanted), program).parse_args(
                [_RENAMED.get(wanted, wanted), "--help"]
            )
        except SystemExit:
            return 0
    lines = [
        "",
        "Usage",
        "",
        f"{program} [--node <node | URL>] [--timeout <seconds>] [--quiet] [--silent] <command> [...]",
        "",
        "Available commands:",
        "",
        *(f"   {name}" for name in COMMANDS),
        "",
        "fluxmqctl has these and more; use 'help <command>' to learn more about one",
    ]
    asked = given.command == "help" or "help" in given.options
    out = sys.stdout if asked else sys.stderr
    out.write("\n".join(lines) + "\n")
    return 0 if asked else EX_USAGE


def _complain(code: int, text: str) -> int:
    sys.stderr.write(text + "\n")
    return code
