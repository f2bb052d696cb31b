"""Moves of groups, led by the control process, over real sockets; the shards here do as they are told, or not."""

import asyncio
import contextlib
import os

import pytest
import uvloop

from fluxmq.control.metadata import StoreThread
from fluxmq.control.peers import ControlListener, RequestError, Service
from fluxmq.control.placements import Placements
from fluxmq.ipc import unix_socket
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import ControlMessage, Failure, ProcessHello, ProcessNumbers
from fluxmq.ipc.placements import (
    EXPECT,
    GROUPS,
    PIN,
    PLACEMENT,
    QUEUES,
    RECEIVE,
    RELEASE,
    UNPIN,
    GroupListing,
    GroupRow,
    Pin,
    PinResult,
    QueueListing,
    Release,
    ReleasedGroup,
    placement_from_body,
    shard_of,
)
from fluxmq.ipc.table import ProcessRow, ProcessState
from fluxmq.storage.directory import DataPaths, Placement, read_placement, write_placement
from fluxmq.storage.files import Files

FIRST = Placement(2, 8, revision=1)
GROUP = next(f"g{number}" for number in range(9) if shard_of(FIRST, f"g{number}") == 0)


class Node:
    """A placement with its control socket, and two shards, of which shard 0 has a group."""

    def __init__(self, path):
        self.path = path
        self.paths = DataPaths(str(path))
        self.commands = []
        self.refusing = {}
        self.tasks = []
        self.told = [asyncio.Event(), asyncio.Event()]

    async def __aenter__(self):
        self.thread = StoreThread()
        self.listener = ControlListener(
            Service(self._refuse, self._greeted, lambda _: None), os.geteuid()
        )
        self.placing = Placements(
            self.paths, self.thread, lambda: self.listener.processes, lambda: self.rows
        )
        await self.placing.load(FIRST)
        self.rows = [
            ProcessRow(
                shard,
                "shard",
                shard,
                1,
                shard + 4,
                ProcessState.READY,
                1.0,
                0,
                None,
                1,
                True,
                (),
                "",
            )
            for shard in range(2)
        ]
        await self.listener.start(unix_socket.bind(self.path / "s"))
        for shard in range(2):
            await self.connect(shard)
        return self

    async def connect(self, shard):
        commands = {
            kind: lambda body, answered, kind=kind: self._order(shard, kind, body, answered)
            for kind in (EXPECT, GROUPS, PLACEMENT, QUEUES, RECEIVE, RELEASE)
        }
        handlers = Handlers(tuple, ProcessNumbers, None, commands)
        client = ControlClient(self.path / "s", ProcessHello("shard", shard, 1), handlers)
        self.tasks.append(asyncio.get_running_loop().create_task(client.run()))
        async with asyncio.timeout(5):
            await self.told[shard].wait()

    def _order(self, shard, kind, body, answered):
        self.commands.append((shard, kind, body, read_placement(Files(), self.paths)))
        if kind == PLACEMENT:
            self.told[shard].set()
        if kind in self.refusing:
            answered(Failure("failed", self.refusing[kind]))
        elif kind == GROUPS:
            row = GroupRow(GROUP, 0, 4, False, "leader", "", "fsync", 0, 0, 0, 0, 0, 0, 0, 0.0)
            answered(GroupListing((row,) if shard == 0 else ()).to_body())
        elif kind == QUEUES:
            answered(QueueListing((), shard).to_body())
        elif kind == RELEASE:
            answered(ReleasedGroup(Release.from_body(body).group, 3, 1, 7, 7, 3, 9, 0.25).to_body())
        else:
            answered({})

    async def __aexit__(self, *_exception):
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.listener.stop()
        self.thread.close()

    def _greeted(self, peer):
        self.placing.push(peer)

    async def _refuse(self, message):
        raise AssertionError(message)

    async def pin(self, **place):
        body = await self.placing.answer(ControlMessage(PIN, 1, Pin(GROUP, **place).to_body()))
        return PinResult.from_body(body)

    def written(self):
        return read_placement(Files(), self.paths)

    def given(self, *kinds):
        return [order[:2] for order in self.commands if order[1] in kinds]


def run(scenario, path):
    async def main():
        async with Node(path) as node:
            await scenario(node)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_group_is_moved_in_this_order(tmp_path):
    async def scenario(node):
        node.commands.clear()
        placed = await node.pin(core=5)
        assert (placed.shard, placed.core, placed.moved) == (1, 5, True)
        assert placed.pause >= 0.25
        assert node.given(EXPECT, RELEASE, RECEIVE, PLACEMENT) == [
            (1, EXPECT),
            (0, RELEASE),
            (1, RECEIVE),
            (1, PLACEMENT),  # who gets it knows before those who will ask it
            (0, PLACEMENT),
        ]
        received = next(body for _, kind, body, _ in node.commands if kind == RECEIVE)
        assert ReleasedGroup.from_body(received) == ReleasedGroup(GROUP, 3, 1, 7, 7, 3, 9, 0.25)
        assert node.written() == Placement(2, 8, {GROUP: 1}, revision=4)

    run(scenario, tmp_path)


def test_nothing_is_decided_before_the_group_is_received(tmp_path):
    async def scenario(node):
        await node.pin(shard=1)
        for _, kind, _, written in node.commands:
            if kind in (EXPECT, RELEASE, RECEIVE):
                assert written.pins == {}
                assert written.moving == {GROUP: 1}

    run(scenario, tmp_path)


@pytest.mark.parametrize("step", [EXPECT, RELEASE, RECEIVE])
def test_a_move_that_fails_is_given_up(tmp_path, step):
    async def scenario(node):
        node.refusing[step] = "the disk is gone"
        node.commands.clear()
        with pytest.raises(RequestError, match=f"{GROUP} stays: .*the disk is gone"):
            await node.pin(shard=1)
        assert node.written() == Placement(2, 8, revision=4)
        told = [body for _, kind, body, _ in node.commands if kind == PLACEMENT]
        assert [placement_from_body(body) for body in told] == [node.written()] * 2
        node.refusing.clear()
        assert (await node.pin(shard=1)).moved

    run(scenario, tmp_path)


def test_a_pin_where_the_group_is_moves_nothing(tmp_path):
    async def scenario(node):
        placed = await node.pin(core=4)
        assert (placed.shard, placed.moved, placed.pause) == (0, False, 0.0)
        assert node.given(RELEASE) == []
        assert node.written().pins == {GROUP: 0}

    run(scenario, tmp_path)


def test_unpin_takes_a_group_home(tmp_path):
    async def scenario(node):
        with pytest.raises(RequestError, match="is not pinned"):
            await node.placing.answer(ControlMessage(UNPIN, 1, Release(GROUP).to_body()))
        await node.pin(core=4)
        body = await node.placing.answer(ControlMessage(UNPIN, 1, Release(GROUP).to_body()))
        assert not PinResult.from_body(body).moved
        assert node.written().pins == {}

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (Pin(GROUP, core=9), "no shard runs on core 9; there are 4, 5"),
        (Pin(GROUP, shard=7), "there is no shard 7"),
        (Pin("nobody", shard=1), "there is no group nobody"),
    ],
)
def test_places_and_groups_there_are_not(tmp_path, wanted, problem):
    async def scenario(node):
        with pytest.raises(RequestError, match=problem):
            await node.placing.answer(ControlMessage(PIN, 1, wanted.to_body()))
        assert node.written().pins == {}

    run(scenario, tmp_path)


def test_a_move_found_half_way_is_given_up(tmp_path):
    async def scenario(node):
        assert node.written() == Placement(2, 8, revision=6)
        assert node.given(PLACEMENT) == [(0, PLACEMENT), (1, PLACEMENT)]

    paths = DataPaths(str(tmp_path))
    write_placement(Files(), paths, Placement(2, 8, moving={GROUP: 1}, revision=5))
    run(scenario, tmp_path)


def test_listings_say_who_did_not_answer(tmp_path):
    async def scenario(node):
        body = await node.placing.answer(ControlMessage(QUEUES, 1, {}))
        assert QueueListing.from_body(body) == QueueListing((), 1)
        node.tasks[1].cancel()
        node.refusing[QUEUES] = "no"
        body = await node.placing.answer(ControlMessage(QUEUES, 1, {}))
        assert QueueListing.from_body(body) == QueueListing((), 0, ("shard-0", "shard-1"))

    run(scenario, tmp_path)
