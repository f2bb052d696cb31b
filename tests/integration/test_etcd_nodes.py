"""The nodes of a cluster in a real etcd: admitted by one, known to all, and kept on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import fluxmq
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.cluster_nodes import (
    MIRRORING_VERSION,
    PREFIX,
    SETS,
    TYPES_VERSION,
    VERSIONS,
    NodeKeys,
)
from fluxmq.control.etcd.messages import Delete, Get, Put
from fluxmq.control.etcd.wills import NODES as LIVES
from fluxmq.control.metadata import StoreThread
from fluxmq.control.peers import Peer, RequestError
from fluxmq.ipc.cluster_nodes import ADMIT_NODE, CLUSTER_NODES, AdmitNode, ClusterNodes
from fluxmq.ipc.messages import Body, ControlMessage, ProcessHello
from fluxmq.settings.membership import ClusterNode, read_nodes
from fluxmq.settings.node_sets import NODE_SETS_MAX, NodeSet, id_of_set
from tests.etcd import Server, eventually, is_true, run, serving
from tests.unit.settings.test_membership import file_of, record


class ToldShard(Peer):
    """A connected shard that remembers the nodes that it was told."""

    def __init__(self) -> None:
        self.hello = ProcessHello("shard", 0, 1)
        self.told: list[set[str]] = []

    async def ask(self, kind: str, body: Body, seconds: float) -> dict[str, Any]:
        assert kind == CLUSTER_NODES
        nodes = ClusterNodes.from_body(body).nodes
        self.told.append({name for name, node in nodes.items() if not node.left})
        return {}


class FollowingNode:
    """What a control process has of the cluster's nodes."""

    def __init__(self, name: str, server: Server, folder: Path) -> None:
        others = "abc".replace(name, "")
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        settings = file_of(name, others, etcd={"endpoints": [f"http://{server.address}"]})
        self.shard = ToldShard()
        self.thread = StoreThread()
        self.changed: list[Mapping[str, ClusterNode]] = []
        self.sets: list[Mapping[str, NodeSet]] = []
        known = read_nodes(self.folder)
        self.keys = NodeKeys(
            *(EtcdClient([server.address]), settings, str(self.folder), known),
            self.thread,
            lambda: [self.shard],
            self._change,
        )
        self.keys.start()

    def _change(self, nodes: Mapping[str, ClusterNode], sets: Mapping[str, NodeSet]) -> None:
        self.changed.append(nodes)
        self.sets.append(sets)

    def has_sets(self, *wanted: Mapping[str, int]) -> bool:
        """Whether these node sets are known, in memory and on disk."""
        kept = read_nodes(self.folder).sets
        found = sorted(kept.values(), key=lambda each: each.number)
        return [each.nodes for each in found] == list(wanted) and kept == self.keys.sets

    def knows(self, *names: str) -> bool:
        """Whether these are the nodes, in memory, on disk, and for the shard."""
        kept = read_nodes(self.folder).nodes
        there = {name for name, node in kept.items() if not node.left}
        return there == set(names) and self.shard.told[-1:] == [there] and kept == self.keys.nodes

    async def admit(self, name: str, node: ClusterNode) -> Mapping[str, ClusterNode]:
        asked = AdmitNode(name, "fluxmq", fluxmq.__version__, tls=False, addresses=node)
        answer = await self.keys.answer(ControlMessage(ADMIT_NODE, 1, asked.to_body()))
        return ClusterNodes.from_body(answer).nodes

    async def stop(self) -> None:
        await self.keys.stop()
        self.thread.close()


NEW = replace(record("d"), etcd="")
FOUR = {"a": 0, "b": 0, "c": 0, "d": 1}


async def has_version(client: EtcdClient, *names: str, version: int = 1) -> None:
    """Say that nodes which do not run know sets, or more."""
    for name in names:
        await client.transact((), (Put(VERSIONS + name.encode(), b"%d" % version),))


def put_of(number: int, nodes: Mapping[str, int]) -> Put:
    """The operation that puts a node set."""
    key = SETS + id_of_set(nodes).encode()
    return Put(key, msgspec.json.encode(NodeSet(number, dict(nodes))))


async def is_in_etcd(client: EtcdClient, nodes: Mapping[str, int]) -> bool:
    """Whether a node set is kept."""
    key = SETS + id_of_set(nodes).encode()
    ((*found,),) = (await client.transact((), (Get(key),))).entries
    return bool(found)


def test_a_node_is_admitted_by_one_and_known_to_all_until_it_has_left(tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        async def scenario(client: EtcdClient) -> None:
            nodes = [FollowingNode(name, server, tmp_path) for name in "abc"]
            first, second, third = nodes
            for node in nodes:
                await is_true(partial(node.knows, *"abc"))
            admitted = await first.admit("d", NEW)
            assert admitted["d"] == replace(NEW, joined=True, times=1)
            assert all(
                admitted[each] == replace(record(each, initial=True), etcd="") for each in "abc"
            )
            for node in nodes:
                await is_true(partial(node.knows, *"abcd"))
                assert "d" in node.changed[-1]
            await has_version(client, "d")
            for node in nodes:
                await is_true(partial(node.has_sets, FOUR))
                assert node.sets[-1] == node.keys.sets
            assert await second.admit("d", NEW) == admitted, "an answer may be lost"
            await client.transact((), (Put(LIVES + b"d", b"life"),))
            with pytest.raises(RequestError, match="a node d runs, or has run ten seconds ago"):
                await second.admit("d", NEW)
            assert await second.keys.lives("d")
            assert not await second.keys.lives("c")

            await third.stop()
            again = FollowingNode("c", server, tmp_path)
            assert "d" in again.keys.nodes, "it is on its disk"
            heard: list[ClusterNode] = []

            async def left() -> None:
                ((entry,),) = (await client.transact((), (Get(PREFIX + b"d"),))).entries
                heard.append(msgspec.json.decode(entry.value, type=ClusterNode))

            second.keys.mark_left_soon("d", left)
            await is_true(lambda: [each.left for each in heard] == [True])
            for node in (first, second, again):
                await is_true(partial(node.knows, *"abc"))
                await is_true(partial(node.has_sets, FOUR, dict.fromkeys("abc", 0)))
            await second.keys.close_door()
            await first.keys.mark_left("c")
            await is_true(partial(second.knows, *"ab"))
            assert read_nodes(second.folder).left, "it stays so"
            await is_true(lambda: read_nodes(again.folder).left)
            assert not read_nodes(first.folder).left
            with pytest.raises(RequestError, match=r"choose another cluster\.node_id"):
                await first.admit("a", NEW)
            await asyncio.gather(*(node.stop() for node in (first, second, again)))

        run(server, scenario)


def test_a_file_with_other_addresses_is_believed_unless_the_node_has_joined(tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        async def scenario(client: EtcdClient) -> None:
            old, came = replace(record("b", initial=True), etcd=""), replace(NEW, joined=True)
            moved = replace(old, transport="127.0.0.1:2999")
            for name, node in (("b", moved), ("c", came)):
                put = Put(PREFIX + name.encode(), msgspec.json.encode(node))
                await client.transact((), (put,))
            first = FollowingNode("a", server, tmp_path)
            await is_true(lambda: first.keys.nodes.get("b") == old)
            assert first.keys.nodes["c"] == came
            await first.stop()

        run(server, scenario)


def test_of_two_nodes_that_take_a_name_at_once_one_gets_it(tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        async def scenario(_client: EtcdClient) -> None:
            first, second = (FollowingNode(name, server, tmp_path) for name in "ab")
            await is_true(lambda: first.knows("a", "b", "c") and second.knows("a", "b", "c"))
            other = replace(record("e"), etcd="")
            found = await asyncio.gather(
                first.admit("d", NEW), second.admit("d", other), return_exceptions=True
            )
            refused = [each for each in found if isinstance(each, RequestError)]
            assert len(refused) == 1
            assert any(words in str(refused[0]) for words in ("try again", "has joined already"))
            await asyncio.gather(first.stop(), second.stop())

        run(server, scenario)


def test_a_set_that_etcd_has_lost_is_put_again(tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        async def scenario(client: EtcdClient) -> None:
            first = FollowingNode("a", server, tmp_path)
            await is_true(partial(first.knows, "b", "c"))
            await first.admit("d", NEW)
            await has_version(client, *"bcd")
            await is_true(partial(first.has_sets, FOUR))
            await first.stop()
            await client.transact((), (Delete(SETS + id_of_set(FOUR).encode()),))
            again = FollowingNode("a", server, tmp_path)
            await eventually(partial(is_in_etcd, client, FOUR))
            assert again.has_sets(FOUR)
            await again.stop()

        run(server, scenario)


def test_no_set_is_put_while_one_of_its_nodes_does_not_know_sets(tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        async def scenario(client: EtcdClient) -> None:
            first = FollowingNode("a", server, tmp_path)
            await is_true(partial(first.knows, "b", "c"))
            await first.admit("d", NEW)
            await has_version(client, "b", "c")
            five = await first.admit("e", replace(record("e"), etcd=""))
            await is_true(lambda: first.keys.nodes == five)
            await has_version(client, "e")
            await first.keys.mark_left("d")
            later = {"a": 0, "b": 0, "c": 0, "e": 1}
            await is_true(partial(first.has_sets, later))
            assert first.keys.sets[id_of_set(later)].number == 0, "none before, with d in it"
            await first.admit("d", NEW)
            await is_true(lambda: not first.keys.nodes["d"].left)
            await first.keys.mark_left("c")
            await is_true(lambda: first.keys.nodes["c"].left)
            assert first.has_sets(later), "its version went when it left"
            await first.stop()

        run(server, scenario)


def test_what_earlier_versions_cannot_read_waits_for_all_nodes(tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        async def scenario(client: EtcdClient) -> None:
            first = FollowingNode("a", server, tmp_path)
            await is_true(partial(first.knows, "b", "c"))
            await has_version(client, "b", version=TYPES_VERSION)
            await has_version(client, "c", version=MIRRORING_VERSION)
            await is_true(lambda: first.keys.mirrors)
            assert not first.keys.changes_types
            await has_version(client, "c", version=TYPES_VERSION)
            await is_true(lambda: first.keys.changes_types)
            await first.keys.mark_left("c")
            await is_true(lambda: first.keys.nodes["c"].left)
            await is_true(lambda: first.keys.changes_types)
            await first.stop()

        run(server, scenario)


def test_a_cluster_keeps_a_thousand_sets(tmp_path: Path) -> None:
    with serving(tmp_path) as server:

        async def scenario(client: EtcdClient) -> None:
            known = [{"a": 0, f"gone{number}": 1} for number in range(NODE_SETS_MAX - 1)]
            for start in range(0, len(known), 100):
                batch = enumerate(known[start : start + 100], start)
                await client.transact((), tuple(put_of(number, each) for number, each in batch))
            first = FollowingNode("a", server, tmp_path)
            await is_true(partial(first.knows, "b", "c"))
            await has_version(client, *"bcde")
            await first.admit("d", NEW)
            await is_true(lambda: len(first.keys.sets) == NODE_SETS_MAX)
            last = await first.admit("e", replace(record("e"), etcd=""))
            await is_true(lambda: first.keys.nodes == last)
            await first.keys.mark_left("e")
            await is_true(lambda: first.keys.nodes["e"].left)
            assert await is_in_etcd(client, FOUR)
            assert not await is_in_etcd(client, {**FOUR, "e": 1})
            assert len(read_nodes(first.folder).sets) == NODE_SETS_MAX
            await first.stop()

        run(server, scenario)
