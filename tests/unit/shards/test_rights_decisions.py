"""Operations that another backend decides: they wait, in their order, and answers count for a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.login_messages import (
    LOGIN,
    LOGIN_RIGHTS,
    LoginAnswer,
    RightsAsked,
    RightsDecided,
)
from fluxmq.ipc.messages import Body
from fluxmq.settings.login_backends import LoginCache
from fluxmq.shards.rights_decisions import (
    ASKED_MAX,
    KNOWN_SECONDS_MIN,
    REFUSED_SECONDS_MIN,
    WAITING_MAX,
    RightsDecisions,
)
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Node, drain, messages, stream_of
from tests.unit.shards.test_authentication import CHEAP
from tests.unit.shards.test_backend_logins import HTTP

NOT_AUTHORIZED = 0x87


def question(name: str) -> RightsQuestion:
    """May anna write to an exchange?"""
    return RightsQuestion("http", "anna", (), "/", "exchange", name, "write")


class Server:
    """The control process and the server behind it. ``allowed``: routing keys, and queues."""

    def __init__(self) -> None:
        self.allowed: set[str] = set()
        self.asked: list[RightsQuestion] = []
        self.slow = False
        self.away = False
        self._held: list[tuple[RightsQuestion, Answered]] = []

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Take a question."""
        if self.away:
            return False
        if kind == LOGIN:
            permissions = {"vhost": "/", "configure": "", "write": "", "read": ""}
            answer = LoginAnswer("accepted", "http", "anna", resources=True, topics=True)
            answered(answer.to_body() | {"permissions": [permissions]})
            return True
        assert kind == LOGIN_RIGHTS
        asked = RightsAsked.from_body(body).question
        self.asked.append(asked)
        self._held.append((asked, answered))
        if not self.slow:
            self.answer()
        return True

    def answer(self) -> None:
        """Answer everything asked so far."""
        held, self._held = self._held, []
        for asked, answered in held:
            allowed = asked.name == "amq.topic" and asked.resource == "exchange"
            allowed = allowed or (asked.routing_key or asked.name) in self.allowed
            answered(RightsDecided(allowed).to_body())

    @property
    def waiting(self) -> int:
        """Number of questions without an answer."""
        return len(self._held)


class Known:
    """Decisions on a clock."""

    def __init__(self, **cache: Any) -> None:
        self.now = 100.0
        self.server = Server()
        self.decisions = RightsDecisions(LoginCache.model_validate(cache), lambda: self.now)
        self.decisions.connect(self.server)

    def ask(self, name: str) -> bool | None:
        """Have a question asked, and look at the answer."""
        self.decisions.ask(question(name), lambda: None)
        return self.decisions.find(question(name))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.decisions.tick()


def test_answers_count_for_their_time() -> None:
    known = Known(success=60, failure=5)
    known.server.allowed = {"a"}
    assert known.decisions.find(question("a")) is None
    assert known.ask("a") is True
    assert known.ask("b") is False
    known.wait(4)
    assert (known.decisions.find(question("a")), known.decisions.find(question("b"))) == (
        True,
        False,
    )
    known.wait(2)
    assert known.decisions.find(question("b")) is None
    known.wait(25)
    assert known.decisions.find(question("a")) is True
    generation = known.decisions.generation
    known.wait(30)
    known.wait(30)
    assert known.decisions.find(question("a")) is None
    assert known.decisions.generation > generation


def test_an_answer_counts_long_enough_for_an_operation_with_several() -> None:
    known = Known(success=0, failure=0)
    known.server.allowed = {"a"}
    assert known.ask("a") is True
    assert known.ask("b") is False
    known.wait(REFUSED_SECONDS_MIN / 2)
    assert known.decisions.find(question("b")) is False
    known.wait(KNOWN_SECONDS_MIN / 2)
    assert known.decisions.find(question("a")) is True


def test_answers_are_bounded() -> None:
    known = Known(entries=10)
    known.server.allowed = {str(n) for n in range(100)}
    for number in range(100):
        assert known.ask(str(number)) is True
    found = [known.decisions.find(question(str(number))) for number in range(100)]
    assert 10 <= found.count(True) <= 20
    assert found[-1] is True


def test_the_same_question_is_asked_once_and_few_at_a_time() -> None:
    known = Known()
    known.server.slow = True
    done: list[str] = []
    for number in range(ASKED_MAX + 5):
        for _ in range(3):
            name = str(number)
            known.decisions.ask(question(name), partial(done.append, name))
    assert len(known.server.asked) == ASKED_MAX
    assert known.decisions.pending == ASKED_MAX + 5
    known.server.answer()
    known.server.answer()
    assert len(known.server.asked) == ASKED_MAX + 5
    assert done == [str(number) for number in range(ASKED_MAX + 5) for _ in range(3)]
    assert known.decisions.pending == 0


def test_questions_without_room_are_refused() -> None:
    known = Known()
    known.server.slow = True
    for number in range(WAITING_MAX):
        assert known.ask(str(number)) is None
    assert known.ask("one more") is False


def test_without_control_everything_is_refused_for_a_moment() -> None:
    known = Known()
    known.server.allowed = {"a"}
    known.server.away = True
    assert known.ask("a") is False
    known.server.away = False
    known.wait(REFUSED_SECONDS_MIN)
    assert known.decisions.find(question("a")) is None
    assert known.ask("a") is True


# Clients


class Doors:
    """A shard whose users a server decides about."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.server = Server()
        node[0].authentication.backends.connect(self.server)

    def connect(self, version: int = 5, **fields: Any) -> Client:
        """A client with an accepted CONNECT."""
        found = self.node.client(0, version)
        found.send(
            wire.connect(version, "c", username="anna", password=b"p", keep_alive=0, **fields)
        )
        self.node.run()
        return found


@pytest.fixture
def doors(make_node: Callable[..., Node]) -> Doors:
    """A shard, and a client that may do nothing yet."""
    return Doors(make_node(1, {"auth": {"argon2": CHEAP, "backends": ("http",), "http": HTTP}}))


def answers(client: Client) -> list[tuple[int, int | None]]:
    """Kinds and reason codes of what has come."""
    return [(each.kind, each.reason) for each in drain(client)]


def test_publishes_wait_for_the_decision_in_their_order(doors: Doors) -> None:
    client, server = doors.connect(), doors.server
    assert answers(client) == [(wire.CONNACK, 0)]
    server.slow, server.allowed = True, {"a.1"}
    packets = [
        wire.publish(5, topic, payload, qos=1, packet_id=number)
        for number, (topic, payload) in enumerate(
            [("a/1", b"x"), ("a/1", b"y"), ("b/1", b"z"), ("a/1", b"x")], 1
        )
    ]
    client.send(b"".join([*packets, b"\xc0\x00"]))
    doors.node.run()
    assert answers(client) == []
    assert [each.resource for each in server.asked] == ["exchange"]
    for _ in range(4):
        server.answer()
        doors.node.run()
    found = answers(client)
    assert [kind for kind, _ in found] == [wire.PUBACK] * 4 + [wire.PINGRESP]
    assert [reason in (0, 0x10) for _, reason in found[:4]] == [True, True, False, True]
    assert found[2][1] == NOT_AUTHORIZED
    assert [(each.resource, each.routing_key) for each in server.asked] == [
        ("exchange", ""),
        ("topic", "a.1"),
        ("topic", "b.1"),
    ]


def test_subscriptions_wait_for_the_decision(doors: Doors) -> None:
    client, server = doors.connect(), doors.server
    drain(client)
    server.slow, server.allowed = True, {"a.#", "a.1"}
    client.send(
        wire.subscribe(5, 1, [wire.Filter("a/#", 1), wire.Filter("b/#", 1)])
        + wire.publish(5, "a/1", b"x", qos=0)
    )
    while server.asked == [] or server.waiting:
        doors.node.run()
        server.answer()
    doors.node.run()
    suback, *rest = drain(client)
    assert suback.reasons == [1, NOT_AUTHORIZED]
    assert [each.payload for each in rest] == [b"x"], "published after it was subscribed"


@pytest.mark.parametrize(("allowed", "reason"), [({"gone.c"}, 0), (set(), NOT_AUTHORIZED)])
def test_a_will_is_decided_before_connack(doors: Doors, allowed: set[str], reason: int) -> None:
    doors.server.slow, doors.server.allowed = True, allowed
    client = doors.connect(will=wire.Will("gone/c", b"bye"))
    assert answers(client) == []
    while doors.server.waiting:
        doors.server.answer()
        doors.node.run()
    assert answers(client) == [(wire.CONNACK, reason)]


@pytest.mark.parametrize("topic", ["gone/c", "$queue/gone"])
def test_a_will_that_was_permitted_is_published_unasked(doors: Doors, topic: str) -> None:
    doors.server.allowed = {"gone.c", "gone"}
    client = doors.connect(will=wire.Will(topic, b"bye"))
    assert answers(client) == [(wire.CONNACK, 0)]
    doors.server.allowed, doors.server.away = set(), True
    stream_of(client).close()
    doors.node.run()
    assert doors.node[0].broker.counts.wills == 1


def test_a_client_that_leaves_while_it_waits(doors: Doors) -> None:
    client = doors.connect()
    drain(client)
    doors.server.slow = True
    client.send(wire.publish(5, "a", b"x", qos=1, packet_id=1))
    doors.node.run()
    doors.node[0].broker.handler.fail(
        next(iter(doors.node[0].reactor.connections.values())).identity, 0x80, "for the test"
    )
    doors.server.answer()
    doors.node.run()
    assert [kind for kind, _ in answers(client)] == [wire.DISCONNECT]


def test_a_permission_that_is_revoked_is_noticed(doors: Doors) -> None:
    client, server = doors.connect(), doors.server
    drain(client)
    server.allowed = {"a"}
    assert client.publish("a", b"1", qos=1) in (0, 0x10)
    server.allowed = set()
    assert client.publish("a", b"2", qos=1) in (0, 0x10)
    doors.node.advance(70)
    doors.node.advance(70)
    assert client.publish("a", b"3", qos=1) == NOT_AUTHORIZED
    assert messages(client) == []
