"""Groups as the settings mean them: members, addresses, directories, and what is inherited from whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.settings import Settings, load
from fluxmq.settings.clustering import Raft
from fluxmq.settings.group_names import preferred_leader
from fluxmq.settings.plans import (
    DERIVED_PORTS,
    GroupMember,
    GroupPlans,
    UnknownGroup,
    derived_offset,
    member_number,
)

CONFIG = Path(__file__).resolve().parents[3] / "config"


def node(own: str, others: Mapping[str, int], raft: object = None, **more: object) -> Settings:
    """Settings of a node: its peers by the port that their group "default" has; its own is 21100."""
    peers = {name: f"127.0.0.1:{port}" for name, port in others.items()}
    shards = {name: f"127.0.0.1:{port + 10_000}" for name, port in others.items()}
    cluster = {
        "enabled": True,
        "node_id": own,
        "transport": {"bind_addr": "127.0.0.1:29948", "peers": shards},
        "raft": {"enabled": True, "bind_addr": "127.0.0.1:21100", "peers": peers},
    }
    cluster["raft"] |= raft or {}  # type: ignore[operator]
    return Settings.model_validate({"cluster": cluster, **more}, strict=False)


THREE = {"b": 21200, "c": 21300}


def names(members: tuple[GroupMember, ...]) -> set[str]:
    return {each.node for each in members}


def test_numbers_of_nodes() -> None:
    # Written into logs and messages: may never change.
    assert member_number("node1") == 222182736891072
    assert member_number("node2") == 23852276138790
    assert 0 < member_number("") <= 1 << 48


def test_the_default_group_is_the_raft_section() -> None:
    """S1-05, S1-16, S1-19, S2-35, S3-24."""
    plan = GroupPlans(node("a", THREE, {"heartbeat_timeout": 0.15, "election_timeout": 1.0})).of(
        "default"
    )
    addresses = {"a": "127.0.0.1:21100", "b": "127.0.0.1:21200", "c": "127.0.0.1:21300"}
    assert {each.node: each.address for each in plan.members} == addresses
    assert [each.number for each in plan.members] == sorted(map(member_number, addresses))
    assert plan.nodes == plan.members
    assert (plan.own, plan.bind_addr) == (member_number("a"), "127.0.0.1:21100")
    assert (plan.write_policy, plan.distribution_mode, plan.sync_mode) == (
        "forward",
        "forward",
        True,
    )
    assert (plan.heartbeat_timeout, plan.election_timeout, plan.ack_timeout) == (0.15, 1, 5)
    assert (plan.snapshot_interval, plan.snapshot_threshold, plan.data_dir) == (300, 8192, None)
    assert (plan.replication_factor, plan.min_in_sync_replicas) == (5, 2)


def test_a_groups_own_values_come_before_those_of_raft() -> None:
    own = {
        "bind_addr": "127.0.0.1:21150",
        "sync_mode": False,
        "min_in_sync_replicas": 3,
        "ack_timeout": 1.0,
        "heartbeat_timeout": 0.2,
        "election_timeout": 0.9,
        "snapshot_interval": 9.0,
        "snapshot_threshold": 7,
    }
    raft = {
        "groups": {"hot": own, "default": {"ack_timeout": 2.0}},
        "write_policy": "reject",
        "distribution_mode": "replicate",
    }
    plans = GroupPlans(node("a", THREE, raft))
    plan = plans.of("hot")
    assert {key: getattr(plan, key) for key in own} == own
    assert (plan.write_policy, plan.distribution_mode) == ("reject", "replicate")
    # Peers that are not named are as far from the default group's as this node's own address is.
    assert {each.node: each.address for each in plan.nodes} == {
        "a": "127.0.0.1:21150",
        "b": "127.0.0.1:21250",
        "c": "127.0.0.1:21350",
    }
    assert plans.of("default").ack_timeout == 2


def test_members_are_chosen_alike_on_every_node() -> None:
    """S1-20, S2-36."""
    ports = {name: 21100 + 100 * index for index, name in enumerate("abcde")}
    chosen = []
    for own in ports:
        others = {name: port for name, port in ports.items() if name != own}
        plans = GroupPlans(
            node(own, others, {"auto_provision_groups": True, "replication_factor": 3})
        )
        made = [plans.of(group) for group in ("default", *map(str, range(12)))]
        chosen.append([names(plan.members) for plan in made])
        for plan in made:
            assert len(plan.members) == 3
            assert len(plan.nodes) == 5
            assert plan.own == (member_number(own) if own in names(plan.members) else 0)
            assert list(plan.members) == sorted(plan.members, key=lambda each: each.number)
    assert all(one == chosen[0] for one in chosen)
    # Spread: each node has some groups, and not all of them.
    counts = [sum(name in members for members in chosen[0]) for name in ports]
    assert all(0 < count < 13 for count in counts)


def test_one_more_node_moves_no_copy_but_to_itself() -> None:
    four = {"b": 21200, "c": 21300, "d": 21400}
    for group in map(str, range(20)):
        raft = {"auto_provision_groups": True, "replication_factor": 3}
        before = names(GroupPlans(node("a", four, raft)).of(group).members)
        after = names(GroupPlans(node("a", four | {"e": 21500}, raft)).of(group).members)
        assert after - before <= {"e"}


def test_fewer_nodes_than_copies() -> None:
    plan = GroupPlans(node("a", {})).of("default")
    assert (names(plan.members), plan.replication_factor, plan.min_in_sync_replicas) == (
        {"a"},
        5,
        1,
    )


def test_a_group_with_peers_of_its_own() -> None:
    hot = {"bind_addr": "127.0.0.1:21150", "peers": {"c": "127.0.0.1:1"}}
    plan = GroupPlans(node("a", THREE, {"groups": {"hot": hot}})).of("hot")
    assert {each.node: each.address for each in plan.members} == {
        "a": "127.0.0.1:21150",
        "c": "127.0.0.1:1",
    }
    away = {"enabled": False, "peers": {"b": "127.0.0.1:1", "c": "127.0.0.1:2"}}
    plans = GroupPlans(node("a", THREE, {"groups": {"hot": away}}))
    plan = plans.of("hot")
    assert (names(plan.members), plan.own, plan.bind_addr) == ({"b", "c"}, 0, "")
    assert plans.configured() == ("default",)
    nowhere = GroupPlans(node("a", THREE, {"groups": {"hot": {"enabled": False}}}))
    with pytest.raises(UnknownGroup, match="hot is not enabled on this node, and its section"):
        nowhere.of("hot")


def test_groups_that_are_made_when_a_queue_names_them() -> None:
    opened = GroupPlans(node("a", THREE, {"auto_provision_groups": True}))
    plan = opened.of("invoices")
    own = int(plan.bind_addr.rpartition(":")[2]) - 21100
    assert 1 <= own <= DERIVED_PORTS
    assert {int(each.address.rpartition(":")[2]) - own for each in plan.nodes} == {
        21100,
        21200,
        21300,
    }
    assert opened.of("invoices") is plan
    closed = GroupPlans(node("a", THREE))
    with pytest.raises(UnknownGroup, match=r"invoices is not in cluster.raft.groups, and") as error:
        closed.of("invoices")
    assert error.value.group == "invoices"


@pytest.mark.parametrize("name", ["local-0", "buffered-1", "ephemeral-2", "", "a/b", ".x"])
def test_names_that_no_group_of_queues_has(name: str) -> None:
    plans = GroupPlans(node("a", THREE, {"auto_provision_groups": True}))
    with pytest.raises(UnknownGroup):
        plans.of(name)


def test_a_derived_address_that_is_taken() -> None:
    raft = {"auto_provision_groups": True}
    derived = GroupPlans(node("a", THREE, raft)).of("invoices").bind_addr
    port = int(derived.rpartition(":")[2])
    listener = {"server": {"mqtt": {"tcp": {"addr": f":{port}"}}}}
    with pytest.raises(UnknownGroup, match=rf"clashes with server.mqtt.tcp.addr, which is :{port}"):
        GroupPlans(node("a", THREE, raft, **listener)).of("invoices")
    # Every shard has a port of the transport.
    for shard, meets in ((-1, False), (0, True), (63, True), (64, False)):
        settings = node("a", THREE, raft)
        transport = settings.cluster.transport.model_copy(
            update={"bind_addr": f"127.0.0.1:{port - shard}"}
        )
        cluster = settings.cluster.model_copy(update={"transport": transport})
        plans = GroupPlans(settings.model_copy(update={"cluster": cluster}))
        if meets:
            with pytest.raises(UnknownGroup, match="takes 64 ports, one for each shard"):
                plans.of("invoices")
        else:
            assert plans.of("invoices").bind_addr == derived
    # Of two groups that come to the same port the first has it, and those of the file come first.
    plans = GroupPlans(node("a", THREE, raft))

    def one_more_than_ports() -> None:
        for index in range(DERIVED_PORTS + 1):
            plans.of(f"g{index}")

    with pytest.raises(UnknownGroup, match="clashes with the derived address of group") as error:
        one_more_than_ports()
    second = error.value.group
    queue = [{"name": "q", "replication": {"enabled": True, "group": second}}]
    assert GroupPlans(node("a", THREE, raft, queues=queue)).of(second).name == second


def test_a_derived_address_that_is_taken_on_another_node() -> None:
    raft = {"auto_provision_groups": True}
    (other, derived), *_ = (
        (each.node, each.address)
        for each in GroupPlans(node("a", THREE, raft)).of("invoices").nodes
        if each.node != "a"
    )
    port = int(derived.rpartition(":")[2])
    # Whoever is asked for the group says so, not the node that could not open it.
    for first, meets in ((port + 1, False), (port, True), (port - 63, True), (port - 64, False)):
        settings = node("a", THREE, raft)
        peers = dict(settings.cluster.transport.peers) | {other: f"127.0.0.1:{first}"}
        transport = settings.cluster.transport.model_copy(update={"peers": peers})
        cluster = settings.cluster.model_copy(update={"transport": transport})
        plans = GroupPlans(settings.model_copy(update={"cluster": cluster}))
        if meets:
            with pytest.raises(
                UnknownGroup, match=rf"{derived} on {other}, and .* cluster.transport.peers.{other}"
            ):
                plans.of("invoices")
        else:
            assert plans.of("invoices").bind_addr
    groups = {"groups": {"orders": {"bind_addr": "127.0.0.1:1", "peers": {other: derived}}}}
    with pytest.raises(
        UnknownGroup, match=rf"clashes with cluster.raft.groups.orders.peers.{other}"
    ):
        GroupPlans(node("a", THREE, raft | groups)).of("invoices")


def test_a_port_that_there_is_not() -> None:
    offset = derived_offset("z")
    high = {"bind_addr": "127.0.0.1:65000", "auto_provision_groups": True}
    plans = GroupPlans(node("a", THREE, high))
    with pytest.raises(UnknownGroup, match=f"z would have a port {offset} above that of"):
        plans.of("z")
    peers = {"b": "127.0.0.1:65000", "c": "127.0.0.1:21300"}
    plans = GroupPlans(node("a", THREE, {"peers": peers, "auto_provision_groups": True}))
    with pytest.raises(UnknownGroup, match=f"z would have ports {offset} from those of"):
        plans.of("z")


def test_directories() -> None:
    hot = {"bind_addr": "127.0.0.1:21150"}
    cold = {"bind_addr": "127.0.0.1:21151", "data_dir": "/cold"}
    raft = {"data_dir": "/raft/", "groups": {"hot": hot, "cold": cold}}
    plans = GroupPlans(node("a", THREE, raft))
    assert [plans.of(group).data_dir for group in ("default", "hot", "cold")] == [
        "/raft/",
        "/raft/groups/hot",
        "/cold",
    ]
    alone = load(CONFIG / "founding-raft-groups.yaml", {})
    assert GroupPlans(alone).of("hot").data_dir is None


def test_groups_by_the_number_of_copies() -> None:
    """S3-24: they need no section, and have the same members on every node."""
    five = {name: 22000 + 1000 * number for number, name in enumerate("abcde")}
    others = {name: {each: five[each] for each in five if each != name} for name in five}
    factor = {"replication_factor": 5}
    plans = {name: GroupPlans(node(name, others[name], factor)) for name in five}
    assert [plans["a"].sized(copies) for copies in (1, 2, 4, 5, 9)] == [
        *("", "copies-2", "copies-4"),
        *("default", "default"),
    ]
    for copies in (2, 3, 4):
        group = f"copies-{copies}"
        found = [names(each.of(group).members) for each in plans.values()]
        assert found == [found[0]] * 5
        assert len(found[0]) == plans["b"].of(group).replication_factor == copies
    for name in ("copies-1", "copies-6", "copies-", "copies-2x", "copies-02222", "copies-²"):
        with pytest.raises(UnknownGroup):
            plans["a"].of(name)
    raft = {"groups": {"copies-2": {"bind_addr": "127.0.0.1:21950", "replication_factor": 3}}}
    assert len(GroupPlans(node("a", others["a"], raft)).of("copies-2").members) == 3, (
        "it is the user's"
    )


def test_groups_that_one_node_should_lead() -> None:
    """It is one of their members, and they are the same on every node."""
    five = {name: 22000 + 1000 * number for number, name in enumerate("abcde")}
    others = {name: {each: five[each] for each in five if each != name} for name in five}
    plans = [GroupPlans(node(name, others[name], {"replication_factor": 3})) for name in five]
    for name in five:
        for group, led, copies in (
            ("default", f"leader-{name}", 3),
            ("copies-2", f"copies-2-leader-{name}", 2),
        ):
            assert [each.led_by(name, group) for each in plans] == [led] * 5
            assert preferred_leader(led) == name
            found = [names(each.of(led).members) for each in plans]
            assert found == [found[0]] * 5
            assert name in found[0]
            assert len(found[0]) == copies
    assert len({tuple(names(plans[0].of(f"leader-{name}").members)) for name in five}) > 1
    for group in ("default", "leader", "leader-", "copies-2", "copies-x-leader-a", "my-leader-a"):
        assert preferred_leader(group) == ""


def test_the_cluster_of_the_examples_has_a_group_for_each_node_to_lead() -> None:
    for own in ("node1", "node2", "node3"):
        plans = GroupPlans(load(CONFIG / "cluster" / f"{own}.yaml", {}))
        for node in ("node1", "node2", "node3"):
            assert plans.led_by(node, "default") == f"leader-{node}"
            assert plans.led_by(node, "copies-2") == f"copies-2-leader-{node}"


def test_a_group_of_a_node_that_is_gone_stays_but_gets_no_more_queues() -> None:
    plans = GroupPlans(node("a", THREE))
    assert len(plans.of("leader-gone").members) == 3
    with pytest.raises(UnknownGroup, match="leader-gone is for a node gone, and there is none"):
        plans.for_queue("leader-gone")
    assert plans.led_by("gone", "default") == ""
    assert plans.led_by("a" * 128, "default") == "", "such a name would be too long"


def test_what_is_replicated_and_named() -> None:
    queues = [
        {"name": "q", "replication": {"enabled": True, "group": "b"}},
        {"name": "r", "type": "quorum"},
        {"name": "s"},
    ]
    raft = {"groups": {"z": {"bind_addr": "127.0.0.1:21150"}}, "auto_provision_groups": True}
    plans = GroupPlans(node("a", THREE, raft, queues=queues))
    assert plans.configured() == ("default", "z", "b")
    assert [plans.replicated(name) for name in ("default", "b", "else")] == [True] * 3
    own = ("local-0", "local-3@b", "buffered-1", "ephemeral-2")
    assert not any(plans.replicated(name) for name in own)


def test_a_node_alone_has_every_group_to_itself() -> None:
    alone = GroupPlans(load(CONFIG / "founding-raft-groups.yaml", {}))
    assert alone.configured() == ("default", "hot")
    assert not alone.replicated("default")
    plan = alone.of("hot")
    assert names(plan.members) == names(plan.nodes) == {"broker-1"}
    assert (plan.own, plan.min_in_sync_replicas) == (member_number("broker-1"), 1)
    off = GroupPlans(load(CONFIG / "founding-cluster.yaml", {}))
    assert off.configured() == ()
    assert not off.replicated("default")


def test_what_a_queue_says_of_its_replication() -> None:
    own = {
        "enabled": True,
        "mode": "async",
        "distribution_mode": "replicate",
        "ack_timeout": 0.5,
        "replication_factor": 2,
        "min_in_sync_replicas": 1,
        "heartbeat_timeout": 0.3,
        "snapshot_threshold": 10,
    }
    queues = [
        {"name": "q", "replication": own},
        {"name": "r", "replication": {"enabled": True, "heartbeat_timeout": 0.2}},
        {"name": "s", "replication": {"enabled": True, "mode": "sync"}},
        {"name": "t"},
    ]
    settings = node("a", THREE, {"sync_mode": False}, queues=queues)
    plans, group = GroupPlans(settings), GroupPlans(settings).of("default")
    # Timings are the group's: of several queues the smallest.
    assert (group.heartbeat_timeout, group.snapshot_threshold) == (0.2, 10)
    first, second, third, local = settings.queues
    plan = plans.of_queue(first)
    assert (plan.sync_mode, plan.distribution_mode, plan.ack_timeout) == (False, "replicate", 0.5)
    assert (plan.replication_factor, plan.min_in_sync_replicas) == (2, 1)
    assert plan.members == group.members
    assert plans.of_queue(second) == group
    assert plans.of_queue(third).sync_mode
    with pytest.raises(UnknownGroup, match="group does not exist: queue t is not replicated"):
        plans.of_queue(local)


@given(st.sets(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=7), st.data())
def test_members_of_any_cluster(nodes: set[str], data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, 10))
    ordered = sorted(nodes)
    own = data.draw(st.sampled_from(ordered))
    others = {name: 21101 + index for index, name in enumerate(ordered) if name != own}
    settings = node(own, others, {"replication_factor": factor, "min_in_sync_replicas": 1})
    plan = GroupPlans(settings).of("default")
    assert len(plan.members) == min(factor, len(nodes))
    assert names(plan.nodes) == nodes
    assert set(plan.members) <= set(plan.nodes)
    assert plan.own == (member_number(own) if own in names(plan.members) else 0)


def test_the_shipped_cluster() -> None:
    every = [load(CONFIG / "cluster" / f"node{index}.yaml", {}) for index in (1, 2, 3)]
    for group in ("default", "hot"):
        made = [GroupPlans(settings).of(group) for settings in every]
        assert len({plan.members for plan in made}) == 1
        assert {plan.own for plan in made} == {each.number for each in made[0].members}
        for plan in made:
            own = next(each for each in plan.members if each.number == plan.own)
            assert own.address == plan.bind_addr


def test_a_leader_that_is_gone_is_replaced_within_two_seconds() -> None:
    """S3-16: at the defaults; a follower waits for one to two election timeouts."""
    defaults = Raft()
    assert 2 * defaults.election_timeout <= 2
    assert 4 * defaults.heartbeat_timeout <= defaults.election_timeout
