"""Certificates of a running node: by name on every listener, and replaced without a restart."""

import random
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fluxmq.cli.main import run as fluxmqctl
from fluxmq.settings.listen_addresses import SHARD_PORTS
from fluxmq.settings.listeners import Certificate
from tests.broker import FIRST_PORT, HOST, Broker, free_ports, is_free, running_broker
from tests.certificate_maker import Authority, common_name, replace
from tests.conformance import wire
from tests.etcd import serving

DEADLINE = 15.0
LISTENERS = ("mqtt.tls", "mqtt.websocket_tls", "amqp.tls", "https")
INTER_NODE = ("transport",)
"""Addresses for other nodes: that of the first shard."""


class Node:
    """A broker with TLS on every kind of listener, with two certificates each."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.default = self.authority.issue("default", "localhost")
        self.other = self.authority.issue("other", "*.example.com")
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        server: dict[str, Any] = {"mqtt": {}, "amqp": {}}
        for name, port in self.ports.items():
            section: dict[str, Any] = {
                "addr": f"{HOST}:{port}",
                "cert_file": self.default.cert_file,
                "key_file": self.default.key_file,
                "sni_certificates": [
                    {"cert_file": self.other.cert_file, "key_file": self.other.key_file}
                ],
            }
            group, _, kind = name.rpartition(".")
            (server[group] if group else server)[kind] = section
        own = self.authority.issue("node1", "node1")
        self.ports["transport"] = _transport_port()
        self.settings = {"server": server, "cluster": self._cluster(own)}
        self.broker: Broker

    def _cluster(self, own: Certificate) -> dict[str, Any]:
        """A cluster of one node, with TLS for others."""
        files = {
            "tls_enabled": True,
            "tls_cert_file": own.cert_file,
            "tls_key_file": own.key_file,
            "tls_ca_file": str(self.authority.ca_file),
        }
        return {
            "enabled": True,
            "node_id": "node1",
            "transport": {"bind_addr": f"{HOST}:{self.ports['transport']}"} | files,
        }

    def connect(self, listener: str, name: str = "localhost") -> ssl.SSLSocket:
        """A connection after its handshake."""
        plain = socket.create_connection((HOST, self.ports[listener]), DEADLINE)
        context = self.authority.client_context()
        if listener in INTER_NODE:
            own = self.authority.pair("node1")
            context.load_cert_chain(own.cert_file, own.key_file)
        return context.wrap_socket(plain, server_hostname=name)

    def shown(self, listener: str, name: str = "localhost") -> str:
        """The common name of the certificate shown to a client that asks for this name."""
        with self.connect(listener, name) as client:
            return common_name(client.getpeercert())

    def serial(self, listener: str, name: str = "localhost") -> str:
        """The serial number of that certificate."""
        with self.connect(listener, name) as client:
            shown = client.getpeercert()
            assert shown is not None
            return str(shown["serialNumber"])

    def differs(self, listener: str, serial: str) -> bool:
        """Whether a client that asks for another host is shown another certificate than this."""
        return self.serial(listener, "a.example.com") != serial

    def metrics(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric with these labels."""
        found = self.broker.metrics(name)
        return sum(value for key, value in found.items() if labels.items() <= dict(key).items())


def _transport_port() -> int:
    """A port below those of `free_ports`: the ones behind it belong to the node too."""
    candidates = list(range(FIRST_PORT - 1024, FIRST_PORT, SHARD_PORTS))
    random.shuffle(candidates)
    return next(port for port in candidates if is_free(port) and is_free(port + 1))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("certificates")
    node = Node(directory)
    with running_broker(directory, workers=2, settings=node.settings) as broker:
        node.broker = broker
        yield node


def test_nodes_are_shown_new_certificates(node: Node) -> None:
    old = {each: node.serial(each) for each in INTER_NODE}
    node.authority.issue("node1", "node1")
    node.broker.reload({})
    for each in INTER_NODE:
        wait_for(partial(node.differs, each, old[each]), each)
        assert node.shown(each) == "node1"
    assert node.broker.ready()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.mark.parametrize("listener", LISTENERS)
def test_certificates_by_name(node: Node, listener: str) -> None:
    assert node.shown(listener) == "default"
    assert node.shown(listener, "broker.example.com") == "other"
    assert node.shown(listener, "a.b.example.com") == "default"


def test_openssl_agrees(node: Node) -> None:
    """And a client that names no host gets the first certificate."""
    address = f"{HOST}:{node.ports['mqtt.tls']}"
    for option, expected in (
        (["-servername", "x.example.com"], "CN = other"),
        (["-noservername"], "CN = default"),
    ):
        command = ["openssl", "s_client", "-connect", address, *option]
        done = subprocess.run(command, input=b"", capture_output=True, timeout=30, check=False)
        subject = done.stdout.decode().partition("subject=")[2].partition("\n")[0]
        assert subject == expected


def test_new_certificates_are_for_new_connections(node: Node) -> None:
    """After SIGHUP; who is connected stays so. A bad file then leaves the new ones in use."""
    with node.connect("mqtt.tls", "a.example.com") as before:
        before.sendall(wire.connect(4, b"stays"))
        assert before.recv(4)[0] == 0x20
        old = {each: node.serial(each, "a.example.com") for each in LISTENERS}
        expiry = node.metrics("fluxmq_tls_certificate_expiry_seconds")
        node.authority.issue("other", "*.example.com", days=500)
        node.broker.reload({})
        for each in LISTENERS:
            wait_for(partial(node.differs, each, old[each]), each)
            assert node.shown(each) == "default"
        assert node.metrics("fluxmq_tls_certificate_expiry_seconds") > expiry + 300 * 86_400
        assert node.metrics("fluxmq_tls_certificate_reloads_total", result="failure") == 0
        new = {each: node.serial(each, "a.example.com") for each in LISTENERS}

        good = Path(node.default.key_file).read_bytes()
        replace(Path(node.default.key_file), b"nonsense")
        node.broker.reload({})
        wait_for(lambda: "settings not reloaded" in node.broker.log(), "the bad file is reported")
        assert {each: node.serial(each, "a.example.com") for each in LISTENERS} == new
        assert {node.shown(each) for each in LISTENERS} == {"default"}
        replace(Path(node.default.key_file), good)
        before.sendall(wire.pingreq())
        assert before.recv(2) == b"\xd0\x00"


@pytest.mark.once
def test_a_node_shows_etcd_its_new_certificate(tmp_path: Path) -> None:
    """After SIGHUP, as on its listeners; without a restart."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "other").mkdir()
    authority, another = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    member, own = authority.issue("member", "localhost", "node1"), authority.issue("own", "node1")

    def files(pair: Certificate) -> dict[str, str | bool]:
        return {
            "tls_enabled": True,
            "tls_cert_file": pair.cert_file,
            "tls_key_file": pair.key_file,
            "tls_ca_file": str(authority.ca_file),
        }

    with serving(tmp_path, **files(member)) as trusted:
        cluster = {
            "enabled": True,
            "node_id": "node1",
            "transport": {"bind_addr": f"{HOST}:{_transport_port()}", **files(own)},
            "etcd": {"endpoints": [f"https://{trusted.address.replace(HOST, 'localhost')}"]},
        }
        with running_broker(tmp_path, settings={"cluster": cluster}) as broker:

            def bans() -> int:
                """Have the node change something in etcd; the command's exit code."""
                return fluxmqctl(["--config", str(broker.config), "ban", "user", "eve"])

            def reloaded(count: int) -> bool:
                found = broker.metrics("fluxmq_tls_certificate_reloads_total")
                return found[("listener", "cluster.transport"), ("result", "success")] == count

            wait_for(lambda: bans() == 0, "the node knows the bans of the cluster")
            good = {Path(name): Path(name).read_bytes() for name in (own.cert_file, own.key_file)}
            bad = another.issue("own", "node1")
            for path, name in zip(good, (bad.cert_file, bad.key_file), strict=True):
                replace(path, Path(name).read_bytes())
            broker.reload({})
            wait_for(partial(reloaded, 1), "the certificate is read again")
            assert bans() == 1, "etcd does not accept it"
            for path, content in good.items():
                replace(path, content)
            broker.reload({})
            wait_for(lambda: bans() == 0, "etcd accepts it again")
