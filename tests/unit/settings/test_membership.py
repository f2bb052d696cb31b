"""Settings with the nodes that have joined the cluster, and without those that have left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluxmq.cluster.security import Security
from fluxmq.settings import Settings, notes
from fluxmq.settings.decode import decode
from fluxmq.settings.group_names import preferred_leader
from fluxmq.settings.membership import (
    FILE_NAME,
    ClusterNode,
    KnownNodes,
    decode_node,
    effective,
    encode_nodes,
    initial_nodes,
    read_nodes,
    set_of,
)
from fluxmq.settings.node_sets import NodeSet, decode_set, id_of_set
from fluxmq.settings.plans import GroupPlans, UnknownGroup, derived_offset

HOST = "127.0.0.1"
BASES = {"a": 1000, "b": 2000, "c": 3000, "d": 4000, "e": 5000}
"""Ports of nodes: of the transport, then 100 for groups, and 300 for etcd."""


def address(node: str, more: int = 0, host: str = HOST) -> str:
    return f"{host}:{BASES[node] + more}"


def host_of(node: str) -> str:
    """The address of a node that has one of its own."""
    return f"127.0.0.{2 + ord(node) - ord('a')}"


def raw(own: str, others: str, apart: bool = False, **more: Any) -> dict[str, Any]:
    """The file of a node that names others. ``apart``: each node has an address of its own, and queues
    have three copies."""

    def at(node: str, more: int = 0) -> str:
        return address(node, more, host_of(node) if apart else HOST)

    members = ",".join(f"{each}=http://{at(each, 300)}" for each in (own, *others))
    etcd = {"bind_addr": at(own, 300), "client_addr": at(own, 301)}
    return {
        "server": {"mqtt": {"tcp": {"addr": f"{HOST}:1883"}}},
        "cluster": {
            "enabled": True,
            "node_id": own,
            "transport": {
                "bind_addr": at(own),
                "peers": {each: at(each) for each in others},
            },
            "raft": {
                "enabled": True,
                "bind_addr": at(own, 100),
                "peers": {each: at(each, 100) for each in others},
                **({"replication_factor": 3} if apart else {}),
                "groups": {"hot": {"bind_addr": at(own, 200)}},
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
    with pytest.raises(UnknownGroup):
        plans.of("copies-4")
    assert plans.sized(4) == "default", "replication_factor is 5"
    assert plans.led_by("a", "default") == "leader-a", "no node set is known"
    assert plans.sized(3) == "copies-3"
    assert plans.led_by("a", "copies-3") == "leader-a"
    assert plans.fallback("copies-3") == plans.fallback("copies-4") == "default"
    assert plans.led_by("d", "default") == ""


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
        assert plans.fallback(plans.sized(2)) == ("copies-2" if left == outside else "default")
        assert plans.of("copies-2").members, "those that exist go on"


def sets_of(*histories: Mapping[str, ClusterNode]) -> dict[str, NodeSet]:
    """The node sets of a cluster that has had these nodes one after another."""
    found: dict[str, NodeSet] = {}
    for nodes in histories:
        there = set_of(nodes)
        if there is not None:
            found.setdefault(id_of_set(there), NodeSet(len(found), there))
    return found


def joined(known: Mapping[str, ClusterNode], node: str) -> dict[str, ClusterNode]:
    """The nodes after one has joined, perhaps again."""
    before = known.get(node)
    times = 1 if before is None else before.times + 1
    initial = before is not None and before.initial
    new = record(node, host_of(node), initial=initial, joined=True, times=times)
    return {**known, node: new}


def without(known: Mapping[str, ClusterNode], node: str) -> dict[str, ClusterNode]:
    """The nodes after one has left."""
    return {**known, node: replace(known[node], left=True)}


def plans_of(
    own: str, nodes: Mapping[str, ClusterNode], sets: Mapping[str, NodeSet], others: str = "abc"
) -> GroupPlans:
    """The plans of a node, by its file and what it knows of the cluster."""
    first = own in others
    named = others.replace(own, "") if first else ""
    file = file_of(own, named, apart=True, join=not first)
    return GroupPlans(effective(file, nodes, sets))


def leads(plans: GroupPlans, node: str, group: str = "default") -> tuple[str, set[str]]:
    """The group that a node should lead, and its initial members."""
    name = plans.led_by(node, group)
    return name, {each.node for each in plans.of(name).members} if name else set()


APART = {node: record(node, host_of(node), initial=True) for node in "abc"}
FOUR = joined(APART, "d")
FIVE = joined(FOUR, "e")


def test_a_node_that_has_joined_leads_groups_that_begin_on_all_nodes_there_are() -> None:
    sets = sets_of(APART, FOUR, FIVE)
    assert len(sets) == 2, "the first nodes are no set of their own"
    for wanted, copies in (("default", 3), ("copies-2", 2), ("copies-4", 4)):
        found = [leads(plans_of(own, FIVE, sets), "d", wanted) for own in "abcde"]
        assert found == [found[0]] * 5, "all nodes choose alike"
        name, members = found[0]
        assert preferred_leader(name) == "d"
        assert "d" in members
        assert len(members) == copies
        assert "e" not in members, "it begins on the earliest nodes that will do"
    own = next(iter(members))
    assert plans_of(own, FIVE, sets).of(name).own
    plans = plans_of("a", FIVE, sets)
    assert leads(plans, "a") == ("leader-a", {"a", "b", "c"}), "groups that may exist go on"
    assert leads(plans, "a", "copies-5")[1] == set("abcde")
    assert plans.sized(9) == "copies-5"


def test_a_queue_has_as_many_copies_as_it_asks_for_and_else_as_there_are_nodes_up_to_the_setting() -> (
    None
):
    file = file_of("a", "bc", apart=True)
    raft = file.cluster.raft.model_copy(update={"replication_factor": 4})
    file = file.model_copy(update={"cluster": file.cluster.model_copy(update={"raft": raft})})

    def copies(nodes: Mapping[str, ClusterNode], asked: int | None) -> int:
        plans = GroupPlans(effective(file, nodes, sets_of(APART, FOUR, FIVE)))
        group = "default" if asked is None else plans.sized(asked)
        return len(leads(plans, "a", group)[1])

    for nodes, usual, most in ((APART, 3, 3), (FOUR, 4, 4), (FIVE, 4, 5)):
        assert copies(nodes, None) == usual
        assert [copies(nodes, asked) for asked in (2, 3, 5)] == [2, 3, most]


def test_a_node_that_an_earlier_version_has_admitted_has_joined_once() -> None:
    before = {**FOUR, "d": replace(FOUR["d"], times=0)}
    assert set_of(before) == set_of(FOUR)
    settings = effective(file_of("a", "bc", apart=True), before)
    assert settings.cluster.history.times["d"] == 1


def test_a_cluster_that_began_with_one_node_has_copies_on_those_that_joined() -> None:
    alone = {"a": record("a", host_of("a"), initial=True)}
    two = joined(alone, "b")
    three = joined(two, "c")
    for own in "abc":
        plans = plans_of(own, three, sets_of(alone, two, three), others="a")
        for leader in "abc":
            assert leads(plans, leader)[1] == {"a", "b", "c"}
        assert len(leads(plans, "a", "copies-2")[1]) == 2
    alone_again = without(without(three, "b"), "a")
    plans = plans_of("c", alone_again, sets_of(alone, two, three, without(three, "b"), alone_again))
    assert leads(plans, "c")[1] == {"c"}


def test_groups_begin_when_all_first_nodes_have_been_replaced() -> None:
    nodes = FIVE
    history = [APART, FOUR, FIVE]
    for node in "abc":
        nodes = without(nodes, node)
        history.append(nodes)
    for own in "de":
        plans = plans_of(own, nodes, sets_of(*history))
        assert leads(plans, own)[1] == {"d", "e"}
        assert plans.led_by("a", "default") == ""


def test_a_group_of_nodes_that_a_node_has_not_heard_of_does_not_begin_there() -> None:
    sets = sets_of(APART, FOUR)
    name, members = leads(plans_of("a", FOUR, sets), "d")
    away = next(node for node in "abc" if node in members)
    plans = plans_of(away, APART, {})
    with pytest.raises(UnknownGroup, match="of which this node has not heard yet"):
        plans.of(name)
    named = "abc".replace(away, "")
    plans.follow(effective(file_of(away, named, apart=True), FOUR, sets))
    assert {each.node for each in plans.of(name).members} == members
    gone = plans_of(away, without(FIVE, "d"), sets_of(APART, FOUR, FIVE))
    assert {each.node for each in gone.of(name).members} == members, "it never changes"
    for wrong in ("copies-0-leader-d", "copies-5-leader-d", "copies-3-leader-e"):
        with pytest.raises(UnknownGroup, match="has other nodes"):
            plans.of(f"nodes-{next(iter(sets))}-{wrong}")


def test_a_node_that_has_left_and_joined_again_begins_no_group_of_before() -> None:
    history = [APART, FOUR, without(FOUR, "d"), joined(without(FOUR, "d"), "d")]
    name, members = leads(plans_of("a", FOUR, sets_of(APART, FOUR)), "d")
    sets = sets_of(*history)
    back = plans_of("d", history[-1], sets)
    assert back.of(name).own == 0, "it may have been a member, and has forgotten that"
    assert {each.node for each in back.of(name).members} == members
    again, _ = leads(back, "d")
    assert again not in ("", name)
    assert back.of(again).own
    first = joined(without(APART, "c"), "c")
    for group in ("default", "leader-c", "hot"):
        assert plans_of("c", first, sets_of(APART, first)).of(group).own == 0
        assert plans_of("b", first, sets_of(APART, first)).of(group).own


def test_a_group_needs_an_address_on_each_node_on_which_it_begins() -> None:
    sets = sets_of(APART, FOUR)
    name, _ = leads(plans_of("a", FOUR, sets), "d")
    offset = derived_offset(name)
    taken = {**FOUR, "d": replace(FOUR["d"], transport=address("d", 100 + offset, host_of("d")))}
    plans = plans_of("a", taken, sets)
    with pytest.raises(UnknownGroup, match="has the derived address"):
        plans.of(name)
    assert plans.led_by("d", "default") != name


def test_a_set_is_known_by_its_nodes() -> None:
    (identifier,) = sets_of(INITIAL, FOUR)
    node_set = NodeSet(0, {"a": 0, "b": 0, "c": 0, "d": 1})
    assert decode_set(identifier, msgspec.json.encode(node_set)) == node_set
    again = replace(node_set, nodes={**node_set.nodes, "d": 2})
    with pytest.raises(ValueError, match="is another one than its identifier says"):
        decode_set(identifier, msgspec.json.encode(again))


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
    known = KnownNodes(nodes=FOUR, left=True, sets=sets_of(INITIAL, FOUR))
    (tmp_path / FILE_NAME).write_bytes(encode_nodes(known))
    assert read_nodes(tmp_path) == known


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"nodes": {"a": {"transport": "nowhere", "raft": "h:1"}}}',
        b'{"nodes": {"a": {}}}',
        b'{"nodes": {}, "sets": {"00000000": {"number": 0, "nodes": {"a": 0}}}}',
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
