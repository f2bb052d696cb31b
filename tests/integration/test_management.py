"""The management interface of a running broker, as RabbitMQ's tools use it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika  # type: ignore[import-untyped]
import pytest
import yaml

from fluxmq.cli.main import run as fluxmqctl
from tests.broker import (
    CERTIFICATES,
    HOST,
    Broker,
    client_tls,
    external_broker,
    free_ports,
    running_broker,
)
from tests.conformance.client import Client, eventually, tcp
from tests.management import ManagementSite


class Site(ManagementSite):
    """Of a broker."""

    def __init__(self, broker: Broker, amqp: int = 0, tls_port: int = 0) -> None:
        super().__init__(broker.http_port, amqp)
        self.broker = broker
        self.tls_port = tls_port


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker of two shards with an AMQP listener."""
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    port, tls_port = free_ports(2)
    https = {
        "addr": f"{HOST}:{tls_port}",
        "cert_file": str(CERTIFICATES / "server.pem"),
        "key_file": str(CERTIFICATES / "server.key"),
    }
    settings = {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}, "https": https}}
    folder = tmp_path_factory.mktemp("management")
    with running_broker(folder, workers=2, settings=settings) as broker:
        yield Site(broker, port, tls_port)


def test_the_first_answers_that_tools_look_at(site: Site) -> None:
    assert site.get("whoami") == {
        "name": "guest",
        "tags": ["administrator"],
        "is_internal_user": True,
    }
    overview = site.get("overview")
    assert overview["product_name"] == "FluxMQ"
    assert tuple(map(int, overview["rabbitmq_version"].split("."))) >= (3, 10)
    assert overview["object_totals"]["exchanges"] >= 7
    (node,) = site.get("nodes")
    assert node["running"]
    assert node["mem_used"] > 0
    assert {each["name"] for each in site.get("feature-flags")} >= {"quorum_queue", "stream_queue"}
    assert site.get("federation-links") == []


def test_without_a_password_nothing_is_told(site: Site) -> None:
    answer = site.ask("GET", "overview", password="wrong")
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic")
    assert site.broker.http("/api/overview")[0] == 401
    assert site.broker.http("/health")[0] == 200


def test_pages_of_other_sites_change_nothing(site: Site) -> None:
    """Although the browser would send the password that it remembers."""
    for sent_from, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 201)):
        headers = {"Sec-Fetch-Site": sent_from}
        assert site.status("PUT", "queues/%2F/forged", {}, headers=headers) == status
    assert site.status("GET", "queues", headers={"Sec-Fetch-Site": "cross-site"}) == 200
    assert site.status("DELETE", "queues/%2F/forged") == 204


def test_the_same_over_tls(site: Site) -> None:
    assert site.broker.http("/health")[0] == 200
    connection = http.client.HTTPSConnection(HOST, site.tls_port, timeout=10, context=client_tls())
    with contextlib.closing(connection):
        secret = base64.b64encode(b"guest:guest").decode()
        connection.request("GET", "/api/whoami", headers={"Authorization": f"Basic {secret}"})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["name"]) == (200, "guest")
        assert connection.sock.version() in ("TLSv1.2", "TLSv1.3")
    protocols = [each["protocol"] for each in site.get("overview")["listeners"]]
    assert {"http", "https", "amqp", "mqtt"} <= {*protocols}


def test_declaring_publishing_and_getting(site: Site) -> None:
    assert site.status("PUT", "exchanges/%2F/shop", {"type": "topic"}) == 201
    assert site.status("PUT", "exchanges/%2F/shop", {"type": "topic"}) == 204
    arguments = {"x-max-length": 100}
    assert site.status("PUT", "queues/%2F/orders", {"arguments": arguments}) == 201
    bound = site.ask("POST", "bindings/%2F/e/shop/q/orders", {"routing_key": "order.#"})
    assert (bound.status, bound.headers["Location"]) == (201, "orders/order.%23")
    assert [each["source"] for each in site.get("queues/%2F/orders/bindings")] == ["", "shop"]
    message = {"routing_key": "order.1", "payload": "AAE=", "payload_encoding": "base64"}
    message["properties"] = {"headers": {"number": 1}, "delivery_mode": 2, "timestamp": 17}  # type: ignore[assignment]
    assert site.ask("POST", "exchanges/%2F/shop/publish", message).body == {"routed": True}
    lost = {"routing_key": "else", "payload": "x", "payload_encoding": "string"}
    assert site.ask("POST", "exchanges/%2F/shop/publish", lost).body == {"routed": False}

    def ready() -> bool:
        return bool(site.get("queues/%2F/orders")["messages_ready"] == 1)

    eventually(ready, "the message is listed", 5)
    for mode, redelivered in (("ack_requeue_true", False), ("ack_requeue_false", True)):
        wanted = {"count": 5, "ackmode": mode, "encoding": "auto"}
        (got,) = site.ask("POST", "queues/%2F/orders/get", wanted).body
        assert (got["payload"], got["payload_encoding"]) == ("\0\1", "string")
        assert got["properties"]["headers"]["number"] == 1
        assert got["redelivered"] is redelivered
    assert site.ask("POST", "queues/%2F/orders/get", {"count": 1}).body == []
    assert site.status("DELETE", "bindings/%2F/e/shop/q/orders/order.%2523") == 204
    assert site.status("DELETE", "queues/%2F/orders/contents") == 204
    assert site.status("DELETE", "queues/%2F/orders") == 204
    assert site.status("DELETE", "exchanges/%2F/shop") == 204
    assert site.status("GET", "queues/%2F/orders") == 404


def test_rejected_messages_go_to_the_dead_letter_exchange(site: Site) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    site.ask("PUT", "queues/%2F/dead", {})
    site.ask("PUT", "queues/%2F/alive", {"arguments": dead})
    message = {"routing_key": "alive", "payload": "m"}
    site.ask("POST", "exchanges/%2F/amq.default/publish", message)
    wanted = {"count": 1, "ackmode": "reject_requeue_false"}
    assert len(site.ask("POST", "queues/%2F/alive/get", wanted).body) == 1
    eventually(lambda: bool(site.get("queues/%2F/dead")["messages"] == 1), "it is dead-lettered", 5)
    for name in ("dead", "alive"):
        assert site.status("DELETE", f"queues/%2F/{name}") == 204


def test_refusals_have_the_brokers_reasons(site: Site) -> None:
    assert site.status("PUT", "queues/%2F/q", {"arguments": {"x-queue-type": "quorum"}}) == 201
    refused = site.ask("PUT", "queues/%2F/q", {"durable": True})
    assert refused.status == 400
    assert "inequivalent arg 'x-queue-type'" in refused.body["reason"]
    assert site.ask("PUT", "queues/%2F/x", {"arguments": {"x-expires": -1}}).status == 400
    assert site.ask("PUT", "queues/no/x", {}).status in (400, 401, 404)
    assert site.ask("DELETE", "queues/%2F/absent").status == 404
    assert site.ask("PUT", "queues/%2F/x", [1]).status == 400
    assert site.ask("GET", "absent").status == 404
    assert site.status("DELETE", "queues/%2F/q") == 204


def test_connections_and_web_services_are_described(site: Site) -> None:
    overview = site.get("overview")
    (context,) = [each for each in overview["contexts"] if each["port"] == str(site.port)]
    assert (context["description"], context["ip"]) == ("RabbitMQ Management", HOST)
    (node,) = site.get("nodes")
    assert {(each["ip"], each["port"]) for each in node["contexts"]} == {
        (each["ip"], each["port"]) for each in overview["contexts"]
    }
    before = overview["churn_rates"].get("connection_created", 0)
    with Client(tcp(HOST, site.broker.port), 5) as client:
        client.connect("described")
        client.publish("somewhere", b"x" * 1000, qos=1)
        (row,) = [each for each in site.get("connections") if each["name"] == "described"]
        assert (row["host"], row["port"]) == (HOST, site.broker.port)
        assert row["recv_oct"] > 1000
        assert row["send_oct"] > 0
        assert row["recv_oct_details"] == {"rate": 0.0}, "the first look"

        def counted() -> bool:
            churn = site.get("overview")["churn_rates"]
            return bool(churn["connection_created"] > before)

        eventually(counted, "the connection is counted", 10)


def test_lists_have_pages_over_many_queues(site: Site) -> None:
    with site.connect() as connection:
        channel = connection.channel()
        for number in range(30):
            channel.queue_declare(f"page-{number:02}", durable=True)
        found = site.get("queues?page=2&page_size=10&name=page-&sort=name&columns=name,messages")
        assert [each["name"] for each in found["items"]] == [f"page-{n}" for n in range(10, 20)]
        assert all(each["messages"] == 0 for each in found["items"])
        assert (found["filtered_count"], found["page_count"]) == (30, 3)
        for number in range(30):
            channel.queue_delete(f"page-{number:02}")


def test_connections_channels_and_consumers(site: Site) -> None:
    with site.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("watched")
        channel.basic_consume("watched", print, consumer_tag="tag")
        (row,) = [each for each in site.get("connections") if each["user"] == "guest"]
        assert row["protocol"] == "AMQP 0-9-1"
        assert row["state"] == "running"
        (found,) = site.get("channels")
        assert found["connection_details"]["name"] == row["name"]
        (consumer,) = site.get("consumers/%2F")
        assert (consumer["queue"]["name"], consumer["consumer_tag"]) == ("watched", "tag")
        assert consumer["channel_details"]["connection_name"] == row["name"]
        assert site.status("DELETE", f"connections/{quote(row['name'], safe='')}") == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(5)
        assert closed.value.reply_code == 320
    site.ask("DELETE", "queues/%2F/watched")


def test_users_and_their_rights(site: Site) -> None:
    assert site.status("PUT", "users/ann", {"password": "pw", "tags": "management"}) == 201
    assert site.status("PUT", "vhosts/team", {"description": "of ann"}) == 201
    rights = {"configure": "^own", "write": ".*", "read": ".*"}
    assert site.status("PUT", "permissions/team/ann", rights) == 201
    ann = {"user": "ann", "password": "pw"}
    assert [each["name"] for each in site.get("vhosts", **ann)] == ["team"]
    assert site.status("PUT", "queues/team/own-1", {}, **ann) == 201
    refused = site.ask("PUT", "queues/team/other", {}, user="ann", password="pw")
    assert refused.status == 401
    assert "access to queue 'other'" in refused.body["reason"]
    for method, path in (("GET", "users"), ("GET", "queues/%2F"), ("PUT", "vhosts/more")):
        assert site.status(method, path, {} if method == "PUT" else None, **ann) == 401
    assert site.status("PUT", "users/ann", {"password": "new", "tags": ["monitoring"]}) == 204
    assert site.status("GET", "vhosts", **ann) == 401
    assert site.get("users/ann")["tags"] == ["monitoring"]
    assert site.status("DELETE", "users/ann") == 204
    assert site.status("DELETE", "vhosts/team") == 204


def test_policies_and_limits(site: Site) -> None:
    policy = {"pattern": "^p", "definition": {"max-length": 5}, "apply-to": "queues"}
    assert site.status("PUT", "policies/%2F/short", policy) == 201
    site.ask("PUT", "queues/%2F/p1", {})
    row = site.get("queues/%2F/p1")
    assert (row["policy"], row["effective_policy_definition"]) == ("short", {"max-length": 5})
    assert site.get("policies/%2F/short")["priority"] == 0
    wrong = {"pattern": "(", "definition": {"max-length": 5}}
    assert site.status("PUT", "policies/%2F/wrong", wrong) == 400
    assert site.status("DELETE", "policies/%2F/short") == 204
    assert site.status("PUT", "vhost-limits/%2F/max-queues", {"value": 1000}) == 204
    assert site.get("vhost-limits/%2F") == [{"vhost": "/", "value": {"max-queues": 1000}}]
    assert site.status("DELETE", "vhost-limits/%2F/max-queues") == 204
    assert site.status("PUT", "user-limits/nobody/max-channels", {"value": 3}) == 404
    assert site.status("PUT", "user-limits/guest/max-cats", {"value": 3}) == 400
    assert site.status("PUT", "user-limits/guest/max-channels", {"value": 300}) == 204
    assert site.status("PUT", "user-limits/guest/max-connections", {"value": -1}) == 204
    limits = {"max-channels": 300, "max-connections": -1}
    assert site.get("user-limits") == [{"user": "guest", "value": limits}]
    assert site.get("user-limits/guest") == [{"user": "guest", "value": limits}]
    assert site.get("users/guest")["limits"] == limits
    for name in limits:
        assert site.status("DELETE", f"user-limits/guest/{name}") == 204
    assert site.get("user-limits/guest") == []
    site.ask("DELETE", "queues/%2F/p1")


HASHED = base64.b64encode(b"salt" + hashlib.sha256(b"saltold password").digest()).decode()
DEFINITIONS: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "users": [
        {
            "name": "old",
            "password_hash": HASHED,
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["administrator"],
            "limits": {"max-channels": 7},
        }
    ],
    "vhosts": [{"name": "imported"}],
    "permissions": [
        {"user": "old", "vhost": "imported", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [],
    "parameters": [
        {"component": "shovel", "vhost": "imported", "name": "s", "value": {}},
        {
            "component": "vhost-limits",
            "vhost": "imported",
            "name": "limits",
            "value": {"max-queues": 50},
        },
    ],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-1"}],
    "policies": [
        {
            "vhost": "imported",
            "name": "ttl",
            "pattern": "^t",
            "apply-to": "queues",
            "definition": {"message-ttl": 1000},
            "priority": 3,
        }
    ],
    "queues": [
        {
            "name": name,
            "vhost": "imported",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": kind},
        }
        for name, kind in (("c", "classic"), ("q", "quorum"), ("s", "stream"))
    ],
    "exchanges": [
        {
            "name": "e",
            "vhost": "imported",
            "type": "headers",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    ],
    "bindings": [
        {
            "source": "e",
            "vhost": "imported",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "",
            "arguments": {"x-match": "all", "k": "v"},
        }
    ],
}
"""Of RabbitMQ 3.10."""


def test_definitions_of_rabbitmq_are_imported(site: Site) -> None:
    """Users log in with their old passwords; exported again, what was imported is the same, until the
    hash of a user who has logged in is replaced."""
    for _ in range(2):  # the second time it is all there
        assert site.status("POST", "definitions", DEFINITIONS) == 204
    (user,) = [each for each in site.get("definitions")["users"] if each["name"] == "old"]
    assert DEFINITIONS["users"][0].items() <= user.items()
    old = {"user": "old", "password": "old password"}
    assert site.get("whoami", **old)["name"] == "old"

    def replaced() -> bool:
        return bool(site.get("users/old")["password_hash"].startswith("$argon2id$"))

    eventually(replaced, "the hash is replaced", 5)
    assert site.status("POST", "definitions", DEFINITIONS) == 204
    assert replaced(), "the file does not bring the old hash back"
    exported = site.get("definitions", **old)
    for kind in ("vhosts", "permissions", "policies", "queues", "exchanges", "bindings"):
        rows = DEFINITIONS[kind]
        for row in rows:
            assert any(row.items() <= each.items() for each in exported[kind]), (kind, row)
    assert "not supported" in site.broker.log()
    assert exported["global_parameters"] == DEFINITIONS["global_parameters"]
    assert site.status("DELETE", "global-parameters/internal_cluster_id") == 204
    credentials = pika.PlainCredentials("old", "old password")
    parameters = pika.ConnectionParameters(HOST, site.amqp, "imported", credentials)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        assert channel.queue_declare("q", passive=True).method.message_count == 0
        channel.basic_publish("e", "", b"m", pika.BasicProperties(headers={"k": "v"}))
    eventually(
        lambda: bool(site.get("queues/imported/q", **old)["messages"] == 1), "it is routed", 5
    )
    assert site.status("DELETE", "vhosts/imported") == 204
    assert site.status("DELETE", "users/old") == 204


def test_definitions_go_through_fluxmqctl(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    site.ask("PUT", "queues/%2F/kept", {"arguments": {"x-queue-type": "quorum"}})
    site.broker.control("export_definitions", str(file))
    assert file.stat().st_mode & 0o777 == 0o600, "it contains hashes of passwords"
    exported = json.loads(file.read_bytes())
    assert "kept" in [each["name"] for each in exported["queues"]]
    site.ask("DELETE", "queues/%2F/kept")
    text = site.broker.control("import_definitions", str(file))
    assert "queues" in text
    assert site.status("DELETE", "queues/%2F/kept") == 204
    assert "Ping succeeded" in site.broker.control("ping")
    printed = site.broker.control("export_definitions", "-")
    assert json.loads(printed)["product_name"] == "FluxMQ"


def test_definitions_keep_all_of_a_user(site: Site, tmp_path: Path) -> None:
    """Topic filters of MQTT, keys for SCRAM, and whether the user may log in."""
    file = tmp_path / "definitions.json"
    site.broker.control(
        *("user", "add", "whole", "--publish", "a/#", "--subscribe", "b/+", "--password-stdin"),
        stdin="secret\n",
    )
    site.broker.control("user", "disable", "whole")
    site.broker.control("export_definitions", str(file))
    (before,) = [each for each in json.loads(file.read_bytes())["users"] if each["name"] == "whole"]
    assert (before["publish"], before["subscribe"]) == (["a/#"], ["b/+"])
    assert before["scram"]["iterations"] >= 4096
    assert before["enabled"] is False
    assert site.status("DELETE", "users/whole") == 204
    for _ in range(2):  # it is created, then changed
        site.broker.control("import_definitions", str(file))
        users = site.get("definitions")["users"]
        assert before in users
    for change, reason in (
        ({"publish": "a"}, "publish is not a list"),
        ({"subscribe": ["a/#/b"]}, "subscribe: filter"),
        ({"password_hash": before["password_hash"], "scram": {"iterations": 1}}, "scram: "),
    ):
        refused = site.ask("PUT", "users/whole", {"tags": "", **change})
        assert refused.status == 400
        assert reason in refused.body["reason"]
    assert site.status("DELETE", "users/whole") == 204


def test_users_of_mosquitto_log_in_with_their_passwords(tmp_path: Path) -> None:
    """The command converts its files, a broker starts with the settings, and the users keep their
    rights."""
    (mqtt,) = free_ports(1)
    (tmp_path / "broker").mkdir()
    passwords = tmp_path / "passwords"
    command = ["mosquitto_passwd", "-b", "-c", str(passwords), "ann", "secret"]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "rules").write_text("user ann\ntopic readwrite home/#\n")
    (tmp_path / "mosquitto.conf").write_text(
        f"listener {mqtt} {HOST}\npassword_file {passwords}\nacl_file rules\n"
    )
    settings, definitions = tmp_path / "s.yaml", tmp_path / "d.json"
    converted = ["import-mosquitto", str(tmp_path / "mosquitto.conf")]
    assert (
        fluxmqctl([*converted, "--settings", str(settings), "--definitions", str(definitions)]) == 0
    )
    with running_broker(
        tmp_path / "broker",
        settings={
            **yaml.safe_load(settings.read_text()),
            "server": {"mqtt": {"tcp": {"addr": f"{HOST}:{mqtt}"}, "websocket": None}},
            "management": {"load_definitions": str(definitions)},
        },
    ):
        publish = ["mosquitto_pub", "-h", HOST, "-p", str(mqtt), "-V", "5", "-q", "1", "-m", "m"]
        for password, topic, complaint in (
            ("secret", "home/light", ""),
            ("wrong", "home/light", "Bad User Name"),
            ("secret", "work/light", "ot authorized"),
        ):
            command = [*publish, "-u", "ann", "-P", password, "-t", topic]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
            assert complaint in done.stderr if complaint else not done.stderr, done


def test_a_node_declares_a_file_when_it_starts(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(DEFINITIONS))
    (tmp_path / "broker").mkdir()
    settings = {"management": {"load_definitions": str(file)}}
    with running_broker(tmp_path / "broker", settings=settings) as broker:
        site = Site(broker)
        names = site.get("queues/imported?columns=name", user="old", password="old password")
        assert {each["name"] for each in names} == {"c", "q", "s"}


def test_a_file_that_cannot_be_declared_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": [{"name": "q", "vhost": "absent"}]}))
    (tmp_path / "broker").mkdir()
    with (
        pytest.raises(AssertionError),
        running_broker(
            tmp_path / "broker", settings={"management": {"load_definitions": str(file)}}
        ),
    ):
        raise RuntimeError("it has started")
    log = (tmp_path / "broker" / "broker.log").read_text()
    assert f"load_definitions: {file}" in log
    assert "absent" in log


def test_health_checks(site: Site) -> None:
    for path in ("alarms", "local-alarms", "virtual-hosts", "ready-to-serve-clients"):
        assert site.get(f"health/checks/{path}") == {"status": "ok"}
    assert site.get(f"health/checks/port-listener/{site.amqp}")["port"] == site.amqp
    missing = site.ask("GET", "health/checks/port-listener/1")
    assert (missing.status, missing.body["missing"]) == (503, 1)
    assert site.amqp in missing.body["ports"]
    assert site.status("GET", "health/checks/port-listener/amqp") == 400
    assert "amqp" in site.get("health/checks/protocol-listener/amqp091,http")["protocols"]
    missing = site.ask("GET", "health/checks/protocol-listener/stomp,amqp")
    assert (missing.status, missing.body["missing"]) == (503, "stomp")
    assert site.get("health/checks/node-is-quorum-critical") == {"status": "ok"}
    assert site.get("aliveness-test/%2F") == {"status": "ok"}
