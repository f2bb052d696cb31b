"""A shard's connection to control, on an event loop, against a control that behaves in all ways."""

import asyncio
import contextlib

from fluxmq.ipc import unix_socket
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import (
    COLLECT,
    HELLO,
    USERS,
    ControlMessage,
    ProcessHello,
    ProcessNumbers,
    reply,
)
from fluxmq.ipc.user_messages import Users
from fluxmq.metrics.registry import Sample


class Control:
    """The other end on the same loop: connections in the order they came."""

    def __init__(self):
        self.connections: asyncio.Queue[_Connection] = asyncio.Queue()

    async def listen(self, path):
        return await asyncio.start_unix_server(self._take, sock=unix_socket.bind(path))

    async def _take(self, reader, writer):
        await self.connections.put(_Connection(reader, writer))

    async def next(self):
        async with asyncio.timeout(5):
            return await self.connections.get()


class _Connection:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()
        self.received = []

    async def receive(self):
        async with asyncio.timeout(5):
            while not self.received:
                data = await self.reader.read(65536)
                assert data, "the client closed the connection"
                self.received += self.decoder.feed(data)
        return ControlMessage.from_wire(self.received.pop(0))

    async def closed(self):
        async with asyncio.timeout(5):
            while await self.reader.read(65536):
                continue

    def send(self, *messages):
        for message in messages:
            self.writer.write(encode_frame(message.to_wire()))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


def run(tmp_path, scenario, samples=()):
    """Run a client against the scenario's control."""
    snapshots: list[Users] = []
    handlers = Handlers(lambda: samples, ProcessNumbers, snapshots.append)
    client = ControlClient(tmp_path / "control.sock", ProcessHello("shard", 0, 1), handlers)

    async def main():
        task = asyncio.get_running_loop().create_task(client.run())
        try:
            await scenario(client, snapshots)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_it_connects_when_control_appears_takes_users_and_reconnects(tmp_path):
    async def scenario(client, snapshots):
        await asyncio.sleep(0)
        assert not client.established
        control = Control()
        async with await control.listen(tmp_path / "control.sock"):
            first = await control.next()
            hello = await first.receive()
            assert hello.kind == HELLO
            first.send(reply(hello, {}), ControlMessage(USERS, 1, Users(4, ()).to_body()))
            await first.receive()
            assert client.established
            assert client.users_revision == 4
            first.writer.close()
            await until(lambda: not client.established)
            second = await control.next()
            assert (await second.receive()).kind == HELLO
            second.writer.close()
        assert [users.revision for users in snapshots] == [4]

    run(tmp_path, scenario)


def test_nonsense_ends_the_connection_and_not_the_client(tmp_path):
    async def scenario(client, _snapshots):
        control = Control()
        async with await control.listen(tmp_path / "control.sock"):
            first = await control.next()
            first.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await first.closed()
            second = await control.next()
            assert (await second.receive()).kind == HELLO
            first.writer.close()
            second.writer.close()

    run(tmp_path, scenario)


def test_a_control_that_does_not_read_loses_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr("fluxmq.ipc.client.OUTPUT_BYTES_MAX", 300_000)
    samples: tuple[Sample, ...] = tuple(("x" * 60, {}, number) for number in range(1000))

    async def scenario(client, _snapshots):
        control = Control()
        async with await control.listen(tmp_path / "control.sock"):
            first = await control.next()
            first.send(reply(await first.receive(), {}))
            first.writer.transport.pause_reading()
            first.send(*(ControlMessage(COLLECT, number, {}) for number in range(40)))
            second = await control.next()
            assert (await second.receive()).kind == HELLO
            first.writer.close()
            second.writer.close()

    run(tmp_path, scenario, samples)
