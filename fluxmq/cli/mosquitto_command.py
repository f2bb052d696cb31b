"""``fluxmqctl import-mosquitto``: make settings and definitions from mosquitto's files. No broker is
needed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
import yaml

from fluxmq.cli.exits import EXIT_REFUSED, ExitError
from fluxmq.cli.mosquitto_files import convert, file_named

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NAME: Final = "import-mosquitto"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size of a file to convert: far above any real one."""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    text = "make settings and definitions from mosquitto's configuration, passwords and rules"
    added = commands.add_parser(NAME, help=text, description=f"{text.capitalize()}.")
    added.set_defaults(command=NAME)
    added.add_argument("file", metavar="MOSQUITTO_CONF", help="mosquitto's configuration file")
    for option, default, what in (
        ("--settings", "fluxmq.yaml", "settings file to create"),
        ("--definitions", "definitions.json", "file of users to create"),
    ):
        added.add_argument(
            option, metavar="FILE", default=default, help=f"{what} (default: %(default)s)"
        )


def run(options: argparse.Namespace) -> list[str]:
    """Write both files and return lines about them. Exits when something cannot be converted."""
    source = Path(options.file)
    conf = _text(source)
    passwords, rules = (
        _text(source.parent / name) if name else ""
        for name in (file_named(conf, each) for each in ("password_file", "acl_file"))
    )
    try:
        made = convert(conf, passwords, rules)
    except ValueError as problem:
        raise ExitError(EXIT_REFUSED, f"{source}: {problem}") from None
    _create(options.settings, yaml.safe_dump(made.settings, sort_keys=False).encode())
    _create(options.definitions, orjson.dumps(made.definitions, option=orjson.OPT_INDENT_2))
    users = len(made.definitions["users"])
    return [
        *made.notes,
        f"settings: {options.settings}; {users} user(s): {options.definitions}; next:",
        f"  fluxmq-supervisor --config {options.settings} --workers auto",
        f"  fluxmqctl --config {options.settings} import_definitions {options.definitions}",
    ]


def _text(path: Path) -> str:
    """Return a file's text. Exits when it cannot be read."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ExitError(EXIT_REFUSED, f"{path} has more than {FILE_BYTES_MAX} bytes")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ExitError(EXIT_REFUSED, f"{path}: {problem}") from None


def _create(path: str, contents: bytes) -> None:
    """Create a file for the user alone: it may contain hashes. Exits when it exists."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(contents)
    except OSError as problem:
        raise ExitError(EXIT_REFUSED, f"{path}: {problem.strerror}") from None
