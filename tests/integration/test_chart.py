"""The Helm chart, as it was rendered for four sets of values: what Kubernetes makes of it, and the broker of its settings."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import fluxmq
from fluxmq.cli.remote import PASSWORD_VARIABLE
from fluxmq.settings import Settings, SettingsError, load
from fluxmq.supervisor.tree import HAND_OVER_SECONDS, STOP_ORDER, STOP_SECONDS
from tests.broker import CERTIFICATES, REPOSITORY

pytestmark = pytest.mark.once

HELM = REPOSITORY / "packaging/helm"
CHART = HELM / "fluxmq"
CASES = sorted(path.stem for path in (HELM / "cases").glob("*.yaml"))
FOREIGN = {"Certificate", "ServiceMonitor"}
"""Kinds that Kubernetes knows only with what others have made."""

JOINED = {"grown": {"mq-fluxmq-3"}}
"""Nodes with which a cluster did not begin, by case."""

Object = dict[str, Any]


def rendered(case: str) -> list[Object]:
    """The objects that the chart makes."""
    text = (HELM / "rendered" / f"{case}.yaml").read_text()
    return [each for each in yaml.safe_load_all(text) if each]


def only(case: str, kind: str) -> Object:
    """The object of a kind of which there is one."""
    (found,) = [each for each in rendered(case) if each["kind"] == kind]
    return found


def service(case: str, component: str) -> Object:
    """The service of a component."""
    (found,) = [
        each
        for each in rendered(case)
        if each["kind"] == "Service"
        and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return found


def offered_by(each: Object) -> dict[str, int]:
    """The ports of a service, by the names of the containers' ports."""
    return {port["targetPort"]: port["port"] for port in each["spec"]["ports"]}


def container(case: str) -> Object:
    (found,) = only(case, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def settings(case: str, tmp_path: Path) -> dict[str, Settings]:
    """The settings of each node, loaded with certificates that are there."""
    found = {}
    for name, text in only(case, "ConfigMap")["data"].items():
        text = re.sub(r"/etc/fluxmq/[\w-]*tls/(?:tls|ca)\.crt", f"{CERTIFICATES}/server.pem", text)
        text = re.sub(r"/etc/fluxmq/[\w-]*tls/tls\.key", f"{CERTIFICATES}/server.key", text)
        (tmp_path / name).write_text(text)
        try:
            found[name] = load(tmp_path / name, {})
        except SettingsError as error:
            raise AssertionError(f"{case}: {error}") from error
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_was_rendered_is_of_this_chart(case: str) -> None:
    parts = [CHART / name for name in ("Chart.yaml", "values.yaml", "values.schema.json")]
    parts += [*sorted((CHART / "templates").iterdir()), HELM / "cases" / f"{case}.yaml"]
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()
    first = (HELM / "rendered" / f"{case}.yaml").read_text().partition("\n")[0]
    assert first.endswith(digest), "the chart has changed: packaging/helm/render makes it anew"


@pytest.mark.skipif(shutil.which("helm") is None, reason="no helm")
def test_helm_renders_the_same(tmp_path: Path) -> None:
    subprocess.run([str(HELM / "render"), str(tmp_path)], check=True, timeout=60)
    for case in CASES:
        again = (tmp_path / f"{case}.yaml").read_text()
        assert again == (HELM / "rendered" / f"{case}.yaml").read_text()


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_accepts_the_objects(case: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="the extra test is not installed")
    for each in rendered(case):
        if each["kind"] not in FOREIGN:
            schemas.validate(each, "1.30", strict=True)


@pytest.mark.parametrize("case", CASES)
def test_the_broker_accepts_the_settings(case: str, tmp_path: Path) -> None:
    nodes = settings(case, tmp_path)
    stateful = only(case, "StatefulSet")["spec"]
    assert len(nodes) == stateful["replicas"]
    headless = stateful["serviceName"]
    names = {name.removesuffix(".yaml") for name in nodes} - JOINED.get(case, set())
    for name, each in nodes.items():
        cluster = each.cluster
        assert each.storage.data_dir.startswith("/var/lib/fluxmq/")
        assert cluster.enabled == (len(nodes) > 1)
        if not cluster.enabled:
            continue
        own = name.removesuffix(".yaml")
        assert cluster.node_id == own
        assert cluster.join == (own not in names)
        assert cluster.raft.replication_factor == len(names)
        if cluster.join:
            assert not cluster.transport.peers
            continue
        others = names - {own}
        assert set(cluster.transport.peers) == set(cluster.raft.peers) == others
        for other, address in cluster.transport.peers.items():
            assert address == f"{other}.{headless}.brokers.svc.cluster.local:7948"
        assert cluster.etcd is not None
        assert set(cluster.members(cluster.etcd)) == names


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == fluxmq.__version__


def test_the_user_s_settings_are_laid_over(tmp_path: Path) -> None:
    for each in settings("three", tmp_path).values():
        assert each.broker.max_retained_messages == 1_000_000
        assert [queue.name for queue in each.queues] == ["orders"]


@pytest.mark.parametrize("case", CASES)
def test_ports_of_services_and_probes_are_listened_on(case: str, tmp_path: Path) -> None:
    server = next(iter(settings(case, tmp_path).values())).server
    open_addresses = [
        each.addr
        for each in (
            *(server.http, server.https, server.metrics),
            *(server.mqtt.tcp, server.mqtt.tls, server.mqtt.websocket),
            *(server.amqp.tcp, server.amqp.tls),
        )
        if each is not None
    ]
    listened = {int(each.removeprefix(":")) for each in open_addresses}
    ports = {each["name"]: each["containerPort"] for each in container(case)["ports"]}
    assert set(ports.values()) == listened
    offered = offered_by(service(case, "clients"))
    inside = service(case, "metrics")
    assert offered | offered_by(inside) == ports
    assert "metrics" not in offered, "it has no logins"
    assert "type" not in inside["spec"]
    allowed = only(case, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    assert {each["port"] for each in allowed} == listened
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(case)[probe]["httpGet"]["port"] in ports


@pytest.mark.parametrize("case", ["three", "secured", "grown"])
def test_nodes_reach_each_other_through_the_network_policy(case: str, tmp_path: Path) -> None:
    allowed = only(case, "NetworkPolicy")["spec"]["ingress"][1]["ports"]
    ranges = [range(each["port"], each.get("endPort", each["port"]) + 1) for each in allowed]
    for each in settings(case, tmp_path).values():
        assert each.cluster.etcd is not None
        raft = int(each.cluster.raft.bind_addr.removeprefix(":"))
        transport = int(each.cluster.transport.bind_addr.removeprefix(":"))
        member = int(each.cluster.etcd.bind_addr.removeprefix(":"))
        # One port for each of up to 64 shards; groups made on demand, and that of the topology.
        for port in (member, transport, transport + 63, raft, raft + 1000):
            assert any(port in some for some in ranges), port


def test_a_node_that_the_cluster_did_not_begin_with_joins_it_before_it_starts(
    tmp_path: Path,
) -> None:
    pod = only("grown", "StatefulSet")["spec"]["template"]["spec"]
    (joins,) = pod["initContainers"]
    (broker,) = pod["containers"]
    for key in ("image", "securityContext", "volumeMounts"):
        assert joins[key] == broker[key]
    variables = {each["name"]: each for each in joins["env"]}
    client = service("grown", "clients")["metadata"]["name"]
    assert variables["CLUSTER"]["value"] == f"http://{client}.brokers.svc.cluster.local:15672"
    secret = {"name": "mq-fluxmq-user", "key": "password"}
    assert variables[PASSWORD_VARIABLE]["valueFrom"] == {"secretKeyRef": secret}
    # The program, with a command that fails once, and a data directory of this machine.
    data = tmp_path / "nodes.json"
    called = tmp_path / "called"
    (tmp_path / "fluxmqctl").write_text(
        f'#!/bin/sh\necho "$@" >> {called}\n[ "$(wc -l < {called})" -gt 1 ] && touch {data}\n'
    )
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    for name in ("fluxmqctl", "sleep"):
        (tmp_path / name).chmod(0o755)
    shell, option, text = joins["command"]
    text = text.replace("/var/lib/fluxmq/data/nodes.json", str(data))
    for number, calls in ((0, 0), (2, 0), (3, 2), (3, 2)):
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "NODE": f"mq-fluxmq-{number}",
            "CLUSTER": "http://c",
            "ADMINISTRATOR": "admin",
        }
        subprocess.run([shell, option, text], env=environment, check=True, timeout=60)
        lines = called.read_text().splitlines() if called.exists() else []
        assert len(lines) == calls
    host = "mq-fluxmq-3.mq-fluxmq-nodes.brokers.svc.cluster.local"
    options = f"--user admin join http://c --address {host}"
    assert set(lines) == {f"--config /etc/fluxmq/nodes/mq-fluxmq-3.yaml {options}"}


def test_the_certificate_names_the_nodes(tmp_path: Path) -> None:
    names = set(only("secured", "Certificate")["spec"]["dnsNames"])
    for each in settings("secured", tmp_path).values():
        assert each.cluster.node_id in names
        hosts = {address.partition(":")[0] for address in each.cluster.transport.peers.values()}
        assert hosts <= names
        assert each.cluster.transport.tls_enabled


@pytest.mark.parametrize("case", CASES)
def test_the_container_has_no_rights_and_time_to_stop(case: str, tmp_path: Path) -> None:
    pod = only(case, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    container_file = (REPOSITORY / "packaging/container/Containerfile").read_text()
    assert f"--uid {pod['securityContext']['runAsUser']} " in container_file
    assert container(case)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # A node that is alone would wait for others in vain.
    assert ("lifecycle" in container(case)) == (case != "one")
    waits = re.findall(r"drain --wait (\d+)", yaml.safe_dump(container(case).get("lifecycle", {})))
    assert len(waits) == (case != "one")
    stops = next(iter(settings(case, tmp_path).values())).server.shutdown_timeout
    stops += STOP_SECONDS * len({*STOP_ORDER} - {"etcd"})
    stops += (STOP_SECONDS + HAND_OVER_SECONDS) * (case != "one")
    assert pod["terminationGracePeriodSeconds"] >= sum(map(int, waits)) + stops
    assert ("PodDisruptionBudget" in {each["kind"] for each in rendered(case)}) == (case != "one")


def test_the_image_has_what_a_cluster_needs() -> None:
    text = (REPOSITORY / "packaging/container/Containerfile").read_text()
    (version,) = re.findall(r"^FROM \S+/golang:(\S+) AS etcd$", text, re.MULTILINE)
    wanted = re.findall(
        r"^go (\d+\.\d+)", (REPOSITORY / "packaging/etcd/go.mod").read_text(), re.MULTILINE
    )
    assert [version.partition("-")[0]] == wanted
    assert re.search(r"^COPY --from=etcd \S+ /usr/local/bin/etcd$", text, re.MULTILINE)


def test_the_schema_has_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: Object, described: Object, path: str) -> None:
        known = described.get("properties", {})
        assert set(values) <= set(known), path
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in known[name]:
                compare(value, known[name], f"{path}.{name}")

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    compare(values, schema, "values")
    assert set(schema["properties"]) - {"global"} == set(values)


def test_the_program_that_renders_is_executable() -> None:
    assert os.access(HELM / "render", os.X_OK)
