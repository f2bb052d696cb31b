"""The control process's part in keeping retained messages in etcd, with a real server and real connections to shards."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from fluxmq.control.etcd import client as client_module
from fluxmq.control.etcd import retained
from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.fence import PREFIX as PREFIX_OF_FENCES
from fluxmq.control.etcd.fence import Fence
from fluxmq.control.etcd.messages import Changed, Delete, Get, Put, end_of
from fluxmq.control.etcd.retained import DATA, INDEXES, PAGE_KEYS, PREFIX, RetainedKeys
from fluxmq.control.peers import ControlListener, RequestError, Service
from fluxmq.ipc import unix_socket
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Answered, Handlers
from fluxmq.ipc.messages import Body, ControlMessage, Failure, ProcessHello, ProcessNumbers
from fluxmq.ipc.retained_messages import (
    CHANGES_MAX,
    DELETED,
    INDEX,
    PART_BYTES,
    RETAINED,
    RETAINED_CHANGE,
    WHOLE,
    CommittedChange,
    CommittedChanges,
    RetainedChange,
    RetainedChanges,
    RetainedPart,
    RetainedValue,
    encode_value,
)
from tests.etcd import Server, is_true, run, serving

pytestmark = pytest.mark.once


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def value(text: str, deadline: float = 0.0) -> bytes:
    return encode_value(RetainedValue(deadline, "node1", 1, 0, len(text), payload=text.encode()))


def _order(change: CommittedChange) -> tuple[int, bool]:
    """A topic that gets the other key has a deletion of the same revision as well."""
    return change.revision, change.kind != DELETED


class Shard:
    """A shard's end of its connection, which remembers what it is told."""

    def __init__(self, path: Path) -> None:
        self.parts: list[RetainedPart] = []
        self.keys: dict[bytes, CommittedChange] = {}
        self.known: set[bytes] = set()
        self.whole = 0
        """Number of times that it was told everything."""
        handlers = Handlers(lambda: (), ProcessNumbers, commands={RETAINED: self._take})
        self.client = ControlClient(path, ProcessHello("shard", 0, os.getpid()), handlers)
        self._task = asyncio.get_running_loop().create_task(self.client.run())

    def _take(self, body: Body, answered: Answered) -> None:
        part = RetainedPart.from_body(body)
        self.parts.append(part)
        if part.first:
            self.known = set()
        for each in part.entries:
            before = self.keys.get(each.topic)
            self.known.add(each.topic)
            if before is None or _order(before) <= _order(each):
                self.keys[each.topic] = each
        if part.last:
            self.whole += 1
            self.keys = {topic: each for topic, each in self.keys.items() if topic in self.known}
        answered({})

    async def ask(self, *changes: RetainedChange) -> CommittedChanges | Failure:
        """Have changes committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Body | Failure] = loop.create_future()
        await is_true(lambda: self.client.established)
        body = RetainedChanges(changes).to_body()
        assert self.client.request(RETAINED_CHANGE, body, future.set_result)
        answer = await future
        return answer if isinstance(answer, Failure) else CommittedChanges.from_body(answer)

    def messages(self) -> dict[bytes, bytes]:
        """The values of all topics."""
        return {topic: each.value for topic, each in self.keys.items() if each.kind != DELETED}

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class Node:
    """A control process of which only this part is there."""

    def __init__(self, server: Server, folder: Path, coordinates: bool = True) -> None:
        self.path = folder / f"control{len(os.listdir(folder))}"
        self.keys = RetainedKeys(EtcdClient.of(server.cluster), self.path.name, lambda: coordinates)
        service = Service(self._answer, self.keys.greeted, self.keys.gone)
        self._listener = ControlListener(service, os.geteuid())
        self._shards: list[Shard] = []

    async def start(self) -> None:
        await self._listener.start(unix_socket.bind(self.path))
        self.keys.start()

    async def _answer(self, message: ControlMessage) -> Body:
        return await self.keys.answer(message)

    def shard(self) -> Shard:
        self._shards.append(Shard(self.path))
        return self._shards[-1]

    async def stop(self) -> None:
        for shard in self._shards:
            await shard.close()
        await self._listener.stop()
        await self.keys.stop()


@asynccontextmanager
async def node(server: Server, folder: Path, **fields: bool) -> AsyncIterator[Node]:
    made = Node(server, folder, **fields)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def stored(client: EtcdClient) -> dict[bytes, bytes]:
    ((*entries,),) = (await client.transact((), (Get(PREFIX, end_of(PREFIX)),))).entries
    return {each.key: each.value for each in entries}


Scenario = Callable[[EtcdClient], Awaitable[None]]


def test_every_shard_is_told_what_is_committed(server: Server, tmp_path: Path) -> None:
    """S2-08."""

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path) as one, node(server, tmp_path) as other:
            first, second = one.shard(), other.shard()
            made = await first.ask(
                RetainedChange(b"a", WHOLE, value("1")),
                RetainedChange(b"b", INDEX, value("")),
            )
            assert isinstance(made, CommittedChanges)
            for shard in (first, second):
                await is_true(lambda shard=shard: len(shard.messages()) == 2)  # type: ignore[misc]
                assert shard.keys[b"a"] == CommittedChange(b"a", made.revision, 1, value("1"))
                assert shard.keys[b"b"].kind == INDEX
            assert await stored(client) == {DATA + b"a": value("1"), INDEXES + b"b": value("")}
            await second.ask(RetainedChange(b"a", DELETED))
            late = one.shard()
            for shard in (first, second, late):
                await is_true(lambda shard=shard: list(shard.messages()) == [b"b"])  # type: ignore[misc]
            assert late.parts[0].first

    run(server, scenario)


def test_a_topic_never_has_both_keys(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path) as one:
            shard = one.shard()
            for kind in (WHOLE, INDEX, WHOLE, WHOLE, INDEX, DELETED, INDEX, DELETED, DELETED):
                await shard.ask(RetainedChange(b"t", kind, value("x") if kind else b""))
            keys: set[bytes] = set()
            revision = 0
            async with aclosing(client.watch(PREFIX, end_of(PREFIX), 1)) as watching:
                async for found in watching:
                    for change in found.changes:
                        if change.entry.revision != revision:
                            assert len(keys) <= 1
                            revision = change.entry.revision
                        if change.deleted:
                            keys.discard(change.entry.key)
                        else:
                            keys.add(change.entry.key)
                    if found.changes and found.changes[-1].entry.revision == found.revision:
                        break
            assert keys == set()

    run(server, scenario)


def test_changes_of_two_nodes_at_once_end_alike(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path) as one, node(server, tmp_path) as other:
            shards = [one.shard(), other.shard()]

            async def change(number: int) -> None:
                for turn in range(60):
                    kind = (WHOLE, WHOLE, INDEX, DELETED)[(turn + number) % 4]
                    text = value(f"{number} {turn}") if kind != DELETED else b""
                    answer = await shards[number].ask(RetainedChange(b"t", kind, text))
                    assert isinstance(answer, CommittedChanges)

            await asyncio.gather(change(0), change(1))
            last = list((await stored(client)).values())
            for shard in shards:
                await is_true(lambda shard=shard: list(shard.messages().values()) == last)  # type: ignore[misc]
            assert shards[0].keys == shards[1].keys

    run(server, scenario)


def test_a_request_that_failed_is_not_carried_out_after_a_later_one(
    server: Server, tmp_path: Path
) -> None:
    """Although it may be under way for long: here by way of a server that is stopped."""

    async def scenario(client: EtcdClient) -> None:
        fence = Fence(client, "node1/test")
        await fence.transact((Put(b"t", b"1"),))
        known = fence._revision
        server.signal(signal.SIGSTOP)
        with pytest.raises(EtcdError):
            await fence.transact((Put(b"t", b"2"),))
        server.signal(signal.SIGCONT)
        while True:
            try:
                await fence.transact((Delete(b"t"),))
                break
            except EtcdError:
                continue
        assert fence._revision > known
        late = Changed(PREFIX_OF_FENCES + b"node1/test", known)
        assert not (await client.transact((late,), (Put(b"t", b"2"),))).succeeded
        assert (await client.transact((), (Get(b"t"),))).entries == ((),)

    run(server, scenario)


def test_requests_at_once_share_a_fence(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        fence, again = Fence(client, "node1/test"), Fence(client, "node1/test")
        await asyncio.gather(*(fence.transact((Put(b"%d" % number, b""),)) for number in range(20)))
        before = fence._revision
        await again.transact((Put(b"x", b""),))  # of the process that has come instead
        await asyncio.gather(
            *(fence.transact((Put(b"%d" % number, b"y"),)) for number in range(20))
        )
        assert fence._revision > before
        assert len((await client.transact((), (Get(b"0", b":"),))).entries[0]) == 20

    run(server, scenario)


def test_nothing_is_missed_when_the_server_is_killed(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path) as one, node(server, tmp_path) as other:
            writer, reader = one.shard(), other.shard()
            await is_true(lambda: reader.whole == 1)
            failures = 0
            for turn in range(120):
                if turn in (40, 80):
                    server.kill()
                    server.start()
                change = RetainedChange(b"t/%d" % turn, WHOLE, value(str(turn)))
                while isinstance(await writer.ask(change), Failure):
                    failures += 1
            assert failures > 0
            for shard in (writer, reader):
                await is_true(lambda shard=shard: len(shard.messages()) == 120)  # type: ignore[misc]
            assert reader.whole == 1, "the watch has gone on where it was"

    run(server, scenario)


def test_what_is_compacted_is_told_as_a_whole(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path) as one:
            shard = one.shard()
            await shard.ask(RetainedChange(b"a", WHOLE, value("1")))
            await is_true(lambda: len(shard.messages()) == 1)
            await client.compact((await client.transact((), (Put(b"x", b""),))).revision)
            one.keys._revision = 1  # as of a node that was stopped for long
            server.kill()
            server.start()
            await is_true(lambda: shard.whole == 2)
            answer = await shard.ask(RetainedChange(b"a", DELETED))
            while isinstance(answer, Failure):
                answer = await shard.ask(RetainedChange(b"a", DELETED))
            await is_true(lambda: not shard.messages())

    run(server, scenario)


def test_a_shard_that_is_far_behind_is_told_everything_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "WAITING_BYTES_MAX", 200)

    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path) as one:
            shard = one.shard()
            await is_true(lambda: shard.whole == 1)
            for start in range(0, 3 * CHANGES_MAX, CHANGES_MAX):
                numbers = range(start, start + CHANGES_MAX)
                await shard.ask(
                    *(RetainedChange(b"%d" % number, WHOLE, value("x")) for number in numbers)
                )
            await is_true(lambda: len(shard.messages()) == 3 * CHANGES_MAX)
            assert shard.whole > 1

    run(server, scenario)


def test_everything_is_told_in_parts_as_of_one_revision(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        count = 2 * PAGE_KEYS + 1
        for number in range(count):
            await client.transact((), (Put(DATA + b"%03d" % number, value("x" * 70_000)),))
        async with node(server, tmp_path) as one:
            shard = one.shard()
            await is_true(lambda: shard.whole == 1)
            assert len(shard.messages()) == count
            assert [part.first for part in shard.parts].index(True) == 0
            assert len({part.revision for part in shard.parts}) == 1
            sizes = [sum(len(each.value) for each in part.entries) for part in shard.parts]
            assert max(sizes) < 2 * PART_BYTES
            assert len(shard.parts) > 3

    run(server, scenario)


@pytest.mark.parametrize("limit", [0, 100_000])
def test_small_keys_are_read_many_at_a_time(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Unless they are larger than they seemed."""
    if limit:
        monkeypatch.setattr(
            client_module,
            "_CHANNEL_OPTIONS",
            (("grpc.max_receive_message_length", limit),),
        )

    async def scenario(client: EtcdClient) -> None:
        for number in range(300):
            payload = "x" * (2000 if limit and number > 200 else 10)
            await client.transact((), (Put(DATA + b"%03d" % number, value(payload)),))
        async with node(server, tmp_path) as one:
            shard = one.shard()
            await is_true(lambda: shard.whole == 1)
            assert len(shard.messages()) == 300
            pages = [len(part.entries) for part in shard.parts if part.entries]
            if limit:
                assert max(pages[-5:]) == PAGE_KEYS
                assert one.keys.failures == 1
            else:
                assert pages == [32, 64, 128, 76]

    run(server, scenario)


@pytest.mark.parametrize("coordinates", [True, False])
def test_the_coordinator_deletes_what_has_expired(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinates: bool
) -> None:
    monkeypatch.setattr(retained, "EXPIRE_SECONDS", 0.05)

    async def scenario(client: EtcdClient) -> None:
        now = time.time()
        await client.transact((), (Put(DATA + b"old", value("x", now - 1)),))
        await client.transact((), (Put(DATA + b"young", value("x", now + 600)),))
        async with node(server, tmp_path, coordinates=coordinates) as one:
            shard = one.shard()
            await is_true(lambda: shard.whole == 1)
            soon = RetainedChange(b"soon", INDEX, value("", time.time() + 0.3))
            later = RetainedChange(b"later", INDEX, value("", time.time() + 0.3))
            await shard.ask(soon, later)
            await shard.ask(RetainedChange(b"later", WHOLE, value("y")))
            kept = [b"later", b"young"]
            if not coordinates:
                kept = [b"later", b"old", b"soon", b"young"]
                await asyncio.sleep(1)
            await is_true(lambda: sorted(shard.messages()) == kept)

    run(server, scenario)


def test_a_value_that_makes_no_sense_is_left_out(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        for key in (DATA + b"bad", DATA, PREFIX + b"other/x"):
            await client.transact((), (Put(key, b"\xff"),))
        async with node(server, tmp_path) as one:
            shard = one.shard()
            await is_true(lambda: shard.whole == 1)
            await shard.ask(RetainedChange(b"good", WHOLE, value("x")))
            await is_true(lambda: list(shard.messages()) == [b"good"])
            assert one.keys.failures > 0

    run(server, scenario)


def test_a_request_without_a_server_fails(server: Server, tmp_path: Path) -> None:
    async def scenario(client: EtcdClient) -> None:
        async with node(server, tmp_path) as one:
            server.kill()
            body = RetainedChanges((RetainedChange(b"t", WHOLE, value("x")),)).to_body()
            with pytest.raises(RequestError, match="etcd: "):
                await one.keys.answer(ControlMessage(RETAINED_CHANGE, 1, body))

    run(server, scenario)
