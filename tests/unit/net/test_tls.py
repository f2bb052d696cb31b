"""The TLS filter against OpenSSL's own client, both ends in memory."""

import ssl
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.net import tls
from fluxmq.net.streams import Chunk
from fluxmq.net.tls import TlsStream, server_context
from fluxmq.settings.listeners import TlsListener

CERTIFICATES = Path(__file__).parents[2] / "data" / "tls"


def listener(
    ca_file: Path | None = None,
    client_auth: Literal["none", "request", "require"] = "none",
    min_version: Literal["1.2", "1.3"] = "1.2",
    cert_file: Path = CERTIFICATES / "server.pem",
    key_file: Path = CERTIFICATES / "server.key",
) -> TlsListener:
    return TlsListener(
        addr="127.0.0.1:8883",
        cert_file=str(cert_file),
        key_file=str(key_file),
        ca_file=None if ca_file is None else str(ca_file),
        client_auth=client_auth,
        min_version=min_version,
    )


class Client:
    """OpenSSL's client over memory buffers."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.done = False

    def shake_hands(self, received: bytes) -> bytes:
        self.incoming.write(received)
        try:
            self.tls.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass
        return self.outgoing.read()

    def encrypt(self, plain: bytes) -> bytes:
        written = 0
        while written < len(plain):
            written += self.tls.write(plain[written:])
        return self.outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        self.incoming.write(received)
        plain = b""
        try:
            while piece := self.tls.read(65536):
                plain += piece
        except ssl.SSLWantReadError:
            pass
        return plain


def client_context(
    version: ssl.TLSVersion | None = None, certificate: bool = False
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if certificate:
        context.load_cert_chain(CERTIFICATES / "client.pem", CERTIFICATES / "client.key")
    return context


PLAIN_SERVER = server_context(listener())
MUTUAL_SERVER = server_context(listener(ca_file=CERTIFICATES / "ca.pem", client_auth="require"))
PLAIN_CLIENT = client_context()


def connected(
    server: ssl.SSLContext = PLAIN_SERVER, client: ssl.SSLContext = PLAIN_CLIENT
) -> tuple[TlsStream, Client]:
    stream, peer = TlsStream(server), Client(client)
    to_server = peer.shake_hands(b"")
    while not (peer.done and stream.handshake_done):
        assert stream.feed(to_server) == b""
        assert stream.error is None, stream.error
        to_server = peer.shake_hands(stream.pending())
    return stream, peer


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_bytes_cross_in_both_directions(version: ssl.TLSVersion) -> None:
    stream, peer = connected(client=client_context(version))
    assert stream.feed(peer.encrypt(b"hello")) == b"hello"
    chunks: list[Chunk] = [b"a" * 10, bytearray(b"b" * 40_000), memoryview(b"c" * 7)]
    assert peer.decrypt(stream.encode(chunks)) == b"".join(chunks)
    assert stream.pending() == b""
    assert not stream.closed


@given(
    plain=st.binary(max_size=40_000),
    cuts=st.lists(st.integers(0, 45_000), max_size=8),
)
def test_any_split_gives_the_same_bytes(plain: bytes, cuts: list[int]) -> None:
    stream, peer = TlsStream(PLAIN_SERVER), Client(PLAIN_CLIENT)
    sizes = cuts or [1]

    def feed(wire: bytes) -> bytes:
        decoded, position = b"", 0
        for size in sizes:
            decoded += stream.feed(wire[position : position + size])
            position += size
        return decoded + stream.feed(wire[position:])

    to_server = peer.shake_hands(b"")
    while not (peer.done and stream.handshake_done):
        assert feed(to_server) == b""
        to_server = peer.shake_hands(stream.pending())
    assert feed(to_server + peer.encrypt(plain)) == plain


@given(garbage=st.lists(st.binary(max_size=200), max_size=5))
def test_garbage_instead_of_a_hello_never_raises(garbage: list[bytes]) -> None:
    stream = TlsStream(PLAIN_SERVER)
    for piece in garbage:
        assert stream.feed(piece) == b""
        stream.pending()
    assert stream.encode([b"x"]) == b""


@given(position=st.integers(0, 10_000), value=st.integers(1, 255))
def test_one_flipped_byte_ends_the_connection_with_an_alert(position: int, value: int) -> None:
    stream, peer = connected()
    wire = bytearray(peer.encrypt(b"payload" * 30))
    wire[position % len(wire)] ^= value
    decoded = stream.feed(bytes(wire)) + stream.feed(bytes(20_000))
    assert decoded == b""
    assert stream.closed
    assert stream.error
    assert stream.error.startswith("TLS: ")
    assert stream.pending()
    assert stream.feed(b"more") == b""
    assert stream.encode([b"more"]) == b""


@given(position=st.integers(0, 10_000), value=st.integers(1, 255))
def test_one_flipped_byte_in_the_hello_never_raises(position: int, value: int) -> None:
    stream, peer = TlsStream(PLAIN_SERVER), Client(PLAIN_CLIENT)
    hello = bytearray(peer.shake_hands(b""))
    hello[position % len(hello)] ^= value
    assert stream.feed(bytes(hello)) == b""
    stream.pending()


def test_the_peer_ends_in_order() -> None:
    stream, peer = connected()
    wire = peer.encrypt(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()
    assert stream.feed(wire + peer.outgoing.read()) == b"last words"
    assert stream.closed
    assert stream.error is None
    assert stream.pending()  # our close_notify
    assert stream.shutdown() == b""


def test_we_end_in_order() -> None:
    stream, peer = connected()
    peer.incoming.write(stream.encode([b"bye"]) + stream.shutdown())
    assert peer.tls.read(10) == b"bye"
    assert peer.tls.read(10) == b""  # close_notify
    assert stream.closed
    assert stream.error is None
    assert stream.encode([b"too late"]) == b""


def test_an_end_before_the_handshake() -> None:
    stream = TlsStream(PLAIN_SERVER)
    assert stream.shutdown() == b""
    assert stream.closed


def test_mutual_tls_names_the_peer() -> None:
    stream, _ = connected(MUTUAL_SERVER, client_context(certificate=True))
    assert stream.peer_identity() == tls.PeerIdentity(
        "sensor-7", (("DNS", "sensor-7.example.test"), ("URI", "urn:device:7"))
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_mutual_tls_refuses_a_client_without_a_certificate(version: ssl.TLSVersion) -> None:
    stream, peer = TlsStream(MUTUAL_SERVER), Client(client_context(version))
    to_server = peer.shake_hands(b"")
    while not stream.closed:
        assert stream.feed(to_server) == b""
        answer = stream.pending()
        to_server = b"" if stream.closed else peer.shake_hands(answer)
    assert stream.error is not None
    assert "certificate" in stream.error
    assert not stream.handshake_done
    assert stream.peer_identity() is None


def test_a_requested_certificate_may_be_missing() -> None:
    server = server_context(listener(ca_file=CERTIFICATES / "ca.pem", client_auth="request"))
    stream, peer = connected(server)
    assert stream.peer_identity() is None
    assert stream.feed(peer.encrypt(b"x")) == b"x"


def test_the_minimum_version_holds() -> None:
    stream = TlsStream(server_context(listener(min_version="1.3")))
    peer = Client(client_context(ssl.TLSVersion.TLSv1_2))
    assert stream.feed(peer.shake_hands(b"")) == b""
    assert stream.closed
    assert stream.error is not None


def test_a_handshake_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_BYTES_MAX", 100)
    stream = TlsStream(PLAIN_SERVER)
    hello = Client(PLAIN_CLIENT).shake_hands(b"")
    for offset in range(0, 130, 10):
        stream.feed(hello[offset : offset + 10])
    assert stream.closed
    assert stream.error == "TLS handshake not complete after 100 bytes"


def test_unusable_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(tls.TlsSettingsError, match=r"missing\.pem"):
        server_context(listener(cert_file=missing))
    with pytest.raises(tls.TlsSettingsError, match=r"missing\.pem"):
        server_context(listener(ca_file=missing))
    with pytest.raises(tls.TlsSettingsError, match="ca_file"):
        server_context(listener(client_auth="require"))
    with pytest.raises(tls.TlsSettingsError, match=r"client\.key"):
        server_context(listener(key_file=CERTIFICATES / "client.key"))
