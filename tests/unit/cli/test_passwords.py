"""Where a password comes from, and what cannot be one."""

import argparse
import io
import sys

import pytest

from fluxmq.auth.credentials import PASSWORD_BYTES_MAX
from fluxmq.cli.passwords import PasswordError, read_password


def options(file=None, stdin=False):
    return argparse.Namespace(password_file=file, password_stdin=stdin)


class Input:
    """Standard input with these bytes, a terminal or not."""

    def __init__(self, data=b"", terminal=False):
        self.buffer = io.BytesIO(data)
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(
    ("data", "password"),
    [
        (b"secret", "secret"),
        (b"secret\n", "secret"),
        (b"secret\r\n", "secret"),
        (" gehörig ".encode(), " gehörig "),
        (b"x" * PASSWORD_BYTES_MAX + b"\n", "x" * PASSWORD_BYTES_MAX),
    ],
)
def test_a_file_and_standard_input_give_it_less_one_line_end(tmp_path, monkeypatch, data, password):
    file = tmp_path / "password"
    file.write_bytes(data)
    assert read_password(options(file=str(file))) == password
    monkeypatch.setattr(sys, "stdin", Input(data))
    assert read_password(options(stdin=True)) == password


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"\n\n", "several lines"),
        (b"a\nb", "several lines"),
        (b"a\x00", "control characters"),
        (b"\xff", "UTF-8"),
        (b"x" * (PASSWORD_BYTES_MAX + 1), "longer"),
        (b"x" * 10_000_000, "longer"),
    ],
)
def test_what_cannot_be_a_password(tmp_path, data, problem):
    file = tmp_path / "password"
    file.write_bytes(data)
    with pytest.raises(PasswordError, match=problem):
        read_password(options(file=str(file)))


def test_a_person_is_asked_twice(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Input(terminal=True))
    typed = iter(["one", "one", "one", "two"])
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(typed))
    assert read_password(options()) == "one"
    with pytest.raises(PasswordError, match="differ"):
        read_password(options())


def test_without_terminal_or_option_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Input())
    with pytest.raises(PasswordError, match="--password-stdin"):
        read_password(options())
