"""CONNECT and CONNACK: chapters 3.1 and 3.2 of both standards."""

from __future__ import annotations

import string

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, eventually
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5, Will


def expect_refused(client: Client, *reasons: int) -> None:
    """A CONNECT with an error ends the connection.

    In 3.1.1 without a CONNACK [MQTT-3.1.4-1]; in 5.0 a CONNACK with one of `reasons` may come first,
    a DISCONNECT must not [MQTT-3.14.0-1].
    """
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
        return
    assert client.version == V5, f"expected no answer, received {connack}"
    assert connack.kind == wire.CONNACK
    assert connack.reason in reasons, f"{connack}, expected one of {reasons}"
    client.expect_closed()


@pytest.mark.statement("v5:3.1.0-1", "v5:3.2.0-1", "v5:3.14.0-1", "v4:3.1.0-1", "v4:3.2.0-1")
@pytest.mark.parametrize(
    "first",
    [
        wire.publish(V4, "t", b"x"),
        wire.subscribe(V4, 1, [wire.Filter("t")]),
        wire.pingreq(),
        wire.disconnect(),
        wire.frame(wire.CONNACK << 4, b"\0\0"),
        wire.frame(wire.AUTH << 4),
    ],
    ids=["PUBLISH", "SUBSCRIBE", "PINGREQ", "DISCONNECT", "CONNACK", "AUTH"],
)
def test_first_packet_other_than_connect_closes(mqtt: Mqtt, version: int, first: bytes) -> None:
    """Nothing but CONNECT may come first, and the server has nothing to say to anything else."""
    client = mqtt.open(version)
    client.send(first)
    client.expect_closed()


@pytest.mark.statement("v5:3.1.0-2", "v4:3.1.0-2")
def test_second_connect_is_a_protocol_error(mqtt: Mqtt, version: int) -> None:
    """A client sends CONNECT once in a network connection."""
    client = mqtt.connect(version)
    client.send(wire.connect(version, client.client_id))
    client.expect_error(0x82)


@pytest.mark.statement("v5:3.1.2-1", "v4:3.1.2-1")
@pytest.mark.parametrize("name", [b"MQTZ", b"mqtt", b"MQT", b"MQTTT", b"", b"MQIsd"])
def test_wrong_protocol_name_is_not_accepted(mqtt: Mqtt, version: int, name: bytes) -> None:
    """Only "MQTT" is MQTT; the server may reveal itself with 0x84 (or 1) and then closes."""
    client = mqtt.open(version)
    client.send(wire.connect(version, mqtt.client_id(), protocol=name))
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
        return
    assert connack.reason in (0x84, 0x81, 0x82, 1)
    client.expect_closed()


@pytest.mark.statement("v5:3.1.2-2", "v4:3.1.2-2")
@pytest.mark.parametrize("level", [0, 1, 2, 3, 6, 0x7F, 0xFF])
def test_unsupported_protocol_level_is_refused(mqtt: Mqtt, level: int) -> None:
    """3.1.1 asks for return code 1, 5.0 allows 0x84: whichever form, the connection is closed."""
    client = mqtt.open(V4)
    client.send(wire.connect(V4, mqtt.client_id(), level=level))
    data = b""
    while chunk := client.stream.recv(64):
        data += chunk
    assert data in (b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"), data.hex()


@pytest.mark.statement("v5:3.1.2-3", "v4:3.1.2-3", "v5:3.1.4-1", "v4:3.1.4-1")
def test_reserved_connect_flag_must_be_zero(mqtt: Mqtt, version: int) -> None:
    """Bit 0 of the connect flags is validated."""
    client = mqtt.open(version)
    client.send(wire.connect(version, mqtt.client_id(), flags=0x03))
    expect_refused(client, 0x81, 0x82)


@pytest.mark.statement("v5:2.1.3-1", "v4:2.2.2-1", "v4:2.2.2-2")
@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_fixed_header_flags_of_connect_are_reserved(mqtt: Mqtt, version: int, flags: int) -> None:
    """CONNECT's four flag bits are 0."""
    client = mqtt.open(version)
    good = wire.connect(version, mqtt.client_id())
    client.send(bytes([good[0] | flags]) + good[1:])
    expect_refused(client, 0x81, 0x82)


@pytest.mark.statement(
    "v5:3.1.2-11", "v5:3.1.2-12", "v5:3.1.2-13", "v4:3.1.2-13", "v4:3.1.2-14", "v4:3.1.2-15"
)
@pytest.mark.parametrize(
    ("flags", "with_will"),
    [(0x0A, False), (0x12, False), (0x22, False), (0x1E, True)],
    ids=["QoS 1 without will", "QoS 2 without will", "retain without will", "QoS 3"],
)
def test_will_flags_that_contradict(mqtt: Mqtt, version: int, flags: int, with_will: bool) -> None:
    """Without a will its QoS and retain bits are 0; with one its QoS is not 3."""
    client = mqtt.open(version)
    will = Will(mqtt.topic(), b"gone") if with_will else None
    client.send(wire.connect(version, mqtt.client_id(), will=will, flags=flags))
    expect_refused(client, 0x81, 0x82, 0x9B)


@pytest.mark.statement("v4:3.1.2-22")
def test_password_without_user_name_in_version_4(mqtt: Mqtt) -> None:
    """3.1.1: no password flag without the user name flag."""
    client = mqtt.open(V4)
    client.send(wire.connect(V4, mqtt.client_id(), password=b"secret"))
    client.expect_closed()


@pytest.mark.statement("v5:3.1.2-9", "v4:3.1.2-9")
def test_will_flag_without_will_fields(mqtt: Mqtt, version: int) -> None:
    """With the will flag set, topic and payload of the will must be there."""
    client = mqtt.open(version)
    client.send(wire.connect(version, mqtt.client_id(), flags=0x06))
    expect_refused(client, 0x81, 0x82)


@pytest.mark.statement("v5:3.1.2-17", "v5:3.1.2-19", "v4:3.1.2-19", "v4:3.1.2-21")
@pytest.mark.parametrize(
    ("flags", "username"),
    [(0x82, None), (0xC2, None), (0xC2, "ada")],
    ids=["no user name", "neither", "no password"],
)
def test_credential_flags_without_fields(
    mqtt: Mqtt, version: int, flags: int, username: str | None
) -> None:
    """A flag for user name or password without the field is malformed."""
    client = mqtt.open(version)
    client.send(wire.connect(version, mqtt.client_id(), username=username, flags=flags))
    expect_refused(client, 0x81, 0x82)


@pytest.mark.statement("v5:3.1.2-16", "v5:3.1.2-18", "v4:3.1.2-18", "v4:3.1.2-20", "v4:3.1.2-11")
@pytest.mark.parametrize(
    "fields",
    [{"username": "ada"}, {"username": "ada", "password": b"x"}, {"will": Will("t", b"x")}],
    ids=["user name", "user name and password", "will"],
)
def test_fields_without_their_flags(mqtt: Mqtt, version: int, fields: dict[str, object]) -> None:
    """Fields that no flag announces must not be in the payload."""
    client = mqtt.open(version)
    client.send(wire.connect(version, mqtt.client_id(), flags=0x02, **fields))  # type: ignore[arg-type]
    expect_refused(client, 0x81, 0x82)


@pytest.mark.statement("v5:3.1.3-1", "v4:3.1.3-1", "v5:3.1.4-5", "v4:3.1.4-4")
def test_payload_fields_are_read_in_order(mqtt: Mqtt, version: int) -> None:
    """Client identifier, will, user name, password: the will that comes out shows the order."""
    topic = mqtt.topic()
    watcher = mqtt.subscriber(version, topic)
    client = mqtt.connect(version, will=Will(topic, b"payload of the will"))
    client.drop()
    assert watcher.receive().payload == b"payload of the will"


@pytest.mark.statement("v5:3.1.3-5", "v4:3.1.3-5")
@pytest.mark.parametrize("length", [1, 22, 23])
def test_client_identifiers_every_server_allows(mqtt: Mqtt, version: int, length: int) -> None:
    """1 to 23 characters of 0-9, a-z and A-Z, each of the 62 at least once."""
    letters = string.digits + string.ascii_letters
    for start in range(0, len(letters), length):
        identifier = (letters[start:] + letters)[:length]
        client = mqtt.connect(version, identifier)
        client.disconnect()


def test_client_identifiers_beyond_what_servers_must_allow(fluxmq: Mqtt, version: int) -> None:
    """Longer ones, other characters and other scripts are allowed by FluxMQ."""
    for suffix in ("x" * 100, "/ +#", "-_.:@", "é漢字🙂"):
        fluxmq.connect(version, fluxmq.client_id() + suffix).disconnect()


@pytest.mark.statement("v5:3.1.3-6", "v5:3.1.3-7", "v5:3.2.2-16")
@pytest.mark.parametrize("clean", [True, False])
def test_empty_client_identifier_is_assigned(mqtt: Mqtt, clean: bool) -> None:
    """5.0: each client without an identifier gets one of its own, told in CONNACK."""
    assigned = []
    for _ in range(3):
        client = mqtt.open(V5)
        connack = client.connect("", clean=clean)
        assert connack.reason == 0
        assert not connack.session_present
        assigned.append(connack.property(wire.ASSIGNED_CLIENT_IDENTIFIER))
    assert all(assigned)
    assert len(set(assigned)) == 3


@pytest.mark.statement("v5:3.1.3-7")
def test_assigned_client_identifier_names_the_session(mqtt: Mqtt) -> None:
    """The identifier from CONNACK is the session's: another connection with it takes it over."""
    client = mqtt.open(V5)
    expiry = [(wire.SESSION_EXPIRY_INTERVAL, 60)]
    connack = client.connect("", props=expiry)
    identifier = connack.property(wire.ASSIGNED_CLIENT_IDENTIFIER)
    again = mqtt.open(V5)
    assert again.connect(identifier, clean=False, props=expiry).session_present
    client.expect_error(0x8E)


@pytest.mark.statement("v4:3.1.3-6")
def test_empty_client_identifier_in_version_4(mqtt: Mqtt) -> None:
    """3.1.1: accepted with clean session, and two such clients are two sessions."""
    first, second = (mqtt.connect(V4, "") for _ in range(2))
    assert first.ping() == second.ping() == []


@pytest.mark.statement("v4:3.1.3-8", "v4:3.1.3-7")
def test_empty_client_identifier_without_clean_session(mqtt: Mqtt) -> None:
    """3.1.1: a session that cannot be named again is refused with code 2."""
    assert mqtt.refused(V4, "", clean=False) == 2


@pytest.mark.statement("v5:3.1.3-3", "v4:3.1.3-3")
def test_client_identifier_missing(mqtt: Mqtt, version: int) -> None:
    """The client identifier is the first field of the payload, and not optional."""
    client = mqtt.open(version)
    whole = wire.connect(version, "")
    client.send(wire.frame(whole[0], whole[2:-2]))
    expect_refused(client, 0x81, 0x82, 0x85)


@pytest.mark.statement("v5:3.1.3-8", "v4:3.1.3-9", "v5:3.2.2-6", "v4:3.2.2-4")
@pytest.mark.parametrize("identifier", ["amqp:x", "amqp:", "amqp091-x", "amqp091-"])
def test_reserved_client_identifiers_are_refused(
    fluxmq: Mqtt, version: int, identifier: str
) -> None:
    """FluxMQ keeps two prefixes to itself: 0x85, in 3.1.1 code 2, and the connection closes. S2-22."""
    assert fluxmq.refused(version, identifier) == (0x85 if version == V5 else 2)


@pytest.mark.statement(
    "v5:3.1.4-6", "v4:3.1.4-5", "v5:3.2.2-7", "v4:3.2.2-5", "v5:4.13.2-1", "v5:3.2.2-6"
)
def test_nothing_after_a_refused_connect_is_processed(fluxmq: Mqtt, version: int) -> None:
    """What a client pipelines behind a CONNECT that is refused has no effect."""
    topic = fluxmq.topic()
    watcher = fluxmq.subscriber(version, topic)
    client = fluxmq.open(version)
    client.send(
        wire.connect(version, "amqp:refused"),
        wire.publish(version, topic, b"ignored", retain=True),
        wire.pingreq(),
    )
    connack = client.expect(wire.CONNACK)
    assert connack.reason in (0x85, 2)
    assert not connack.session_present
    client.expect_closed()
    fluxmq.connect(version).publish(topic, b"marker")
    assert watcher.receive_until(b"marker") == []
    assert fluxmq.retained(version, topic) == []


@pytest.mark.statement("v5:3.1.4-5", "v5:3.2.0-1", "v4:3.1.4-4")
def test_packets_sent_before_connack_arrives_are_processed(mqtt: Mqtt, version: int) -> None:
    """A client need not wait for CONNACK; the server answers in order, CONNACK first."""
    topic = mqtt.topic()
    client = mqtt.open(version)
    client.send(
        wire.connect(version, mqtt.client_id()),
        wire.subscribe(version, 9, [wire.Filter(topic, 1)]),
        wire.publish(version, topic, b"early", qos=1, packet_id=10),
        wire.pingreq(),
    )
    assert client.expect(wire.CONNACK).reason == 0
    assert client.expect(wire.SUBACK).packet_id == 9
    assert client.take(wire.PUBACK).packet_id == 10
    assert client.take(wire.PUBLISH).payload == b"early"
    client.take(wire.PINGRESP)


@pytest.mark.statement("v5:3.1.4-5", "v4:3.1.4-4", "v4:7.1.1-1", "v5:4.2.0-1")
def test_connect_in_single_bytes(mqtt: Mqtt, version: int) -> None:
    """A stream has no packet boundaries: bytes may come one at a time."""
    client = mqtt.open(version)
    for byte in wire.connect(version, mqtt.client_id(), will=Will(mqtt.topic(), b"w")):
        client.send(bytes([byte]))
    assert client.expect(wire.CONNACK).reason == 0


@pytest.mark.statement("v5:3.2.0-2", "v5:3.2.2-1")
def test_one_connack_per_connection(mqtt: Mqtt, version: int) -> None:
    """Exactly one CONNACK, whose flags beside Session Present are 0 (checked when reading)."""
    client = mqtt.connect(version)
    assert client.ping() == []
    client.publish(mqtt.topic(), b"x", qos=1)
    assert client.ping() == []


@pytest.mark.statement("v5:3.2.2-2", "v4:3.2.2-1", "v5:3.2.2-3", "v4:3.2.2-2", "v4:3.2.2-3")
def test_session_present(mqtt: Mqtt, version: int) -> None:
    """1 only when a session is resumed: not for a new one, not after a clean start."""
    identifier = mqtt.client_id()
    keep = [(wire.SESSION_EXPIRY_INTERVAL, 120)] if version == V5 else []
    seen = []
    for clean in (False, False, True, False):
        client = mqtt.open(version)
        seen.append(client.connect(identifier, clean=clean, props=keep).session_present)
        client.disconnect()
    # A clean session of 3.1.1 leaves nothing behind; a clean start of 5.0 starts one that stays.
    assert seen == [False, True, False, version == V5]


@pytest.mark.statement("v5:3.1.4-3", "v4:3.1.4-2", "v5:3.1.3-2", "v4:3.1.3-2")
@pytest.mark.parametrize("clean", [True, False])
def test_second_connection_takes_over(mqtt: Mqtt, version: int, clean: bool) -> None:
    """The same client identifier again: the older connection ends with 0x8E, the newer works."""
    old = mqtt.connect(version, clean=clean)
    new = mqtt.connect(version, old.client_id, clean=clean)
    old.expect_error(0x8E)
    assert new.ping() == []


@pytest.mark.statement("v5:3.1.4-3", "v4:3.1.4-2")
def test_take_over_between_versions(mqtt: Mqtt) -> None:
    """Client identifiers are one space, whatever version each connection speaks."""
    old = mqtt.connect(V4)
    new = mqtt.connect(V5, old.client_id)
    old.expect_closed()
    newest = mqtt.connect(V4, old.client_id)
    new.expect_error(0x8E)
    assert newest.ping() == []


@pytest.mark.statement("v5:3.1.4-2", "v4:3.2.2-5", "v5:3.2.2-7")
@pytest.mark.parametrize(
    ("username", "password"),
    [("ada", b"wrong"), ("nobody", b"x"), ("ada", None), ("ada", b"")],
)
def test_wrong_credentials_are_refused(
    restricted: Mqtt, version: int, username: str, password: bytes | None
) -> None:
    """0x86, in 3.1.1 code 4; an unknown user and a wrong password look the same."""
    reason = restricted.refused(version, username=username, password=password)
    assert reason == (0x86 if version == V5 else 4)


@pytest.mark.statement("v5:3.1.4-5", "v4:3.1.4-4")
def test_right_credentials_are_accepted(restricted: Mqtt, version: int) -> None:
    """A user may do what anonymous clients may not."""
    password = b"correct horse battery staple"
    client = restricted.connect(version, username="ada", password=password)
    topic = restricted.topic()
    client.subscribe(topic, qos=1)
    client.publish(topic, b"mine", qos=1)
    assert client.receive().payload == b"mine"


@pytest.mark.statement("v5:3.2.2-22", "v5:3.2.2-21", "v5:3.1.2-21")
@pytest.mark.parametrize("asked", [0, 1, 2, 100])
def test_server_keep_alive(limited: Mqtt, asked: int) -> None:
    """A server that wants another keep alive says so in CONNACK, and only then."""
    client = limited.open(V5)
    connack = client.connect(limited.client_id(), keep_alive=asked)
    said = connack.property(wire.SERVER_KEEP_ALIVE, asked)
    assert said == (asked if asked in (1, 2) else 2)


def test_announced_capabilities(fluxmq: Mqtt) -> None:
    """What FluxMQ says of itself with default settings."""
    client = fluxmq.open(V5)
    connack = client.connect(fluxmq.client_id())
    assert connack.property(wire.RECEIVE_MAXIMUM) == 1024
    assert connack.property(wire.TOPIC_ALIAS_MAXIMUM) == 128
    assert connack.property(wire.MAXIMUM_PACKET_SIZE) == 16 * 1024 * 1024
    # Absent means 2: there is no way to announce QoS 2 (3.2.2.3.4).
    assert connack.property(wire.MAXIMUM_QOS) is None
    for available in (
        wire.RETAIN_AVAILABLE,
        wire.WILDCARD_SUBSCRIPTION_AVAILABLE,
        wire.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
        wire.SHARED_SUBSCRIPTION_AVAILABLE,
    ):
        assert connack.property(available, 1) == 1


@pytest.mark.statement("v5:3.2.2-9")
def test_announced_limits(limited: Mqtt) -> None:
    """What FluxMQ says of itself with narrower settings, Maximum QoS among it."""
    client = limited.open(V5)
    connack = client.connect(limited.client_id())
    assert connack.property(wire.MAXIMUM_QOS) == 1
    assert connack.property(wire.RECEIVE_MAXIMUM) == 4
    assert connack.property(wire.TOPIC_ALIAS_MAXIMUM) == 3
    assert connack.property(wire.MAXIMUM_PACKET_SIZE) == 16 * 1024


@pytest.mark.parametrize(
    ("asked", "given"), [(None, None), (0, None), (60, None), (3600, None), (0xFFFFFFFF, 3600)]
)
def test_session_expiry_interval_is_capped(
    limited: Mqtt, asked: int | None, given: int | None
) -> None:
    """A longer interval than the server keeps is told in CONNACK (3.2.2.3.2), and no other."""
    client = limited.open(V5)
    props = [] if asked is None else [(wire.SESSION_EXPIRY_INTERVAL, asked)]
    connack = client.connect(limited.client_id(), props=props)
    assert connack.property(wire.SESSION_EXPIRY_INTERVAL, given) in (given, asked)
    if given is not None:
        assert connack.property(wire.SESSION_EXPIRY_INTERVAL) == given


@pytest.mark.statement("v5:3.1.2-28")
@pytest.mark.parametrize("asked", [None, 0])
def test_response_information_only_on_request(mqtt: Mqtt, asked: int | None) -> None:
    """No Response Information for a client that did not ask for it."""
    client = mqtt.open(V5)
    props = [] if asked is None else [(wire.REQUEST_RESPONSE_INFORMATION, asked)]
    connack = client.connect(mqtt.client_id(), props=props)
    assert connack.property(wire.RESPONSE_INFORMATION) is None


def test_connect_deadline(limited: Mqtt, version: int) -> None:
    """A connection that sends no CONNECT within the listener's time is closed."""
    silent = limited.open(version)
    partial = limited.open(version)
    partial.send(wire.connect(version, limited.client_id())[:-1])
    silent.expect_closed()
    partial.expect_closed()


def test_connect_larger_than_the_limit_before_authentication(fluxmq: Mqtt, version: int) -> None:
    """Strangers get 128 KiB: a larger CONNECT is refused at its header."""
    client = fluxmq.open(version)
    large = wire.connect(version, fluxmq.client_id(), will=Will("t", bytes(65_000)))
    client.send(large[:1] + b"\x80\x80\x08" + large[4:])  # says 131,072 bytes
    expect_refused(client, 0x95)


@pytest.mark.statement("v5:3.1.4-4", "v4:3.1.4-3")
def test_clean_start_on_take_over(mqtt: Mqtt, version: int) -> None:
    """A clean start discards the session even while its connection is open."""
    topic = mqtt.topic()
    keep = [(wire.SESSION_EXPIRY_INTERVAL, 120)] if version == V5 else []
    old = mqtt.subscriber(version, topic, clean=False, props=keep)
    new = mqtt.connect(version, old.client_id, clean=True)
    old.expect_error(0x8E)
    new.publish(topic, b"for the old one", qos=1)
    assert new.ping() == []


def test_connections_beyond_a_listeners_limit(own_broker: object) -> None:
    """The connection after the last allowed one is refused; room is given back when one leaves."""
    started = own_broker(settings={"server": {"mqtt": {"tcp": {"max_connections": 2}}}})  # type: ignore[operator]
    from contextlib import ExitStack

    with ExitStack() as stack:
        mqtt = Mqtt(started, stack)
        first, _second = mqtt.connect(V5), mqtt.connect(V5)

        def accepted() -> bool:
            client = mqtt.open(V5)
            client.send(wire.connect(V5, mqtt.client_id()))
            try:
                return client.next().reason == 0
            except (AssertionError, OSError):
                return False

        assert not accepted()
        first.disconnect()
        eventually(accepted, "room for another connection")
