"""Users of other login backends: their rights, the end of their login, and its renewal."""

from __future__ import annotations

import pytest

from fluxmq.auth.logins import BackendLogin
from fluxmq.auth.scopes import rights_of
from fluxmq.auth.users import User
from fluxmq.protocols.amqp091.methods import (
    ChannelClose,
    ConnectionClose,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp091.peer import Peer

TOKEN = b"token"


def login(*scopes: str, name: str = "tom", ends: float = 0.0) -> BackendLogin:
    """A login with these scopes."""
    rights = rights_of(scopes, ["/"])
    user = User(name, "", None, (), (), True, (), rights.permissions)
    return BackendLogin("oauth2", user, rights.keys, ends)


def connected(broker: MemoryBroker, granted: BackendLogin) -> Peer:
    """A client that has given a token."""
    broker.users["tom"] = TOKEN
    broker.logins[TOKEN] = granted
    return Peer(broker, user="tom")


def test_rights_are_those_of_the_login_whatever_users_have_the_name() -> None:
    broker = MemoryBroker()
    peer = connected(broker, login("configure:%2F/mine*", name="guest"))
    peer.send(1, QueueDeclare("mine1"))
    assert isinstance(peer.one(1), QueueDeclareOk)
    peer.send(1, QueueDeclare("other"))
    refused = peer.one(1)
    assert isinstance(refused, ChannelClose)
    assert "access to queue 'other' in vhost '/' refused for user 'guest'" in refused.reply_text


def test_a_vhost_without_scopes_is_refused() -> None:
    broker = MemoryBroker()
    peer = connected(broker, login("read:elsewhere/*"))
    assert not peer.client.access.permissions()
    assert peer.client.stage.name != "RUNNING"


def test_the_connection_ends_with_the_login() -> None:
    broker = MemoryBroker()
    peer = connected(broker, login("read:*/*", ends=broker.time + 100))
    broker.pass_time(99)
    peer.receive()
    broker.pass_time(2)
    (closed,) = [each for _, each in peer.receive() if isinstance(each, ConnectionClose)]
    assert closed.reply_code == 320
    assert closed.reply_text.startswith("CONNECTION_FORCED - the credentials of user 'tom' have")


@pytest.mark.parametrize("slow", [False, True])
def test_a_renewed_login_counts_for_rights_and_end(slow: bool) -> None:
    broker = MemoryBroker()
    peer = connected(broker, login("configure:%2F/a", ends=broker.time + 10))
    broker.slow = slow
    broker.logins[b"fresh"] = login("configure:%2F/b", ends=broker.time + 1000)
    peer.send(0, ConnectionUpdateSecret(b"fresh", "renewed"))
    if slow:
        assert peer.receive() == []
        assert peer.connection.paused
        broker.release()
    assert peer.one(0) == ConnectionUpdateSecretOk()
    assert not peer.connection.paused
    broker.slow = False
    broker.pass_time(20)
    peer.send(1, QueueDeclare("b"))
    assert isinstance(peer.one(1), QueueDeclareOk)
    peer.send(1, QueueDeclare("a"))
    assert isinstance(peer.one(1), ChannelClose)


@pytest.mark.parametrize("secret", [b"wrong", b"another", b"guest"])
def test_a_renewal_that_is_refused_closes_the_connection(secret: bytes) -> None:
    """Also one as another user, and one by a password of the broker's own."""
    broker = MemoryBroker()
    peer = connected(broker, login("configure:*/*"))
    broker.logins[b"another"] = login("configure:*/*", name="anna")
    broker.users["tom"] = b"guest"
    peer.send(0, ConnectionUpdateSecret(secret, "renewed"))
    closed = peer.one(0)
    assert isinstance(closed, ConnectionClose)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (530, 10, 70)
    assert "New secret was refused" in closed.reply_text


def test_a_renewal_that_comes_after_the_end() -> None:
    broker = MemoryBroker()
    peer = connected(broker, login("configure:*/*", ends=broker.time + 10))
    broker.slow = True
    broker.logins[b"fresh"] = login("configure:*/*")
    peer.send(0, ConnectionUpdateSecret(b"fresh", "renewed"))
    broker.pass_time(11)
    broker.release()
    assert [type(each[1]) for each in peer.receive()] == [ConnectionClose]
