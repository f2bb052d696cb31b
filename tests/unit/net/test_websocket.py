"""The WebSocket filter: driven byte by byte, and against the library's own client."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from fluxmq.auth.origins import PageOrigin
from fluxmq.net import websocket
from fluxmq.net.websocket import WebSocketStream

MAX_PACKET = 100_000


def request(
    path: str = "/mqtt", subprotocol: str | None = "mqtt", origin: str | None = None, **more: str
) -> bytes:
    headers = {
        "Host": "broker.example.test",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    if subprotocol is not None:
        headers["Sec-WebSocket-Protocol"] = subprotocol
    if origin is not None:
        headers["Origin"] = origin
    headers.update(more)
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def frame(
    opcode: int, data: bytes, fin: bool = True, mask: bytes | None = b"\x01\x02\x03\x04"
) -> bytes:
    masked = 0x80 if mask is not None else 0
    if len(data) < 126:
        header = bytes([opcode | (0x80 if fin else 0), masked | len(data)])
    elif len(data) < 65536:
        header = struct.pack(">BBH", opcode | (0x80 if fin else 0), masked | 126, len(data))
    else:
        header = struct.pack(">BBQ", opcode | (0x80 if fin else 0), masked | 127, len(data))
    if mask is None:
        return header + data
    return (
        header
        + mask
        + bytes(byte ^ key for byte, key in zip(data, itertools.cycle(mask), strict=False))
    )


def fresh(origins: tuple[str, ...] = ()) -> WebSocketStream:
    return WebSocketStream("/mqtt", origins, MAX_PACKET)


def opened() -> WebSocketStream:
    stream = fresh()
    assert stream.feed(request()) == b""
    response = stream.pending()
    assert response.startswith(b"HTTP/1.1 101 ")
    return stream


def test_upgrade() -> None:
    stream = fresh()
    assert stream.feed(request(**{"Sec-WebSocket-Extensions": "permessage-deflate"})) == b""
    lines = stream.pending().decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 101 Switching Protocols"
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in lines  # RFC 6455 section 1.3
    assert "Sec-WebSocket-Protocol: mqtt" in lines
    assert not any(line.lower().startswith("sec-websocket-extensions") for line in lines)
    assert not stream.closed


def test_a_client_library_talks_to_it() -> None:
    stream = fresh(("https://app.example.test",))
    client = ClientProtocol(
        parse_uri("ws://localhost/mqtt"),
        origin=Origin("https://app.example.test"),
        subprotocols=[Subprotocol("mqtt")],
    )
    client.send_request(client.connect())
    assert stream.feed(b"".join(client.data_to_send())) == b""
    client.receive_data(stream.pending())
    (response,) = client.events_received()
    assert isinstance(response, Response)
    assert client.handshake_exc is None
    client.send_binary(b"from client")
    client.send_ping(b"are you there")
    assert stream.feed(b"".join(client.data_to_send())) == b"from client"
    wire = stream.encode([b"from ", bytearray(b"server"), memoryview(b"!")])
    client.receive_data(wire)
    pong, message = client.events_received()
    assert isinstance(pong, Frame)
    assert isinstance(message, Frame)
    assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"are you there")
    assert (message.opcode, bytes(message.data), message.fin) == (
        Opcode.BINARY,
        b"from server!",
        True,
    )
    client.send_close(1000, "done")
    assert stream.feed(b"".join(client.data_to_send())) == b""
    assert stream.closed
    assert stream.error is None
    client.receive_data(stream.pending())
    assert client.close_rcvd is not None
    assert client.close_rcvd.code == 1000


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(path="/other"), 404),
        (request(path="/mqtt/"), 404),
        (request(subprotocol=None), 400),
        (request(subprotocol="chat, soap"), 400),
        (request(**{"Sec-WebSocket-Version": "8"}), 400),
        (request(**{"Sec-WebSocket-Key": "short"}), 400),
        (request(Upgrade="h2c"), 426),
        (request(origin="https://evil.example.test"), 403),
        (request(origin="null"), 403),
        (request()[:-2] + b"X: " + b"y" * websocket.HANDSHAKE_BYTES_MAX, 431),
    ],
)
def test_refused_upgrades(sent: bytes, status: int) -> None:
    stream = fresh(("https://app.example.test",))
    assert stream.feed(sent) == b""
    assert stream.closed
    assert stream.error is not None
    assert f"HTTP {status}" in stream.error
    assert stream.pending().startswith(f"HTTP/1.1 {status} ".encode())
    assert stream.feed(frame(2, b"late")) == b""
    assert stream.encode([b"late"]) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"NOT HTTP\r\n\r\n",
        b"GET /mqtt HTTP/2\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nA\r\n\r\n",
    ],
)
def test_not_http(sent: bytes) -> None:
    stream = fresh()
    assert stream.feed(sent + frame(2, b"data")) == b""
    assert stream.closed
    assert stream.error == "WebSocket: not a valid HTTP request"


def test_the_subprotocol_may_be_one_of_several_and_the_path_may_have_a_query() -> None:
    stream = fresh()
    stream.feed(request(path="/mqtt?token=1", subprotocol="soap, mqtt"))
    assert b"Sec-WebSocket-Protocol: mqtt" in stream.pending()


def test_frames_sent_along_with_the_request_come_after_the_response() -> None:
    stream = fresh()
    assert stream.feed(request() + frame(9, b"p") + frame(2, b"early")) == b"early"
    wire = stream.pending()
    assert wire.startswith(b"HTTP/1.1 101 ")
    assert wire.endswith(b"\x8a\x01p")


def test_a_program_without_an_origin_is_let_in_and_two_origins_are_not() -> None:
    stream = fresh(("https://app.example.test",))
    stream.feed(request())
    assert stream.pending().startswith(b"HTTP/1.1 101 ")
    stream = fresh(("https://app.example.test",))
    good = "Origin: https://app.example.test\r\n"
    stream.feed(request()[:-2] + (good + "Origin: https://evil.test\r\n\r\n").encode())
    assert stream.pending().startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("origin", "origins", "page"),
    [
        (None, (), PageOrigin.NONE),
        ("http://broker.example.test", (), PageOrigin.SAME),
        ("https://evil.example.test", (), None),
        ("https://evil.example.test", ("*",), PageOrigin.FOREIGN),
        ("https://app.example.test", ("https://app.example.test",), PageOrigin.NAMED),
    ],
)
def test_which_page_is_speaking(
    origin: str | None, origins: tuple[str, ...], page: PageOrigin | None
) -> None:
    """Review finding 6: without settings only a page of the same origin gets in."""
    stream = fresh(origins)
    stream.feed(request(origin=origin))
    assert stream.pending().startswith(b"HTTP/1.1 101 " if page is not None else b"HTTP/1.1 403 ")
    assert stream.page is (page or PageOrigin.FOREIGN)


PAYLOADS = st.lists(st.binary(max_size=300), max_size=6)


@given(
    payloads=PAYLOADS,
    cuts=st.lists(st.integers(1, 400), min_size=1, max_size=20),
    fragment=st.integers(1, 100),
)
def test_any_split_and_fragmentation_gives_the_same_bytes(
    payloads: list[bytes], cuts: list[int], fragment: int
) -> None:
    wire = request()
    pings = 0
    for payload in payloads:
        pieces = [payload[at : at + fragment] for at in range(0, len(payload), fragment)] or [b""]
        for number, piece in enumerate(pieces):
            wire += frame(0 if number else 2, piece, fin=number == len(pieces) - 1)
            wire += frame(9, b"")
            pings += 1
    stream = fresh()
    plain, sent, position = b"", b"", 0
    sizes = itertools.cycle(cuts)
    while position < len(wire):
        size = next(sizes)
        plain += stream.feed(memoryview(wire)[position : position + size])
        sent += stream.pending()
        position += size
    assert plain == b"".join(payloads)
    assert stream.error is None
    assert sent.partition(b"\r\n\r\n")[2] == b"\x8a\x00" * pings


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frame(1, b"text"), 1003),
        (frame(1, b"te", fin=False) + frame(0, b"xt"), 1003),
        (frame(2, b"x", mask=None), 1002),
        (frame(3, b"x"), 1002),
        (frame(0, b"continuation of nothing"), 1002),
        (frame(2, b"a", fin=False) + frame(2, b"b"), 1002),
        (frame(9, b"x" * 126), 1002),
        (frame(9, b"x", fin=False), 1002),
        (frame(8, b"\x03"), 1002),
        (b"\xc2" + frame(2, b"rsv1")[1:], 1002),
        (struct.pack(">BBQ", 0x82, 0xFF, MAX_PACKET + websocket.FRAME_MARGIN_BYTES + 1), 1009),
        (struct.pack(">BBQ", 0x82, 0xFF, 2**63), 1009),
    ],
)
def test_violations_are_closed_with_their_code(wire: bytes, code: int) -> None:
    stream = opened()
    stream.feed(wire)
    assert stream.closed
    assert stream.error
    answer = stream.pending()
    assert answer[0] == 0x88
    assert struct.unpack(">H", answer[2:4])[0] == code
    assert stream.feed(frame(2, b"late")) == b""
    assert stream.encode([b"late"]) == b""
    assert stream.shutdown() == b""


def test_the_peer_closes_without_a_code() -> None:
    stream = opened()
    assert stream.feed(frame(2, b"last") + frame(8, b"") + frame(2, b"after")) == b"last"
    assert stream.closed
    assert stream.error is None
    assert stream.pending() == b"\x88\x00"


def test_we_close_and_wait_for_the_answer() -> None:
    stream = opened()
    assert stream.shutdown() == b"\x88\x02\x03\xe8"
    assert not stream.closed
    assert stream.encode([b"late"]) == b""
    assert stream.shutdown() == b""
    assert stream.feed(frame(2, b"crossed") + frame(8, b"\x03\xe8")) == b""
    assert stream.closed
    assert stream.error is None


def test_shutdown_before_the_upgrade() -> None:
    stream = fresh()
    stream.feed(b"GET /mq")
    assert stream.shutdown() == b""
    assert stream.closed


@pytest.mark.parametrize("size", [1, 125, 126, 65535, 65536, 200_000])
def test_output_is_one_frame(size: int) -> None:
    stream = opened()
    wire = stream.encode([b"x" * (size - 1), b"y"])
    client = ClientProtocol(parse_uri("ws://localhost/mqtt"), max_size=None)
    client.state = type(client.state).OPEN
    client.parser = super(ClientProtocol, client).parse()
    next(client.parser)
    client.receive_data(wire)
    (message,) = client.events_received()
    assert isinstance(message, Frame)
    assert (message.opcode, message.fin) == (Opcode.BINARY, True)
    assert bytes(message.data) == b"x" * (size - 1) + b"y"
    assert stream.encode([]) == b""
    assert stream.encode([b""]) == b""


@given(garbage=st.lists(st.binary(max_size=300), max_size=6), upgraded=st.booleans())
def test_garbage_never_raises(garbage: list[bytes], upgraded: bool) -> None:
    stream = opened() if upgraded else fresh()
    for piece in garbage:
        stream.feed(piece)
        stream.pending()
    stream.encode([b"x"])
    stream.shutdown()


@given(
    frames=st.lists(
        st.tuples(st.integers(0, 15), st.binary(max_size=130), st.booleans(), st.booleans()),
        max_size=8,
    )
)
def test_any_sequence_of_frames_never_raises(frames: list[tuple[int, bytes, bool, bool]]) -> None:
    stream = fresh()
    wire = request() + b"".join(
        frame(opcode, data, fin, b"abcd" if masked else None)
        for opcode, data, fin, masked in frames
    )
    stream.feed(wire)
    stream.encode([b"x"])
    assert stream.closed == (stream.error is not None) or stream.closed


@given(position=st.integers(0, 10_000), value=st.integers(1, 255))
def test_a_flipped_byte_in_the_request_never_raises(position: int, value: int) -> None:
    stream = fresh(("https://app.example.test",))
    wire = bytearray(request(origin="https://app.example.test"))
    wire[position % len(wire)] ^= value
    stream.feed(bytes(wire))
    stream.pending()
    stream.feed(frame(9, b""))
    stream.pending()


def test_an_endless_message_of_small_fragments_holds_no_memory() -> None:
    stream = opened()
    piece = frame(0, b"x" * 1000, fin=False)
    plain = stream.feed(frame(2, b"", fin=False))
    total = len(plain)
    for _ in range(1000):
        total += len(stream.feed(piece))
    assert total == 1_000_000
    assert not stream.closed
