"""Permissions that another backend decides by the operation: methods wait, in their order."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.auth.logins import BackendLogin, RemoteDecisions
from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.auth.users import User, VhostPermission
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp091.peer import Peer


class Server:
    """Decisions, which the test lets come."""

    def __init__(self, *allowed: str) -> None:
        self.generation = 0
        self.allowed = {*allowed}
        self.known: dict[RightsQuestion, bool] = {}
        self.asked: list[tuple[RightsQuestion, Callable[[], None]]] = []
        self.order: list[str] = []

    def find(self, question: RightsQuestion) -> bool | None:
        """Return what is known."""
        return self.known.get(question)

    def ask(self, question: RightsQuestion, done: Callable[[], None]) -> None:
        """Note a question."""
        self.asked.append((question, done))
        self.order.append(text(question))

    def answer(self) -> None:
        """Answer all questions, and those that follow."""
        while self.asked:
            question, done = self.asked.pop(0)
            self.known[question] = "*" in self.allowed or text(question) in self.allowed
            done()


def text(question: RightsQuestion) -> str:
    """A question in a line."""
    found = f"{question.permission} {question.resource} {question.name}"
    return f"{found} {question.routing_key}" if question.routing_key else found


def connected(server: Server, broker: MemoryBroker) -> Peer:
    """A client whose rights the server decides."""
    user = User("tom", "", None, (), (), True, (), (VhostPermission("/", "", "", ""),))
    login = BackendLogin("http", user, (), 0.0, RemoteDecisions(server, True, True))
    broker.users["tom"] = b"password"
    broker.logins[b"password"] = login
    return Peer(broker, user="tom")


def test_methods_wait_for_their_permissions_in_order() -> None:
    server, broker = Server("*"), MemoryBroker()
    peer = connected(server, broker)
    peer.send(
        1,
        ExchangeDeclare("x", "topic"),
        QueueDeclare("q"),
        QueueBind("q", "x", "a.b"),
        ConfirmSelect(),
    )
    assert peer.receive() == []
    assert server.order == ["configure exchange x"]
    server.answer()
    broker.tick()
    assert [type(method) for _, method in peer.receive()] == [
        ExchangeDeclareOk,
        QueueDeclareOk,
        QueueBindOk,
        ConfirmSelectOk,
    ]
    assert server.order == [
        "configure exchange x",
        "configure queue q",
        "write queue q",
        "read exchange x",
        "read topic x a.b",
    ]
    peer.publish("x", "a.b", b"1")
    peer.publish("x", "a.b", b"2")
    assert peer.receive() == []
    server.answer()
    broker.tick()
    assert server.order[5:] == ["write exchange x", "write topic x a.b"]
    acks = [method for _, method in peer.receive() if isinstance(method, BasicAck)]
    assert [(each.delivery_tag, each.multiple) for each in acks] == [(2, True)]


def test_what_is_refused_closes_the_channel() -> None:
    server, broker = Server("configure queue q"), MemoryBroker()
    peer = connected(server, broker)
    peer.send(1, QueueDeclare("q"), QueueDeclare("other"))
    server.answer()
    declared, closed = (method for _, method in peer.receive())
    assert isinstance(declared, QueueDeclareOk)
    assert isinstance(closed, ChannelClose)
    assert closed.reply_code == 403
    assert "access to queue 'other' in vhost '/' refused for user 'tom'" in closed.reply_text


def test_a_publish_to_a_forbidden_key_closes_the_channel() -> None:
    server, broker = Server("configure exchange x", "write exchange x"), MemoryBroker()
    peer = connected(server, broker)
    peer.send(1, ExchangeDeclare("x", "topic"))
    server.answer()
    peer.receive()
    peer.publish("x", "secret")
    server.answer()
    closed = peer.one(1)
    assert isinstance(closed, ChannelClose)
    assert "topic 'secret' in exchange 'x'" in closed.reply_text


def test_a_name_that_the_broker_makes_is_asked_about_once() -> None:
    server, broker = Server("*"), MemoryBroker()
    peer = connected(server, broker)
    peer.send(1, QueueDeclare(""))
    server.answer()
    declared = peer.one(1)
    assert isinstance(declared, QueueDeclareOk)
    assert server.order == [f"configure queue {declared.queue}"]
    peer.send(1, QueueDeclare(""))
    server.answer()
    other = peer.one(1)
    assert isinstance(other, QueueDeclareOk)
    assert other.queue != declared.queue


def test_a_channel_that_closes_while_it_waits() -> None:
    server, broker = Server("*"), MemoryBroker()
    peer = connected(server, broker)
    peer.send(1, QueueDeclare("q"))
    peer.client.disconnect("for the test")
    peer.receive()
    server.answer()
    assert peer.receive() == []


def test_forgotten_answers_are_asked_for_again() -> None:
    server, broker = Server("*"), MemoryBroker()
    peer = connected(server, broker)
    peer.publish("", "q")
    server.answer()
    peer.publish("", "q")
    assert server.order == ["write exchange amq.default"]
    server.known.clear()
    server.generation += 1
    peer.publish("", "q")
    assert server.order == ["write exchange amq.default"] * 2
