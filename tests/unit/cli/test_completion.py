"""Completion of commands, options and values, asked of the shells that are installed."""

import os
import shutil
import subprocess
import sys

import pytest

from fluxmq.cli.arguments import parser
from fluxmq.cli.completion import SHELLS, script, walked
from fluxmq.cli.main import run
from fluxmq.cli.rabbitmq_commands import COMMANDS

CASES = [
    (["fluxmqctl", "list_q"], {"list_queues"}),
    (["fluxmqctl", "user", ""], {"add", "passwd", "permit", "enable", "disable", "delete", "list"}),
    (["fluxmqctl", "--timeout", "3", "user", "permit", "--no"], {"--no-publish", "--no-subscribe"}),
    (["fluxmqctl", "list_queues", "--formatter", ""], {"table", "pretty_table", "json", "csv"}),
    (["fluxmqctl", "--node", "user", "list_vhost_"], {"list_vhost_limits"}),
    (["fluxmqctl", "completion", ""], set(SHELLS)),
]


def script_of(shell: str) -> str:
    return script(shell, parser(), COMMANDS)


def ask(shell: str, text: str) -> set[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *options], input=text, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr == ""
    return {line.partition("\t")[0] for line in done.stdout.splitlines() if line}


@pytest.mark.parametrize(("words", "expected"), CASES, ids=range(len(CASES)))
def test_bash(words: list[str], expected: set[str]) -> None:
    given = " ".join(f"'{word}'" for word in words)
    found = ask(
        "bash",
        f"{script_of('bash')}\nCOMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _fluxmqctl\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n',
    )
    found = {each for each in found if each.startswith(words[-1])}
    assert found == {each for each in expected if each.startswith(words[-1])}


def test_bash_registers_all_programs_and_completes_files(tmp_path) -> None:
    lines = "complete -p fluxmqctl; complete -p rabbitmqctl; complete -p rabbitmq-diagnostics"
    lines += "; complete -p rabbitmq-queues"
    found = ask("bash", f"{script_of('bash')}\n{lines}\n")
    assert "complete -o filenames -F _fluxmqctl fluxmqctl" in found
    assert sum("list_queues" in each for each in found) == 3
    (tmp_path / "node.yaml").touch()
    begin = str(tmp_path / "no")
    found = ask(
        "bash",
        f"{script_of('bash')}\nCOMP_WORDS=(fluxmqctl --config {begin}); COMP_CWORD=2; _fluxmqctl\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n',
    )
    assert found == {str(tmp_path / "node.yaml")}


@pytest.mark.parametrize(("words", "expected"), CASES, ids=range(len(CASES)))
def test_zsh(words: list[str], expected: set[str]) -> None:
    """Outside of its line editor, so that every word is shown."""
    given = " ".join(f"'{word}'" for word in words)
    found = ask(
        "zsh",
        'compdef() { : }\n_files() { : }\ncompadd() { shift; print -l -- "$@" }\n'
        f"{script_of('zsh')}\nwords=({given}); CURRENT={len(words)}; _fluxmqctl\n",
    )
    assert {each for each in found if each.startswith(words[-1])} == expected


OF_FISH = [case for case in CASES if "--node" not in case[0]]
"""fish takes the value of an option for the command."""


@pytest.mark.parametrize(("words", "expected"), OF_FISH, ids=range(len(OF_FISH)))
def test_fish(words: list[str], expected: set[str]) -> None:
    line = " ".join(words)
    found = ask("fish", f"{script_of('fish')}\ncomplete -C '{line}'\n")
    assert expected <= found


def test_every_command_is_walked() -> None:
    paths = {level.path for level in walked(parser())}
    assert {"", "status", "user add", "log verify", "list_queues", "bench"} <= paths


def test_the_command_prints_the_script(capsys) -> None:
    assert run(["completion", "fish"]) == 0
    assert capsys.readouterr().out == script_of("fish")


@pytest.mark.parametrize(
    "entry",
    ["main.main(['completion', 'bash'])", "rabbitmq.rabbitmqctl()"],
    ids=["own", "rabbitmq"],
)
def test_an_output_that_is_closed_is_no_error(entry: str) -> None:
    """As by head: the script is longer than what a pipe holds."""
    code = f"import sys; sys.argv[1:] = ['help']\nfrom fluxmq.cli import main, rabbitmq\n{entry}"
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
