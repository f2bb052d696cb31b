"""The control socket without asyncio: the acceptor's client and the caller that waits."""

import socket
import threading

import pytest

from fluxmq.ipc import unix_socket
from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import (
    COLLECT,
    HELLO,
    PING,
    REPLY,
    ControlMessage,
    MessageError,
    ProcessHello,
    ProcessNumbers,
    Report,
    error,
    reply,
)
from fluxmq.ipc.polling_client import CallError, ControlCaller, PollingClient
from fluxmq.metrics.registry import Sample

SAMPLES: tuple[Sample, ...] = (("fluxmq_acceptor_pending", {}, 4),)


class Control:
    """The other end, by hand."""

    def __init__(self, path):
        self.listening = unix_socket.bind(path)
        self.listening.listen()
        self.listening.settimeout(5.0)
        self.connection: socket.socket | None = None
        self.decoder = FrameDecoder()

    def accept(self):
        if self.connection is not None:
            self.connection.close()
        self.connection, _ = self.listening.accept()
        self.connection.settimeout(5.0)
        self.decoder = FrameDecoder()

    def receive(self):
        while True:
            assert self.connection is not None
            values = self.decoder.feed(self.connection.recv(65536))
            if values:
                (value,) = values
                return ControlMessage.from_wire(value)

    def send(self, message):
        assert self.connection is not None
        self.connection.sendall(encode_frame(message.to_wire()))

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.listening.close()


@pytest.fixture
def control(tmp_path):
    made = Control(tmp_path / "control.sock")
    yield made
    made.close()


@pytest.fixture
def client(tmp_path):
    handlers = Handlers(collect=lambda: SAMPLES, status=ProcessNumbers)
    made = PollingClient(tmp_path / "control.sock", ProcessHello("acceptor", 0, 1), handlers)
    yield made
    made.close()


def test_it_says_hello_and_answers(control, client):
    client.tick(0.0)
    control.accept()
    hello = control.receive()
    assert hello.kind == HELLO
    control.send(reply(hello, {}))
    control.send(ControlMessage(COLLECT, 8, {}))
    client.on_readable(0.0)
    assert client.established
    answer = control.receive()
    assert (answer.kind, answer.id) == (REPLY, 8)
    assert Report.from_body(answer.body).samples == SAMPLES
    assert not client.wants_write


def test_a_command_is_answered_at_once_or_later(control, client):
    waiting = []
    handlers = Handlers(
        collect=lambda: SAMPLES,
        status=ProcessNumbers,
        commands={
            "now": lambda body, answered: answered(body),
            "later": lambda _, done: waiting.append(done),
        },
    )
    client._conversation._handlers = handlers
    client.tick(0.0)
    control.accept()
    control.send(reply(control.receive(), {}))
    control.send(ControlMessage("later", 1, {}))
    client.on_readable(0.0)
    control.send(ControlMessage("now", 2, {"a": 1}))
    client.on_readable(0.0)
    assert control.receive() == ControlMessage(REPLY, 2, {"a": 1})
    waiting[0]({"b": 2})
    assert client.wants_write
    client.on_writable(0.0)
    assert control.receive() == ControlMessage(REPLY, 1, {"b": 2})


def test_it_waits_between_attempts_and_comes_back(control, client):
    control.listening.close()
    client.tick(0.0)
    assert client.fileno is None
    client.tick(0.04)
    assert client.fileno is None
    control.listening = unix_socket.bind(client._path)
    control.listening.listen()
    client.tick(0.06)
    assert client.fileno is not None


def test_a_lost_connection_is_tried_again_after_a_wait(control, client):
    client.tick(0.0)
    control.accept()
    control.receive()
    control.connection.close()
    client.on_readable(1.0)
    assert client.fileno is None
    client.tick(1.01)
    assert client.fileno is None
    client.tick(1.06)
    control.accept()
    assert control.receive().kind == HELLO


def test_nonsense_and_refusals_end_the_connection(control, client):
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", encode_frame(error(1, "version", "no").to_wire())):
        client.tick(0.0 if client.fileno is None else 99.0)
        control.accept()
        control.receive()
        control.connection.sendall(nonsense)
        client.on_readable(0.0)
        assert client.fileno is None
        client._next_attempt = 0.0


def test_a_control_that_does_not_read_is_left(control, client, monkeypatch):
    client.tick(0.0)
    control.accept()
    hello = control.receive()
    control.send(reply(hello, {}))
    big: tuple[Sample, ...] = tuple(("x" * 60, {}, number) for number in range(2000))
    monkeypatch.setattr("fluxmq.ipc.polling_client.OUTPUT_BYTES_MAX", 100_000)
    client._conversation._handlers = Handlers(collect=lambda: big, status=ProcessNumbers)
    for number in range(20):
        if client.fileno is None:
            break
        control.send(ControlMessage(COLLECT, number, {}))
        client.on_readable(0.0)
    assert client.fileno is None
    assert not client.wants_write


def test_a_closed_client_stays_closed(control, client):
    client.tick(0.0)
    client.close()
    client.tick(1e9)
    client.on_readable(1e9)
    assert client.fileno is None


def served(control, *answers):
    """Answer one request after another on a thread; the answers are functions of the request."""

    def serve():
        control.accept()
        for answer in answers:
            control.send(answer(control.receive()))

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_call_returns_the_body_of_its_answer(control, tmp_path):
    thread = served(control, lambda m: reply(m, {"to": m.kind}), lambda m: reply(m, {"id": m.id}))
    with ControlCaller(tmp_path / "control.sock", 5.0) as caller:
        assert caller.call(PING, {}) == {"to": PING}
        assert caller.call(PING, {}) == {"id": 2}
    thread.join()


def test_a_refused_call_carries_code_and_text(control, tmp_path):
    thread = served(control, lambda m: error(m.id, "limit", "too many users"))
    with (
        ControlCaller(tmp_path / "control.sock", 5.0) as caller,
        pytest.raises(CallError, match="too many users") as caught,
    ):
        caller.call(PING, {})
    assert caught.value.code == "limit"
    thread.join()


def test_no_answer_is_a_timeout(control, tmp_path):
    with ControlCaller(tmp_path / "control.sock", 0.05) as caller, pytest.raises(TimeoutError):
        caller.call(PING, {})


def test_a_closed_connection_is_an_error(control, tmp_path):
    with ControlCaller(tmp_path / "control.sock", 5.0) as caller:
        control.accept()
        control.connection.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            caller.call(PING, {})


def test_an_answer_of_another_version_is_an_error(control, tmp_path):
    def serve():
        control.accept()
        control.receive()
        control.connection.sendall(encode_frame([2, REPLY, 1, {}]))

    thread = threading.Thread(target=serve)
    thread.start()
    with (
        ControlCaller(tmp_path / "control.sock", 5.0) as caller,
        pytest.raises(MessageError, match="version 2"),
    ):
        caller.call(PING, {})
    thread.join()
