"""Requests of other people's programs, as they send them, and the fields that they cannot do without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker import CERTIFICATES, HOST, Broker, external_broker, free_ports, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp
from tests.management import ManagementSite


class ToolSite(ManagementSite):
    """Of a broker with clients."""

    def __init__(self, broker: Broker, amqp: int, tls_port: int) -> None:
        super().__init__(broker.http_port, amqp)
        self.broker = broker
        self.tls_port = tls_port


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolSite]:
    """A broker with an AMQP listener and one with TLS."""
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    port, tls_port = free_ports(2)
    secure = {
        "addr": f"{HOST}:{tls_port}",
        "cert_file": str(CERTIFICATES / "server.pem"),
        "key_file": str(CERTIFICATES / "server.key"),
    }
    amqp = {"tcp": {"addr": f"{HOST}:{port}"}, "tls": secure}
    folder = tmp_path_factory.mktemp("tools")
    with running_broker(folder, settings={"server": {"amqp": amqp}}) as broker:
        yield ToolSite(broker, port, tls_port)


def keda(site: ToolSite, name: str, query: str = "") -> Any:
    """What KEDA's scaler asks for in its mode http: a queue, or those that match an expression."""
    if not query:
        return site.get(f"queues/%2F/{name}")
    return site.get(f"queues/%2F?page=1&use_regex=true&pagination=false&name={name}&{query}")


def test_keda_scales_by_messages(site: ToolSite) -> None:
    """Rates are looked at where there are some."""
    with site.connect() as connection:
        channel = connection.channel()
        for name in ("jobs.a", "Jobs.b", "other"):
            channel.queue_declare(name, durable=True)
        for _ in range(10):
            channel.basic_publish("", "jobs.a", b"x")
        channel.basic_get("jobs.a")
        eventually(lambda: keda(site, "jobs.a")["messages"] == 10, "messages are counted")
        # The number of messages counts those that no consumer has acknowledged.
        queue = keda(site, "jobs.a")
        assert (queue["messages_ready"], queue["messages_unacknowledged"]) == (9, 1)
        found = keda(site, "%5Ejobs", "page_size=100")
        assert (found["page_count"], found["item_count"]) == (1, 2)
        assert {each["name"]: each["messages"] for each in found["items"]} == {
            "Jobs.b": 0,
            "jobs.a": 10,
        }
        # KEDA refuses to scale by a part: it looks whether there are more pages.
        assert keda(site, "%5Ejobs", "page_size=1")["page_count"] == 2
        none = keda(site, "%5Enothing", "page_size=100")
        assert (none["page_count"], none["items"]) == (1, [])


def test_flower_finds_the_queues_of_the_default_virtual_host(site: ToolSite) -> None:
    """It does not encode the name."""
    assert site.status("PUT", "queues/%2F/celery", {}) == 201
    names = {each["name"] for each in site.get("queues//")}
    assert "celery" in names
    assert names == {each["name"] for each in site.get("queues/%2F")}
    assert site.status("PUT", "users/flower", {"password": "x", "tags": "management"}) == 201
    assert site.ask("GET", "queues//", user="flower", password="x").status == 401


def test_slashes_at_the_end_mean_nothing(site: ToolSite) -> None:
    """rabbit-hole asks for ``cluster-name/``."""
    assert site.get("cluster-name/") == site.get("cluster-name")
    assert site.get("healthchecks/node/") == {"status": "ok"}
    assert site.status("PUT", "vhosts/slashed/", {}) == 201
    assert site.status("DELETE", "vhosts/slashed") == 204
    assert site.ask("GET", "overview/", user="nobody").status == 401


def test_fields_that_typed_clients_need(site: ToolSite) -> None:
    """rabbitmqadmin's second version refuses a list in which one is missing."""
    (node,) = site.get("nodes")
    assert node["being_drained"] is False
    site.broker.control("drain")
    (drained,) = site.get("nodes")
    assert drained["being_drained"] is True
    site.broker.control("resume_listeners")
    assert node["rabbitmq_version"] == site.get("overview")["rabbitmq_version"]
    assert site.get(f"nodes/{node['name']}/memory") == {"memory": "not_available"}
    assert site.get(f"healthchecks/node/{node['name']}") == {"status": "ok"}
    for path in ("nodes/elsewhere/memory", "healthchecks/node/elsewhere"):
        assert site.status("GET", path) == 404
    for flag in site.get("feature-flags"):
        assert {"desc", "doc_url", "provided_by", "stability"} <= flag.keys()
        assert site.status("PUT", f"feature-flags/{flag['name']}/enable", {}) == 204
    assert site.status("PUT", "feature-flags/none/enable", {}) == 404
    for path in ("federation-links/%2F", "parameters/shovel/%2F", "stream/connections"):
        assert site.get(path) == []
    with (
        Client(tcp(site.broker.host, site.broker.port), wire.V5) as client,
        site.connect() as connection,
    ):
        client.connect("typed")
        channel = connection.channel()
        channel.queue_declare("typed", arguments={"x-consumer-timeout": 120_000})
        channel.basic_consume("typed", lambda *_: None)
        channel.queue_declare("untyped")
        channel.basic_consume("untyped", lambda *_: None)
        rows = site.get("connections")
        assert {each["protocol"] for each in rows} == {"AMQP 0-9-1", "MQTT 5.0"}
        for each in rows:
            assert each["connected_at"] > 1_700_000_000_000
            assert isinstance(each["client_properties"], dict)
        consumers = {each["queue"]["name"]: each for each in site.get("consumers")}
        assert consumers["typed"]["consumer_timeout"] == 120_000
        assert consumers["untyped"]["consumer_timeout"] == 1_800_000
        details = consumers["typed"]["channel_details"]
        assert details["peer_host"] == HOST
        assert {"number", "name", "connection_name", "node", "peer_port", "user"} <= details.keys()


def test_certificates_that_expire_soon_fail_their_check(site: ToolSite) -> None:
    check = "health/checks/certificate-expiration"
    assert site.get(f"{check}/1/days") == {"status": "ok"}
    answer = site.ask("GET", f"{check}/9999/years")
    assert answer.status == 503
    (row,) = answer.body["expired"]
    assert (row["protocol"], row["port"]) == ("amqp/ssl", site.tls_port)
    assert row["certfile"] == str(Path(CERTIFICATES / "server.pem"))
    assert len(row["certfile_expires_on"]) == 1
    assert row["cacertfile_expires_on"] == []
    for wrong in ("x/days", "1/fortnights", "100000/days"):
        assert site.status("GET", f"{check}/{wrong}") == 400


def test_parameters(site: ToolSite) -> None:
    one = "parameters/operator_policy/%2F/o"
    operator = {"pattern": "^o", "definition": {"max-length": 5}}
    assert site.status("PUT", one, {"value": operator}) == 201
    assert site.status("PUT", one, {"value": {**operator, "priority": 2}}) == 204
    assert site.status("PUT", one, {}) == 400
    row = {
        "vhost": "/",
        "component": "operator_policy",
        "name": "o",
        "value": {**operator, "priority": 2, "apply-to": "all"},
    }
    assert site.get(one) == row
    assert site.get("operator-policies/%2F/o")["priority"] == 2
    for path in ("parameters", "parameters/operator_policy", "parameters/operator_policy/%2F"):
        assert site.get(path) == [row]
    assert site.get("definitions")["parameters"] == [row]
    without = {key: value for key, value in row.items() if key != "vhost"}
    assert site.get("definitions/%2F")["parameters"] == [without]
    refused = site.ask("PUT", "parameters/shovel/%2F/s", {"value": {"src-queue": "a"}})
    assert refused.status == 400
    assert refused.body["reason"] == "Validation failed\n\ncomponent shovel not found\n"
    assert site.status("PUT", "parameters/vhost-limits/none/limits", {"value": {}}) == 404
    site.ask("PUT", "users/polly", {"password": "pw", "tags": "policymaker"})
    site.ask("PUT", "permissions/%2F/polly", {"configure": "", "write": "", "read": ""})
    polly = {"user": "polly", "password": "pw"}
    assert site.get("parameters/operator_policy/%2F", **polly) == [row]
    assert site.status("PUT", one, {"value": operator}, **polly) == 401
    assert site.status("DELETE", one, **polly) == 401
    assert site.status("DELETE", "users/polly") == 204
    assert site.status("DELETE", one) == 204
    assert site.status("DELETE", one) == site.status("GET", one) == 404


def test_global_parameters(site: ToolSite) -> None:
    """The name of the cluster is one of them."""
    node = site.get("cluster-name")["name"]
    tags = {"region": ["eu", None, 1.5]}
    assert site.status("PUT", "global-parameters/cluster_tags", {"value": tags}) == 201
    assert site.status("PUT", "global-parameters/cluster_name", {"value": "orders"}) == 201
    assert site.get("overview")["cluster_name"] == "orders"
    assert site.status("PUT", "cluster-name", {"name": "sales"}) == 204
    assert site.get("cluster-name") == {"name": "sales"}
    rows = [{"name": "cluster_name", "value": "sales"}, {"name": "cluster_tags", "value": tags}]
    assert site.get("global-parameters") == rows
    assert site.get("global-parameters/cluster_tags") == rows[1]
    definitions = site.get("definitions")
    assert definitions["global_parameters"] == rows
    assert site.status("PUT", "global-parameters/none", {}) == 400
    for name in ("cluster_name", "cluster_tags"):
        assert site.status("DELETE", f"global-parameters/{name}") == 204
        assert site.status("DELETE", f"global-parameters/{name}") == 404
    assert site.get("cluster-name") == {"name": node}
    assert site.status("POST", "definitions", {"global_parameters": rows}) == 204
    assert site.get("global-parameters") == rows
    for name in ("cluster_name", "cluster_tags"):
        site.ask("DELETE", f"global-parameters/{name}")
