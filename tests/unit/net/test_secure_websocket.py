"""MQTT over WebSocket over TLS: both filters in one, fed any way the network cuts the bytes."""

import ssl
from pathlib import Path

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from fluxmq.net.certificates import ListenerCertificates
from fluxmq.net.secure_websocket import SecureWebSocketStream
from fluxmq.net.tls import TlsStream
from fluxmq.net.websocket import WebSocketStream
from fluxmq.settings.listeners import WebSocketTlsListener
from tests.certificate_maker import Authority


class Browser:
    """A client of both layers, in memory; ``piece``: bytes that the server gets at once."""

    def __init__(self, stream: SecureWebSocketStream, context: ssl.SSLContext, piece: int) -> None:
        self.stream, self.piece = stream, piece
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.received = b""
        self.ended = False

    def exchange(self, answer: bytes = b"") -> None:
        """Pass all bytes to and fro until neither side has any; ``answer``: more from the server."""
        self.incoming.write(answer)
        for _ in range(5):
            sent = self.outgoing.read()
            for at in range(0, len(sent), self.piece):
                self.received += self.stream.feed(sent[at : at + self.piece])
                self.incoming.write(self.stream.pending())
            self.incoming.write(self.stream.pending())

    def shake_hands(self) -> None:
        for _ in range(3):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.exchange()

    def send(self, plain: bytes) -> None:
        self.tls.write(plain)
        self.exchange()

    def read(self) -> bytes:
        plain = b""
        try:
            while piece := self.tls.read(65536):
                plain += piece
        except ssl.SSLWantReadError:
            return plain
        except ssl.SSLZeroReturnError:
            pass
        self.ended = True
        return plain


def connected(directory: Path, piece: int, path: str = "/mqtt") -> tuple[Browser, ClientProtocol]:
    authority = Authority(directory)
    pair = authority.issue("server", "localhost")
    listener = WebSocketTlsListener(
        addr="127.0.0.1:8084", cert_file=pair.cert_file, key_file=pair.key_file
    )
    stream = SecureWebSocketStream(
        TlsStream(ListenerCertificates(listener).context), WebSocketStream("/mqtt", (), 4096)
    )
    browser = Browser(stream, authority.client_context(), piece)
    browser.shake_hands()
    client = ClientProtocol(
        parse_uri(f"wss://localhost:8084{path}"), subprotocols=[Subprotocol("mqtt")]
    )
    client.send_request(client.connect())
    browser.send(b"".join(client.data_to_send()))
    client.receive_data(browser.read())
    return browser, client


@pytest.mark.parametrize("piece", [1, 7, 65536])
def test_both_directions(tmp_path: Path, piece: int) -> None:
    browser, client = connected(tmp_path, piece)
    client.events_received()
    assert client.subprotocol == "mqtt"
    client.send_binary(b"to the broker")
    browser.send(b"".join(client.data_to_send()))
    assert browser.received == b"to the broker"
    browser.exchange(browser.stream.encode([b"to ", b"the client"]))
    client.receive_data(browser.read())
    [frame] = client.events_received()
    assert frame.opcode is Opcode.BINARY  # type: ignore[union-attr]
    assert frame.data == b"to the client"  # type: ignore[union-attr]
    assert not browser.stream.closed
    assert browser.stream.error is None


def test_a_refused_request_is_answered_before_the_end(tmp_path: Path) -> None:
    browser, client = connected(tmp_path, 65536, path="/elsewhere")
    assert client.handshake_exc is not None
    assert "404" in str(client.handshake_exc)
    assert browser.ended
    assert browser.stream.closed


def test_an_end_from_our_side_closes_both(tmp_path: Path) -> None:
    browser, client = connected(tmp_path, 65536)
    browser.exchange(browser.stream.shutdown())
    client.receive_data(browser.read())
    assert client.close_rcvd is not None
    assert client.close_rcvd.code == 1000
    assert browser.ended
    browser.stream.release()


def test_bytes_that_are_no_handshake(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "localhost")
    listener = WebSocketTlsListener(
        addr="127.0.0.1:8084", cert_file=pair.cert_file, key_file=pair.key_file
    )
    stream = SecureWebSocketStream(
        TlsStream(ListenerCertificates(listener).context), WebSocketStream("/mqtt", (), 4096)
    )
    assert stream.feed(b"GET /mqtt HTTP/1.1\r\n\r\n") == b""
    assert stream.closed
    assert stream.error is not None
    assert stream.error.startswith("TLS: ")
    assert stream.encode([b"never"]) != b"never"
