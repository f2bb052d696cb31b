"""Enhanced authentication: sections 3.15 and 4.12, with SCRAM-SHA-256 (RFC 5802, RFC 7677)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, Packet
from tests.conformance.conftest import PASSWORD, USER, Mqtt
from tests.conformance.wire import V4, V5, Filter, Will

METHOD, DATA = wire.AUTHENTICATION_METHOD, wire.AUTHENTICATION_DATA
SCRAM = "SCRAM-SHA-256"


class Scram:
    """The client's side of one SCRAM-SHA-256 exchange."""

    def __init__(self, user: str = USER, password: str = PASSWORD) -> None:
        self.password = password
        self.nonce = base64.b64encode(os.urandom(18)).decode()
        self.bare = f"n={user},r={self.nonce}"
        self.expected = b""

    @property
    def first(self) -> bytes:
        """client-first-message"""
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """client-final-message to a server-first-message"""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce), "the server must extend the client's nonce"
        assert len(fields["r"]) > len(self.nonce)
        assert int(fields["i"]) >= 4096, "RFC 7677 asks for 4096 iterations at least"
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, int(fields["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c=biws,r={fields['r']}"
        signed = ",".join([self.bare, server_first.decode(), without_proof]).encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        verifier = hmac.digest(server_key, signed, "sha256")
        self.expected = b"v=" + base64.b64encode(verifier)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def challenge(client: Client) -> bytes:
    """The server's AUTH with 0x18 and the method, whose data is returned."""
    answer = client.expect(wire.AUTH)
    assert answer.reason == 0x18, str(answer)
    assert answer.property(METHOD) == SCRAM
    data = answer.property(DATA)
    assert isinstance(data, bytes)
    return data


def begin(mqtt: Mqtt, scram: Scram, **fields: object) -> tuple[Client, bytes]:
    """Connect with SCRAM up to the server's challenge."""
    client = mqtt.open(V5)
    client.client_id = mqtt.client_id()
    props = [(METHOD, SCRAM), (DATA, scram.first)]
    client.send(wire.connect(V5, client.client_id, props=props, **fields))  # type: ignore[arg-type]
    return client, challenge(client)


def proceed(client: Client, data: bytes, method: str = SCRAM, reason: int = 0x18) -> None:
    """The client's AUTH."""
    client.send(wire.auth(reason, [(METHOD, method), (DATA, data)]))


def authenticated(mqtt: Mqtt, **fields: object) -> tuple[Client, Packet]:
    """A client that authenticated with SCRAM, and its CONNACK."""
    scram = Scram()
    client, server_first = begin(mqtt, scram, **fields)
    proceed(client, scram.final(server_first))
    connack = client.expect(wire.CONNACK)
    assert connack.reason == 0
    assert connack.property(DATA) == scram.expected, "the server's signature proves the password"
    return client, connack


@pytest.mark.statement("v5:4.12.0-2", "v5:4.12.0-5", "v5:3.15.2-1", "v5:3.2.0-1")
def test_scram(restricted: Mqtt) -> None:
    """CONNECT, AUTH, AUTH, CONNACK; the user may then do what anonymous clients may not."""
    client, connack = authenticated(restricted)
    assert connack.property(METHOD) == SCRAM
    topic = restricted.topic()
    client.subscribe(topic, qos=1)
    assert client.publish(topic, b"mine", qos=1) in (0x00, 0x10)
    assert client.receive().payload == b"mine"


@pytest.mark.statement("v5:4.12.0-4", "v5:4.13.2-1")
@pytest.mark.parametrize(
    ("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD), ("nobody", "")]
)
def test_scram_with_wrong_credentials(restricted: Mqtt, user: str, password: str) -> None:
    """Refused at the proof, an unknown user no earlier than a wrong password."""
    scram = Scram(user, password)
    client, server_first = begin(restricted, scram)
    proceed(client, scram.final(server_first))
    connack = client.expect(wire.CONNACK)
    assert connack.reason in (0x86, 0x87)
    client.expect_closed()


@pytest.mark.statement("v5:4.12.0-4")
def test_unknown_user_is_challenged_alike_each_time(restricted: Mqtt) -> None:
    """The salt shown for a user that does not exist does not change from one try to the next."""
    salts = []
    for _ in range(2):
        client, server_first = begin(restricted, Scram("nobody"))
        salts.append(server_first.split(b",s=")[1])
        client.drop()
    assert salts[0] == salts[1]


@pytest.mark.statement("v5:4.12.0-4")
@pytest.mark.parametrize(
    "data",
    [
        b"n",
        b"n,,",
        b"n,,n=ada",
        b"p=tls-unique,,n=ada,r=x",
        b"y,,r=x,n=ada",
        b"\xff\xfe",
        b"n,,m=1,n=ada,r=x",
    ],
)
def test_scram_with_a_broken_first_message(restricted: Mqtt, data: bytes) -> None:
    """What is not a client-first-message ends the attempt."""
    client = restricted.open(V5)
    props = [(METHOD, SCRAM), (DATA, data)]
    client.send(wire.connect(V5, restricted.client_id(), props=props))
    connack = client.expect(wire.CONNACK)
    assert connack.reason in (0x80, 0x81, 0x82, 0x86, 0x87)
    client.expect_closed()


@pytest.mark.statement("v5:4.12.0-2", "v5:4.12.0-5")
@pytest.mark.parametrize("props", [[(METHOD, SCRAM)], [(METHOD, SCRAM), (DATA, b"")]])
def test_scram_without_data_in_connect(restricted: Mqtt, props: list[tuple[int, str]]) -> None:
    """The server then asks for the first message with an empty challenge."""
    scram = Scram()
    client = restricted.open(V5)
    client.send(wire.connect(V5, restricted.client_id(), props=props))
    asked = client.expect(wire.AUTH)
    assert (asked.reason, asked.property(METHOD), asked.property(DATA, b"")) == (0x18, SCRAM, b"")
    proceed(client, scram.first)
    proceed(client, scram.final(challenge(client)))
    connack = client.expect(wire.CONNACK)
    assert (connack.reason, connack.property(DATA)) == (0, scram.expected)


@pytest.mark.statement("v5:4.12.0-4")
@pytest.mark.parametrize("what", ["proof", "nonce", "binding", "rubbish", "nothing"])
def test_scram_with_a_broken_final_message(restricted: Mqtt, what: str) -> None:
    """A final message that does not prove the password, in whatever way."""
    scram = Scram()
    client, server_first = begin(restricted, scram)
    final = scram.final(server_first)
    broken = {
        "proof": final[:-4] + b"AAA=",
        "nonce": final.replace(b",r=", b",r=x"),
        "binding": final.replace(b"c=biws", b"c=eSws"),
        "rubbish": b"\0\1\2",
        "nothing": b"",
    }
    proceed(client, broken[what])
    assert client.expect(wire.CONNACK).reason in (0x80, 0x81, 0x82, 0x86, 0x87)
    client.expect_closed()


@pytest.mark.statement("v5:4.12.0-1")
@pytest.mark.parametrize("method", ["PLAIN", "GS2-KRB5", "scram-sha-256", "SCRAM-SHA-1", ""])
def test_unknown_method(mqtt: Mqtt, method: str) -> None:
    """0x8C, and the connection is closed."""
    assert mqtt.refused(V5, props=[(METHOD, method), (DATA, b"x")]) == 0x8C


@pytest.mark.statement("v5:4.12.0-6")
def test_no_method_no_auth(mqtt: Mqtt) -> None:
    """Without a method the server sends no AUTH, and CONNACK names no method."""
    client = mqtt.open(V5)
    connack = client.connect(mqtt.client_id())
    assert connack.property(METHOD) is None
    assert connack.property(DATA) is None
    assert client.ping() == []


@pytest.mark.statement("v5:4.12.0-7")
@pytest.mark.parametrize("reason", [0x00, 0x18, 0x19])
def test_auth_without_a_method_in_connect(mqtt: Mqtt, reason: int) -> None:
    """A client that named no method must not send AUTH."""
    client = mqtt.connect(V5)
    client.send(wire.auth(reason, [(METHOD, SCRAM), (DATA, b"x")]))
    client.expect_error(0x82, 0x8C)


@pytest.mark.statement("v5:3.15.1-1")
@pytest.mark.parametrize("flags", [1, 2, 4, 8])
def test_auth_flags(restricted: Mqtt, flags: int) -> None:
    """AUTH's four flag bits are 0."""
    client, _ = authenticated(restricted)
    good = wire.auth(0x19, [(METHOD, SCRAM), (DATA, Scram().first)])
    client.send(bytes([good[0] | flags]) + good[1:])
    client.expect_error(0x81)


@pytest.mark.statement("v5:3.1.2-30", "v5:3.2.0-1", "v5:3.14.0-1")
@pytest.mark.parametrize("what", ["PUBLISH", "SUBSCRIBE", "PINGREQ", "CONNECT"])
def test_other_packets_before_connack(restricted: Mqtt, what: str) -> None:
    """Until CONNACK only AUTH and DISCONNECT are allowed; nothing else has an effect."""
    packets = {
        "PUBLISH": wire.publish(V5, "open/x", b"early", retain=True),
        "SUBSCRIBE": wire.subscribe(V5, 1, [Filter("open/x")]),
        "PINGREQ": wire.pingreq(),
        "CONNECT": wire.connect(V5, "open"),
    }
    watcher = restricted.subscriber(V5, "open/x")
    client, _ = begin(restricted, Scram())
    client.send(packets[what])
    try:
        connack = client.next()
    except AssertionError:
        assert client.closed
    else:
        assert (connack.kind, connack.reason) == (wire.CONNACK, 0x82)
        client.expect_closed()
    restricted.connect(V5).publish("open/x", b"marker")
    assert watcher.receive_until(b"marker") == []


def test_disconnect_before_connack(restricted: Mqtt) -> None:
    """A client may give up in the middle; there is no will to publish."""
    watcher = restricted.subscriber(V5, "open/x")
    client, _ = begin(restricted, Scram(), will=Will("open/x", b"will"))
    client.send(wire.disconnect())
    client.expect_closed()
    restricted.connect(V5).publish("open/x", b"marker")
    assert watcher.receive_until(b"marker") == []


@pytest.mark.statement("v5:4.12.0-5", "v5:4.12.0-4")
@pytest.mark.parametrize("method", ["PLAIN", "SCRAM-SHA-1"])
def test_method_must_not_change(restricted: Mqtt, method: str) -> None:
    """Every AUTH names the method of CONNECT."""
    scram = Scram()
    client, server_first = begin(restricted, scram)
    proceed(client, scram.final(server_first), method)
    try:
        assert client.expect(wire.CONNACK).reason in (0x82, 0x8C)
    except AssertionError:
        assert client.closed
        return
    client.expect_closed()


@pytest.mark.statement("v5:4.12.0-3", "v5:3.15.2-1")
@pytest.mark.parametrize("reason", [0x00, 0x19, 0x01, 0x80])
def test_wrong_reason_code_of_auth(restricted: Mqtt, reason: int) -> None:
    """A client's AUTH before CONNACK has 0x18."""
    scram = Scram()
    client, server_first = begin(restricted, scram)
    proceed(client, scram.final(server_first), reason=reason)
    try:
        assert client.expect(wire.CONNACK).reason in (0x81, 0x82)
    except AssertionError:
        assert client.closed
        return
    client.expect_closed()


@pytest.mark.statement("v5:4.12.1-1", "v5:4.12.0-5", "v5:3.15.2-1")
def test_reauthentication(restricted: Mqtt) -> None:
    """AUTH 0x19 begins it, AUTH 0x00 ends it; other packets flow meanwhile."""
    client, _ = authenticated(restricted)
    client.subscribe("secret/x", qos=1)
    for _ in range(2):
        scram = Scram()
        proceed(client, scram.first, reason=0x19)
        server_first = challenge(client)
        assert client.publish("secret/x", b"meanwhile", qos=1) in (0x00, 0x10)
        assert client.receive().payload == b"meanwhile"
        proceed(client, scram.final(server_first))
        success = client.expect(wire.AUTH)
        assert (success.reason, success.property(METHOD)) == (0x00, SCRAM)
        assert success.property(DATA) == scram.expected
    assert client.publish("secret/x", b"after", qos=1) in (0x00, 0x10)


@pytest.mark.statement("v5:4.12.1-2")
def test_failed_reauthentication(restricted: Mqtt) -> None:
    """A wrong proof ends the connection that was fine until then."""
    client, _ = authenticated(restricted)
    scram = Scram(password="wrong")
    proceed(client, scram.first, reason=0x19)
    proceed(client, scram.final(challenge(client)))
    client.expect_error(0x82, 0x87, 0x86, 0x80)


@pytest.mark.statement("v5:4.12.1-1", "v5:4.12.1-2")
def test_reauthentication_with_another_method(restricted: Mqtt) -> None:
    """The method of CONNECT is the method of the connection."""
    client, _ = authenticated(restricted)
    proceed(client, b"x", "PLAIN", 0x19)
    client.expect_error(0x82, 0x8C)


@pytest.mark.statement("v5:4.12.1-1")
def test_continuing_what_was_not_begun(restricted: Mqtt) -> None:
    """AUTH 0x18 out of the blue, and 0x00, which is the server's to send."""
    for reason in (0x18, 0x00):
        client, _ = authenticated(restricted)
        proceed(client, Scram().first, reason=reason)
        client.expect_error(0x82, 0x81)


def test_auth_in_version_4(mqtt: Mqtt) -> None:
    """3.1.1 has no AUTH packet."""
    client = mqtt.connect(V4)
    client.send(wire.auth(0x19, [(METHOD, SCRAM)]))
    client.expect_closed()


def test_user_name_beside_a_method(restricted: Mqtt) -> None:
    """The user is who SCRAM proved, whatever the user name field says."""
    client, _ = authenticated(restricted, username="nobody", password=b"rubbish")
    assert client.publish("secret/x", b"x", qos=1) in (0x00, 0x10)
