"""Logins with tokens, over MQTT, AMQP and the management interface of a running broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika  # type: ignore[import-untyped]
import pika.exceptions  # type: ignore[import-untyped]
import pytest
import yaml
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import HOST, Broker, external_broker, free_ports, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp
from tests.directory_server import BASE, directory_server
from tests.issuer import Form, SigningKey, WebServer, document, signing_key, token, web_server
from tests.management import ManagementSite

DEADLINE = 15.0
EVERYTHING = ("configure:*/*", "write:*/*/*", "read:*/*/*")
MAXIMUM_CONNECT_TIME = 0xA0


class Doors:
    """A broker that lets in whom an issuer has given a token."""

    def __init__(self, broker: Broker, amqp: int, issuer: WebServer, keys: list[SigningKey]):
        self.broker = broker
        self.site = ManagementSite(broker.http_port, amqp)
        self.issuer = issuer
        self.keys = keys
        self._clients: list[Mqtt] = []
        self._connections: list[pika.BlockingConnection] = []

    def end(self) -> None:
        """Disconnect everybody."""
        for client in self._clients:
            client.end()
        for connection in self._connections:
            if connection.is_open:
                connection.close()

    def mqtt(
        self, password: str, name: str | None = "any", version: int = 5, properties: Any = None
    ) -> Mqtt:
        """An MQTT client that has got an answer."""
        client = Mqtt(self.broker.port, password, name, version, properties)
        self._clients.append(client)
        return client

    def amqp(self, password: str, name: str = "any") -> pika.BlockingConnection:
        """An AMQP client."""
        parameters = pika.ConnectionParameters(
            HOST, self.site.amqp, credentials=pika.PlainCredentials(name, password)
        )
        connection = pika.BlockingConnection(parameters)
        self._connections.append(connection)
        return connection


class Mqtt:
    """A paho client, its events turned into waits."""

    def __init__(
        self, port: int, password: str, name: str | None, version: int, properties: Any = None
    ) -> None:
        kind = paho.MQTTv5 if version == 5 else paho.MQTTv311
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, protocol=kind, reconnect_on_failure=False
        )
        self.client = client
        self.messages: list[str] = []
        self.codes: list[Any] = []
        """Reason codes of CONNACK, SUBACK and PUBACK, in order."""
        self.left: list[Any] = []
        self._answered = threading.Condition()
        client.on_connect = lambda _c, _u, _f, code, _p: self._note(self.codes, code)
        client.on_subscribe = lambda _c, _u, _m, codes, _p: self._note(self.codes, *codes)
        client.on_publish = lambda _c, _u, _m, code, _p: self._note(self.codes, code)
        client.on_disconnect = lambda _c, _u, _f, code, _p: self._note(self.left, code)
        client.on_message = lambda _c, _u, message: self._note(self.messages, message.topic)
        if properties is None:
            client.username_pw_set(name or "", password)
        client.connect(HOST, port, properties=properties)
        client.loop_start()
        self.wait(self.codes, 1)

    def _note(self, where: list[Any], *values: Any) -> None:
        with self._answered:
            where += values
            self._answered.notify_all()

    def wait(self, where: list[Any], count: int) -> list[Any]:
        """Wait until there are so many."""
        with self._answered:
            assert self._answered.wait_for(lambda: len(where) >= count, DEADLINE), where
        return where

    def asks(self, act: Callable[[], object]) -> int:
        """The reason code that answers a request."""
        before = len(self.codes)
        act()
        return int(self.wait(self.codes, before + 1)[before].value)

    def publish(self, topic: str) -> int:
        """Publish with QoS 1."""
        return self.asks(lambda: self.client.publish(topic, b"x", qos=1))

    def subscribe(self, topic_filter: str) -> int:
        """Subscribe."""
        return self.asks(lambda: self.client.subscribe(topic_filter, qos=1))

    def end(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A broker of two shards, and an issuer."""
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    keys = [signing_key("first")]
    (port,) = free_ports(1)
    with web_server(lambda _path, _form: (200, document(*keys))) as issuer:
        oauth2 = {
            "resource_server_id": "fluxmq",
            "jwks_url": f"{issuer.url}/keys",
            "leeway": "0s",
        }
        settings = {
            "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
            "auth": {"backends": ["internal", "oauth2"], "oauth2": oauth2},
        }
        folder = tmp_path_factory.mktemp("logins")
        with running_broker(folder, workers=2, settings=settings) as broker:
            made = Doors(broker, port, issuer, keys)
            yield made
            made.end()


def test_a_token_is_an_mqtt_password_and_its_scopes_are_rights(doors: Doors) -> None:
    allowed = token(doors.keys[0], "write:%2F/amq.topic/a.*", "read:%2F/amq.topic/a.*")
    for name in ("any", None):
        client = doors.mqtt(allowed, name)
        assert client.codes[0].value == 0
        assert client.subscribe("a/#") == 1
        assert client.subscribe("b/#") == 0x87
        assert client.publish("b/x") == 0x87
        client.publish("a/x")
        assert client.wait(client.messages, 1) == ["a/x"]
    assert doors.mqtt(allowed[:-6] + "AAAAAA").codes[0].value == 0x86
    assert doors.mqtt("no token").codes[0].value == 0x86


def test_a_token_is_an_amqp_password(doors: Doors) -> None:
    allowed = token(doors.keys[0], "configure:%2F/q*", "write:%2F/q*", "read:%2F/q*")
    connection = doors.amqp(allowed)
    channel = connection.channel()
    channel.queue_declare("q1")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_declare("other")
    assert refused.value.reply_code == 403
    assert "for user 'device'" in refused.value.reply_text
    connection.close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        doors.amqp(token(doors.keys[0], *EVERYTHING, aud="another"))
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        doors.amqp(token(doors.keys[0], "read:other/*"))


def test_a_bearer_uses_the_management_interface(doors: Doors) -> None:
    def ask(secret: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = doors.site.ask(method, path, body, headers={"Authorization": f"Bearer {secret}"})
        return answer.status, answer.body

    administrator = token(doors.keys[0], *EVERYTHING, "tag:administrator", sub="root")
    status, found = ask(administrator, "GET", "whoami")
    assert (status, found["name"], found["tags"]) == (200, "root", ["administrator"])
    assert not found["is_internal_user"]
    status, _ = ask(administrator, "PUT", "queues/%2F/made", {"durable": True})
    assert status == 201
    restricted = token(doors.keys[0], "read:%2F/x", "tag:management", sub="root")
    assert ask(restricted, "PUT", "queues/%2F/other", {"durable": True})[0] in (401, 403)
    assert ask(token(doors.keys[0], *EVERYTHING), "GET", "whoami")[0] == 401  # no tag
    # The same in the place of a password, and users of the broker's own as ever.
    assert doors.site.get("whoami", password=administrator)["name"] == "root"
    assert doors.site.get("whoami")["name"] == "guest"


def test_a_login_ends_with_its_token(doors: Doors) -> None:
    key = doors.keys[0]
    mqtt = doors.mqtt(token(key, *EVERYTHING, lasts=1.5))
    old = doors.mqtt(token(key, *EVERYTHING, lasts=1.5), version=4)
    ended = doors.amqp(token(key, *EVERYTHING, lasts=1.5))
    renewed = doors.amqp(token(key, *EVERYTHING, lasts=1.5))
    fresh = token(key, *EVERYTHING, lasts=60)
    by_method = Client(tcp(HOST, doors.broker.port), 5)
    by_method.send(wire.connect(5, props=proof(token(key, *EVERYTHING, lasts=1.5))))
    assert by_method.expect(wire.CONNACK).reason == 0
    by_method.send(wire.auth(0x19, proof(fresh)))
    assert by_method.expect(wire.AUTH).reason == 0
    asked = threading.Event()
    renewed._impl.update_secret(fresh, "renewed", lambda _frame: asked.set())
    while not asked.is_set():
        renewed.process_data_events(0.05)
    assert mqtt.wait(mqtt.left, 1)[0].value == MAXIMUM_CONNECT_TIME
    assert old.wait(old.left, 1)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        ended.process_data_events(DEADLINE)
    assert closed.value.reply_code == 320
    assert "expired" in closed.value.reply_text
    assert by_method.ping() == []
    renewed.process_data_events(0)
    renewed.channel().queue_declare("renewed")
    # A token that is no good ends the connection, as with RabbitMQ.
    renewed._impl.update_secret(token(key, sub="somebody else"), "renewed")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
        renewed.process_data_events(DEADLINE)
    assert refused.value.reply_code == 530
    by_method.send(wire.auth(0x19, proof(token(key, sub="somebody else"))))
    assert by_method.expect(wire.DISCONNECT).reason == 0x87
    by_method.drop()


def proof(secret: str) -> wire.Properties:
    """A token as Authentication Data."""
    return (
        (wire.AUTHENTICATION_METHOD, "JWT"),
        (wire.AUTHENTICATION_DATA, secret.encode()),
    )


def test_paho_names_the_method(doors: Doors) -> None:
    secret = token(doors.keys[0], "write:%2F/amq.topic/a.*")
    properties = Properties(PacketTypes.CONNECT)
    properties.AuthenticationMethod = "OAUTH2-JWT"
    properties.AuthenticationData = secret.encode()
    client = doors.mqtt("", None, properties=properties)
    assert client.codes[0].value == 0
    assert client.publish("b") == 0x87
    assert client.publish("a/x") in (0, 0x10)


def test_a_new_key_counts_at_once_and_an_old_one_no_longer(doors: Doors) -> None:
    first, second = doors.keys[0], signing_key("second", "EC")
    doors.amqp(token(first, *EVERYTHING)).close()
    doors.keys[:] = [second]
    # The issuer is asked again for the unknown key, though at most once a second.
    eventually(
        lambda: doors.mqtt(token(second, *EVERYTHING)).codes[0].value == 0,
        "the new key is known",
    )
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        doors.amqp(token(first, *EVERYTHING, sub="late"))
    assert [path for path, _ in doors.issuer.asked] == ["GET /keys"] * len(doors.issuer.asked)


def test_logins_are_counted(doors: Doors) -> None:
    found = doors.broker.metrics("fluxmq_login_backend_checks_total")
    outcomes = {dict(labels)["outcome"]: count for labels, count in found.items()}
    assert outcomes["accepted"] > 0
    assert outcomes["refused"] > 0
    results = doors.broker.metrics("fluxmq_authentications_total")
    counted = {(dict(each)["method"], dict(each)["result"]) for each in results}
    assert counted >= {("oauth2", "success"), ("oauth2", "failure")}


def test_a_backend_that_is_removed_lets_nobody_stay(doors: Doors) -> None:
    """By SIGHUP; and it can be added again, with another scope prefix."""
    first = token(doors.keys[0], *EVERYTHING)
    mqtt, amqp = doors.mqtt(first), doors.amqp(first)
    current = yaml.safe_load(doors.broker.config.read_text())["auth"]["oauth2"]
    doors.broker.reload({"auth": {"backends": ["internal"], "oauth2": None}})
    assert mqtt.wait(mqtt.left, 1)[0].value == 0x87
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        amqp.process_data_events(DEADLINE)
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        doors.amqp(first)
    changed = {**current, "scope_prefix": "other."}
    doors.broker.reload({"auth": {"backends": ["internal", "oauth2"], "oauth2": changed}})
    other = token(doors.keys[0], scope="other.write:%2F/amq.topic/x")
    eventually(lambda: doors.mqtt(other).codes[0].value == 0, "the backend is there again")
    assert doors.mqtt(other).publish("x") in (0, 0x10)


class Directory:
    """What an HTTP server says about users."""

    def __init__(self) -> None:
        self.users = {"hanna": "allow management"}
        self.vhosts = {"/"}
        self.allowed = {
            ("queue", "q", "configure"),
            ("queue", "q", "write"),
            ("queue", "q", "read"),
            ("exchange", "amq.default", "write"),
            ("exchange", "amq.topic", "write"),
            ("exchange", "amq.topic", "read"),
            ("topic", "amq.topic", "write", "a.b"),
            ("topic", "amq.topic", "read", "a.#"),
        }

    def __call__(self, path: str, form: Form) -> tuple[int, bytes]:
        """Answer a question."""
        said = "deny"
        if path == "/user":
            right = form["password"] == f"{form['username']}'s"
            said = self.users.get(form["username"], "deny") if right else "deny"
        elif path == "/vhost":
            said = "allow" if form["vhost"] in self.vhosts else "deny"
        else:
            names = ("resource", "name", "permission", "routing_key")
            asked = tuple(form[name] for name in names if name in form)
            said = "allow" if asked in self.allowed else "deny"
        return 200, said.encode()


def test_an_http_server_and_a_directory_decide(tmp_path: Path) -> None:
    """Over all protocols, at each operation; nobody is let in while they are away."""
    if external_broker() is not None:
        pytest.skip("needs a broker of its own")
    (port,) = free_ports(1)
    answers = Directory()
    ldap_folder = tmp_path / "ldap"
    ldap_folder.mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(web_server(answers))
        ldap, _ = stack.enter_context(directory_server(ldap_folder))
        paths = {
            f"{each}_path": f"{server.url}/{each}"
            for each in ("user", "vhost", "resource", "topic")
        }
        writers = {
            "dn": f"cn=writers,ou=groups,{BASE}",
            "tags": ["monitoring"],
            "permissions": [{"configure": "^w", "write": "^(w|amq)", "read": "^w"}],
        }
        auth = {
            "backends": ["internal", "http", "ldap"],
            "http": paths,
            "ldap": {
                "url": ldap,
                "user_dn_pattern": "uid={username},ou=people," + BASE,
                "group_base": f"ou=groups,{BASE}",
                "groups": [writers],
            },
            "cache": {"success": "0s", "failure": "0s"},
        }
        settings = {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}, "auth": auth}
        broker = stack.enter_context(running_broker(tmp_path, settings=settings))
        doors = Doors(broker, port, server, [])
        stack.callback(doors.end)
        hanna, bert = doors.amqp("hanna's", "hanna"), doors.amqp("bert's", "bert")
        channel = hanna.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x", mandatory=True)
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            channel.queue_declare("other")
        bert.channel().queue_declare("work")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            bert.channel().queue_declare("q2")
        client = doors.mqtt("hanna's", "hanna")
        assert client.subscribe("a/#") == 1
        assert client.subscribe("#") == 0x87
        assert client.publish("b") == 0x87
        client.publish("a/b")
        assert client.wait(client.messages, 1) == ["a/b"]
        assert doors.mqtt("bert's", "bert").publish("any") in (0, 0x10)
        for name, password in (("hanna", "wrong"), ("bert", ""), ("nobody", "x")):
            assert doors.mqtt(password, name).codes[0].value == 0x86
        assert doors.site.get("whoami", user="hanna", password="hanna's")["tags"] == ["management"]
        assert doors.site.get("nodes", user="bert", password="bert's")
        made = doors.site.ask(
            "PUT", "queues/%2F/q", {"durable": False}, user="hanna", password="hanna's"
        )
        assert made.status == 204, "it is there"
        server.stop()
        assert doors.mqtt("hanna's", "hanna").codes[0].value == 0x88
        assert doors.site.ask("GET", "whoami", user="hanna", password="hanna's").status == 503
        assert client.publish("a/c") == 0x87
