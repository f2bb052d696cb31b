"""The topology from the database to the shards' copies and back, over real sockets."""

import asyncio
import contextlib
import os
import sqlite3

import pytest
import uvloop

from fluxmq.admin import topology_keeper
from fluxmq.admin.metadata import FILE_NAME, MetadataStore, StoreThread
from fluxmq.admin.peers import Listener, RequestError, Service
from fluxmq.admin.topology_keeper import TopologyKeeper
from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.users import TopicPermission, User, VhostPermission
from fluxmq.control import unix_socket
from fluxmq.control.client import ControlClient
from fluxmq.control.conversation import Handlers
from fluxmq.control.messages import ERROR_FAILED, Failure, Hello, MessageError, ProcessNumbers
from fluxmq.control.topology_client import TopologyClient
from fluxmq.control.topology_messages import (
    TOPOLOGY,
    TOPOLOGY_CHANGE,
    TopologyChanged,
    change_body,
    connection_id,
    pack_set,
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
from fluxmq.routing.topology.records import Binding, Exchange, Policy, Queue, Vhost
from fluxmq.routing.topology.refusals import Refusal

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))
GUEST = User("guest", HASH, None, (), (), True, permissions=(VhostPermission("/", "", "", ""),))


def queue(name, durable=True, **fields):
    return DeclareQueue(Queue("/", name, durable=durable, **fields))


class Shard:
    """A shard's part: a copy of the topology on a connection of its own."""

    def __init__(self, path, index, pid, orders):
        self.changed = []
        self.topics = TopologyClient(asyncio.get_running_loop().time, self.changed.append)
        handlers = Handlers(
            lambda: (),
            ProcessNumbers,
            orders=orders or self.topics.orders,
            established=self.topics.established,
        )
        self.control = ControlClient(path, Hello("shard", index, pid), handlers)
        self.topics.connect(self.control)
        self.task = asyncio.create_task(self.control.run())

    @property
    def topology(self):
        return self.topics.topology

    async def change(self, *changes):
        done = asyncio.get_running_loop().create_future()
        self.topics.change(changes, done.set_result)
        async with asyncio.timeout(5):
            return await done

    async def stop(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class Node:
    """A keeper with its database and control socket, and the shards that connect to it."""

    def __init__(self, path, name="first", configured=()):
        self.path = path
        self.name = name
        self.configured = configured
        self.live = []
        self.shards = []
        self.users = []

    async def __aenter__(self):
        self.thread = StoreThread()
        self.store = await self.thread.run(lambda: MetadataStore(self.path / FILE_NAME))
        service = Service(self._answer, self._greeted, lambda _: None)
        self.listener = Listener(service, os.geteuid())
        self.keeper = TopologyKeeper(
            self.store,
            self.thread,
            lambda: self.listener.processes,
            lambda: self.live,
            self.users.append,
        )
        await self.keeper.load(self.name, self.configured, lambda: GUEST)
        await self.listener.start(unix_socket.bind(self.path / "s"))
        return self

    async def __aexit__(self, *_exception):
        for shard in self.shards:
            await shard.stop()
        await self.listener.stop()
        await self.thread.run(self.store.close)
        self.thread.close()

    def _greeted(self, peer):
        self.keeper.greeted(peer)

    async def _answer(self, message):
        assert message.kind == TOPOLOGY_CHANGE
        return await self.keeper.answer(message.body)

    async def shard(self, index=0, pid=1, orders=None):
        made = Shard(self.path / "s", index, pid, orders)
        self.shards.append(made)
        self.live.append(f"shard-{index}")
        if orders is None:
            await until(lambda: made.topics.known)
        return made

    async def change(self, *changes):
        return await self.keeper.change([changes])

    async def stored(self):
        rows = await self.thread.run(self.store.topology.rows)
        return {(kind, *key[:2]) for kind, key, _ in rows}

    @property
    def topology(self):
        return self.keeper.topology


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


def run(node, scenario):
    async def main():
        async with asyncio.timeout(30), node:
            await scenario(node)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


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


def test_a_change_is_answered_when_every_live_shard_has_it(tmp_path):
    async def scenario(node):
        first, second = await node.shard(0), await node.shard(1)
        assert await first.change(queue("q")) is None
        for copy in (first.topology, second.topology):
            assert copy.queue("/", "q") is not None
            assert copy.snapshot() == node.topology.snapshot()
        assert await second.change(DeleteQueue("/", "q"), queue("r")) is None
        assert [each.name for each in first.topology.queues()] == ["r"]

    run(Node(tmp_path), scenario)


def test_a_set_is_made_whole_or_not_at_all(tmp_path):
    async def scenario(node):
        shard = await node.shard()
        bad = Bind(Binding("/", "nowhere", "q"))
        refusal = await shard.change(queue("q"), bad)
        assert refusal == Refusal(404, "no exchange 'nowhere' in vhost '/'")
        assert list(shard.topology.queues()) == []
        changed = await node.keeper.change([(queue("a"),), (bad,), (queue("b"),)])
        assert [result is None for result in changed.results] == [True, False, True]
        assert {("queue", "/", "a"), ("queue", "/", "b")} <= await node.stored()
        # Nothing to be written, nothing to be told: the revision stays.
        again = await node.change(queue("a"))
        assert again == TopologyChanged(changed.revision, (None,))

    run(Node(tmp_path), scenario)


def test_what_is_not_understood_is_refused(tmp_path):
    async def scenario(node):
        body = await node.keeper.answer(change_body([[["dance", {}]], pack_set([queue("q")])]))
        first, second = TopologyChanged.from_body(body).results
        assert (first.code, second) == (406, None)
        with pytest.raises(MessageError):
            await node.keeper.answer({})

    run(Node(tmp_path), scenario)


def test_changes_that_come_together_are_written_together(tmp_path):
    async def scenario(node):
        await node.shard()
        commits = []
        node.store._database.set_trace_callback(
            lambda text: commits.append(text) if text == "COMMIT" else None
        )
        changed = await asyncio.gather(*(node.change(queue(str(n))) for n in range(50)))
        assert all(each.results == (None,) for each in changed)
        assert len(commits) == 1
        assert len(await node.stored()) == len(node.topology)

    run(Node(tmp_path), scenario)


def test_shards_that_do_not_confirm_in_time_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_keeper, "CONFIRM_SECONDS", 0.2)

    async def scenario(node):
        await node.shard(0)
        node.live.append("shard-7")
        assert (await node.change(queue("q"))).unconfirmed == ("shard-7",)

    run(Node(tmp_path), scenario)


def test_a_shard_that_is_behind_gets_what_it_lacks_or_everything(tmp_path, monkeypatch):
    previous = []

    async def scenario(node):
        shard = await node.shard()
        held = []

        def slow(body, answered):
            previous.append(body["previous"])
            held.append((body, answered))

        slow_shard = await node.shard(1, orders={TOPOLOGY: slow})
        await until(lambda: held)

        def catch_up():
            while held:
                body, answered = held.pop(0)
                slow_shard.topics.orders[TOPOLOGY](body, answered)

        catch_up()
        await until(lambda: len(node.listener.processes) == 2)
        waits = [asyncio.create_task(node.change(queue(name))) for name in "abc"]
        await until(lambda: held)
        later = [asyncio.create_task(node.change(queue(name))) for name in "de"]
        await until(lambda: shard.topology.queue("/", "e"))
        catch_up()
        await until(lambda: held)
        catch_up()
        await asyncio.gather(*waits, *later)
        assert slow_shard.topology.snapshot() == node.topology.snapshot()
        # Everything at first, then from where it was; several changes at once.
        assert previous == [-1, 1, 4]
        monkeypatch.setattr(topology_keeper, "HISTORY_MAX", 1)
        waits = [asyncio.create_task(node.change(queue("f")))]
        await until(lambda: held)
        waits += [asyncio.create_task(node.change(queue(name))) for name in "gh"]
        await until(lambda: shard.topology.queue("/", "h"))
        catch_up()
        await until(lambda: held)
        catch_up()
        await asyncio.gather(*waits)
        assert previous[3:] == [6, -1]
        assert slow_shard.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_a_copy_that_outlived_its_connection_is_not_sent_everything_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fluxmq.control.topology_messages.PART_ROWS_MAX", 2)

    async def scenario(node):
        shard = await node.shard()
        taken = []
        take = shard.topics.orders[TOPOLOGY]

        def count(body, answered):
            taken.append(body["number"])
            take(body, answered)

        handlers = Handlers(lambda: (), ProcessNumbers, orders={TOPOLOGY: count})
        control = ControlClient(node.path / "s", Hello("shard", 1, 1), handlers)
        again = asyncio.create_task(control.run())
        await until(lambda: len(node.listener.processes) == 2)
        node.live.append("shard-1")
        assert (await node.change()).unconfirmed == ()
        assert taken == [0]
        again.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await again

    run(Node(tmp_path), scenario)


def test_a_copy_that_is_out_of_step_gets_everything(tmp_path):
    async def scenario(node):
        shard = await node.shard()
        await shard.change(queue("a"))
        # As if it had missed a change that control believes it has.
        shard.topology.revision = 0
        assert await shard.change(queue("b")) is None
        assert shard.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_a_shard_that_refuses_everything_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_keeper, "CONFIRM_SECONDS", 0.2)
    asked = []

    def refuse(body, answered):
        asked.append(body)
        answered(Failure(ERROR_FAILED, "no"))

    async def scenario(node):
        await node.shard(0, orders={TOPOLOGY: refuse})
        await until(lambda: asked)
        assert (await node.change(queue("q"))).unconfirmed == ("shard-0",)
        assert len(asked) == 2

    run(Node(tmp_path), scenario)


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


def test_nothing_is_told_while_it_is_being_written(tmp_path):
    async def scenario(node):
        release = asyncio.Event()
        write = node.store.write_topology
        loop = asyncio.get_running_loop()

        def held(*arguments):
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(5)
            return write(*arguments)

        node.store.write_topology = held
        changing = asyncio.create_task(node.change(queue("q")))
        await until(lambda: node.topology.queue("/", "q") is not None)
        made = Shard(node.path / "s", 0, 1, None)
        node.shards.append(made)
        await until(lambda: made.control.established)
        await until(lambda: node.listener.processes)
        assert not made.topics.known
        release.set()
        await changing
        await until(lambda: made.topics.known)
        assert made.topology.snapshot() == node.topology.snapshot()

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
    configured = Queue("/", "orders", type="quorum", durable=True, origin="settings")

    async def first(node):
        shard = await node.shard()
        assert shard.topology.queue("/", "orders") == configured
        refusal = await shard.change(DeleteQueue("/", "orders"))
        assert refusal.code == 403
        bind = Bind(Binding("/", "amq.topic", "orders", routing_key="o.#"))
        policy = SetPolicy(Policy("/", "p", "^o", definition={"max-length": 5}))
        assert await shard.change(bind, policy) is None
        told = Queue("/", "told", durable=True, origin="settings")
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
        assert node.topology.queue("/", "orders") == Queue("/", "orders", durable=True)

    run(Node(tmp_path, configured=[configured]), first)
    run(Node(tmp_path, "second", [configured]), second)
    run(Node(tmp_path, "third"), third)
    run(Node(tmp_path, "fourth", [configured]), fourth)
    run(Node(tmp_path, "fifth"), fifth)


def test_a_queue_of_the_settings_that_expired_is_everywhere_again_or_nowhere(tmp_path):
    configured = Queue("/", "orders", durable=True, origin="settings")
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


def test_what_waits_for_the_disk_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_keeper, "WAITING_MAX", 2)

    async def scenario(node):
        changes = [asyncio.create_task(node.change(queue(str(n)))) for n in range(3)]
        done, _ = await asyncio.wait(changes)
        failed = [each for each in done if each.exception() is not None]
        assert [each.exception().code for each in failed] == [ERROR_FAILED]

    run(Node(tmp_path), scenario)
