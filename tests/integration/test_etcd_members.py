"""The client of etcd while its members die: three real ones, of which one at a time is away.

What is shown is what the client leaves to its callers: a watch that broke goes on behind the last
change that was received, and a transaction whose answer is lost is looked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.messages import Changed, Created, Get, Put, TransactionResult
from tests.etcd import PATIENCE, Server, answers, eventually, serving_members

pytestmark = pytest.mark.once

WIDTH = 4
"""Keys that one transaction writes."""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with serving_members(tmp_path_factory.mktemp("members"), 3) as started:
        yield started


@asynccontextmanager
async def client_of(members: list[Server], first: int = 0) -> AsyncIterator[EtcdClient]:
    """A client of all members, which begins with one of them."""
    addresses = [each.address for each in members]
    client = EtcdClient([*addresses[first:], *addresses[:first]])
    try:
        await eventually(lambda: answers(client))
        yield client
    finally:
        await client.close()


async def kill_in_turn(members: list[Server], over: asyncio.Event) -> None:
    """Kill one member after the other, each once the one before is back."""
    for victim in members:
        victim.kill()
        victim.start()
        async with client_of([victim]):
            pass
    over.set()


async def put_surely(client: EtcdClient, number: int) -> None:
    """Write the keys of one transaction once, however many answers are lost."""
    first = b"watched/%d/0" % number
    puts = tuple(Put(b"watched/%d/%d" % (number, at), b"") for at in range(WIDTH))
    while True:
        try:
            await client.transact((Created(first, 0),), puts)
            return
        except EtcdError:
            await asyncio.sleep(0)


def test_a_watch_misses_nothing_and_tells_nothing_twice(members: list[Server]) -> None:
    """The next watch begins behind the last change that was told, not at the store's revision of
    that answer: the changes between the two may not have been told."""
    written: list[bytes] = []
    seen: list[tuple[int, bytes]] = []
    breaks = 0

    async def follow(client: EtcdClient, begin: int, over: asyncio.Event) -> None:
        nonlocal breaks
        while True:
            start = (seen[-1][0] if seen else begin) + 1
            try:
                async with aclosing(client.watch(b"watched/", b"watched0", start)) as told:
                    async for found in told:
                        seen.extend((each.entry.revision, each.entry.key) for each in found.changes)
                        if over.is_set() and len(seen) >= len(written):
                            return
            except EtcdError:
                breaks += 1
                await asyncio.sleep(0)

    async def write(client: EtcdClient, over: asyncio.Event, all_written: asyncio.Event) -> None:
        number = 0
        while not all_written.is_set():
            if over.is_set():
                all_written.set()  # after one more transaction
            number += 1
            written.extend(b"watched/%d/%d" % (number, at) for at in range(WIDTH))
            await put_surely(client, number)

    async def scenario() -> None:
        over, all_written = asyncio.Event(), asyncio.Event()
        async with client_of(members) as watcher, client_of(members) as writer:
            begin = (await writer.transact((), (Put(b"begin", b""),))).revision
            async with asyncio.timeout(4 * PATIENCE), asyncio.TaskGroup() as group:
                group.create_task(follow(watcher, begin, all_written))
                group.create_task(write(writer, over, all_written))
                group.create_task(kill_in_turn(members, over))

    asyncio.run(scenario())
    assert breaks
    assert [key for _, key in seen] == written
    assert [revision for revision, _ in seen] == sorted(revision for revision, _ in seen)


def test_a_transaction_whose_answer_is_lost_is_looked_up(members: list[Server]) -> None:
    """Each value names its transaction, so that its writer finds out whether it was carried out."""
    count, lost = 0, 0

    async def increment(client: EtcdClient, revision: int, over: asyncio.Event) -> None:
        nonlocal count, lost
        while not over.is_set():
            name = b"%d" % (count + 1)
            mine = (Changed(b"count", revision),), (Put(b"count", name),), (Get(b"count"),)
            try:
                found = await client.transact(*mine)
            except EtcdError:
                lost += 1
                found = await read_surely(client)
            if not found.entries:
                revision, count = found.revision, count + 1
                continue
            # Carried out, perhaps after an earlier look; or not, and then nothing else was.
            ((entry,),) = found.entries
            assert (entry.value == name) is (entry.revision != revision)
            if entry.value == name:
                revision, count = entry.revision, count + 1

    async def scenario() -> TransactionResult:
        over = asyncio.Event()
        async with client_of(members) as client:
            begin = (await client.transact((), (Put(b"count", b""),))).revision
            async with asyncio.timeout(4 * PATIENCE), asyncio.TaskGroup() as group:
                group.create_task(increment(client, begin, over))
                group.create_task(kill_in_turn(members, over))
            return await read_surely(client)

    ((entry,),) = asyncio.run(scenario()).entries
    assert lost
    assert entry.value == b"%d" % count


async def read_surely(client: EtcdClient) -> TransactionResult:
    while True:
        with suppress(EtcdError):
            return await client.transact((), (Get(b"count"),))
