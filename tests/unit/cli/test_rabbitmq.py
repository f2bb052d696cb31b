"""The names of RabbitMQ's programs: command lines, refusals and exit codes. Broker: `tests.integration.test_remote_control`."""

import socket

import pytest

from fluxmq.cli import rabbitmq
from fluxmq.cli.arguments import parser
from fluxmq.cli.completion import walked
from fluxmq.cli.exits import ExitError
from fluxmq.cli.main import verb_of
from fluxmq.cli.rabbitmq import run, split
from fluxmq.cli.rabbitmq_commands import COMMANDS, REFUSED
from fluxmq.cli.rabbitmq_output import OUTPUT


def test_common_options_may_stand_anywhere() -> None:
    given = split(
        ["-q", "list_queues", "-n", "rabbit@b", "name", "--vhost=v", "-t", "5", "messages"]
    )
    assert given == (
        "list_queues",
        ["name", "messages"],
        {"quiet": "true", "node": "rabbit@b", "vhost": "v", "timeout": "5"},
    )
    assert split(["--longnames", "--erlang-cookie", "x", "ping"]) == ("ping", [], {})
    assert split(["set_permissions", "--", "-n", "x"]).arguments == ["--", "-n", "x"]
    assert split([]).command == ""
    with pytest.raises(ExitError, match="needs a value"):
        split(["ping", "-n"])


def test_every_command_exists_once() -> None:
    assert not set(COMMANDS) & set(REFUSED)
    assert len(set(COMMANDS)) == len(COMMANDS)
    assert set(OUTPUT) <= set(COMMANDS)
    paths = {level.path for level in walked(parser())}
    for name in set(COMMANDS) - {"version"}:
        own = rabbitmq._RENAMED.get(name, name)
        assert own in paths
        if own not in ("status", "forget_node", "rebalance"):
            assert callable(verb_of(own))


@pytest.mark.parametrize("command", sorted(REFUSED))
def test_commands_without_a_meaning_say_what_to_use(command: str, capsys) -> None:
    assert run("rabbitmqctl", [command, "argument"]) == 69
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"Error:\n{command} is not supported: ")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("list_quues", 64, "Command 'list_quues' not found. \nDid you mean 'list_queues'?"),
        ("pin g 1", 64, "Command 'pin' not found."),
        ("ping -n rabbit@elsewhere", 64, "-n https://HOST:15671"),
        ("ping -n https://b", 64, "--user NAME"),
        ("ping -t soon", 64, "not a number of seconds"),
        ("list_users --formatter erlang", 64, "formatter is none of"),
        ("add_user", 64, "usage: rabbitmqctl add_user"),
        ("list_queues no_such_column", 64, "have no column 'no_such_column'"),
        ("", 64, "Available commands"),
        ("ping --data-dir /no/such/directory", 69, "unable to perform an operation on node"),
        ("set_policy --data-dir /no p ^q {", 69, "not JSON"),
    ],
)
def test_wrong_command_lines(arguments: str, code: int, said: str, capsys) -> None:
    assert run("rabbitmqctl", arguments.split()) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["help", "help list_queues", "list_queues --help", "--help"])
def test_help_is_no_error(arguments: str, capsys) -> None:
    assert run("rabbitmq-diagnostics", arguments.split()) == 0
    assert "rabbitmq-diagnostics" in capsys.readouterr().out


def test_rebalance_takes_the_types_of_queues_whose_leaders_move(capsys) -> None:
    assert run("rabbitmq-queues", ["rebalance", "classic", "--data-dir", "/no"]) == 64
    assert "choose from" in capsys.readouterr().err
    for kind in ("all", "quorum", "stream"):
        assert run("rabbitmq-queues", f"rebalance {kind} --data-dir /no".split()) == 69
        assert "unable to perform an operation on node" in capsys.readouterr().err
    assert run("rabbitmq-queues", ["grow", "node1", "all"]) == 69
    assert "fluxmqctl grow and shrink" in capsys.readouterr().err


def test_version(capsys) -> None:
    assert run("rabbitmqctl", ["version"]) == 0
    assert capsys.readouterr().out.count(".") == 2


def test_the_node_may_be_named_as_rabbitmq_names_this_machine(capsys) -> None:
    host = socket.gethostname()
    for name in (
        "rabbit",
        "rabbit@localhost",
        f"rabbit@{host}",
        f"broker-1@{host.partition('.')[0]}",
    ):
        assert run("rabbitmqctl", ["ping", "-n", name, "--data-dir", "/no"]) == 69


def test_the_usual_settings_file_names_the_node(tmp_path, monkeypatch, capsys) -> None:
    config = tmp_path / "fluxmq.yaml"
    config.write_text(
        f'server: {{mqtt: {{tcp: {{addr: "127.0.0.1:1"}}}}}}\nstorage: {{data_dir: {tmp_path}}}'
    )
    monkeypatch.setattr(rabbitmq, "CONFIG_DEFAULT", config)
    assert run("rabbitmqctl", ["list_vhosts"]) == 69
    assert f"no broker is running on {tmp_path}" in capsys.readouterr().err
