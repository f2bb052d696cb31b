"""Users and anonymous access change while clients are connected, and while a shard restarts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pika  # type: ignore[import-untyped]
import pytest
import yaml

from fluxmq.ipc.messages import USER_UPGRADE
from fluxmq.ipc.polling_client import CallError
from fluxmq.ipc.user_messages import UserUpgrade
from tests.broker import HOST, REPOSITORY, Broker, free_ports, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp
from tests.conformance.test_mqtt_auth import DATA, METHOD, SCRAM, Scram, challenge, proceed
from tests.integration.test_queue_placement import ask
from tests.management import ManagementSite
from tests.unit.auth.test_hash_upgrades import imported, upgrade

NOT_AUTHORIZED = 0x87
BAD_NAME_OR_PASSWORD = 0x86
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two shards with a user; verifying a password costs next to nothing."""
    (port,) = free_ports(1)
    settings = {
        "auth": {"argon2": {"time_cost": 1, "memory_cost": "8KiB"}},
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
    }
    directory = tmp_path_factory.mktemp("users")
    with running_broker(directory, workers=2, settings=settings) as found:
        found.add_user("anna", "secret")
        yield found


def ctl(broker: Broker, *arguments: str, password: str = "") -> None:
    """What an operator does."""
    command = [sys.executable, "-m", "fluxmq.cli.main", "--config", str(broker.config), "user"]
    done = subprocess.run(
        [*command, *arguments],
        input=password.encode() + b"\n",
        capture_output=True,
        timeout=30,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


def anna(broker: Broker, client_id: str, password: bytes = b"secret") -> tuple[Client, int]:
    """A connection of the user, and what CONNACK says."""
    client = Client(tcp(broker.host, broker.port), 5)
    try:
        return client, client.connect(client_id, username="anna", password=password).reason
    except BaseException:
        client.drop()
        raise


def connected(broker: Broker, client_id: str, password: bytes = b"secret") -> Client:
    """The user's client, as soon as the shards know of the last change."""

    def attempt() -> Client | None:
        client, reason = anna(broker, client_id, password)
        if reason:
            client.drop()
            return None
        return client

    found: Client = eventually(attempt, "the user gets in")
    return found


def test_changes_reach_who_is_here(broker: Broker) -> None:
    """On both shards, by every command that takes something away."""

    def pair() -> list[Client]:
        return [connected(broker, f"client-{number}") for number in range(4)]

    for command, back in (
        (("disable", "anna"), ("enable", "anna")),
        (("delete", "anna"), ()),
    ):
        clients = pair()
        ctl(broker, *command)
        for client in clients:
            client.expect_error(NOT_AUTHORIZED)
            client.drop()
        late, reason = anna(broker, "late")
        late.drop()
        assert reason == BAD_NAME_OR_PASSWORD
        if back:
            ctl(broker, *back)
        else:
            broker.add_user("anna", "secret")
    clients = pair()
    ctl(broker, "passwd", "anna", "--password-stdin", password="other")
    for client in clients:
        client.expect_error(NOT_AUTHORIZED)
        client.drop()
    connected(broker, "c", b"other").drop()
    ctl(broker, "passwd", "anna", "--password-stdin", password="secret")
    connected(broker, "c").drop()


def test_permissions_hold_at_once(broker: Broker) -> None:
    client = connected(broker, "permitted")
    assert client.publish("a/1", qos=1) in (0, 0x10)
    ctl(broker, "permit", "anna", "--publish", "b/#", "--subscribe", "#")
    eventually(lambda: client.publish("a/1", qos=1) == NOT_AUTHORIZED, "not permitted any more")
    assert client.publish("b/1", qos=1) in (0, 0x10)
    client.subscribe("a/#")
    ctl(broker, "permit", "anna", "--publish", "#", "--subscribe", "b/#")
    client.expect_error(NOT_AUTHORIZED)
    client.drop()
    ctl(broker, "permit", "anna", "--publish", "#", "--subscribe", "#")
    connected(broker, "permitted").drop()


def test_a_hash_of_rabbitmq_is_replaced_after_a_login(broker: Broker) -> None:
    """Nobody is disconnected for it; SCRAM works from then on; what comes too late changes nothing."""
    settings = yaml.safe_load(broker.config.read_text())
    port = int(settings["server"]["amqp"]["tcp"]["addr"].rpartition(":")[2])
    site = ManagementSite(broker.http_port, port)
    stored = imported()
    user = {
        "password_hash": stored.rpartition("$")[2],
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": "",
        "subscribe": ["#"],
    }
    assert site.status("PUT", "users/old", user) == 201
    assert site.status("PUT", "permissions/%2F/old", EVERYTHING) == 201

    def hash_now() -> str:
        return str(site.get("users/old")["password_hash"])

    def amqp(password: str) -> None:
        login = pika.PlainCredentials("old", password)
        with pika.BlockingConnection(pika.ConnectionParameters(HOST, port, "/", login)) as found:
            found.channel()

    amqp("secret")
    eventually(lambda: hash_now().startswith("$argon2id$"), "the hash is replaced")
    client = Client(tcp(broker.host, broker.port), 5)
    assert client.connect("old", username="old", password=b"secret").reason == 0
    amqp("secret")
    scram, second = Scram("old", "secret"), Client(tcp(broker.host, broker.port), 5)
    second.send(wire.connect(5, "by scram", props=[(METHOD, SCRAM), (DATA, scram.first)]))
    proceed(second, scram.final(challenge(second)))
    assert second.expect(wire.CONNACK).reason == 0
    # The definitions that the user came with are declared again.
    replaced = hash_now()
    assert site.status("PUT", "users/old", user) == 204
    assert hash_now() == replaced
    assert client.ping() == []
    ctl(broker, "passwd", "old", "--password-stdin", password="other")
    chosen = hash_now()
    with pytest.raises(CallError, match="no user has a hash that was verified"):
        ask(broker, USER_UPGRADE, dict(UserUpgrade((upgrade("old", stored),)).to_body()))
    assert hash_now() == chosen
    for each in (client, second):
        each.expect_error(NOT_AUTHORIZED)
        each.drop()
    amqp("other")
    assert site.status("DELETE", "users/old") == 204


@pytest.mark.parametrize("shard", [0, 1])
def test_a_shard_that_comes_back_knows_the_users_before_it_answers(
    broker: Broker, shard: int
) -> None:
    """Its clients come back at once; none of them is told that its password is wrong."""
    names = [f"back{shard}-{number}" for number in range(6)]
    clients = [connected(broker, name) for name in names]
    broker.kill_shard(shard)
    end = time.monotonic() + 10
    reasons: list[int] = []
    lost = [client for client in clients if client.ended(0.3)]
    assert lost, "no client was on this shard"
    waiting = [client.client_id for client in lost]
    while waiting:
        assert time.monotonic() < end, f"{waiting} are not back; refused with {reasons}"
        name = waiting.pop(0)
        try:
            client, reason = anna(broker, name)
        except (AssertionError, OSError):
            waiting.append(name)
            continue
        client.drop()
        if reason:
            reasons.append(reason)
            waiting.append(name)
    assert BAD_NAME_OR_PASSWORD not in reasons
    for client in clients:
        client.drop()
    broker.wait_ready()


def test_anonymous_clients_are_sent_away_by_a_reload(broker: Broker) -> None:
    with Client(tcp(broker.host, broker.port), 5) as client:
        assert client.connect("nobody").reason == 0
        broker.reload({"auth": {"anonymous": {"allow": "never"}}})
        client.expect_error(NOT_AUTHORIZED)
    with Client(tcp(broker.host, broker.port), 5) as client:
        assert client.connect("nobody").reason == NOT_AUTHORIZED
    broker.reload({"auth": {"anonymous": {"allow": "loopback"}}, "broker": {"max_qos": 1}})

    def allowed() -> bool:
        with Client(tcp(broker.host, broker.port), 5) as client:
            connack = client.connect("nobody")
            return connack.reason == 0 and connack.property(wire.MAXIMUM_QOS) == 1

    eventually(allowed, "the new settings")
