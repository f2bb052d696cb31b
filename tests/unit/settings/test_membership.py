"""Settings with the nodes that have joined the cluster, and without those that have left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fluxmq.cluster.security import Security
from fluxmq.settings import Settings, notes
from fluxmq.settings.decode import decode
from fluxmq.settings.membership import (
    FILE_NAME,
    ClusterNode,
    KnownNodes,
    decode_node,
    effective,
    encode_nodes,
    initial_nodes,
    read_nodes,
)
from fluxmq.settings.plans import GroupPlans, UnknownGroup, derived_offset

HOST = "127.0.0.1"
BASES = {"a": 1000, "b": 2000, "c": 3000, "d": 4000, "e": 5000}
"""Ports of nodes: of the transport, then 100 for groups, and 300 for etcd."""


def address(node: str, more: int = 0, host: str = HOST) -> str:
    return f"{host}:{BASES[node] + more}"


def raw(own: str, others: str, **more: Any) -> dict[str, Any]:
    """The file of a node that names others."""
    members = ",".join(f"{each}=http://{address(each, 300)}" for each in (own, *others))
    etcd = {"bind_addr": address(own, 300), "client_addr": address(own, 301)}
    return {
        "server": {"mqtt": {"tcp": {"addr": f"{HOST}:1883"}}},
        "cluster": {
            "enabled": True,
            "node_id": own,
            "transport": {
                "bind_addr": address(own),
                "peers": {each: address(each) for each in others},
            },
            "raft": {
                "enabled": True,
                "bind_addr": address(own, 100),
                "peers": {each: address(each, 100) for each in others},
                "groups": {"hot": {"bind_addr": address(own, 200)}},
            },
            "etcd": etcd | ({"initial_cluster": members} if others else {}),
            **more,
        },
    }


def file_of(own: str, others: str, **more: Any) -> Settings:
    return Settings.model_validate(raw(own, others, **more), strict=False)


def record(node: str, host: str = HOST, **fields: Any) -> ClusterNode:
    """What the cluster keeps of a node."""
    return ClusterNode(
        transport=address(node, 0, host),
        raft=address(node, 100, host),
        groups={"hot": address(node, 200, host)},
        etcd=f"http://{address(node, 300, host)}",
        **fields,
    )


INITIAL = {node: record(node, initial=True) for node in "abc"}
JOINED = {**INITIAL, "d": record("d", "d.example", joined=True)}


def group_of(settings: Settings, group: str) -> dict[str, str]:
    return {each.node: each.address for each in GroupPlans(settings).of(group).nodes}


def members_of(settings: Settings, group: str) -> set[str]:
    return {each.node for each in GroupPlans(settings).of(group).members}


def test_without_anything_known_the_file_says_all() -> None:
    settings = file_of("a", "bc")
    assert effective(settings, {}) is settings
    assert initial_nodes(settings.cluster) == {"a", "b", "c"}
    assert effective(settings, INITIAL).cluster.transport == settings.cluster.transport


def test_a_node_that_has_joined_is_a_peer_and_may_have_copies() -> None:
    settings = effective(file_of("a", "bc"), JOINED)
    cluster = settings.cluster
    assert cluster.transport.peers["d"] == "d.example:4000"
    assert set(cluster.transport.peers) == {"b", "c", "d"}
    assert group_of(settings, "default")["d"] == "d.example:4100"
    assert group_of(settings, "hot")["d"] == "d.example:4200"
    assert members_of(settings, "default") == members_of(settings, "hot") == {"a", "b", "c"}
    assert cluster.etcd is not None
    assert cluster.members(cluster.etcd)["d"] == "http://d.example:4300"
    assert "d" in Security.of(cluster).members
    assert "d.example" in Security.of(cluster).hosts


def test_the_joined_node_itself_learns_all_from_the_cluster() -> None:
    settings = effective(file_of("d", "", join=True), JOINED)
    cluster = settings.cluster
    assert cluster.transport.peers == {each: address(each) for each in "abc"}
    assert set(cluster.initial_nodes) == {"a", "b", "c"}
    assert not cluster.confined
    plan = GroupPlans(settings).of("default")
    assert plan.own == 0
    assert {each.node for each in plan.members} == {"a", "b", "c"}
    assert group_of(settings, "hot") == {
        each: address(each, 200) for each in "abcd"
    }  # its own as its file has it
    assert cluster.etcd is not None
    assert cluster.members(cluster.etcd)["d"] == "http://d.example:4300"
    assert set(cluster.members(cluster.etcd)) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("own", ["a", "d"])
def test_all_nodes_choose_the_same_members_of_new_groups(own: str) -> None:
    file = file_of("a", "bc") if own == "a" else file_of("d", "", join=True)
    settings = effective(file, JOINED)
    plans, before = GroupPlans(settings), GroupPlans(file_of("a", "bc"))
    for group in ("default", "hot", "copies-2"):
        chosen = {each.node for each in plans.of(group).members}
        assert chosen == {each.node for each in before.of(group).members}
    assert plans.sized(4) == "default", "groups begin on the first nodes alone"
    with pytest.raises(UnknownGroup):
        plans.of("copies-4")


def test_a_node_that_has_left_is_no_peer_and_groups_can_remove_it() -> None:
    for left in ("c", "d"):
        node = JOINED[left]
        nodes = {**JOINED, left: record(left, initial=node.initial, joined=node.joined, left=True)}
        settings = effective(file_of("a", "bc"), nodes)
        assert left not in settings.cluster.transport.peers
        assert left in group_of(settings, "default")
        etcd = settings.cluster.etcd
        assert etcd is not None
        assert left not in settings.cluster.members(etcd)
        assert members_of(settings, "default") == {"a", "b", "c"}


def test_queues_go_to_groups_that_can_begin_without_nodes_that_have_left() -> None:
    file = file_of("a", "bc")
    pair = members_of(file, "copies-2")
    (outside,) = {"a", "b", "c"} - pair
    for left in "abc":
        own = next(each for each in "abc" if each != left)
        others = "".join(each for each in "abc" if each != own)
        nodes = {**JOINED, left: record(left, initial=True, left=True)}
        plans = GroupPlans(effective(file_of(own, others), nodes))
        assert plans.sized(2) == ("copies-2" if left == outside else "default")
        assert plans.of("copies-2").members, "those that exist go on"


def test_a_first_node_that_has_joined_again_is_where_it_says() -> None:
    nodes = {**INITIAL, "c": record("c", "new.example", initial=True, joined=True)}
    settings = effective(file_of("a", "bc"), nodes)
    assert settings.cluster.transport.peers["c"] == "new.example:3000"
    assert group_of(settings, "default")["c"] == "new.example:3100"
    assert members_of(settings, "default") == {"a", "b", "c"}


def test_a_derived_address_that_is_taken_at_a_joined_node_stops_no_other() -> None:
    offset = derived_offset("copies-2")
    taken = ClusterNode(
        transport=address("d", 100 + offset), raft=address("d", 100), groups={}, joined=True
    )
    settings = effective(file_of("a", "bc"), {**INITIAL, "d": taken})
    assert "d" not in group_of(settings, "copies-2")
    assert "d" in group_of(settings, "default")


def test_plans_follow_nodes_that_join() -> None:
    plans = GroupPlans(file_of("a", "bc"))
    before = plans.of("hot")
    plans.follow(effective(file_of("a", "bc"), JOINED))
    after = plans.of("hot")
    assert after.members == before.members
    assert {each.node for each in after.nodes} == {"a", "b", "c", "d"}


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_nodes(tmp_path) == KnownNodes()
    known = KnownNodes(nodes=JOINED, left=True)
    (tmp_path / FILE_NAME).write_bytes(encode_nodes(known))
    assert read_nodes(tmp_path) == known


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"nodes": {"a": {"transport": "nowhere", "raft": "h:1"}}}',
        b'{"nodes": {"a": {}}}',
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ValueError, match="copy this file from another node"):
        read_nodes(tmp_path)


def test_a_key_with_a_wrong_address_is_refused() -> None:
    with pytest.raises(ValueError, match="port"):
        decode_node(b'{"transport": "h:0", "raft": "h:1"}')


def problems(own: str, others: str, **more: Any) -> Mapping[str, str]:
    _, found = decode(raw(own, others, **more))
    return {each.path: each.message for each in found}


def test_a_node_that_joins_names_no_others() -> None:
    assert not problems("d", "", join=True)
    found = problems("d", "a", join=True)
    assert set(found) == {
        "cluster.transport.peers",
        "cluster.raft.peers",
        "cluster.etcd.initial_cluster",
    }
    assert all("the cluster names its nodes" in text for text in found.values())
    assert "cluster.initial_nodes" in problems("d", "", join=True, initial_nodes=("a",))


def test_a_node_that_is_to_join_is_not_said_to_be_alone() -> None:
    file = file_of("d", "", join=True)
    said = "\n".join(notes(file, 1))
    assert "are those of the cluster that it joins" in said
    assert "one copy" not in said
    assert "that it joins" not in "\n".join(notes(effective(file, JOINED), 1))


def test_initial_nodes_are_nodes_of_the_file() -> None:
    assert not problems("a", "bc", initial_nodes=("a", "b"))
    assert "names x" in problems("a", "bc", initial_nodes=("a", "x"))["cluster.initial_nodes"]
    settings = file_of("a", "bcd", initial_nodes=("a", "b", "c"))
    assert members_of(settings, "default") == {"a", "b", "c"}


@pytest.mark.parametrize("own", ["a", "d"])
def test_nodes_may_change_again_and_again(own: str) -> None:
    """A shard has the settings with the nodes of before, and not those of the file."""
    file = file_of("a", "bc") if own == "a" else file_of("d", "", join=True)
    steps = [
        INITIAL | {"d": JOINED["d"]},
        {**JOINED, "e": record("e", joined=True)},
        {**JOINED, "e": record("e", joined=True, left=True)},
        {**JOINED, "c": record("c", initial=True, left=True)},
        {**JOINED, "c": record("c", "new.example", initial=True, joined=True)},
    ]
    settings = file
    for nodes in steps:
        settings = effective(settings, nodes)
        again = effective(file, nodes)
        assert settings.cluster.transport == again.cluster.transport
        assert settings.cluster.initial_nodes == again.cluster.initial_nodes
        assert settings.cluster.etcd is not None
        assert again.cluster.etcd is not None
        members = settings.cluster.members(settings.cluster.etcd)
        assert members == again.cluster.members(again.cluster.etcd)
        for node, address_now in group_of(again, "hot").items():
            assert group_of(settings, "hot")[node] == address_now
