"""HTTP/2 against `h2`, which keeps both ends' state as RFC 9113 has it and accepts nothing else, in both directions.

Review finding 16: the strictest check by others that can be had.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster.http2 import Http2
from fluxmq.cluster.http2_frames import NO_ERROR, WINDOW_DEFAULT
from fluxmq.cluster.http2_streams import EventKind, Http2Stream

MESSAGE_MAX = 1 << 20
STREAMS_MAX = 8
REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/s/m"),
    (":authority", "node2:1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("fluxmq-greeting-bin", "AAEC"),
)
ANSWER = ((":status", "200"), ("content-type", "application/grpc"))
TRAILERS = (("grpc-status", "0"),)


def packed(message: bytes) -> bytes:
    """A message of gRPC."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Strict:
    """This end, and `h2` as the other. ``serving``: this end is the server. ``reads``: the other takes data as they come."""

    def __init__(self, serving: bool, call_window: int = WINDOW_DEFAULT) -> None:
        self.ours = Http2(not serving, STREAMS_MAX, MESSAGE_MAX, call_window)
        self.peer = H2Connection(H2Configuration(client_side=serving, header_encoding="utf-8"))
        self.peer.initiate_connection()
        self.reads = True
        self.told: list[tuple[EventKind, Http2Stream | None, Any]] = []
        self.heard: list[Event] = []
        self.data: dict[int, bytes] = defaultdict(bytes)
        self.unread: dict[int, int] = defaultdict(int)
        self.waiting: dict[int, bytes] = defaultdict(bytes)
        self.carry()

    def carry(self) -> None:
        """Until neither has anything to say. What is not HTTP/2 raises here, on either side."""
        while True:
            ours, theirs = self.ours.take(), self.peer.data_to_send()
            if not ours and not theirs:
                return
            for event in self.peer.receive_data(ours):
                self.heard.append(event)
                if isinstance(event, DataReceived):
                    self._took(event)
            for kind, stream, what in self.ours.receive(theirs):
                self.told.append((kind, stream, what))
                if kind is EventKind.MESSAGE and stream is not None:
                    self.ours.consumed(stream, what)
            for number in list(self.waiting):
                self._pump(number)

    def _took(self, event: DataReceived) -> None:
        number, length = event.stream_id, event.flow_controlled_length
        self.data[number] += event.data
        if self.reads:
            self.peer.acknowledge_received_data(length, number)
        else:
            self.unread[number] += length

    def read(self) -> None:
        """Let the other side take what it has not."""
        self.reads = True
        for number, length in self.unread.items():
            self.peer.acknowledge_received_data(length, number)
        self.unread.clear()
        self.carry()

    def send(self, number: int, data: bytes) -> None:
        """Have the other side send data, as far as windows are open."""
        self.waiting[number] += data
        self._pump(number)

    def _pump(self, number: int) -> None:
        data = self.waiting.pop(number)
        while data:
            room = min(
                self.peer.local_flow_control_window(number), self.peer.max_outbound_frame_size
            )
            if room <= 0:
                self.waiting[number] = data
                return
            self.peer.send_data(number, data[:room])
            data = data[room:]

    def of(self, kind: type[Event]) -> list[Any]:
        """What the other side has heard of this kind."""
        return [each for each in self.heard if isinstance(each, kind)]

    def messages(self) -> list[bytes]:
        """The messages that this side was told of."""
        return [what for kind, _, what in self.told if kind is EventKind.MESSAGE]

    def kinds(self) -> list[EventKind]:
        """What this side was told of."""
        return [kind for kind, _, _ in self.told]

    def called(self, number: int = 1) -> Http2Stream:
        """A call from the other side, as this side sees it."""
        self.peer.send_headers(number, REQUEST)
        self.carry()
        return self.ours.streams[number]


SIZES = (0, 1, 100, 16_384, 70_000, 300_000)


def test_a_strict_client_is_served() -> None:
    """Settings, flow control both ways, headers, trailers, the end of both sides."""
    pair = Strict(serving=True)
    assert pair.of(SettingsAcknowledged)
    assert pair.of(RemoteSettingsChanged)
    stream = pair.called()
    sent = [bytes((n,)) * size for n, size in enumerate(SIZES)]
    pair.ours.headers(stream, ANSWER)
    pair.ours.allow(stream, 1 << 20)
    for message in sent:
        pair.send(1, packed(message))
        pair.ours.send(stream, message)
    pair.carry()
    assert not pair.waiting
    pair.peer.end_stream(1)
    pair.carry()
    pair.ours.headers(stream, TRAILERS, ends=True)
    pair.carry()
    assert pair.messages() == sent
    assert pair.data[1] == b"".join(map(packed, sent))
    assert pair.kinds()[-1] is EventKind.ENDED
    (answered,) = pair.of(ResponseReceived)
    assert dict(answered.headers)[":status"] == "200"
    (trailers,) = pair.of(TrailersReceived)
    assert dict(trailers.headers) == dict(TRAILERS)
    assert len(pair.of(StreamEnded)) == 1
    assert not pair.ours.streams


def test_a_strict_server_is_understood() -> None:
    """The same from the other side."""
    pair = Strict(serving=False, call_window=100_000)
    stream = pair.ours.open(REQUEST)
    sent = [bytes((n,)) * size for n, size in enumerate(SIZES)]
    pair.ours.allow(stream, 1 << 20)
    pair.carry()
    pair.peer.send_headers(1, ANSWER)
    for message in sent:
        pair.ours.send(stream, message)
        pair.send(1, packed(message))
    pair.ours.finish(stream)
    pair.carry()
    pair.peer.send_headers(1, TRAILERS, end_stream=True)
    pair.carry()
    assert pair.data[1] == b"".join(map(packed, sent))
    assert pair.messages() == sent
    assert pair.kinds()[0] is EventKind.HEADERS
    assert pair.kinds()[-2:] == [EventKind.HEADERS, EventKind.ENDED]
    assert len(pair.of(StreamEnded)) == 1
    assert not pair.ours.streams


@pytest.mark.parametrize("serving", [True, False])
def test_windows_that_shrink_below_nothing_and_open_again(serving: bool) -> None:
    """RFC 9113, 6.9.2: what is open already counts, a window may be negative, and nothing is sent then."""
    pair = Strict(serving)
    if serving:
        stream = pair.called()
        pair.ours.headers(stream, ANSWER)
    else:
        stream = pair.ours.open(REQUEST)
    pair.reads = False
    pair.ours.send(stream, bytes(40_000))
    pair.carry()
    before = len(pair.data[1])
    assert before == 40_005
    pair.peer.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10_000})
    pair.carry()
    assert stream.window < 0
    pair.ours.send(stream, b"later")
    pair.carry()
    assert len(pair.data[1]) == before
    pair.peer.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 40_006})
    pair.carry()
    assert len(pair.data[1]) == before + 1, "as much as is open now, and no more"
    pair.read()
    assert pair.data[1] == packed(bytes(40_000)) + packed(b"later")
    assert EventKind.WRITABLE in pair.kinds()


def test_frames_are_as_long_as_the_other_side_takes() -> None:
    """RFC 9113, 4.2 and 6.5.2: h2 refuses a longer one."""
    pair = Strict(serving=True)
    stream = pair.called()
    pair.ours.headers(stream, ANSWER)
    pair.peer.update_settings(
        {SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20, SettingCodes.MAX_FRAME_SIZE: 1 << 17}
    )
    pair.carry()
    for _ in range(3):
        pair.ours.send(stream, bytes(300_000))
        pair.carry()
    pair.peer.update_settings({SettingCodes.MAX_FRAME_SIZE: 1 << 14})
    pair.carry()
    pair.ours.send(stream, bytes(300_000))
    pair.carry()
    assert pair.data[1] == packed(bytes(300_000)) * 4


@pytest.mark.parametrize("serving", [True, False])
def test_tables_for_headers_change_between_them(serving: bool) -> None:
    """RFC 7541, 4.2: a strict decoder refuses headers that do not begin with the size it asked for."""
    pair = Strict(serving)
    for number, sizes in enumerate(((0,), (4096,), (100, 50, 3000), (10, 4096), (1 << 16,))):
        for size in sizes:
            pair.peer.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
            pair.carry()
        if serving:
            stream = pair.called(2 * number + 1)
            pair.ours.headers(stream, (*ANSWER, ("x-again", "value")), ends=True)
            pair.ours.cut(stream)
        else:
            stream = pair.ours.open(REQUEST)
            pair.carry()
            pair.ours.cut(stream)
        pair.carry()
    if serving:
        assert [dict(each.headers)["x-again"] for each in pair.of(ResponseReceived)] == [
            "value"
        ] * 5


@pytest.mark.parametrize("serving", [True, False])
def test_pings_and_goodbyes(serving: bool) -> None:
    pair = Strict(serving)
    pair.peer.ping(b"12345678")
    pair.ours.ping()
    pair.carry()
    (answered,) = pair.of(PingAckReceived)
    assert answered.ping_data == b"12345678"
    pair.ours.goodbye(NO_ERROR, "enough")
    pair.carry()
    (ended,) = pair.of(ConnectionTerminated)
    assert (ended.error_code, ended.additional_data) == (ErrorCodes.NO_ERROR, b"enough")
    other = Strict(serving)
    other.peer.close_connection(additional_data=b"later")
    for kind, stream, what in other.ours.receive(other.peer.data_to_send()):
        assert (kind, stream, what) == (EventKind.GOODBYE, None, [("", "later")])
    assert other.ours.heard_goodbye


def test_a_refusal_ends_a_call_that_goes_on() -> None:
    """An answer that is nothing but its end, and a reset without an error behind it (RFC 9113, 8.1)."""
    pair = Strict(serving=True)
    stream = pair.called()
    pair.ours.turned_away()
    pair.ours.headers(stream, (*ANSWER, ("grpc-status", "12")), ends=True)
    pair.ours.cut(stream, NO_ERROR)
    pair.carry()
    (reset,) = pair.of(StreamReset)
    assert reset.error_code == ErrorCodes.NO_ERROR
    assert len(pair.of(StreamEnded)) == 1


def test_streams_beyond_the_limit() -> None:
    """Neither side opens more than the other takes: h2 refuses to, and ends a connection that does."""
    serving = Strict(serving=True)
    for number in range(STREAMS_MAX):
        serving.called(2 * number + 1)
    with pytest.raises(Exception, match="Max outbound streams"):
        serving.peer.send_headers(2 * STREAMS_MAX + 1, REQUEST)
    asking = Strict(serving=False)
    asking.peer.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    asking.carry()
    for _ in range(2):
        assert not asking.ours.full
        asking.ours.open(REQUEST)
    asking.carry()
    assert asking.ours.full


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 150_000)),
        st.tuples(st.just("receive"), st.integers(0, 50_000)),
        st.tuples(st.just("window"), st.integers(0, 200_000)),
        st.tuples(st.just("frames"), st.integers(1 << 14, 1 << 18)),
        st.tuples(st.just("table"), st.integers(0, 1 << 14)),
        st.tuples(st.just("reads"), st.integers(0, 1)),
        st.tuples(st.just("open"), st.just(0)),
        st.tuples(st.just("reset"), st.integers(0, 1)),
        st.tuples(st.just("trailers"), st.just(0)),
        st.tuples(st.just("ping"), st.just(0)),
        st.tuples(st.just("carry"), st.just(0)),
    ),
    max_size=40,
)
CHANGES = {
    "window": SettingCodes.INITIAL_WINDOW_SIZE,
    "frames": SettingCodes.MAX_FRAME_SIZE,
    "table": SettingCodes.HEADER_TABLE_SIZE,
}


class Driver:
    """Does what a list of steps says to one pair; h2 raises for whatever this side does wrong."""

    def __init__(self, serving: bool) -> None:
        self.pair = Strict(serving)
        self.serving = serving
        self.next = 1
        self.sent: dict[int, bytes] = defaultdict(bytes)
        self.open()

    def newest(self) -> Http2Stream | None:
        """The stream that was opened last, while it lives."""
        found = self.pair.ours.streams.get(self.next - 2)
        return None if found is None or found.ended_here else found

    def open(self) -> None:
        """Another call, while there is room for it."""
        pair = self.pair
        pair.carry()
        if len(pair.ours.streams) >= STREAMS_MAX:
            return
        if self.serving:
            pair.ours.headers(pair.called(self.next), ANSWER)
        else:
            pair.ours.open(REQUEST)
            pair.carry()
            pair.peer.send_headers(self.next, ANSWER)
        self.next += 2

    def step(self, what: str, amount: int) -> None:
        """One step."""
        pair, stream = self.pair, self.newest()
        if what in CHANGES:
            pair.carry()
            pair.peer.update_settings({CHANGES[what]: amount})
        elif what == "ping":
            pair.ours.ping()
            pair.peer.ping(bytes(8))
        elif what == "reads":
            if amount:
                pair.read()
            else:
                pair.reads = False
        elif what == "open":
            self.open()
        elif what == "carry":
            pair.carry()
        elif stream is not None:
            self._on_stream(what, amount, stream)

    def _on_stream(self, what: str, amount: int, stream: Http2Stream) -> None:
        pair, number = self.pair, stream.number
        if what == "send":
            pair.ours.send(stream, bytes(amount))
            self.sent[number] += packed(bytes(amount))
        elif what == "receive":
            pair.send(number, packed(bytes(amount)))
        elif what == "trailers" and not stream.waiting:
            if self.serving:
                pair.ours.headers(stream, TRAILERS, ends=True)
            elif stream.window >= 0:  # h2 refuses what RFC 9113, 6.9 allows: an empty frame then
                pair.ours.finish(stream)
        elif what == "reset":
            pair.carry()
            if amount:
                pair.ours.cut(stream)
            elif number in pair.ours.streams:
                pair.peer.reset_stream(number)
            pair.waiting.pop(number, None)
            self.sent.pop(number, None)
            pair.carry()


@given(st.booleans(), STEPS)
def test_whatever_is_done_a_strict_end_accepts_it(
    serving: bool, steps: list[tuple[str, int]]
) -> None:
    """h2 raises for a frame too long, a window overrun, a frame in the wrong state, a table size not told."""
    driver = Driver(serving)
    for what, amount in steps:
        driver.step(what, amount)
    pair = driver.pair
    pair.read()
    pair.peer.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 24})
    pair.carry()
    pair.read()
    for number, data in driver.sent.items():
        assert pair.data[number] == data
