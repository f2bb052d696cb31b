"""Password input for fluxmqctl: a file, standard input, or a prompt at the terminal.

Never a command-line argument: command lines are visible to every process of the machine.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from typing import BinaryIO

from fluxmq.auth.credentials import PASSWORD_BYTES_MAX
from fluxmq.model.errors import FluxmqError


class PasswordError(FluxmqError):
    """No usable password was given."""


def read_password(options: argparse.Namespace) -> str:
    """Return the password from the source the options name. Raises PasswordError, OSError for the
    file."""
    if options.password_file is not None:
        return password_in(options.password_file)
    if options.password_stdin:
        return _from_stream(sys.stdin.buffer, "standard input")
    if not sys.stdin.isatty():
        raise PasswordError("no terminal to prompt on: use --password-file or --password-stdin")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise PasswordError("the two passwords differ")
    return _checked(first, "password")


def password_in(path: str) -> str:
    """Return the password in a file, without its line end. Raises PasswordError, or OSError."""
    with open(path, "rb") as file:
        return _from_stream(file, path)


def _from_stream(stream: BinaryIO, name: str) -> str:
    # Two bytes beyond the limit: a line end, and one to detect that it is too long.
    data = stream.read(PASSWORD_BYTES_MAX + 3)
    for end in (b"\r\n", b"\n"):
        if data.endswith(end):
            data = data[: -len(end)]
            break
    try:
        return _checked(data.decode(), name)
    except UnicodeDecodeError:
        raise PasswordError(f"{name} is not UTF-8 text") from None


def _checked(password: str, name: str) -> str:
    if not password:
        raise PasswordError(f"{name} is empty")
    if len(password.encode("utf-8", "surrogatepass")) > PASSWORD_BYTES_MAX:
        raise PasswordError(f"{name} is longer than {PASSWORD_BYTES_MAX} bytes")
    if any(ord(character) < 0x20 or character == "\x7f" for character in password):
        raise PasswordError(f"{name} contains control characters or several lines")
    return password
