"""Mirrored groups that no queue is in end, with a real etcd; a queue that is put into one at that moment is in a group
that there is, or is not declared."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fluxmq.control import mirror_endings
from fluxmq.control.etcd import shared_metadata
from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.messages import Get, end_of
from fluxmq.control.etcd.mirrors import ENDED, PREFIX, MirrorCoordinator, MirrorKeys
from fluxmq.control.mirror_choices import MirrorChoices
from fluxmq.control.mirror_endings import MirrorEndings
from fluxmq.control.peers import RequestError
from fluxmq.routing.topology.changes import DeleteQueue, MigrateQueue, SetPolicy
from fluxmq.routing.topology.mirror_records import MirrorRecord, begun
from fluxmq.routing.topology.records import Policy
from tests.etcd import Server, is_true, serving
from tests.integration.metadata_nodes import MetadataNode, MetadataNodes, play
from tests.unit.control.test_mirror_choices import Cluster
from tests.unit.control.topology_node import queue

pytestmark = pytest.mark.once

GROUP = "mirrors-0123456789abcdef"
OTHER = "mirrors-fedcba9876543210"
RECORD = begun(("node1", "node2"), 1, "always", "when-synced")
HOME = "local-0@node2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


class Groups:
    """The records as two nodes follow them, which have a topology. The first one coordinates."""

    def __init__(self, nodes: MetadataNodes, client: EtcdClient, server: Server) -> None:
        self.first, self.second = nodes["node1"], nodes["node2"]
        self._client = client
        self.keys = [
            MirrorKeys(
                EtcdClient.of(server.cluster),
                name,
                MirrorCoordinator(lambda: True, 0.0),
                list,
                lambda _first: None,
            )
            for name in ("node1", "node2")
        ]
        self.endings = MirrorEndings(
            *(self.keys[0], lambda: self.first.topology_service.topology),
            *(self.first.metadata.while_unchanged, lambda: True),
        )

    async def begin(self, group: str, record: MirrorRecord = RECORD) -> None:
        """Have a group, on both nodes."""
        for keys in self.keys:
            await keys.begin(group, record)

    async def end(self, group: str) -> bool:
        """End a group if no queue is in it."""
        keys = self.keys[0]
        return await self.first.metadata.while_unchanged(lambda _topology: keys.ending(group))

    async def kept(self) -> tuple[list[str], list[str]]:
        """The groups that there are, and those that have ended, as etcd has them."""
        found = []
        for prefix in (PREFIX, ENDED):
            ((*entries,),) = (
                await self._client.transact((), (Get(prefix, end_of(prefix)),))
            ).entries
            found.append([entry.key.removeprefix(prefix).decode() for entry in entries])
        return found[0], found[1]


@asynccontextmanager
async def overtaken(
    node: MetadataNode, first: Callable[[], Awaitable[object]]
) -> AsyncIterator[list[bool]]:
    """Have something done before the node's next transaction; yield whether it was."""
    client, done = node.metadata._client, []
    original = client.transact

    async def late(*arguments: object) -> object:
        client.transact = original  # type: ignore[method-assign]
        done.append(bool(await first()))
        return await original(*arguments)  # type: ignore[arg-type]

    client.transact = late  # type: ignore[assignment, method-assign]
    try:
        yield done
    finally:
        client.transact = original  # type: ignore[method-assign]


def scenario_with_groups(
    server: Server, path: Path, scenario: Callable[[Groups], Awaitable[None]]
) -> None:
    """Run a scenario."""

    async def whole(nodes: MetadataNodes, client: EtcdClient) -> None:
        await nodes.start("node1", "node2", "node3")
        await nodes.well()
        for name in ("node1", "node2"):
            await nodes[name].announced()
        groups = Groups(nodes, client, server)
        for keys in groups.keys:
            keys.start()
        try:
            await is_true(lambda: all(keys.known for keys in groups.keys))
            await scenario(groups)
        finally:
            await groups.endings.stop()
            for keys in groups.keys:
                await keys.stop()

    play(server, path, whole)


def test_a_group_ends_once_no_queue_is_in_it_and_its_name_is_not_used_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_endings, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(mirror_endings, "UNUSED_SECONDS", 0.1)
    monkeypatch.setattr(shared_metadata, "REQUEST_SECONDS", 1.0)

    async def scenario(groups: Groups) -> None:
        await groups.begin(GROUP)
        await groups.begin(OTHER)
        assert await groups.second.change(queue("in", group=GROUP)) is None
        groups.endings.start()
        await is_true(lambda: all(OTHER in keys.ended for keys in groups.keys))
        assert await groups.kept() == ([GROUP], [OTHER])
        assert groups.endings.ended == 1
        assert await groups.second.change(queue("moves", group="default")) is None
        with pytest.raises(RequestError):
            await groups.second.change(queue("late", group=OTHER))
        with pytest.raises(RequestError):
            await groups.second.change(MigrateQueue("/", "moves", "default", OTHER, "1" * 16))
        with pytest.raises(EtcdError):
            await groups.begin(OTHER)
        assert await groups.kept() == ([GROUP], [OTHER])
        assert groups.second.queues_of() == ["in", "moves"]
        assert await groups.second.change(DeleteQueue("/", "in")) is None
        await is_true(lambda: GROUP in groups.keys[1].ended)
        assert not groups.keys[1].records

    scenario_with_groups(server, tmp_path, scenario)


def test_a_queue_that_moves_to_a_group_keeps_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_endings, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(mirror_endings, "UNUSED_SECONDS", 0.0)

    async def scenario(groups: Groups) -> None:
        await groups.begin(GROUP)
        assert await groups.second.change(queue("q", group="default")) is None
        moves = MigrateQueue("/", "q", "default", GROUP, "1" * 16)
        assert await groups.second.change(moves) is None
        await groups.begin(OTHER)
        groups.endings.start()
        await is_true(lambda: OTHER in groups.keys[0].ended)
        assert await groups.kept() == ([GROUP], [OTHER])

    scenario_with_groups(server, tmp_path, scenario)


def test_a_group_does_not_end_if_a_queue_is_put_into_it_meanwhile(
    server: Server, tmp_path: Path
) -> None:
    async def scenario(groups: Groups) -> None:
        await groups.begin(GROUP)

        async def declared() -> bool:
            return await groups.second.change(queue("q", group=GROUP)) is None

        async with overtaken(groups.first, declared) as done:
            assert not await groups.end(GROUP)
        assert done == [True]
        assert await groups.kept() == ([GROUP], [])

    scenario_with_groups(server, tmp_path, scenario)


def test_a_group_does_not_end_if_its_record_changes_meanwhile(
    server: Server, tmp_path: Path
) -> None:
    async def scenario(groups: Groups) -> None:
        await groups.begin(GROUP)

        async def changed() -> bool:
            after = await groups.keys[1].change(GROUP, lambda record, _moment: record, fence=True)
            return after is not None

        async with overtaken(groups.first, changed) as done:
            assert not await groups.end(GROUP)
        assert done == [True]
        assert await groups.kept() == ([GROUP], [])

    scenario_with_groups(server, tmp_path, scenario)


def test_a_queue_whose_group_ends_meanwhile_is_declared_in_another_one(
    server: Server, tmp_path: Path
) -> None:
    async def scenario(groups: Groups) -> None:
        cluster, second, keys = Cluster(), groups.second, groups.keys[1]
        choices = MirrorChoices(
            *(keys, lambda: second.topology_service.topology),
            *(lambda: cluster.settings, lambda: True),
        )
        second.metadata.prepare = choices.prepare
        policy = Policy("/", "ha", "^ha", definition={"ha-mode": "nodes", "ha-params": ["node2"]})
        assert await second.change(SetPolicy(policy)) is None
        assert await second.change(queue("ha.first", group=HOME)) is None
        (group,) = keys.records
        assert await second.change(DeleteQueue("/", "ha.first")) is None

        async def ended() -> bool:
            await groups.keys[0].begin(group, RECORD)
            return await groups.end(group)

        async with overtaken(second, ended) as done:
            assert await second.change(queue("ha.second", group=HOME)) is None
        assert done == [True]
        found = second.topology_service.topology.queue("/", "ha.second")
        assert found is not None
        assert found.group != group
        assert await groups.kept() == ([found.group], [group])

    scenario_with_groups(server, tmp_path, scenario)
