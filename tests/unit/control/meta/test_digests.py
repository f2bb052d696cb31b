"""Copies of ``_meta`` are compared, and one that differs comes anew."""

import pytest

from fluxmq.control.meta import digests
from fluxmq.control.meta.digests import deviating, majority_digest
from fluxmq.control.meta.frames import Digest
from fluxmq.ipc.clusters import DIFFERS, EQUAL, NOT_COMPARED
from tests.unit.control.meta.test_meta_group import all_alike
from tests.unit.control.meta.three_nodes import Cluster, run
from tests.unit.control.topology_node import queue, until

SAME, OTHER, LATER = Digest(7, b"same"), Digest(7, b"other"), Digest(8, b"later")


@pytest.mark.parametrize(
    ("told", "right", "named"),
    [
        ({1: SAME, 2: SAME, 3: SAME}, SAME, []),
        ({1: SAME, 2: OTHER, 3: SAME}, SAME, [2]),
        ({1: OTHER, 2: SAME, 3: SAME}, SAME, [1]),  # whoever leads
        ({1: SAME, 2: SAME, 3: LATER}, SAME, []),  # it is further, and says nothing of then
        ({1: SAME, 2: OTHER}, None, []),  # nobody can say who is right
        ({1: SAME}, None, []),
        ({1: SAME, 2: SAME, 4: OTHER}, SAME, [4]),  # a learner
        ({1: SAME, 4: SAME, 2: OTHER}, None, []),  # which does not vote
    ],
)
def test_who_differs_from_a_majority(told, right, named):
    assert majority_digest(told, (1, 2, 3)) == right
    assert deviating(told, (1, 2, 3)) == named


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(digests, "PERIOD_SECONDS", 0.05)
    monkeypatch.setattr(digests, "SHARE", 1)


async def damage(node):
    """One row of a node's copy becomes another."""

    def write():
        with node.store.transaction() as database:
            database.execute("UPDATE topology SET value = x'80' WHERE kind = 'queue'")

    await node.thread.run(write)


def compared(node):
    return node.meta.neighbours.comparing


async def audited(node, *names):
    """The rows of an audit in which these nodes were as far as the one that asks: others are asked again."""
    while True:
        rows = {row.node: row for row in (await compared(node).audit()).rows}
        if not any(rows[name].problem for name in names):
            return rows


def test_equal_copies_are_found_equal(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        await cluster["node1"].change(queue("q"))
        await until(lambda: compared(cluster.leader).compared == cluster.leader.replica.last_index)
        samples = {name: value for name, _, value in cluster.leader.meta.samples()}
        assert samples["fluxmq_meta_compared_index"] == cluster.leader.replica.applied_index
        assert samples["fluxmq_meta_mismatches_total"] == 0
        for node in cluster.up:
            rows = await audited(node, *cluster.names)
            assert [(name, row.verdict) for name, row in rows.items()] == [
                (name, EQUAL) for name in cluster.names
            ]
            assert len({(row.index, row.rolling) for row in rows.values()}) == 1

    run(Cluster(tmp_path), scenario)


@pytest.mark.parametrize("leads", [False, True])
def test_a_copy_that_differs_is_given_up_and_comes_anew(tmp_path, leads):
    async def scenario(cluster):
        await cluster.well()
        await cluster["node1"].change(queue("q"))
        await cluster.well()
        node = cluster.leader if leads else cluster.followers()[0]
        before = node.replica.incarnation
        finder = compared(cluster.leader)
        await damage(node)
        await until(lambda: node.replica.incarnation != before)
        assert finder.mismatches == 1
        await cluster.well()
        await all_alike(cluster)
        assert node.queues_of() == ["q"]
        # It has a vote again, and what it holds is the others'.
        await until(lambda: node.meta.problem is None and cluster.leader is not None)
        assert node.meta.plan.own in cluster.leader.replica.status().membership.voters

    run(Cluster(tmp_path), scenario)


def test_a_copy_that_differs_again_at_once_is_kept_for_a_while(tmp_path, caplog, monkeypatch):
    async def scenario(cluster):
        await cluster.well()
        await cluster["node1"].change(queue("q"))
        await cluster.well()
        node = cluster.followers()[0]
        before = node.replica.incarnation
        await damage(node)
        await until(lambda: node.replica.incarnation != before)
        await cluster.well()
        again = node.replica.incarnation
        # What is agreed on when a node is back is agreed on: nothing makes another copy of this one.
        await until(lambda: node.meta._begun == node.meta._here)
        await cluster.well()
        await damage(node)
        await until(lambda: "differs again" in caplog.text)
        assert node.replica.incarnation == again
        monkeypatch.setattr(digests, "AGAIN_SECONDS", 0.0)  # the while is over
        await until(lambda: node.replica.incarnation != again)
        await all_alike(cluster)

    run(Cluster(tmp_path), scenario)


def test_an_audit_says_what_differs_and_what_was_not_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "PERIOD_SECONDS", 1000.0)

    async def scenario(cluster):
        await cluster.well()
        await cluster["node1"].change(queue("q"))
        await cluster.well()
        damaged, asked = cluster.followers()
        await damage(damaged)
        rows = await audited(asked, *cluster.names)
        assert {name: row.verdict for name, row in rows.items()} == {
            name: DIFFERS if name == damaged.name else EQUAL for name in cluster.names
        }
        cluster.cut_off(damaged)
        rows = await audited(asked, asked.name, cluster.leader.name)
        assert rows[damaged.name].verdict == NOT_COMPARED
        assert rows[damaged.name].problem == "it is not connected"
        assert rows[asked.name].verdict == rows[cluster.leader.name].verdict == EQUAL
        # Two that differ, and nobody to say who is right: both stay.
        other = cluster.leader
        incarnations = other.replica.incarnation, asked.replica.incarnation
        await damage(other)
        rows = await audited(other, other.name, asked.name)
        assert {rows[other.name].verdict, rows[asked.name].verdict} == {EQUAL, DIFFERS}
        assert (other.replica.incarnation, asked.replica.incarnation) == incarnations

    run(Cluster(tmp_path), scenario)
