"""The control process's bans: kept in a file, bounded, sent to those who enforce them."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.auth.bans import BANS_MAX, REASON_CHARACTERS_MAX, VALUE_CHARACTERS_MAX, Ban
from fluxmq.control.bans import FILE_NAME, Bans
from fluxmq.control.metadata import StoreThread
from fluxmq.control.peers import RequestError
from fluxmq.ipc.control_frames import FRAME_BYTES_MAX
from fluxmq.ipc.door_messages import (
    BAN,
    BANS,
    LIST_BANS,
    UNBAN,
    BanChanged,
    BanList,
    BanRequest,
    UnbanRequest,
)
from fluxmq.ipc.messages import (
    ERROR_LIMIT,
    ERROR_NOT_FOUND,
    ControlMessage,
    MessageError,
    ProcessHello,
)


class Process:
    """A shard or the acceptor, as far as bans go."""

    def __init__(self, role: str, closes: int = 0, silent: bool = False) -> None:
        self.hello = ProcessHello(role, 0, 1)
        self.name = role
        self.closes, self.silent = closes, silent
        self.lists: list[list[tuple[str, str]]] = []

    async def ask(self, kind: str, body: Any, _seconds: float) -> dict[str, object]:
        assert kind == BANS
        if self.silent:
            raise TimeoutError
        self.lists.append([(ban.kind, ban.value) for ban in BanList.from_body(body).bans])
        return {"closed": self.closes}


class Node:
    """The bans of a data directory, with a clock."""

    def __init__(self, directory: Path, *processes: Process) -> None:
        self.now = 1000.0
        self.path = directory / FILE_NAME
        self.thread = StoreThread()
        self.processes = processes
        self.bans = self.start()

    def start(self) -> Bans:
        return Bans(
            str(self.path),
            self.thread,
            lambda: self.processes,  # type: ignore[arg-type, return-value]
            lambda: self.now,
        )

    async def ban(self, kind: str, value: str, seconds: float | None = None) -> BanChanged:
        body = BanRequest(kind, value, seconds).to_body()
        return BanChanged.from_body(await self.bans.answer(ControlMessage(BAN, 1, body)))

    async def unban(self, kind: str, value: str) -> BanChanged:
        body = UnbanRequest(kind, value).to_body()
        return BanChanged.from_body(await self.bans.answer(ControlMessage(UNBAN, 1, body)))

    async def list(self) -> list[Ban]:
        return [*BanList.from_body(await self.bans.answer(ControlMessage(LIST_BANS, 1, {}))).bans]


def run(node: Node, scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await node.bans.load()
        await scenario()
        await node.bans.stop()

    asyncio.run(whole())
    node.thread.close()


def test_bans_are_written_then_enforced_and_known_after_a_restart(tmp_path: Path) -> None:
    shards, acceptor, caller = Process("shard", closes=2), Process("acceptor"), Process("control")
    node = Node(tmp_path, shards, acceptor, caller)

    async def scenario() -> None:
        assert await node.ban("address", "192.0.2.7/24", 60.0) == BanChanged(2, ())
        await node.ban("user", "eve")
        assert shards.lists[-1] == [("address", "192.0.2.0/24"), ("user", "eve")]
        assert acceptor.lists == shards.lists
        assert caller.lists == []
        assert stat.S_IMODE(os.stat(node.path).st_mode) & 0o007 == 0
        node.bans = node.start()
        await node.bans.load()
        expected = [Ban("address", "192.0.2.0/24", 1060.0), Ban("user", "eve")]
        assert await node.list() == expected
        late = Process("shard")
        node.bans.greeted(late)  # type: ignore[arg-type]
        node.bans.greeted(caller)  # type: ignore[arg-type]
        for _ in range(4):
            await asyncio.sleep(0)
        assert late.lists == [[("address", "192.0.2.0/24"), ("user", "eve")]]
        assert caller.lists == []

    run(node, scenario)


def test_a_process_that_connects_forgets_bans_that_were_lifted_meanwhile(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def scenario() -> None:
        returned = Process("shard")
        node.bans.greeted(returned)  # type: ignore[arg-type]
        for _ in range(4):
            await asyncio.sleep(0)
        assert returned.lists == [[]]

    run(node, scenario)


def test_bans_end_and_are_lifted(tmp_path: Path) -> None:
    node = Node(tmp_path, Process("shard"))

    async def scenario() -> None:
        await node.ban("client_id", "a", 10.0)
        await node.ban("client_id", "b", 20.0)
        await node.ban("client_id", "b", 30.0)  # instead of the other
        node.now += 25
        assert [(ban.value, ban.until) for ban in await node.list()] == [("b", 1030.0)]
        numbers = {labels["kind"]: value for _, labels, value in node.bans.samples()}
        assert numbers == {"address": 0, "user": 0, "client_id": 1}
        await node.unban("client_id", "b")
        assert await node.list() == []
        with pytest.raises(RequestError, match="client_id b is not banned") as refused:
            await node.unban("client_id", "b")
        assert refused.value.code == ERROR_NOT_FOUND
        await node.ban("address", "192.0.2.1")
        await node.unban("address", "192.0.2.1/32")
        assert await node.list() == []

    run(node, scenario)


def test_a_process_that_does_not_confirm_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path, Process("shard", closes=1), Process("acceptor", silent=True))

    async def scenario() -> None:
        assert await node.ban("user", "eve") == BanChanged(1, ("acceptor",))

    run(node, scenario)


def test_their_number_is_bounded(tmp_path: Path) -> None:
    """Ended bans make room, and the largest list fits a frame."""
    node = Node(tmp_path)
    longest = "\U0001f6ab"
    reason = longest * REASON_CHARACTERS_MAX
    full = [
        Ban("client_id", f"{number:04}" + longest * (VALUE_CHARACTERS_MAX - 4), 2000.0, reason)
        for number in range(BANS_MAX)
    ]
    body = BanList(tuple(full)).to_body()
    assert len(msgpack.packb(body)) < FRAME_BYTES_MAX

    async def scenario() -> None:
        node.bans._bans = {(ban.kind, ban.value): ban for ban in full}
        with pytest.raises(RequestError, match="4096 bans already") as refused:
            await node.ban("user", "eve")
        assert refused.value.code == ERROR_LIMIT
        await node.ban("client_id", full[0].value, 5000.0)  # changes one
        node.now = 2000.0
        await node.ban("user", "eve")
        assert {ban.value for ban in await node.list()} == {full[0].value, "eve"}

    run(node, scenario)


def test_wrong_requests(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def scenario() -> None:
        for kind, value in (("address", "eve"), ("host", "a"), ("user", "")):
            with pytest.raises(MessageError):
                await node.ban(kind, value)
            with pytest.raises(MessageError):
                await node.unban(kind, value)
        with pytest.raises(MessageError):
            await node.ban("user", "eve", 0.0)
        assert await node.list() == []
        assert not node.path.exists()

    run(node, scenario)


@pytest.mark.parametrize(
    "content",
    [b"{", b"[1]", b'[{"kind": "address", "value": "eve"}]', b'[{"kind": "user"}]'],
)
def test_a_damaged_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """It would be wrong to let in whom somebody has banned."""
    node = Node(tmp_path)
    node.path.write_bytes(content)
    with pytest.raises(ValueError, match="remove it and ban anew"):
        asyncio.run(node.bans.load())
    node.thread.close()


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    node = Node(directory, Process("shard"))

    async def scenario() -> None:
        with pytest.raises(RequestError, match="cannot be written"):
            await node.ban("user", "eve")
        assert await node.list() == []

    run(node, scenario)
