"""SASL and open: the order of frames, limits, virtual hosts, silence."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp10.frames import (
    AMQP_HEADER,
    FRAME_SASL,
    SASL_HEADER,
    TLS_HEADER,
    frame,
)
from fluxmq.protocols.amqp10.performatives import (
    BeginFrame,
    CloseFrame,
    OpenFrame,
    SaslInitFrame,
    SaslMechanismsFrame,
    SaslOutcomeFrame,
    names,
)
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.sessions.amqp091.ports import AmqpLimits
from fluxmq.sessions.amqp10.handshake import FIRST_FRAME_MAX, PROPERTIES_MAX
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(AmqpLimits(heartbeat=60))


def test_sasl_is_answered_with_mechanisms_and_an_outcome(broker: MemoryBroker) -> None:
    peer = Peer10(broker, opened=False)
    found = peer.greet()
    assert isinstance(found[0].body, SaslMechanismsFrame)
    assert names(found[0].body.sasl_server_mechanisms) == ("PLAIN",)
    assert found[1].body == SaslOutcomeFrame(0)
    assert peer.headers == [SASL_HEADER, AMQP_HEADER]


def test_a_wrong_password_is_refused_and_the_connection_ends(broker: MemoryBroker) -> None:
    peer = Peer10(broker, opened=False)
    found = peer.greet(password=b"wrong")
    assert found[1].body == SaslOutcomeFrame(1)
    assert peer.connection.closing
    assert broker.closed[-1][1] == "authentication"


def test_a_busy_login_may_be_tried_again(broker: MemoryBroker) -> None:
    broker.busy = True
    peer = Peer10(broker, opened=False)
    assert peer.greet()[1].body == SaslOutcomeFrame(4)


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL", "SCRAM-SHA-256"])
def test_other_mechanisms_are_refused(broker: MemoryBroker, mechanism: str) -> None:
    peer = Peer10(broker, opened=False)
    peer.raw(SASL_HEADER + frame(0, SaslInitFrame(Symbol(mechanism), b""), kind=FRAME_SASL))
    assert peer.bodies(SaslOutcomeFrame) == [SaslOutcomeFrame(1)]


def test_anonymous_is_offered_where_a_user_is_named_for_it() -> None:
    broker = MemoryBroker(AmqpLimits(anonymous_user="bob"))
    peer = Peer10(broker, opened=False)
    init = SaslInitFrame(Symbol("ANONYMOUS"), b"whoever I may be")
    peer.raw(SASL_HEADER + frame(0, init, kind=FRAME_SASL) + AMQP_HEADER)
    mechanisms, outcome = peer.bodies()
    assert names(mechanisms.sasl_server_mechanisms) == ("PLAIN", "ANONYMOUS")
    assert outcome == SaslOutcomeFrame(0)
    assert (peer.client.info.user, peer.client.info.mechanism) == ("bob", "ANONYMOUS")


def test_external_is_offered_for_a_certificate(broker: MemoryBroker) -> None:
    peer = Peer10(broker, opened=False)
    peer.client.info.certificate_name = "guest"
    init = SaslInitFrame(Symbol("EXTERNAL"), b"")
    peer.raw(SASL_HEADER + frame(0, init, kind=FRAME_SASL) + AMQP_HEADER)
    mechanisms, outcome = peer.bodies()
    assert names(mechanisms.sasl_server_mechanisms) == ("PLAIN", "EXTERNAL")
    assert outcome == SaslOutcomeFrame(0)
    peer.send(OpenFrame("test"))
    assert isinstance(peer.bodies()[0], OpenFrame)
    assert peer.client.info.user == "guest"


@pytest.mark.parametrize("header", [AMQP_HEADER, TLS_HEADER])
def test_other_headers_are_answered_with_the_one_of_sasl(
    broker: MemoryBroker, header: bytes
) -> None:
    peer = Peer10(broker, opened=False)
    peer.raw(header)
    peer.receive()
    assert peer.headers == [SASL_HEADER]
    assert peer.connection.closing


def test_open_tells_limits_product_and_relay(broker: MemoryBroker) -> None:
    peer = Peer10(broker, opened=False)
    peer.greet()
    peer.send(OpenFrame("test", max_frame_size=1000, channel_max=5, idle_time_out=10_000))
    (answer,) = peer.bodies()
    assert answer.max_frame_size == broker.limits.frame_max
    assert answer.idle_time_out == 60_000
    assert names(answer.offered_capabilities) == (
        *("LINK_PAIR_V1_0", "ANONYMOUS-RELAY", "SHARED-SUBS"),
    )
    assert answer.properties["product"] == "RabbitMQ"
    assert (peer.client.frame_max, peer.client.info.channel_max) == (1000, 5)


@pytest.mark.parametrize(
    ("hostname", "vhost"), [(None, "/"), ("localhost", "/"), ("vhost:other", "other")]
)
def test_the_hostname_names_the_virtual_host(
    broker: MemoryBroker, hostname: str | None, vhost: str
) -> None:
    peer = Peer10(broker, hostname=hostname)
    assert peer.client.info.vhost == vhost


@pytest.mark.parametrize(
    ("user", "fields", "condition"),
    [
        ("guest", {"hostname": "vhost:none"}, "amqp:not-found"),
        ("bob", {"hostname": "vhost:other"}, "amqp:unauthorized-access"),
        ("guest", {"max_frame_size": 511}, "amqp:invalid-field"),
    ],
)
def test_an_open_that_cannot_be_served_is_answered_and_closed(
    broker: MemoryBroker, user: str, fields: dict[str, object], condition: str
) -> None:
    peer = Peer10(broker, opened=False)
    peer.greet(user)
    peer.send(OpenFrame("test", **fields))  # type: ignore[arg-type]
    answer, close = peer.bodies()
    assert isinstance(answer, OpenFrame)
    assert close.error.condition == condition


def test_too_many_connections_and_short_memory_are_refused(broker: MemoryBroker) -> None:
    broker.connection_limit = 0
    for _ in range(2):
        peer = Peer10(broker, opened=False)
        peer.greet()
        peer.send(OpenFrame("test"))
        assert peer.bodies(CloseFrame)[0].error.condition == "amqp:resource-limit-exceeded"
        broker.connection_limit = None
        broker.short_of_memory = True
    assert broker.refused == ["connection"]


def test_frames_before_open_and_properties_of_clients_are_bounded(broker: MemoryBroker) -> None:
    peer = Peer10(broker, opened=False)
    peer.raw(SASL_HEADER + (FIRST_FRAME_MAX + 1).to_bytes(4, "big") + b"\x02\x01\0\0")
    assert peer.connection.closing
    properties: dict[object, object] = {
        Symbol(f"p{number}"): number for number in range(PROPERTIES_MAX + 1)
    }
    kept = Peer10(broker, properties=properties).client.info.properties
    assert len(kept) == PROPERTIES_MAX + 1
    assert kept["container_id"] == "test"


def test_frames_before_open_end_the_connection(broker: MemoryBroker) -> None:
    peer = Peer10(broker, opened=False)
    peer.greet()
    peer.send(BeginFrame(None, 0, 1, 1))
    assert peer.connection.closing or peer.bodies(CloseFrame)


def test_a_silent_client_is_ended_and_one_that_sends_empty_frames_is_not(
    broker: MemoryBroker,
) -> None:
    silent, alive = Peer10(broker), Peer10(broker)
    for _ in range(13):
        broker.pass_time(10)
        alive.raw(b"\0\0\0\x08\x02\0\0\0")
    assert silent.connection.closing
    assert not alive.connection.closing


def test_empty_frames_are_sent_in_half_of_the_clients_time_out(broker: MemoryBroker) -> None:
    peer = Peer10(broker, idle_time_out=10_000)
    broker.pass_time(16)
    assert [each.body for each in peer.receive()] == [None, None, None]


def test_close_is_answered(broker: MemoryBroker) -> None:
    peer = Peer10(broker)
    peer.send(CloseFrame())
    assert peer.bodies() == [CloseFrame()]
    assert broker.closed[-1][1] == "client"
    assert not broker.counted
