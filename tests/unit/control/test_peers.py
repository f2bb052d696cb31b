"""The control socket from control's side, with raw peers that behave in all ways."""

import asyncio
import os

import pytest
import uvloop

from fluxmq.control import peers
from fluxmq.control.peers import (
    AnsweredError,
    ControlListener,
    Peer,
    PeerError,
    RequestError,
    Service,
    answers_of,
    forwarded,
)
from fluxmq.ipc import unix_socket
from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.messages import (
    ERROR,
    ERROR_FAILED,
    ERROR_LIMIT,
    ERROR_MALFORMED,
    ERROR_VERSION,
    HELLO,
    PING,
    REPLY,
    STATUS,
    VERSION,
    ControlMessage,
    Failure,
    ProcessHello,
    error,
    reply,
)
from fluxmq.ipc.user_messages import Confirmed


class Raw:
    """A peer that sends what it is told to and reads what comes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()
        self.received = []

    def send(self, kind, message_id, body):
        self.writer.write(encode_frame(ControlMessage(kind, message_id, body).to_wire()))

    async def receive(self):
        async with asyncio.timeout(5):
            while not self.received:
                data = await self.reader.read(65536)
                if not data:
                    return None
                self.received += self.decoder.feed(data)
        return ControlMessage.from_wire(self.received.pop(0))

    async def hello(self, role="shard", index=0):
        self.send(HELLO, 1, ProcessHello(role, index, 1).to_body())
        return await self.receive()

    async def ended(self):
        """Read until control closed the connection; return whether it did."""
        async with asyncio.timeout(5):
            while await self.receive() is not None:
                continue
        return True


class World:
    """A listener on a socket, with a service that remembers."""

    def __init__(self, path, answer, **options):
        self.path = path
        self.greeted: list[Peer] = []
        self.left: list[Peer] = []
        service = Service(answer, self.greeted.append, self.left.append)
        self.listener = ControlListener(service, options.pop("user", os.geteuid()), **options)
        self.raws = []

    async def __aenter__(self):
        await self.listener.start(unix_socket.bind(self.path))
        return self

    async def __aexit__(self, *_exception):
        for raw in self.raws:
            raw.writer.close()
        await self.listener.stop()

    async def connect(self):
        raw = Raw(*await asyncio.open_unix_connection(str(self.path)))
        self.raws.append(raw)
        return raw


async def echo(message):
    if message.kind == "refuse":
        raise RequestError(ERROR_LIMIT, "no more")
    if message.kind == "crash":
        raise ZeroDivisionError
    if message.kind == "wait":
        await asyncio.sleep(60)
    return {"kind": message.kind}


def run(tmp_path, scenario, answer=echo, **options):
    async def main():
        async with asyncio.timeout(20), World(tmp_path / "s", answer, **options) as world:
            await scenario(world)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_requests_are_answered_by_their_id(tmp_path):
    async def scenario(world):
        raw = await world.connect()
        raw.send(PING, 7, {})
        raw.send(STATUS, 8, {})
        answers = [await raw.receive(), await raw.receive()]
        assert [(a.kind, a.id, a.body["kind"]) for a in answers] == [
            (REPLY, 7, PING),
            (REPLY, 8, STATUS),
        ]

    run(tmp_path, scenario)


def test_refusals_and_failures_are_answered_too(tmp_path):
    async def scenario(world):
        raw = await world.connect()
        for kind, code in (("refuse", ERROR_LIMIT), ("crash", ERROR_FAILED)):
            raw.send(kind, 3, {})
            answer = await raw.receive()
            assert (answer.kind, answer.id) == (ERROR, 3)
            assert Failure.from_body(answer.body).code == code

    run(tmp_path, scenario)


def test_a_process_is_known_from_hello_until_it_leaves(tmp_path):
    async def scenario(world):
        raw = await world.connect()
        assert (await raw.hello(index=3)).kind == REPLY
        (peer,) = world.listener.processes
        assert world.greeted == [peer]
        assert peer.name == "shard-3"
        raw.writer.close()
        async with asyncio.timeout(5):
            while not world.left:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.005)
        assert world.left == [peer]
        assert world.listener.processes == []
        with pytest.raises(PeerError, match="gone"):
            await peer.ask(STATUS, {}, 1.0)

    run(tmp_path, scenario)


def test_questions_are_matched_with_their_answers(tmp_path):
    async def scenario(world):
        raw = await world.connect()
        await raw.hello("acceptor")
        (peer,) = world.listener.processes
        asked = [asyncio.create_task(peer.ask(STATUS, {"n": n}, 5.0)) for n in range(3)]
        questions = [await raw.receive() for _ in range(3)]
        for question in reversed(questions):
            answer = reply(question, {"answer": question.body["n"]})
            raw.writer.write(encode_frame(answer.to_wire()))
        assert [body["answer"] for body in await asyncio.gather(*asked)] == [0, 1, 2]

    run(tmp_path, scenario)


def test_a_question_may_be_refused_or_never_answered(tmp_path):
    async def scenario(world):
        raw = await world.connect()
        await raw.hello()
        (peer,) = world.listener.processes
        asked = asyncio.create_task(peer.ask(STATUS, {}, 5.0))
        question = await raw.receive()
        raw.writer.write(encode_frame(error(question.id, "limit", "busy").to_wire()))
        with pytest.raises(PeerError, match="shard-0 answered limit: busy"):
            await asked
        with pytest.raises(TimeoutError):
            await peer.ask(STATUS, {}, 0.02)
        # A late answer to a question given up is nobody's.
        late = await raw.receive()
        raw.writer.write(encode_frame(reply(late, {}).to_wire()))
        raw.send(PING, 9, {})
        assert (await raw.receive()).id == 9

    run(tmp_path, scenario)


def test_open_questions_fail_when_the_peer_leaves(tmp_path):
    async def scenario(world):
        raw = await world.connect()
        await raw.hello()
        (peer,) = world.listener.processes
        asked = asyncio.create_task(peer.ask(STATUS, {}, 5.0))
        await raw.receive()
        raw.writer.close()
        with pytest.raises(PeerError, match="gone"):
            await asked

    run(tmp_path, scenario)


def test_another_version_is_told_why_and_closed(tmp_path):
    async def scenario(world):
        raw = await world.connect()
        raw.writer.write(encode_frame([VERSION + 1, HELLO, 5, {}]))
        answer = await raw.receive()
        failure = Failure.from_body(answer.body)
        assert (answer.id, failure.code) == (5, ERROR_VERSION)
        assert "version 2 is not 1" in failure.text
        assert await raw.ended()

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        encode_frame("no message"),
        encode_frame(ControlMessage(HELLO, 1, {"role": "king"}).to_wire()),
        encode_frame(ControlMessage(HELLO, 1, ProcessHello("shard", 0, 1).to_body()).to_wire()) * 2,
    ],
)
def test_what_is_not_this_protocol_is_closed(tmp_path, data):
    async def scenario(world):
        raw = await world.connect()
        raw.writer.write(data)
        last = None
        while (message := await raw.receive()) is not None:
            last = message
        assert last is not None
        assert Failure.from_body(last.body).code == ERROR_MALFORMED

    run(tmp_path, scenario)


def test_too_many_requests_at_once_end_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "REQUESTS_MAX", 2)

    async def scenario(world):
        raw = await world.connect()
        for number in range(3):
            raw.send("wait", number, {})
        answer = await raw.receive()
        assert "more than 2 requests" in Failure.from_body(answer.body).text
        assert await raw.ended()

    run(tmp_path, scenario)


def test_open_questions_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "QUESTIONS_MAX", 1)

    async def scenario(world):
        raw = await world.connect()
        await raw.hello()
        (peer,) = world.listener.processes
        first = asyncio.create_task(peer.ask(STATUS, {}, 5.0))
        await raw.receive()
        with pytest.raises(PeerError, match="open questions"):
            await peer.ask(STATUS, {}, 5.0)
        first.cancel()

    run(tmp_path, scenario)


def test_a_peer_that_does_not_read_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "OUTPUT_BYTES_MAX", 100_000)

    async def big(_message):
        return {"data": b"x" * 2_000_000}

    async def scenario(world):
        raw = await world.connect()
        await raw.hello()
        raw.writer.transport.pause_reading()
        raw.send(PING, 2, {})
        async with asyncio.timeout(5):
            while not world.left:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.005)

    run(tmp_path, scenario, answer=big)


def test_connections_are_bounded(tmp_path):
    async def scenario(world):
        first = await world.connect()
        first.send(PING, 1, {})
        assert (await first.receive()).kind == REPLY
        second = await world.connect()
        assert await second.ended()
        first.send(PING, 2, {})
        assert (await first.receive()).id == 2

    run(tmp_path, scenario, connections_max=1)


def test_other_users_are_refused(tmp_path, monkeypatch):
    async def scenario(world):
        # Whoever calls, the kernel's word for who it is decides.
        monkeypatch.setattr(unix_socket, "peer_user", lambda _connection: os.geteuid() + 1)
        stranger = await world.connect()
        assert await stranger.ended()
        assert world.listener.log.events == 1
        monkeypatch.setattr(unix_socket, "peer_user", lambda _connection: 0)
        root = await world.connect()
        root.send(PING, 1, {})
        assert (await root.receive()).kind == REPLY

    run(tmp_path, scenario)


class Answering(Peer):
    """A peer that answers with a body, or raises."""

    def __init__(self, answer):
        self.answer = answer
        self.hello = None

    async def ask(self, kind, body, seconds):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_peers_without_a_usable_answer_have_none():
    silent = [TimeoutError(), PeerError("gone"), AnsweredError("x", Failure("limit", "no"))]
    peers = [Answering(each) for each in [{"revision": 3}, {"revision": "x"}, *silent]]
    found = asyncio.run(answers_of(peers, "x", {}, 1.0, Confirmed))
    assert found == [Confirmed(3), None, None, None, None]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (AnsweredError("x", Failure(ERROR_LIMIT, "no")), ERROR_LIMIT),
        (PeerError("gone"), ERROR_FAILED),
        (TimeoutError(), ERROR_FAILED),
    ],
)
def test_a_forwarded_request_that_fails_is_refused(answer, code):
    with pytest.raises(RequestError) as caught:
        asyncio.run(forwarded(Answering(answer), "x", {}, 1.0))
    assert caught.value.code == code
    assert asyncio.run(forwarded(Answering({"a": 1}), "x", {}, 1.0)) == {"a": 1}
