"""What of the topology is on disk, and what of it is there again."""

import asyncio
import sqlite3

import pytest

from fluxmq.auth.users import TopicPermission, User, VhostPermission
from fluxmq.control.metadata import FILE_NAME
from fluxmq.control.peers import RequestError
from fluxmq.ipc.topology_messages import (
    TopologyChanged,
    connection_id,
)
from fluxmq.routing.topology.changes import (
    AddVhost,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    DeleteVhost,
    SetPolicy,
)
from fluxmq.routing.topology.records import Binding, Exchange, Policy, QueueRecord, Vhost
from tests.unit.control.topology_node import GUEST, HASH, Node, Shard, queue, run, until


def test_a_new_database_has_the_first_virtual_host_and_user(tmp_path):
    async def first(node):
        assert [vhost.name for vhost in node.topology.vhosts()] == ["/"]
        assert node.topology.exchange("/", "amq.topic").durable
        assert node.store.users().users == (GUEST,)
        assert await node.change(DeleteVhost("/")) == TopologyChanged(2, (None,))
        assert node.topology.vhosts() == []

    async def second(node):
        assert node.topology.vhosts() == []
        assert node.topology.revision == 2

    run(Node(tmp_path), first)
    run(Node(tmp_path, "second"), second)


def test_what_is_durable_outlives_the_node_and_the_rest_this_process(tmp_path):
    changes = [
        DeclareExchange(Exchange("/", "kept", durable=True)),
        DeclareExchange(Exchange("/", "lost")),
        queue("kept"),
        queue("lost", durable=False),
        queue("mine", exclusive=True, owner=connection_id(0, 1, 1)),
        *(
            Bind(Binding("/", source, target))
            for source in ("kept", "lost")
            for target in ("kept", "lost")
        ),
    ]

    async def first(node):
        assert (await node.change(*changes)).results == (None,)
        assert len(node.topology.bindings("/")) == 4

    async def again(node):
        assert {each.name for each in node.topology.queues()} == {"kept", "lost", "mine"}
        assert len(node.topology.bindings("/")) == 4
        assert node.topology.revision == 2

    async def second(node):
        assert {each.name for each in node.topology.queues()} == {"kept"}
        assert node.topology.exchange("/", "lost") is None
        assert [each.key[:4] for each in node.topology.bindings("/")] == [
            ("/", "kept", "queue", "kept")
        ]
        assert node.topology.revision == 2

    run(Node(tmp_path), first)
    run(Node(tmp_path), again)
    run(Node(tmp_path, "second"), second)


def test_what_could_not_be_written_did_not_happen(tmp_path):
    async def scenario(node):
        shard = await node.shard()
        await shard.change(queue("a"))
        node.store._database.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON main.topology"
            " BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
        refusal = await shard.change(queue("b"))
        assert refusal.code == 541
        with pytest.raises(RequestError):
            await node.change(queue("b"))
        assert {each.name for each in node.topology.queues()} == {"a"}
        node.store._database.execute("DROP TRIGGER full")
        assert await shard.change(queue("c")) is None
        assert {each.name for each in shard.topology.queues()} == {"a", "c"}
        assert shard.topology.snapshot() == node.topology.snapshot()
        late = await node.shard(1)
        assert late.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


@pytest.mark.parametrize("fault", [sqlite3.OperationalError("gone"), RuntimeError("bug")])
def test_a_topology_that_cannot_be_read_again_is_read_before_the_next_change(tmp_path, fault):
    async def scenario(node):
        write, rows = node.store.write_topology, node.store.topology.rows

        def failing(*_arguments):
            raise fault

        node.store.write_topology = node.store.topology.rows = failing
        for _ in range(2):
            with pytest.raises(RequestError):
                await node.change(queue("q"))
        # Nobody is told what may not be so.
        shard = Shard(node.path / "s", 0, 1, None)
        node.shards.append(shard)
        await until(lambda: shard.control.established)
        await until(lambda: not node.topology_service._pushes)
        assert not shard.topics.known
        node.store.write_topology, node.store.topology.rows = write, rows
        node.live.append("shard-0")
        assert (await node.change(queue("r"))).unconfirmed == ()
        assert [each.name for each in shard.topology.queues()] == ["r"]
        assert shard.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_what_will_not_be_written_is_told_to_nobody(tmp_path):
    async def scenario(node):
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def failing(*_arguments):
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(5)
            raise sqlite3.OperationalError("disk full")

        node.store.write_topology = failing
        changing = asyncio.create_task(node.change(queue("q")))
        await until(lambda: node.topology.queue("/", "q") is not None)
        made = Shard(node.path / "s", 0, 1, None)
        node.shards.append(made)
        await until(lambda: made.control.established)
        release.set()
        with pytest.raises(RequestError):
            await changing
        await until(lambda: made.topics.known)
        assert made.topology.queue("/", "q") is None
        assert made.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_exclusive_queues_go_with_the_process_that_had_their_connection(tmp_path):
    owners = [connection_id(0, 1, 5), connection_id(0, 2, 5), connection_id(1, 1, 5)]

    async def scenario(node):
        watching = await node.shard(1, pid=1)
        for number, owner in enumerate(owners):
            declared = queue(str(number), durable=False, exclusive=True, owner=owner)
            assert await watching.change(declared) is None
        await node.shard(0, pid=2)
        await until(lambda: {each.name for each in watching.topology.queues()} == {"1", "2"})

    run(Node(tmp_path), scenario)


def test_permissions_go_with_their_virtual_host(tmp_path):
    user = User(
        "ann",
        HASH,
        None,
        (),
        (),
        True,
        permissions=(VhostPermission("b", "", "", ""), VhostPermission("/", "", "", "")),
        topic_permissions=(TopicPermission("b", "x", "", ""),),
    )

    async def scenario(node):
        await node.change(AddVhost(Vhost("b")))
        await node.thread.run(lambda: node.store.add(user))
        assert node.users == []
        await node.change(DeleteVhost("b"))
        (users,) = node.users
        ann = next(each for each in users.users if each.name == "ann")
        assert [each.vhost for each in ann.permissions] == ["/"]
        assert ann.topic_permissions == ()

    run(Node(tmp_path), scenario)


def test_queues_of_the_settings_are_rows_that_are_not_written(tmp_path):
    configured = QueueRecord("/", "orders", type="quorum", durable=True, origin="settings")

    async def first(node):
        shard = await node.shard()
        assert shard.topology.queue("/", "orders") == configured
        refusal = await shard.change(DeleteQueue("/", "orders"))
        assert refusal.code == 403
        bind = Bind(Binding("/", "amq.topic", "orders", routing_key="o.#"))
        policy = SetPolicy(Policy("/", "p", "^o", definition={"max-length": 5}))
        assert await shard.change(bind, policy) is None
        told = QueueRecord("/", "told", durable=True, origin="settings")
        assert await shard.change(DeclareQueue(told)) is None
        assert shard.topology.queue("/", "told") == told
        assert ("queue", "/", "orders") not in await node.stored()

    async def second(node):
        assert node.topology.queue("/", "orders") == configured
        assert node.topology.queue("/", "told") is None
        # A client's binding to it is on disk and is found again.
        assert [each.routing_key for each in node.topology.bindings("/")] == ["o.#"]
        assert [each.name for each in node.topology.policies("/")] == ["p"]

    async def third(node):
        assert node.topology.queue("/", "orders") is None
        assert node.topology.bindings("/") == []
        assert (await node.change(queue("orders"))).results == (None,)

    async def fourth(node):
        assert node.topology.queue("/", "orders") == configured

    async def fifth(node):
        # The client's own was kept meanwhile.
        assert node.topology.queue("/", "orders") == QueueRecord("/", "orders", durable=True)

    run(Node(tmp_path, configured=[configured]), first)
    run(Node(tmp_path, "second", [configured]), second)
    run(Node(tmp_path, "third"), third)
    run(Node(tmp_path, "fourth", [configured]), fourth)
    run(Node(tmp_path, "fifth"), fifth)


def test_a_queue_of_the_settings_that_expired_is_everywhere_again_or_nowhere(tmp_path):
    configured = QueueRecord("/", "orders", durable=True, origin="settings")
    revisions = []

    async def expires(node):
        shard = await node.shard()
        assert await shard.change(DeleteQueue("/", "orders", by_broker=True)) is None
        assert shard.topology.queue("/", "orders") is None
        revisions.append(node.topology.revision)

    async def again(node):
        # Control alone began anew: who has the last revision has to be told.
        assert node.topology.queue("/", "orders") == configured
        assert node.topology.revision > revisions[0]

    run(Node(tmp_path, configured=[configured]), expires)
    run(Node(tmp_path, configured=[configured]), again)


def test_a_damaged_row_stops_the_start(tmp_path):
    async def nothing(_node):
        return

    run(Node(tmp_path), nothing)
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("UPDATE topology SET value = x'c1'")
    database.commit()
    database.close()
    with pytest.raises(ValueError, match="msgpack"):
        run(Node(tmp_path), nothing)
