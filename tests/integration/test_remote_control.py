"""fluxmqctl from another machine, and under RabbitMQ's names, against a running broker."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fluxmq.cli.main import run as fluxmqctl
from fluxmq.cli.rabbitmq import run as rabbitmq
from fluxmq.ipc.backups import BACKUP
from fluxmq.ipc.control_frames import decode_value, encode_value
from fluxmq.ipc.node_messages import HTTP_PATH, MEDIA_TYPE
from fluxmq.ipc.topology_messages import TOPOLOGY_CHANGE
from fluxmq.ipc.will_messages import WILL_CHANGE, WILL_CLAIM
from tests.broker import CERTIFICATES, HOST, Broker, external_broker, free_ports, running_broker


class Remote(NamedTuple):
    """A broker, and the ports of its other listeners."""

    broker: Broker
    amqp: int
    https: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.broker.http_port}"

    def post(self, body: bytes, user: str = "guest", kind: str = MEDIA_TYPE) -> tuple[int, bytes]:
        """Status and body of the answer to a request."""
        request = urllib.request.Request(self.url + HTTP_PATH, body, method="POST")
        secret = base64.b64encode(f"{user}:{user}".encode()).decode()
        request.add_header("Authorization", f"Basic {secret}")
        request.add_header("Content-Type", kind)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    amqp, https = free_ports(2)
    settings = {
        "server": {
            "amqp": {"tcp": {"addr": f"{HOST}:{amqp}"}},
            "https": {
                "addr": f"{HOST}:{https}",
                "cert_file": str(CERTIFICATES / "server.pem"),
                "key_file": str(CERTIFICATES / "server.key"),
            },
        },
        "auth": {"argon2": {"time_cost": 1, "memory_cost": "64KiB"}},
    }
    with running_broker(tmp_path_factory.mktemp("remote"), settings=settings) as broker:
        yield Remote(broker, amqp, https)


class Program:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, remote: Remote, capsys: pytest.CaptureFixture[str]) -> None:
        self.remote = remote
        self.capsys = capsys
        self.err = ""

    def ctl(self, *arguments: str, code: int = 0, url: str = "") -> str:
        """fluxmqctl over HTTP."""
        found = fluxmqctl(["--node", url or self.remote.url, "--user", "guest", *arguments])
        out, self.err = self.capsys.readouterr()
        assert found == code, self.err
        return out

    def rabbit(self, *arguments: str, code: int = 0) -> str:
        """rabbitmqctl on the node."""
        found = rabbitmq("rabbitmqctl", ["--config", str(self.remote.broker.config), *arguments])
        out, self.err = self.capsys.readouterr()
        assert found == code, self.err
        return out


@pytest.fixture
def program(
    remote: Remote, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Program:
    monkeypatch.setenv("FLUXMQ_PASSWORD", "guest")
    return Program(remote, capsys)


def test_verbs_work_from_another_machine(program: Program, tmp_path: Path) -> None:
    assert program.ctl("ping") == "Ping succeeded\n"
    assert "acceptor" in program.ctl("status")
    program.ctl("add_vhost", "far")
    assert "far" in program.ctl("list_vhosts").splitlines()
    password = tmp_path / "password"
    password.write_text("secret")
    program.ctl("add_user", "ann", "--password-file", str(password))
    program.ctl("set_permissions", "-p", "far", "ann", ".*", ".*", ".*")
    program.ctl("authenticate_user", "ann", "secret")
    program.ctl("set_policy", "-p", "far", "p", "^q", '{"max-length": 5}')
    (policy,) = json.loads(program.ctl("list_policies", "-p", "far", "--formatter", "json"))
    assert policy["definition"] == {"max-length": 5}
    program.ctl("user", "add", "eve", "--subscribe", "#", "--password-file", str(password))
    assert "eve" in program.ctl("user", "list")
    assert "argon2" in program.ctl("environment")
    file = tmp_path / "definitions.json"
    program.ctl("export_definitions", str(file))
    program.ctl("delete_vhost", "far")
    assert "far" not in program.ctl("list_vhosts").splitlines()
    program.ctl("import_definitions", str(file))
    assert "far" in program.ctl("list_vhosts").splitlines()
    program.ctl("groups")
    program.ctl("delete_user", "nobody", code=1)
    assert "there is no user 'nobody'" in program.err


def test_only_administrators_are_let_in(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.ctl("add_user", "bob", "bob")
    program.ctl("set_user_tags", "bob", "monitoring")
    monkeypatch.setenv("FLUXMQ_PASSWORD", "bob")
    assert fluxmqctl(["--node", program.remote.url, "--user", "bob", "ping"]) == 1
    assert "the user needs the tag administrator" in program.capsys.readouterr().err
    program.ctl("ping", code=1)
    assert "Login failed" in program.err


def test_certificates_are_verified(program: Program) -> None:
    url = f"https://localhost:{program.remote.https}"
    program.ctl("ping", url=url, code=4)
    assert "the certificate is not trusted" in program.err
    assert "--ca-file" in program.err
    ca_file = str(CERTIFICATES / "ca.pem")
    assert program.ctl("--ca-file", ca_file, "ping", url=url) == "Ping succeeded\n"


def test_a_node_that_does_not_answer(program: Program) -> None:
    (port,) = free_ports(1)
    program.ctl("ping", url=f"http://{HOST}:{port}", code=4)
    assert "refused" in program.err.lower()
    # A listener that is none of the management interface's.
    program.ctl("ping", url=f"http://{HOST}:{program.remote.broker.port}", code=4)


def test_requests_between_processes_and_malformed_ones_are_refused(remote: Remote) -> None:
    def asked(kind: str, body: dict[str, Any]) -> Any:
        status, answer = remote.post(encode_value([1, kind, 7, body]))
        assert status == 200
        return decode_value(answer)

    assert asked("ping", {}) == [1, "reply", 7, {}]
    for kind in (WILL_CHANGE, WILL_CLAIM, "hello", "of_node", "nonsense"):
        assert asked(kind, {})[3]["code"] == "unknown_kind"
    assert "run fluxmqctl backup there" in asked(BACKUP, {"directory": "/x"})[3]["text"]
    assert asked(TOPOLOGY_CHANGE, {"changes": 1})[3]["code"] == "malformed"
    assert decode_value(remote.post(encode_value([2, "ping", 7, {}]))[1])[3]["code"] == "version"  # type: ignore[index]
    assert remote.post(b"\xc1")[0] == 400
    assert remote.post(encode_value(["ping"]))[0] == 400
    assert remote.post(encode_value([1, "ping", 7, {}]), kind="text/plain")[0] == 415
    assert remote.post(encode_value([1, "ping", 7, {}]), user="mallory")[0] == 401
    assert remote.post(bytes((16 << 20) + 1))[0] == 413


def test_a_node_that_refuses_clients(program: Program) -> None:
    """And leaves its connections and the management interface alone."""
    port = str(program.remote.amqp)
    assert "may stop" in program.ctl("drain")
    program.ctl("check_port_connectivity", code=1)
    assert f"port: {port}, protocol: amqp" in program.err
    assert "protocol: http," not in program.err
    program.ctl("suspend_listeners")
    program.ctl("resume_listeners")
    program.ctl("resume_listeners")
    assert port in program.ctl("check_port_connectivity")


def test_rabbitmqctl_says_what_rabbitmqs_says(program: Program) -> None:
    rabbit = program.rabbit
    assert rabbit("list_queues") == ("Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n")
    assert rabbit("-q", "list_vhosts", "-s").splitlines()[0] == "/"
    assert rabbit("add_user", "ida", "x").startswith('Adding user "ida" ...\nDone. ')
    rabbit("add_user", "ida", "x", code=70)
    assert program.err == 'Error:\nUser "ida" already exists\n'
    assert rabbit("authenticate_user", "ida", "x") == 'Authenticating user "ida" ...\nSuccess\n'
    rabbit("authenticate_user", "ida", "y", code=65)
    assert program.err.startswith('Error:\nError: failed to authenticate user "ida"\n')
    rabbit("delete_user", "ida")
    assert rabbit("delete_user", "ida", code=67) == 'Deleting user "ida" ...\n'
    assert program.err == 'Error:\nUser "ida" does not exist\n'
    rabbit("delete_queue", "none", code=64)
    assert program.err == "Error:\nQueue not found\n"
    rabbit("delete_vhost", "none", code=65)
    assert program.err == "Virtual host 'none' does not exist\n"
    assert rabbit("list_queues", "-p", "none", "-q") == ""
    rabbit("set_policy", "p", "^q", '{"nope": 1}', code=69)
    assert program.err.startswith("Error:\nValidation failed\n\n")
    rabbit("set_policy", "p", "^q", '{"max-length": 5}')
    rabbit("clear_policy", "p")
    rabbit("clear_policy", "p", code=69)
    assert program.err == "Error:\nParameter does not exist\n"
    rabbit("add_user", "cal", "x")
    rabbit("set_permissions", "-p", "nowhere", "cal", "", "", "", code=69)
    rabbit("set_vhost_limits", '{"max-queues": 5}')
    assert rabbit("list_vhost_limits", "-q") == '{"max-queues":5}\n'
    rabbit("clear_vhost_limits")
    assert rabbit("close_all_connections", "bye").endswith("Closed 0 connections\n")
    assert rabbit("ping", "-q") == "Ping succeeded\n"
    assert rabbit("await_startup") == ""


def test_health_checks(program: Program) -> None:
    rabbit = program.rabbit
    (node,) = json.loads(rabbit("cluster_status", "--formatter", "json"))["running_nodes"]
    assert rabbit("check_running", "-q") == (
        f"RabbitMQ on node {node} is fully booted and running\n"
    )
    assert rabbit("node_health_check", "-q") == "Health check passed\n"
    assert rabbit("check_local_alarms", "-s") == ""
    assert json.loads(rabbit("check_alarms", "--formatter", "json"))["result"] == "ok"
    rabbit("check_if_node_is_quorum_critical")
    rabbit("check_virtual_hosts")
    rabbit("check_port_listener", str(program.remote.amqp))
    rabbit("check_port_listener", "1", code=69)
    assert f"No listener for port 1 is active on node {node}" in program.err
    rabbit("check_protocol_listener", "amqp0-9-1")
    rabbit("check_protocol_listener", "stomp", code=69)
    listening = f"port: {program.remote.amqp}, protocol: amqp, purpose: AMQP 0-9-1"
    assert listening in rabbit("listeners")
    status = rabbit("status").splitlines()
    assert status[0] == f"Status of node {node} ..."
    assert f"Node name: {node}" in status
    vhosts = rabbit("-q", "list_vhosts", "-s").splitlines()
    totals = json.loads(rabbit("status", "--formatter", "json"))["totals"]
    assert totals["virtual_host_count"] == len(vhosts)


def test_bench(program: Program) -> None:
    found = json.loads(
        program.ctl(
            "bench", "--seconds", "0.5", "--clients", "1", "--json", "mqtt-qos1", "amqp-confirms"
        )
    )
    assert [each["kind"] for each in found["cases"]] == ["mqtt-qos1", "amqp-confirms"]
    for each in found["cases"]:
        assert each["delivered"] > 0
        assert each["lost"] == 0
        assert 0 < each["p50_us"] <= each["p99_us"]
    # The queue is gone again.
    assert program.rabbit("list_queues", "-q") == ""
    program.ctl("add_user", "zoe", "zoe")  # nobody is let in without a user any more
    program.ctl(
        "bench", "--mqtt", f"{HOST}:{program.remote.broker.port}", "--login", "nobody", code=1
    )
    assert "mqtt-qos0: MQTT login refused" in program.err
