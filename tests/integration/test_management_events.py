"""Message rates, the broker's own routes, and event streams of the management interface."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from fluxmq.control.management.events import PATHS_MAX, USER_STREAMS_MAX
from tests.broker import HOST, Broker, external_broker, free_port, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp
from tests.management import Answer, ManagementSite

V1 = "fluxmq/v1"
PATIENCE = 10.0
EVENTS = f"/api/{V1}/events"


class OwnSite(ManagementSite):
    """A broker's, with its MQTT listener."""

    def __init__(self, broker: Broker, amqp: int) -> None:
        super().__init__(broker.http_port, amqp)
        self.broker = broker

    def mqtt(self, client_id: str) -> Client:
        """An MQTT client."""
        client = Client(tcp(self.broker.host, self.broker.port), wire.V5)
        client.connect(client_id)
        return client

    def v1(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """The answer of one of the broker's own routes."""
        return self.ask(method, f"{V1}/{path}", body, **more)

    def stream(self, *paths: str, user: str = "guest") -> EventReader:
        """An event stream."""
        return EventReader(self.port, paths, user)


class EventReader:
    """Reads an event stream as a browser does."""

    def __init__(self, port: int, paths: tuple[str, ...], user: str) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
        secret = base64.b64encode(f"{user}:{user}".encode()).decode()
        query = urlencode([("path", each) for each in paths])
        headers = {"Authorization": f"Basic {secret}"}
        self._connection.request("GET", f"{EVENTS}?{query}", headers=headers)
        self.answer = self._connection.getresponse()

    def next(self) -> tuple[str, Any]:
        """The next event and its data."""
        name = ""
        while line := self.answer.readline().decode():
            if line.startswith("event:"):
                name = line.strip().partition(": ")[2]
            if line.startswith("data:"):
                return name, json.loads(line.partition(": ")[2])
        raise AssertionError("the stream has ended")

    def close(self) -> None:
        """Hang up."""
        self.answer.close()
        self._connection.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnSite]:
    """A broker of two shards with an AMQP listener, and a user of each role."""
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    port = free_port()
    settings = {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}}
    folder = tmp_path_factory.mktemp("events")
    with running_broker(folder, workers=2, settings=settings) as broker:
        site = OwnSite(broker, port)
        for role in ("monitoring", "management"):
            made = site.status("PUT", f"users/{role}", {"password": role, "tags": role})
            assert made == 201
        yield site


def test_rates_of_a_queue_its_virtual_host_and_the_node(site: OwnSite) -> None:
    connection = site.connect()
    channel = connection.channel()
    channel.queue_declare("rated", durable=True)
    channel.queue_declare("idle", durable=True)

    def moved() -> Any:
        for _ in range(20):
            channel.basic_publish("", "rated", b"x")
        for _ in range(10):
            method, _, _ = channel.basic_get("rated")
            if method is not None:
                channel.basic_ack(method.delivery_tag)
        connection.sleep(0.1)
        row = site.get("queues/%2F/rated?msg_rates_age=60&msg_rates_incr=5&lengths_age=10")
        stats = row.get("message_stats", {})
        well = all(
            stats.get(f"{each}_details", {}).get("rate") for each in ("publish", "get", "ack")
        )
        return row if well else None

    row = eventually(moved, "the queue has rates", PATIENCE)
    stats = row["message_stats"]
    assert stats["publish"] >= 2 * stats["get"] >= 2 * stats["ack"] > 0
    assert stats["deliver_get"] == stats["get"]
    assert stats["publish_details"]["rate"] > stats["ack_details"]["rate"]
    samples = stats["publish_details"]["samples"]
    assert len(samples) == 13
    assert [each["sample"] for each in samples] == sorted(
        (each["sample"] for each in samples), reverse=True
    )
    assert samples[0]["timestamp"] - samples[1]["timestamp"] == 5000
    assert abs(samples[0]["timestamp"] / 1000 - time.time()) < PATIENCE
    assert row["messages_details"]["rate"] > 0
    assert len(row["messages_ready_details"]["samples"]) == 3
    by_rate = site.get("queues?sort=message_stats.publish_details.rate&sort_reverse=true&page=1")
    assert by_rate["items"][0]["name"] == "rated"
    # KEDA's scaler in its mode http: it reads pages, whatever it says.
    keda = "page=1&use_regex=true&pagination=false&name=%5ERated&page_size=100"
    scaled = site.get(f"queues/%2F?{keda}")
    assert scaled["page_count"] == 1
    assert [each["name"] for each in scaled["items"]] == ["rated"]
    assert scaled["items"][0]["message_stats"]["publish_details"]["rate"] > 0
    assert scaled["items"][0]["message_stats"]["deliver_get_details"]["rate"] > 0
    assert site.get("vhosts/%2F")["message_stats"]["publish_details"]["rate"] > 0
    exchange = site.get("exchanges/%2F/amq.default")["message_stats"]
    assert exchange["publish_in"] == exchange["publish_out"] > 0
    assert exchange["publish_in_details"]["rate"] > 0
    overview = site.get("overview?lengths_age=60")
    assert overview["message_stats"]["publish_details"]["rate"] > 0
    assert overview["queue_totals"]["messages"] > 0
    assert len(overview["queue_totals"]["messages_details"]["samples"]) == 13
    for wrong in ("msg_rates_age=x", "lengths_age=100000&lengths_incr=1", "msg_rates_incr=0"):
        assert site.status("GET", f"overview?{wrong}") == 400
    connection.close()


def test_groups_and_cores(site: OwnSite) -> None:
    cores = site.v1("GET", "cores").body
    assert [each["name"] for each in cores] == ["shard-0", "shard-1"]
    group = cores[0]["groups"][0]
    row = site.v1("GET", f"groups/{group}").body
    assert (row["shard"], row["role"], row["pinned"]) == (0, "leader", False)
    placed = site.v1("PUT", f"groups/{group}/pin", {"shard": 1}).body
    assert (placed["shard"], placed["moved"]) == (1, True)
    assert site.v1("GET", "cores?name=shard-1").body[0]["pinned"] == [group]
    assert site.v1("DELETE", f"groups/{group}/pin").body["moved"]
    refused = site.v1("PUT", f"groups/{group}/pin", {"shard": 1, "core": 1})
    assert (refused.status, set(refused.body)) == (400, {"error", "reason"})
    assert site.v1("GET", "groups/none").status == 404
    assert site.v1("PUT", "groups/none/pin", {"shard": 0}).status == 404
    assert site.v1("GET", "groups?page=1&page_size=1").body["page_count"] > 1
    assert site.v1("GET", "raft").body == site.v1("GET", "members").body == []
    assert site.v1("POST", "raft/none/audit").status == 400
    assert site.v1("GET", "status").body["processes"]


def test_mqtt_clients_and_what_they_have_left(site: OwnSite) -> None:
    with site.mqtt("watcher/1") as client:
        client.subscribe("a/+", "$share/g/b", qos=1)
        client.publish("a/b", b"kept", retain=True, qos=1)
        (session,) = site.v1("GET", "sessions?name=watcher").body
        assert (session["connected"], session["subscriptions"]) == (True, 2)
        assert (session["protocol"], session["node"]) == ("MQTT 5.0", site.get("overview")["node"])
        found = site.v1("GET", "sessions/watcher%2F1/subscriptions").body
        assert {(each["name"], each["share"]) for each in found} == {
            ("a/+", ""),
            ("$share/g/b", "g"),
        }
        (kept,) = site.v1("GET", "retained?name=a/b").body
        assert (kept["payload_bytes"], "payload" in kept) == (4, False)
        assert site.v1("GET", "retained/a%2Fb").body["payload"] == "kept"
        assert site.v1("DELETE", "retained/a%2Fb").status == 204
        assert site.v1("DELETE", "retained/a%2Fb").status == 404
        assert site.v1("GET", "retained").body == []
        assert site.v1("DELETE", "sessions/watcher%2F1").status == 204
        assert site.v1("GET", "sessions/watcher%2F1").status == 404
    assert site.v1("GET", "outboxes").body == []


def test_monitoring_sees_and_an_administrator_changes(site: OwnSite) -> None:
    def status(role: str, method: str, path: str) -> int:
        return site.v1(method, path, {}, user=role, password=role).status

    for path in ("groups", "sessions", "subscriptions", "retained", "raft", "cores"):
        assert status("monitoring", "GET", path) == 200
        assert status("management", "GET", path) == 401
    changes = ("PUT groups/none/pin", "DELETE sessions/none", "DELETE retained/none")
    for change in (*changes, "PUT members/g/n", "POST rebalance", "GET retained/none"):
        assert status("monitoring", *change.split(" ", 1)) == 401


def test_the_interface_describes_itself(site: OwnSite) -> None:
    document = site.get("openapi.json")
    assert document["openapi"].startswith("3.1")
    asked = document["paths"]["/fluxmq/v1/groups/{group}/pin"]["put"]
    assert asked["x-right"] == "administrator"


def test_a_stream_tells_what_has_changed(site: OwnSite) -> None:
    paths = "queues?page=1&name=streamed&columns=name,messages", "whoami"
    with contextlib.closing(site.stream(*paths)) as stream:
        assert stream.answer.headers["Content-Type"].startswith("text/event-stream")
        assert stream.next()[1]["found"]["items"] == []
        assert stream.next() == ("1", {"found": site.get("whoami")})
        begun = time.monotonic()
        assert site.status("PUT", "queues/%2F/streamed") == 201
        name, told = stream.next()
        assert (name, told["found"]["items"]) == ("0", [{"messages": 0, "name": "streamed"}])
        assert site.status("DELETE", "queues/%2F/streamed") == 204
        assert stream.next()[1]["found"]["items"] == []
        assert time.monotonic() - begun > 0.9, "at most one update a second"


def test_a_stream_has_the_rights_of_its_user(site: OwnSite) -> None:
    with contextlib.closing(site.stream(f"{V1}/sessions", user="management")) as refused:
        assert refused.answer.status == 401
    for path, status in (("aliveness-test/%2F", 404), ("nothing", 404), (f"{V1}/events", 404)):
        with contextlib.closing(site.stream(path)) as refused:
            assert refused.answer.status == status
    with contextlib.closing(site.stream(*["whoami"] * (PATHS_MAX + 1))) as refused:
        assert refused.answer.status == 400
    assert site.status("PUT", "users/brief", {"password": "brief", "tags": "monitoring"}) == 201
    with contextlib.closing(site.stream("whoami", user="brief")) as stream:
        assert stream.next()[1]["found"]["name"] == "brief"
        assert site.status("DELETE", "users/brief") == 204
        name, told = stream.next()
        assert (name, told["error"]) == ("ended", "not_authorised")
        assert stream.answer.read() == b"\n"


def test_open_streams_are_limited(site: OwnSite) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(USER_STREAMS_MAX):
            stream = stack.enter_context(
                contextlib.closing(site.stream("whoami", user="management"))
            )
            assert stream.next()[0] == "0"
        refused = stack.enter_context(contextlib.closing(site.stream("whoami", user="management")))
        assert refused.answer.status == 503
        told = json.loads(refused.answer.read())
        assert told["error"] == "too_many_event_streams"
        assert f"{USER_STREAMS_MAX} of management" in told["reason"]
        counted = site.broker.metrics("fluxmq_http_refused_total")
        assert counted[(("reason", "streams"),)] == 1

    def opened() -> bool:
        with contextlib.closing(site.stream("whoami", user="management")) as again:
            return again.answer.status == 200

    eventually(opened, "there is room again", PATIENCE)


def test_settings_are_explained(site: OwnSite) -> None:
    assert site.status("PUT", "queues/%2F/told%20why", {"arguments": {"x-max-length": 5}}) == 201
    policy = {"pattern": "^told", "definition": {"max-length": 9, "expires": 60000}}
    assert site.status("PUT", "policies/%2F/p", policy) == 201
    rows = {each["key"]: each for each in site.v1("GET", "explain/%2F/told%20why").body}
    assert rows["expires"]["value"] == "60000"
    assert rows["max-length"]["value"] == "5"
    assert "p" in rows["expires"]["source"]
    assert site.v1("GET", "explain/%2F/nothing").status == 404
    assert (
        site.v1("GET", "explain/%2F/told%20why", user="management", password="management").status
        == 401
    )
