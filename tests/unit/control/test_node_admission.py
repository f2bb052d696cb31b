"""Which nodes may join a cluster, and the reasons given to the others."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluxmq.control.node_admission import named_in, of_joined, reachable_elsewhere, refusal
from fluxmq.ipc.cluster_nodes import AdmitNode
from fluxmq.settings import Settings
from fluxmq.settings.membership import NODES_MAX, ClusterNode
from tests.unit.settings.test_membership import INITIAL, JOINED, file_of, record

VERSION = "0.3.1"
CLUSTER = file_of("a", "bc")
ASKED = AdmitNode("d", "fluxmq", "0.3.7", tls=False, addresses=record("d"))


def why(asked: AdmitNode = ASKED, settings: Settings = CLUSTER, **more: ClusterNode) -> str:
    """Why a node is refused by a cluster of three, with more nodes known."""
    return refusal(asked, settings.cluster, VERSION, {**INITIAL, **more})


def at(**addresses: Any) -> AdmitNode:
    return replace(ASKED, addresses=replace(ASKED.addresses, **addresses))


def test_a_new_node_with_addresses_of_its_own_is_admitted() -> None:
    assert why() == ""
    kept = of_joined(ASKED, INITIAL)
    assert kept == record("d", joined=True, times=1)
    assert why(d=kept) == "", "its answer was lost, and it asks again"
    assert (
        why(replace(ASKED, node="d2"), d2=replace(kept, left=True), d=replace(kept, left=True))
        == ""
    )


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            replace(ASKED, cluster="other"),
            "cluster.name is other there, and this is cluster fluxmq",
        ),
        (replace(ASKED, version="0.4.0"), "it has version 0.4.0, and this cluster 0.3.1"),
        (replace(ASKED, tls=True), "talk without TLS: set cluster.transport.tls_enabled alike"),
        (replace(ASKED, node="b"), "by its settings files: start it with its own"),
        (replace(ASKED, node="../d"), "is not a name"),
        (at(transport="0.0.0.0:4000"), "0.0.0.0:4000, which no other node can connect to"),
        (at(raft=":4100"), "which no other node can connect to: give --address HOST"),
        (at(transport="10.0.0.1:4000"), "plaintext is allowed on loopback addresses only"),
        (at(transport="127.0.0.1:2010"), "clashes with cluster.transport.bind_addr of b"),
        (at(etcd="http://127.0.0.1:3300"), "clashes with cluster.etcd.bind_addr of c"),
        (
            at(groups={}),
            "must list the groups that it lists on the other nodes, each with bind_addr: hot",
        ),
        (at(groups={"hot": "127.0.0.1:4200", "x": "127.0.0.1:4201"}), "with bind_addr: hot"),
        (at(raft="nowhere"), "host:port"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_what_to_do(asked: AdmitNode, reason: str) -> None:
    assert reason in why(asked)


def test_a_name_that_is_in_use_is_given_to_no_other_node() -> None:
    other = replace(JOINED["d"], transport="127.0.0.1:9000")
    assert "has joined already, with other addresses" in why(d=other)
    assert why(d=replace(other, left=True)) == ""


def test_a_first_node_that_has_left_may_join_again_and_stays_a_first_one() -> None:
    asked = replace(ASKED, node="c", addresses=record("c"))
    left = {**INITIAL, "c": record("c", initial=True, left=True)}
    assert why(asked, c=left["c"]) == ""
    assert of_joined(asked, left) == record("c", initial=True, joined=True, times=1)
    gone = {**INITIAL, "d": record("d", joined=True, times=4, left=True)}
    assert of_joined(ASKED, gone).times == 5, "it has forgotten what it promised"
    before = {**INITIAL, "d": record("d", joined=True)}
    assert of_joined(ASKED, before) == before["d"], "an earlier version did not count"
    before["d"] = replace(before["d"], left=True)
    assert of_joined(ASKED, before).times == 2


def test_addresses_beyond_this_machine_need_tls_or_a_trusted_network() -> None:
    asked = replace(ASKED, addresses=record("d", "node4.example"))
    assert "cluster.transport.bind_addr is node4.example:4000" in why(asked)
    trusting = file_of("a", "bc", transport={"allow_plaintext": True})
    assert why(asked, trusting) == ""


def test_a_cluster_whose_etcd_is_elsewhere_admits_no_member() -> None:
    elsewhere = file_of("a", "bc", etcd={"endpoints": ["http://127.0.0.1:9"]})
    assert "cluster.etcd.endpoints" in why(ASKED, elsewhere)
    assert why(at(etcd=""), elsewhere) == ""


def test_there_are_not_more_nodes_than_can_be_connected() -> None:
    many = {
        f"n{number}": ClusterNode(transport=f"h{number}:1", raft=f"h{number}:99", joined=True)
        for number in range(NODES_MAX)
    }
    assert f"has had, {NODES_MAX} nodes" in why(ASKED, CLUSTER, **many)


def test_a_file_names_nodes_with_their_addresses() -> None:
    named = named_in(file_of("a", "bc").cluster)
    assert set(named) == {"a", "b", "c"}
    for name, node in named.items():
        assert node == record(name, initial=True)  # the group's address follows from its own
        assert reachable_elsewhere(node)
    assert not reachable_elsewhere(replace(named["a"], transport="[::]:4000"))
