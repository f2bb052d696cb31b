"""A node on another machine: its address, its password, and what is refused before anything is sent."""

import pytest

from fluxmq.cli.arguments import ordered, parser
from fluxmq.cli.exits import ExitError
from fluxmq.cli.main import run
from fluxmq.cli.node import TargetNode
from fluxmq.cli.remote import RemoteNode, is_loopback


def options(*arguments: str):
    return parser("ping").parse_args(ordered([*arguments, "ping"]))


def node(url: str, *arguments: str) -> RemoteNode:
    return RemoteNode(url, options("--user", "ann", *arguments))


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://broker.example", "broker.example", 15671),
        ("https://broker.example:8443/", "broker.example", 8443),
        ("http://127.0.0.1", "127.0.0.1", 15672),
        ("http://localhost:1", "localhost", 1),
        ("http://[::1]:2", "::1", 2),
    ],
)
def test_an_address_has_a_scheme_a_host_and_perhaps_a_port(url: str, host: str, port: int) -> None:
    found = node(url)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize(
    "url",
    ["broker", "ftp://b", "https://", "https://b/api", "https://b:0", "https://b:x", "https://[b"],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ExitError, match="https://HOST"):
        node(url)


def test_a_password_crosses_the_network_in_clear_text_only_on_request() -> None:
    with pytest.raises(ExitError, match="--insecure-http"):
        node("http://10.0.0.1")
    assert node("http://10.0.0.1", "--insecure-http").port == 15672
    assert [is_loopback(each) for each in ("127.8.9.1", "::1", "localhost", "10.0.0.1", "b")] == [
        *(True, True, True),
        *(False, False),
    ]


def test_somebody_has_to_log_in() -> None:
    with pytest.raises(ExitError, match="--user NAME"):
        RemoteNode("https://b", options()).authorization()


def test_the_password_comes_from_a_file_or_the_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FLUXMQ_PASSWORD", "from outside")
    assert node("https://b").authorization() == "Basic YW5uOmZyb20gb3V0c2lkZQ=="
    in_address = RemoteNode("https://ann@b", options())
    assert in_address.authorization() == node("https://b").authorization()
    path = tmp_path / "password"
    path.write_text("of a file\n")
    given = node("https://b", "--password-file", str(path))
    assert given.authorization() == "Basic YW5uOm9mIGEgZmlsZQ=="
    monkeypatch.delenv("FLUXMQ_PASSWORD")
    with pytest.raises(ExitError, match="FLUXMQ_PASSWORD"):
        node("https://b").authorization()


def test_authorities_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(ExitError, match="--ca-file"):
        node("https://b", "--ca-file", str(tmp_path / "none"))


def test_the_environment_names_a_node_unless_the_command_line_does(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FLUXMQ_NODE", "https://b")
    assert TargetNode(options("--user", "ann")).host == "b"
    assert TargetNode(options("--data-dir", str(tmp_path))).host is None
    monkeypatch.delenv("FLUXMQ_NODE")
    with pytest.raises(ExitError, match="--node"):
        TargetNode(options("--user", "ann"))


def test_the_environment_names_the_data_directory(tmp_path, monkeypatch) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(
        'server: {mqtt: {tcp: {addr: "127.0.0.1:1"}}}\nstorage: {data_dir: /elsewhere}\n'
    )
    monkeypatch.setenv("FLUXMQ_CONFIG", str(config))
    assert str(TargetNode(options()).data_dir) == "/elsewhere"
    monkeypatch.setenv("FLUXMQ__STORAGE__DATA_DIR", "/there")
    assert str(TargetNode(options()).data_dir) == "/there"
    assert TargetNode(options("--data-dir", str(tmp_path))).data_dir == tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "log stat",
        "snapshot q /tmp/x",
        "backup /tmp/x",
        "backup-queue q /tmp/x",
        "force-quorum --all",
        "upgrade-check",
    ],
)
def test_commands_on_files_are_refused_for_another_machine(command: str, capsys) -> None:
    code = run(["--node", "https://b", "--user", "ann", *command.split()])
    assert code == 2
    assert "run it on that machine" in capsys.readouterr().err
