"""Three control processes agree: on what they begin with, on changes, and when one of them is away."""

import asyncio
import time
from dataclasses import replace

import pytest

from fluxmq.auth.users import VhostPermission
from fluxmq.control import topology_service
from fluxmq.control.meta import leader_term, log, service
from fluxmq.control.meta.remove_node import problem
from fluxmq.control.peers import RequestError
from fluxmq.control.topology_service import CONFIRM_SECONDS
from fluxmq.ipc.messages import USER_ADD, USER_DELETE
from fluxmq.ipc.permission_messages import PERMISSION_SET, PermissionSet
from fluxmq.ipc.user_messages import UserAdd
from fluxmq.routing.topology.changes import AddVhost, Bind, DeleteQueue, DeleteVhost
from fluxmq.routing.topology.configured import configured_queue
from fluxmq.routing.topology.records import Binding, QueueRecord, Vhost
from fluxmq.settings.queues import QueueSettings as Configured
from tests.unit.control.meta.three_nodes import Cluster, pass_elections, run
from tests.unit.control.topology_node import GUEST, queue, until


async def all_alike(cluster):
    while True:
        await cluster.well()
        applied = [node.replica.applied_index for node in cluster.up]
        first, *others = [await cluster.dump(node) for node in cluster.up]
        if applied == [node.replica.applied_index for node in cluster.up]:
            break  # else something was agreed on meanwhile
    assert others == [first] * len(others)
    revision = first["state"][0][2]
    await until(lambda: {node.topology_service.revision for node in cluster.up} == {revision})
    snapshots = [
        sorted(
            node.topology_service.topology.snapshot().rows,
            key=lambda row: (row.kind, repr(row.key)),
        )
        for node in cluster.up
    ]
    assert snapshots == [snapshots[0]] * len(snapshots)
    assert len({node.directory.users for node in cluster.up}) == 1


def test_three_nodes_begin_with_one_topology_and_a_change_on_one_is_on_all(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        for number, node in enumerate(cluster.up):
            assert await node.change(queue(f"q{number}")) is None
            assert f"q{number}" in node.queues_of()
        await all_alike(cluster)
        assert cluster["node1"].queues_of() == ["q0", "q1", "q2"]
        assert [user.name for user in cluster["node3"].directory.users.users] == ["guest"]
        # Nothing to be changed: the revision stays, and is the leader's all the same.
        before = cluster["node1"].topology_service.revision
        assert await cluster.followers()[0].change(queue("q0")) is None
        refusal = await cluster.followers()[0].change(Bind(Binding("/", "nowhere", "q0")))
        assert refusal.code == 404
        assert cluster["node1"].topology_service.revision == before

    run(Cluster(tmp_path), scenario)


def test_who_changes_something_is_answered_when_all_nodes_that_are_there_work_by_it(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        one, other = cluster.followers()
        async with (
            other.topology_service._writing
        ):  # it hears of the change, and is slow to take it
            before = one.topology_service.revision
            change = asyncio.create_task(one.change(queue("q")))
            await until(
                lambda: one.topology_service.revision > before and cluster.leader.queues_of()
            )
            assert not change.done()
            assert other.queues_of() == []
        assert await change is None
        assert other.queues_of() == ["q"]
        ann = replace(GUEST, name="ann", permissions=())
        await other.user(USER_ADD, **UserAdd(ann).to_body())
        assert {len(node.directory.users.users) for node in cluster.up} == {2}
        # Nobody waits for a node that is not there.
        cluster.cut_off(other)
        began = time.monotonic()
        assert await one.change(queue("later")) is None
        assert time.monotonic() - began < CONFIRM_SECONDS

    run(Cluster(tmp_path), scenario)


def test_a_node_that_does_not_come_along_is_waited_for_once(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_service, "CONFIRM_SECONDS", 0.3)

    async def scenario(cluster):
        await cluster.well()
        one, other = cluster.followers()
        async with other.topology_service._writing:
            changed = await one.topology_service.change([(queue("q"),)])
            assert changed.unconfirmed == (other.name,)
            monkeypatch.setattr(topology_service, "CONFIRM_SECONDS", 30.0)
            changed = await one.topology_service.change([(queue("p"),)])
            assert changed.unconfirmed == ()
        await until(lambda: other.queues_of() == ["p", "q"])

    run(Cluster(tmp_path), scenario)


def test_users_are_changed_on_any_node_and_checked_by_who_leads(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        one, other = cluster.followers()
        ann = replace(GUEST, name="ann", permissions=())
        await one.user(USER_ADD, **UserAdd(ann).to_body())
        assert [user.name for user in one.directory.users.users] == ["ann", "guest"]
        with pytest.raises(RequestError, match="exists already") as refused:
            await other.user(USER_ADD, **UserAdd(ann).to_body())
        assert refused.value.code == "exists"
        await other.change(AddVhost(Vhost("v")))
        permission = VhostPermission("v", "a", "b", "c")
        await other.user(PERMISSION_SET, **PermissionSet("ann", permission).to_body())
        assert permission in other.directory.users.users[0].permissions
        # What a user may do in a virtual host goes with it.
        await one.change(DeleteVhost("v"))
        await all_alike(cluster)
        assert permission not in one.directory.users.users[0].permissions
        await one.user(USER_DELETE, name="ann")
        await all_alike(cluster)
        assert [user.name for user in other.directory.users.users] == ["guest"]

    run(Cluster(tmp_path), scenario)


def test_changes_go_on_when_the_leader_is_gone_and_it_catches_up(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        leader = cluster.leader
        await leader.kill()
        one, other = cluster.up
        # Asked while nobody leads: answered by who leads next.
        assert await one.change(queue("a")) is None
        assert await other.change(queue("b")) is None
        await leader.start()
        assert await leader.change(queue("c")) is None
        await all_alike(cluster)
        assert leader.queues_of() == ["a", "b", "c"]

    run(Cluster(tmp_path), scenario)


def test_a_node_that_is_gone_is_forgotten_and_comes_back_as_a_new_one(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        leader, (gone, other) = cluster.leader, cluster.followers()
        assert await leader.change(queue("a")) is None
        await gone.kill()
        await other.meta.forget(gone.name)  # whoever is asked
        members = {name: place for name, (place, _) in leader.meta.status().members.items()}
        assert members == {leader.name: "voter", other.name: "voter", gone.name: "none"}
        await other.meta.forget(gone.name)  # nothing to be done any more
        assert await other.change(queue("b")) is None

        await gone.start()
        await until(lambda: gone.meta.plan.own in leader.meta.neighbours.known)
        assert await leader.change(queue("c")) is None
        assert not gone.well  # it is heeded by nobody
        await gone.stop()
        gone.wipe()
        await gone.start()
        await all_alike(cluster)
        assert leader.meta.status().members[gone.name][0] == "voter"

    run(Cluster(tmp_path), scenario)


def test_a_node_that_is_needed_is_not_forgotten(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        leader, (one, other) = cluster.leader, cluster.followers()
        with pytest.raises(RequestError, match="it leads _meta"):
            await one.meta.forget(leader.name)
        leader.links.heard[one.meta.plan.own] -= 60.0  # for so long nothing was heard of it
        number, heard = other.meta.plan.own, leader.links.heard
        why = problem(
            leader.replica.status().membership,
            leader.meta.plan.own,
            number,
            heard,
            time.monotonic(),
        )
        assert why == "1 of 2 voters of _meta would be in contact, and 2 are needed"
        assert len(leader.replica.status().membership.voters) == 3

    run(Cluster(tmp_path), scenario)


def test_without_a_majority_changes_are_refused_and_nothing_of_them_stays(tmp_path, monkeypatch):
    async def scenario(cluster):
        await cluster.well()
        leader = cluster.leader
        for node in cluster.up:
            assert await node.change(queue("before")) is None
        monkeypatch.setattr(service, "REQUEST_SECONDS", 0.5)
        cluster.cut_off(leader)
        for node in (leader, leader):
            with pytest.raises(RequestError) as refused:
                await node.change(queue("lost"))
            assert refused.value.code == "failed"
        await until(lambda: leader.meta.problem == "no leader in _meta")
        # It led, and had the change in memory already.
        await until(lambda: leader.queues_of() == ["before"])
        await until(lambda: cluster.leader is not None and cluster.leader is not leader)
        monkeypatch.undo()
        assert await cluster.leader.change(queue("won")) is None
        cluster.join_again(leader)
        await all_alike(cluster)
        assert leader.queues_of() == ["before", "won"]

    run(Cluster(tmp_path), scenario)


def test_a_node_that_is_far_behind_gets_a_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "ENTRIES_MAX", 8)
    monkeypatch.setattr("fluxmq.control.meta.snapshots.PART_BYTES", 200)

    async def scenario(cluster):
        await cluster.well()
        away = cluster.followers()[0]
        await away.stop()
        for number in range(20):
            assert await cluster.up[0].change(queue(f"q{number:02}")) is None
        await cluster.well()
        assert all(node.replica.node.status().applied > 20 for node in cluster.up)
        await until(lambda: cluster.leader is not None)
        first = cluster.leader.replica._log.first_index()
        assert first > away.replica.last_index + 1
        await away.start()
        await all_alike(cluster)
        assert len(away.queues_of()) == 20
        # And it goes on from there, over a restart as well.
        assert await away.change(DeleteQueue("/", "q00")) is None
        await away.stop()
        await away.start()
        await all_alike(cluster)
        assert len(away.queues_of()) == 19

    run(Cluster(tmp_path), scenario)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_node_whose_directory_is_lost_is_filled_and_votes_again(tmp_path, monkeypatch, compacted):
    if compacted:
        monkeypatch.setattr(log, "ENTRIES_MAX", 4)

    async def scenario(cluster):
        await cluster.well()
        for number in range(6):
            assert await cluster.up[0].change(queue(f"q{number}")) is None
        lost = cluster.followers()[0]
        incarnation = lost.replica.incarnation
        await lost.kill()
        lost.wipe()
        await lost.start()
        assert lost.replica.standing == "new"
        assert not lost.topology_service.known
        await until(lambda: lost.well)
        assert lost.replica.incarnation != incarnation
        await all_alike(cluster)
        assert len(lost.queues_of()) == 6
        # Its vote counts: of the other two one is away now.
        await cluster.leader.kill()
        assert await lost.change(queue("after")) is None
        assert all(len(node.replica.status().membership.voters) == 3 for node in cluster.up)

    run(Cluster(tmp_path), scenario)


def test_a_lost_directory_does_not_vote_before_it_is_filled(tmp_path):
    """The only node that knows of a change is away; one that knew has forgotten it, and the third never heard of it."""

    async def scenario(cluster):
        await cluster.well()
        leader, (knew, behind) = cluster.leader, cluster.followers()
        await behind.kill()
        assert await leader.change(queue("agreed")) is None
        await until(lambda: "agreed" in knew.queues_of())
        await leader.kill()
        await knew.kill()
        knew.wipe()
        await behind.start()
        await knew.start()
        await until(lambda: knew.replica.standing == "returning")
        await pass_elections(4, behind, knew)  # the node that is behind tries to win them
        assert cluster.leader is None
        await leader.start()
        await all_alike(cluster)
        assert behind.queues_of() == ["agreed"]

    run(Cluster(tmp_path), scenario)


def test_a_directory_that_was_put_back_is_recognised(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        old = cluster.followers()[0]
        await old.stop()
        kept = {path.name: path.read_bytes() for path in old.path.iterdir()}
        await old.start()
        assert await old.change(queue("q")) is None
        await cluster.well()
        incarnation = old.replica.incarnation
        await old.stop()
        old.wipe()
        old.path.mkdir()
        for name, content in kept.items():
            (old.path / name).write_bytes(content)
        await old.start()
        await until(lambda: old.replica.incarnation != incarnation)
        await all_alike(cluster)
        assert old.queues_of() == ["q"]

    run(Cluster(tmp_path), scenario)


def test_what_ended_with_a_node_goes_when_it_begins_anew(tmp_path):
    async def scenario(cluster):
        await cluster.well()
        node, other = cluster.followers()
        mine = queue("mine", durable=False, group=f"ephemeral-0@{node.name}")
        theirs = queue("theirs", durable=False, group=f"ephemeral-0@{other.name}")
        assert await node.change(mine) is None
        assert await other.change(theirs) is None
        await node.stop()
        # Its control process alone was restarted.
        await node.start(life=False)
        await cluster.well()
        assert await other.change(queue("q")) is None
        assert other.queues_of() == ["mine", "q", "theirs"]
        await node.stop()
        await node.start()
        await until(lambda: other.queues_of() == ["q", "theirs"])
        await all_alike(cluster)

    run(Cluster(tmp_path), scenario)


def test_what_was_in_the_memory_of_a_node_that_has_ended_goes(tmp_path, monkeypatch):
    """Another client may then declare a queue of that name elsewhere; exclusive ones go as well."""
    monkeypatch.setattr(leader_term, "ENDED_SECONDS", 1.0)

    async def scenario(cluster):
        await cluster.well()
        node, other = cluster.followers()
        mine = queue("mine", durable=False, group=f"ephemeral-0@{node.name}")
        theirs = queue("theirs", durable=False, group=f"ephemeral-0@{other.name}")
        kept = queue("kept", group=f"local-0@{node.name}")
        assert await node.change(mine, kept) is None
        assert await other.change(theirs) is None
        await node.kill()
        await until(lambda: other.queues_of() == ["kept", "theirs"])
        assert await other.change(queue("mine", durable=False, group=theirs.queue.group)) is None
        await node.start()
        await cluster.well()
        await all_alike(cluster)
        assert node.queues_of() == ["kept", "mine", "theirs"]

    run(Cluster(tmp_path), scenario)


def test_queues_of_the_settings_are_there_as_long_as_a_node_has_them(tmp_path):
    commands = configured_queue(Configured(name="orders"))
    events = configured_queue(Configured(name="events", type="stream"))

    async def scenario(cluster):
        await until(lambda: all(node.queues_of() == ["events", "orders"] for node in cluster.up))
        await cluster.well()
        assert isinstance(
            cluster["node2"].topology_service.topology.queue("/", "orders"), QueueRecord
        )
        for name, left in (("node1", True), ("node2", True), ("node3", False)):
            node = cluster[name]
            node.queues = (commands,)
            await node.stop()
            await node.start()
            await until(lambda node=node: node.meta._begun != (0, 0))
            await all_alike(cluster)
            assert ("events" in node.queues_of()) is left

    run(Cluster(tmp_path, queues=(commands, events)), scenario)
