"""The greeting, how connections and channels end, and heartbeats."""

from __future__ import annotations

import pytest

from fluxmq import __version__
from fluxmq.protocols.amqp091.constants import PROTOCOL_HEADER
from fluxmq.protocols.amqp091.method_codec import frame
from fluxmq.protocols.amqp091.methods import (
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    QueueDeclare,
)
from fluxmq.sessions.amqp091.client import AmqpStage
from fluxmq.sessions.amqp091.ports import AmqpLimits
from tests.unit.sessions.amqp091.by_hand import body, greeted, opened, start_ok
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import ended

# --- the greeting ---


@pytest.mark.parametrize("header", [b"AMQP\0\x01\0\0", b"AMQP\0\0\x09\0", b"HTTP/1.1"])
def test_another_protocol_is_told_which_one_there_is(header: bytes) -> None:
    broker = MemoryBroker()
    peer = Peer(broker, opened=False)
    peer.raw(header)
    assert bytes(peer.connection.out or b"") == PROTOCOL_HEADER
    assert peer.connection.closing


def test_the_start_says_what_is_offered() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, opened=False)
    peer.raw(PROTOCOL_HEADER)
    start = peer.one(0)
    assert isinstance(start, ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    assert start.locales == b"en_US"
    assert start.server_properties["product"] == "RabbitMQ"
    assert start.server_properties["version"] == "3.10.8"
    assert start.server_properties["fluxmq_version"] == __version__
    assert start.server_properties["cluster_name"] == broker.limits.node_name
    capabilities = start.server_properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities["basic.nack"] is True


def test_the_start_names_another_product_if_it_is_to() -> None:
    """F2: a setting says whose behaviour clients shall expect."""
    peer = Peer(MemoryBroker(AmqpLimits(product="Other", product_version="1.0")), opened=False)
    peer.raw(PROTOCOL_HEADER)
    start = peer.one(0)
    assert isinstance(start, ConnectionStart)
    properties = start.server_properties
    assert (properties["product"], properties["version"]) == ("Other", "1.0")
    assert properties["fluxmq_version"] == __version__


AMQPLAIN = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"


@pytest.mark.parametrize(
    "method", [start_ok(), start_ok("AMQPLAIN", AMQPLAIN)], ids=["PLAIN", "AMQPLAIN"]
)
def test_a_connection_is_tuned_and_opened(method: ConnectionStartOk) -> None:
    broker = MemoryBroker()
    assert opened(broker, method, ConnectionTuneOk(10, 8192, 7), ConnectionOpen("/")) == [
        ConnectionTune(2047, 131_072, 60),
        ConnectionOpenOk(),
    ]
    assert [client.user for client in broker.counted] == ["guest"]
    (client,) = broker.handler.clients
    info = client.info
    assert (info.channel_max, client.connection.frame_max, info.heartbeat) == (10, 8192, 7)
    assert client.connection.frame_max == 8192
    assert client.stage is AmqpStage.RUNNING


def test_external_is_offered_with_a_certificate_and_names_its_user() -> None:
    broker = MemoryBroker()
    broker.users["carol"] = b""
    peer = Peer(broker, opened=False)
    peer.client.info.certificate_name = "carol"
    peer.raw(PROTOCOL_HEADER)
    start = peer.one(0)
    assert isinstance(start, ConnectionStart)
    assert start.mechanisms == b"PLAIN AMQPLAIN EXTERNAL"
    peer.send(0, start_ok("EXTERNAL", b""))
    assert isinstance(peer.one(0), ConnectionTune)
    assert peer.client.info.user == "carol"


@pytest.mark.parametrize(
    "method",
    [
        start_ok("FOO"),
        start_ok("EXTERNAL", b""),
        start_ok(response=b"garbage"),
        start_ok(response=b"garbage", told=True),
        start_ok("AMQPLAIN", b"garbage"),
        start_ok(response=b"\0guest\0wrong"),
        ConnectionTuneOk(1, 4096, 0),
        ConnectionOpen("/"),
    ],
)
def test_who_breaks_the_greeting_is_disconnected_without_a_word(method: Method) -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    peer.send(0, method)
    assert peer.receive() == []
    assert peer.connection.closing
    assert broker.errors


@pytest.mark.parametrize("response", [b"\0guest\0wrong", b"\0nobody\0guest", b"\0\xff\0guest"])
def test_a_client_that_wants_to_know_is_told_that_its_credentials_do_not_hold(
    response: bytes,
) -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    peer.send(0, start_ok(response=response, told=True))
    text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    assert peer.one(0) == ended(403, text, None)
    assert not peer.connection.closing
    peer.send(0, ConnectionCloseOk())
    assert peer.connection.closing


@pytest.mark.parametrize("told", [True, False])
def test_credentials_that_cannot_be_checked_now_are_not_refused(told: bool) -> None:
    """Review finding 8: clients do not come again after 403."""
    broker = MemoryBroker()
    broker.busy = True
    peer = greeted(broker)
    peer.send(0, start_ok(told=told))
    if told:
        text = "the login cannot be checked now, try again later"
        assert peer.one(0) == ended(320, text, None)
        peer.send(0, ConnectionCloseOk())
    assert peer.receive() == []
    assert peer.connection.closing or peer.connection.fd < 0
    assert [code for code, *_ in broker.errors] == [320]


@pytest.mark.parametrize(
    "tune",
    [
        ConnectionTuneOk(0, 131_072, 0),
        ConnectionTuneOk(2048, 131_072, 0),
        ConnectionTuneOk(2047, 0, 0),
        ConnectionTuneOk(2047, 131_073, 0),
        ConnectionTuneOk(2047, 4095, 0),
    ],
)
def test_limits_that_are_not_within_ours_end_the_connection(tune: ConnectionTuneOk) -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    peer.send(0, start_ok(), tune)
    assert peer.got(0) == [ConnectionTune(2047, 131_072, 60)]
    assert peer.connection.closing
    assert "negotiated" in broker.errors[0][1]


@pytest.mark.parametrize(
    ("user", "vhost", "limit", "text"),
    [
        ("guest", "nope", None, "vhost nope not found"),
        ("eve", "/", None, "access to vhost '/' refused for user 'eve'"),
        (
            "guest",
            "/",
            0,
            "access to vhost '/' refused for user 'guest': connection limit (0) is reached",
        ),
    ],
)
def test_a_vhost_that_may_not_be_entered(
    user: str, vhost: str, limit: int | None, text: str
) -> None:
    broker = MemoryBroker()
    broker.connection_limit = limit
    answers = opened(
        broker,
        start_ok(response=f"\0{user}\0{user}".encode()),
        ConnectionTuneOk(2047, 131_072, 0),
        ConnectionOpen(vhost),
    )
    assert answers[1:] == [ended(530, text, ConnectionOpen)]
    assert broker.counted == []


def test_a_connection_is_not_read_while_credentials_are_checked() -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    broker.slow = True
    peer.send(0, start_ok())
    assert broker.paused == [peer.connection]
    assert peer.receive() == []
    broker.release()
    assert broker.paused == []
    assert peer.one(0) == ConnectionTune(2047, 131_072, 60)


def test_a_greeting_may_not_take_long() -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    broker.pass_time(broker.limits.handshake_timeout - 0.1)
    assert not peer.connection.closing
    broker.pass_time(0.2)
    assert peer.connection.closing
    assert broker.closed == [(peer.client.info.peer, "handshake_timeout")]


def test_a_client_may_close_before_it_has_opened() -> None:
    broker = MemoryBroker()
    close = ConnectionClose(200, "", 0, 0)
    answers = opened(broker, start_ok(), ConnectionTuneOk(2047, 131_072, 0), close)
    assert answers[1:] == [ConnectionCloseOk()]


# --- ends ---


def test_after_our_close_only_its_answer_counts() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(0, ChannelOpen())
    peer.receive()
    peer.send(1, QueueDeclare("q"))
    peer.raw(body(b"x"))
    peer.raw(frame(0, ConnectionCloseOk())[:-1] + b"\xce")
    assert peer.receive() == []
    assert broker.closed == [(peer.client.info.peer, "error")]
    assert not list(broker.topology.queues())


def test_both_ends_close() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(0, ChannelOpen())
    peer.receive()
    peer.send(0, ConnectionClose(200, "", 0, 0))
    assert peer.one(0) == ConnectionCloseOk()
    assert broker.closed == [(peer.client.info.peer, "error")]


def test_a_client_that_does_not_answer_our_close() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(0, ChannelOpen())
    broker.pass_time(broker.limits.close_timeout - 0.1)
    assert not peer.connection.closing
    broker.pass_time(0.2)
    assert broker.closed == [(peer.client.info.peer, "close_timeout")]


def test_an_operator_closes() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.client.disconnect("closed by an operator")
    assert peer.one(0) == ended(320, "closed by an operator", None)
    peer.send(0, ConnectionCloseOk())
    assert peer.connection.closing


def test_a_connection_that_ends_leaves_nothing_behind() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q", exclusive=True))
    broker.handler.lost(peer.connection)
    broker.handler.lost(peer.connection)
    assert broker.closed == [(peer.client.info.peer, "lost")]
    assert (broker.handler.clients, broker.counted, broker.queues) == ({}, [], {})
    assert (peer.session.channels, peer.connection.ledgers) == ({}, None)
    peer.send(1, QueueDeclare("q"))
    assert not broker.queues


# --- heartbeats ---


def test_heartbeats_are_sent_and_missed() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=10)
    broker.pass_time(12)
    assert bytes(peer.connection.out or b"") == b"\x08\0\0\0\0\0\0\xce" * 2
    peer.raw(b"\x08\0\0\0\0\0\0\xce")
    broker.pass_time(20)
    assert not peer.connection.closing
    broker.pass_time(6)
    assert broker.closed == [(peer.client.info.peer, "heartbeat")]


def test_a_connection_that_is_not_read_is_not_taken_for_gone() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=10)
    broker.pause(peer.connection)
    broker.pass_time(100)
    assert not peer.connection.closing
    broker.resume(peer.connection)
    broker.pass_time(30)
    assert peer.connection.closing


def test_without_heartbeats_silence_is_fine() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=0)
    broker.pass_time(10_000)
    assert not peer.connection.closing
    assert peer.receive() == []


def test_the_listeners_own_timeout_counts_from_accepting() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, opened=False)
    peer.client.deadline = broker.time + 2
    peer.raw(PROTOCOL_HEADER)
    assert peer.client.deadline == broker.time + 2
    broker.time += 2.5
    peer.client.due()
    assert peer.client.stage is AmqpStage.CLOSED
