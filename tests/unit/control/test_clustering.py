"""Which leaders move, and what control asks shards about replicated groups."""

import asyncio

import pytest
from msgspec.structs import replace

from fluxmq.control.clustering import Clustering
from fluxmq.control.peers import AnsweredError, Peer, RequestError
from fluxmq.ipc.clusters import (
    FORGET_NODE,
    MEMBER_CHANGE,
    RAFT,
    REBALANCE,
    TRANSFER,
    ForgetNode,
    GroupOutcomes,
    MemberChange,
    MemberRow,
    RaftListing,
    RaftRequest,
    RaftRow,
    Transfer,
)
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_NOT_FOUND, ControlMessage, Failure, ProcessHello

ABC = ("a", "b", "c")


class Shard(Peer):
    """Stands for a connected shard: answers from a table."""

    def __init__(self, index, answers):
        self.hello = ProcessHello("shard", index, 1)
        self.asked = []
        self._answers = answers

    async def ask(self, kind, body, seconds):
        self.asked.append((kind, dict(body)))
        answer = self._answers(kind, body)
        if isinstance(answer, Failure):
            raise AnsweredError(self.name, answer)
        if answer is None:
            raise TimeoutError
        return answer


def member(node, *, leads=False, contact=20, kind="voter"):
    return MemberRow(node, 1, kind, leads, "a", 5, 0, "replicate", True, contact, "")


def row(group, leader, nodes, shard=0, node="a"):
    members = tuple(member(each, leads=each == leader) for each in nodes)
    return RaftRow(group, node, shard, "leader", "", 1, leader, 5, 5, 5, 0, 1, 0.001, members)


def ask(shards, kind, body=None, clustered=True):
    message = ControlMessage(kind, 1, {} if body is None else body.to_body())

    async def forgotten(node):
        pass

    return asyncio.run(Clustering(clustered, lambda: shards, forgotten, unknown).answer(message))


async def unknown(node):
    """No node is known by its key in etcd."""


def test_a_node_that_is_alone_says_so():
    with pytest.raises(RequestError, match="not part of a cluster"):
        ask([], RAFT, RaftRequest(), clustered=False)


def test_groups_of_all_shards_once_and_who_did_not_answer():
    first = RaftListing((row("g", "b", ABC, shard=7, node="b"), row("h", "a", ABC))).to_body()
    second = RaftListing((row("g", "b", ABC, shard=1),)).to_body()
    shards = [
        Shard(0, lambda *_: first),
        Shard(1, lambda *_: second),
        Shard(2, lambda *_: None),
    ]
    listing = RaftListing.from_body(ask(shards, RAFT, RaftRequest()))
    assert [(each.group, each.node) for each in listing.groups] == [("g", "a"), ("h", "a")]
    assert listing.missing == ("shard-2",)
    with pytest.raises(RequestError) as refused:
        ask([Shard(0, lambda *_: RaftListing(()).to_body())], RAFT, RaftRequest("nosuch"))
    assert refused.value.code == ERROR_NOT_FOUND


def test_rebalance_orders_what_is_to_move_and_tells_what_did_not():
    listing = RaftListing(tuple(row(name, "a", ABC) for name in ("g", "h", "i"))).to_body()

    def answers(kind, body):
        if kind == RAFT:
            return listing
        return (
            Failure(ERROR_AWAY, "not in time")
            if body["group"] == "g"
            else Transfer.from_body(body).to_body()
        )

    shard = Shard(0, answers)
    outcomes = GroupOutcomes.from_body(ask([shard], REBALANCE))
    assert [(each.group, each.node, each.problem) for each in outcomes.rows] == [
        ("g", "b", "not in time"),
        ("h", "c", ""),
    ]
    assert [body["node"] for kind, body in shard.asked if kind == TRANSFER] == ["b", "c"]


def test_rebalance_returns_groups_to_the_nodes_that_should_lead_them():
    listing = RaftListing(tuple(row(f"leader-{node}", "a", ABC) for node in "abc")).to_body()
    shard = Shard(0, lambda kind, body: listing if kind == RAFT else dict(body))
    outcomes = GroupOutcomes.from_body(ask([shard], REBALANCE))
    assert [(each.group, each.node) for each in outcomes.rows] == [
        ("leader-b", "b"),
        ("leader-c", "c"),
    ]


def test_nobody_is_to_lead_who_is_away_or_not_believed():
    away = replace(member("b"), connected=False)
    doubted = replace(member("c"), doubt="has lost its data directory")
    rows = tuple(
        replace(row(name, "a", ABC), members=(member("a", leads=True), away, doubted))
        for name in ("g", "h")
    )
    listing = RaftListing(rows).to_body()
    assert GroupOutcomes.from_body(ask([Shard(0, lambda *_: listing)], REBALANCE)).rows == ()


def test_a_node_in_contact_is_forgotten_by_force_only():
    listing = RaftListing((row("g", "a", ABC), row("h", "a", ("a", "b")))).to_body()
    shard = Shard(0, lambda kind, body: listing if kind == RAFT else dict(body))
    with pytest.raises(RequestError, match="in contact as a member of g"):
        ask([shard], FORGET_NODE, ForgetNode("c"))
    outcomes = GroupOutcomes.from_body(ask([shard], FORGET_NODE, ForgetNode("c", force=True)))
    assert [(each.group, each.node) for each in outcomes.rows] == [("g", "c")]
    assert shard.asked[-1] == (MEMBER_CHANGE, MemberChange("g", "c", "remove").to_body())
    with pytest.raises(RequestError, match="not a member of any group"):
        ask([shard], FORGET_NODE, ForgetNode("z", force=True))


def forget(etcd_refuses="", node="c", force=False):
    """Forget a node, such as c, which is gone, as a member of g, of etcd and of the topology; what was done, in order."""
    done = []
    gone = replace(member("c"), connected=False)
    rows = replace(row("g", "a", ABC), members=(member("a", leads=True), member("b"), gone))

    def answers(kind, body):
        if kind == RAFT:
            return RaftListing((rows,)).to_body()
        done.append((body["group"], body["node"], body["change"]))
        return MemberChange.from_body(body).to_body()

    async def forgotten(node):
        if etcd_refuses:
            raise RequestError("invalid", etcd_refuses)
        done.append(node)

    async def lives(node):
        return {"idle": False, "busy": True}.get(node)

    clustering = Clustering(True, lambda: [Shard(0, answers)], forgotten, lives)
    message = ControlMessage(FORGET_NODE, 1, ForgetNode(node, force).to_body())
    try:
        answer = asyncio.run(clustering.answer(message))
    except RequestError as refusal:
        return done, str(refusal)
    return done, [each.group for each in GroupOutcomes.from_body(answer).rows]


def test_a_forgotten_node_leaves_etcd_first():
    done, groups = forget()
    assert done == ["c", ("g", "c", "remove")]
    assert groups == ["g"]


def test_a_node_whose_member_of_etcd_is_needed_stays_everywhere():
    assert forget("it is needed") == ([], "it is needed")


def test_a_node_without_copies_is_forgotten_if_it_does_not_run():
    assert forget(node="idle") == (["idle"], [])
    done, refusal = forget(node="busy")
    assert not done
    assert "busy runs, or did ten seconds ago: run fluxmqctl leave there" in refusal
    assert forget(node="busy", force=True) == (["busy"], [])
    assert "nobody is no node of this cluster" in forget(node="nobody")[1]
