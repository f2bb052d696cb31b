"""Lists and orders: what control tells itself, and what it asks of shards, over real sockets.

Longer than 500 lines because every case has the same few shards, of one node or two."""

import asyncio
import contextlib
import os

import pytest
import uvloop

from fluxmq.control import listings
from fluxmq.control.columns import LISTS, QUEUE_STATIC
from fluxmq.control.listings import Listings
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import ControlListener, RequestError, Service
from fluxmq.ipc import row_messages, unix_socket
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.clusters import MemberRow, RaftListing, RaftRow
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    ControlMessage,
    Failure,
    MessageError,
    ProcessHello,
    ProcessNumbers,
)
from fluxmq.ipc.node_messages import OF_NODE, NodeQuestion
from fluxmq.ipc.row_messages import (
    CLOSE_CONNECTIONS,
    CLOSE_SESSION,
    DELETE_QUEUE,
    LIST,
    PURGE_QUEUE,
    AffectedCount,
    CloseConnections,
    CloseSession,
    Listed,
    ListRequest,
    QueueExtent,
    QueueRequest,
    handlers_of,
    page_of,
)
from fluxmq.routing.topology.changes import (
    AddVhost,
    Bind,
    DeclareQueue,
    SetPolicy,
    SetVhostLimits,
)
from fluxmq.routing.topology.records import Binding, Policy, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology


def row(group, leader, nodes, node):
    members = tuple(
        MemberRow(each, 1, "voter", each == leader, node, 5, 0, "replicate", True, 20, "")
        for each in nodes
    )
    return RaftRow(group, node, 0, "leader", "", 1, leader, 5, 5, 5, 0, 1, 0.001, members)


class Desk:
    """A shard that holds some queues and connections."""

    def __init__(self, queues=(), rows=(), sessions=()):
        self.sessions = sessions
        self.queues = dict(queues)
        self.some = list(rows)
        self.closed = []
        self.commands = []
        self.silent = False

    def rows(self, wanted, done):
        if self.silent:
            return
        if wanted.what == "queues":
            found = [
                {
                    "vhost": vhost,
                    "name": name,
                    "messages": self.queues[vhost, name],
                    "position": (7, 1, 1 + self.queues[vhost, name]),
                }
                for vhost, name in wanted.names
                if (vhost, name) in self.queues
            ]
        else:
            found = [{key: row.get(key) for key in wanted.columns} for row in self.some]
        done(page_of(found, wanted.after))

    def close_connections(self, wanted, done):
        if self.silent:
            done(Failure(ERROR_FAILED, "busy"))
            return
        self.closed.append(wanted)
        done(AffectedCount(sum(wanted.pid in (None, row["pid"]) for row in self.some)))

    def close_session(self, wanted, done):
        done(AffectedCount(int(wanted.client_id in self.sessions)))

    def purge_queue(self, order, done):
        self.commands.append(order)
        done(AffectedCount(7))

    def delete_queue(self, order, done):
        self.commands.append(order)
        done(Failure(ERROR_FAILED, f"queue '{order.name}' in vhost '{order.vhost}' not empty"))


class Node:
    """The control side of lists, and shards with dispatchers that connect to it."""

    def __init__(self, path, desks):
        self.path = path
        self.desks = desks
        self.topology = Topology()
        self.topology.apply(AddVhost(Vhost("/")))

    async def __aenter__(self):
        service = Service(self._refuse, lambda _: None, lambda _: None)
        self.listener = ControlListener(service, os.geteuid())
        self.listings = Listings(lambda: self.topology, lambda: self.listener.processes)
        await self.listener.start(unix_socket.bind(self.path / "s"))
        self.tasks = []
        for index, desk in enumerate(self.desks):
            commands = handlers_of(desk)
            if isinstance(desk, Bridge):
                commands[OF_NODE] = desk.ask
            handlers = Handlers(lambda: (), ProcessNumbers, commands=commands)
            client = ControlClient(self.path / "s", ProcessHello("shard", index, 1), handlers)
            self.tasks.append(asyncio.create_task(client.run()))
        async with asyncio.timeout(5):
            while len(self.listener.processes) < len(self.desks):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_exception):
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.listener.stop()

    async def _refuse(self, message):
        raise RequestError(ERROR_UNKNOWN_KIND, message.kind)

    async def pages(self, what, *columns, vhost="/", subject=""):
        """All pages of a list, and who was missing."""
        pages = []
        missing: list[str] = []
        place: tuple[int, ...] = ()
        while True:
            wanted = ListRequest(what, columns or LISTS[what].shown, vhost, place, subject)
            listed = Listed.from_body(
                await self.listings.answer(ControlMessage(LIST, 1, wanted.to_body()))
            )
            pages.append(list(listed.rows))
            missing += listed.missing
            place = listed.place
            if not place:
                return pages, missing

    async def rows(self, what, *columns, **options):
        pages, missing = await self.pages(what, *columns, **options)
        assert missing == []
        return [row for page in pages for row in page]

    async def order(self, kind, wanted):
        return AffectedCount.from_body(
            await self.listings.answer(ControlMessage(kind, 1, wanted.to_body()))
        ).count


def run(tmp_path, scenario, *desks):
    async def main():
        async with asyncio.timeout(30), Node(tmp_path, desks) as node:
            await scenario(node)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_positions_of_queues_are_those_that_shards_tell(tmp_path):
    async def scenario(node):
        queues = [QueueRecord("/", name, durable=True) for name in ("a", "b", "elsewhere")]
        found = await node.listings.positions(queues)
        assert found == {("/", "a"): QueueExtent(7, 1, 4), ("/", "b"): QueueExtent(7, 1, 1)}
        node.desks[0].silent = True
        assert await node.listings.positions(queues) == {("/", "b"): (7, 1, 1)}

    run(tmp_path, scenario, Desk({("/", "a"): 3}), Desk({("/", "b"): 0}))


def test_what_the_topology_has(tmp_path):
    async def scenario(node):
        node.topology.apply_all(
            [
                AddVhost(Vhost("b", default_queue_type="quorum", tags=("x",), description="B")),
                DeclareQueue(QueueRecord("/", "q", durable=True, arguments={"x-max-length": 5})),
                Bind(Binding("/", "amq.topic", "q", routing_key="a.#", arguments={"k": b"\xff"})),
                SetPolicy(Policy("/", "p", "^q", "queues", 3, {"message-ttl": 9})),
                SetPolicy(Policy("/", "o", ".*", definition={"max-length": 2}, operator=True)),
                SetVhostLimits("/", {"max-queues": 10}),
            ]
        )
        assert await node.rows("vhosts", vhost=None) == [{"name": "/"}, {"name": "b"}]
        (_, found) = await node.rows("vhosts", *LISTS["vhosts"].columns, vhost=None)
        assert found == {
            "name": "b",
            "description": "B",
            "tags": ["x"],
            "default_queue_type": "quorum",
        }
        exchanges = await node.rows("exchanges")
        assert {"name": "amq.topic", "type": "topic"} in exchanges
        assert {"name": "", "type": "direct"} in exchanges
        (found,) = [
            row
            for row in await node.rows("exchanges", *LISTS["exchanges"].columns)
            if row["name"] == "amq.topic"
        ]
        assert (found["durable"], found["internal"], found["policy"]) == (True, False, "")
        assert await node.rows("bindings", "source_name", "routing_key", "arguments") == [
            {"source_name": "", "routing_key": "q", "arguments": {}},
            {"source_name": "amq.topic", "routing_key": "a.#", "arguments": {"k": "\\xff"}},
        ]
        (policy,) = await node.rows("policies")
        assert policy == {
            "vhost": "/",
            "name": "p",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"message-ttl": 9},
            "priority": 3,
        }
        assert [row["name"] for row in await node.rows("operator_policies")] == ["o"]
        assert await node.rows("vhost_limits", "vhost", "limits", vhost=None) == [
            {"vhost": "/", "limits": {"max-queues": 10}}
        ]
        (found,) = await node.rows("queues", *QUEUE_STATIC)
        assert found == {
            "name": "q",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "exclusive": False,
            "arguments": {"x-max-length": 5},
            "type": "classic",
            "policy": "p",
            "operator_policy": "o",
            "effective_policy_definition": {"message-ttl": 9, "max-length": 2},
            "owner_pid": "",
        }
        explained = await node.rows("explained", subject="q")
        assert [(row["key"], row["source"]) for row in explained] == [
            ("max-length", "operator policy 'o'"),
            ("message-ttl", "policy 'p'"),
        ]
        # Nothing of this is in the other virtual host.
        for what in ("queues", "bindings", "policies", "operator_policies", "vhost_limits"):
            assert await node.rows(what, vhost="b") == []

    run(tmp_path, scenario)


def test_numbers_of_queues_come_from_the_shards_that_hold_them(tmp_path):
    desks = [Desk({("/", "a"): 3}), Desk({("/", "b"): 0, ("b", "a"): 9, ("/", "gone"): 1})]

    async def scenario(node):
        node.topology.apply(AddVhost(Vhost("b")))
        for vhost, name in (("/", "a"), ("/", "b"), ("/", "starting"), ("b", "a")):
            node.topology.apply(DeclareQueue(QueueRecord(vhost, name)))
        assert await node.rows("queues") == [
            {"name": "a", "messages": 3},
            {"name": "b", "messages": 0},
            {"name": "starting", "messages": None},
        ]
        everywhere = await node.rows("queues", "vhost", "messages", "type", vhost=None)
        assert {"vhost": "b", "messages": 9, "type": "classic"} in everywhere
        assert len(everywhere) == 4

    run(tmp_path, scenario, *desks)


def test_queues_of_a_cluster_are_listed_with_their_nodes(tmp_path):
    groups = (
        row("other", "c", ("a", "c"), node="a"),
        row("default", "b", ("a", "b", "c"), node="a"),
    )
    silent = groups[1].members[2]
    members = (*groups[1].members[:2], MemberRow.from_body({**silent.to_body(), "contact": 9000}))
    default = RaftRow.from_body({**groups[1].to_body(), "members": [m.to_body() for m in members]})

    async def replicas():
        return RaftListing((groups[0], default))

    async def scenario(node):
        node.listings = Listings(
            lambda: node.topology, lambda: node.listener.processes, replicas, "a"
        )
        for name, group in (
            ("here", "local-1@a"),
            ("of settings", ""),
            ("elsewhere", "local-1@c"),
            ("away", "local-1@d"),
            ("replicated", "default"),
        ):
            node.topology.apply(DeclareQueue(QueueRecord("/", name, durable=True, group=group)))
        found = await node.rows("queues", "name", "leader", "members", "online")
        assert {each.pop("name"): tuple(each.values()) for each in found} == {
            "here": ("a", ["a"], ["a"]),
            "of settings": ("a", ["a"], ["a"]),
            "elsewhere": ("c", ["c"], ["c"]),
            "away": ("d", ["d"], []),
            "replicated": ("b", ["a", "b", "c"], ["a", "b"]),
        }

    run(tmp_path, scenario, Desk())


def test_shards_are_not_asked_for_what_control_knows(tmp_path):
    desk = Desk()
    desk.silent = True

    async def scenario(node):
        node.topology.apply(DeclareQueue(QueueRecord("/", "q")))
        assert await node.rows("queues", "name", "durable") == [{"name": "q", "durable": False}]

    run(tmp_path, scenario, desk)


def test_a_shard_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(listings, "ROWS_SECONDS", 0.1)
    desks = [Desk({("/", "a"): 3}, [{"user": "ann"}]), Desk(), Desk((), [{"user": "bob"}])]
    desks[1].silent = True

    async def scenario(node):
        node.topology.apply(DeclareQueue(QueueRecord("/", "a")))
        assert await node.pages("queues") == ([[{"name": "a", "messages": 3}]], ["shard-1"])
        pages, missing = await node.pages("connections", "user", vhost=None)
        assert pages == [[{"user": "ann"}], [], [{"user": "bob"}]]
        assert missing == ["shard-1"]

    run(tmp_path, scenario, *desks)


def test_long_lists_come_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(row_messages, "PAGE_ROWS_MAX", 3)
    names = [str(number) for number in range(7)]
    desks = [
        Desk({("/", name): 1 for name in names}, [{"pid": f"0.{name}"} for name in names]),
        Desk(),
        Desk((), [{"pid": "2.0"}]),
    ]

    async def scenario(node):
        for name in names:
            node.topology.apply(DeclareQueue(QueueRecord("/", name)))
        pages, _ = await node.pages("queues", "name", "messages")
        assert [[row["name"] for row in page] for page in pages] == [
            ["0", "1", "2"],
            ["3", "4", "5"],
            ["6"],
        ]
        assert {row["messages"] for page in pages for row in page} == {1}
        pages, _ = await node.pages("connections", "pid", vhost=None)
        assert [len(page) for page in pages] == [3, 3, 1, 0, 1]
        pages, _ = await node.pages("bindings")
        assert [len(page) for page in pages] == [3, 3, 1]

    run(tmp_path, scenario, *desks)


def test_consumers_are_of_one_virtual_host(tmp_path):
    rows = [{"queue_name": "a", "vhost": "/"}, {"queue_name": "b", "vhost": "b"}]

    async def scenario(node):
        assert await node.rows("consumers", "queue_name") == [{"queue_name": "a"}]
        assert len(await node.rows("consumers", "queue_name", vhost=None)) == 2

    run(tmp_path, scenario, Desk((), rows))


def test_a_list_without_shards_is_empty(tmp_path):
    async def scenario(node):
        assert await node.rows("connections", vhost=None) == []

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("kind", "wanted", "code"),
    [
        (LIST, ListRequest("dances", ()), ERROR_INVALID),
        (LIST, ListRequest("queues", ("memory",)), ERROR_INVALID),
        (LIST, ListRequest("queues", ("name",), "nowhere"), ERROR_NOT_FOUND),
        (LIST, ListRequest("explained", ("key",), "/", (), "nothing"), ERROR_NOT_FOUND),
        (PURGE_QUEUE, QueueRequest("/", "nothing"), ERROR_NOT_FOUND),
        (DELETE_QUEUE, QueueRequest("nowhere", "q"), ERROR_NOT_FOUND),
        (DELETE_QUEUE, QueueRequest("/", "q", if_empty=True), ERROR_FAILED),
        (CLOSE_CONNECTIONS, CloseConnections("9.9", None, ""), ERROR_NOT_FOUND),
        (CLOSE_SESSION, CloseSession("nobody"), ERROR_NOT_FOUND),
        ("dance", QueueRequest("/", "q"), ERROR_UNKNOWN_KIND),
    ],
)
def test_refusals_carry_their_code(tmp_path, kind, wanted, code):
    async def scenario(node):
        node.topology.apply(DeclareQueue(QueueRecord("/", "q")))
        with pytest.raises(RequestError) as caught:
            await node.listings.answer(ControlMessage(kind, 1, wanted.to_body()))
        assert caught.value.code == code

    run(tmp_path, scenario, Desk())


def test_bodies_that_are_not_understood_are_refused(tmp_path):
    async def scenario(node):
        for kind in (LIST, CLOSE_CONNECTIONS, CLOSE_SESSION, PURGE_QUEUE, DELETE_QUEUE):
            with pytest.raises(MessageError):
                await node.listings.answer(ControlMessage(kind, 1, {}))

    run(tmp_path, scenario)


def test_orders_go_to_a_shard_and_its_answer_back(tmp_path):
    desks = [Desk(), Desk()]

    async def scenario(node):
        node.topology.apply(DeclareQueue(QueueRecord("/", "q")))
        order = QueueRequest("/", "q", if_unused=True)
        assert await node.order(PURGE_QUEUE, order) == 7
        assert desks[0].commands == [order]
        with pytest.raises(RequestError, match=r"^queue 'q' in vhost '/' not empty$"):
            await node.order(DELETE_QUEUE, order)

    run(tmp_path, scenario, *desks)


def test_without_a_shard_nothing_is_done(tmp_path):
    async def scenario(node):
        node.topology.apply(DeclareQueue(QueueRecord("/", "q")))
        with pytest.raises(RequestError, match="no shard"):
            await node.order(PURGE_QUEUE, QueueRequest("/", "q"))

    run(tmp_path, scenario)


def test_a_session_is_ended_wherever_it_is(tmp_path):
    """Review finding 7: a client id that belongs to somebody else is freed by an administrator."""
    desks = [Desk(), Desk(sessions=("c",))]

    async def scenario(node):
        assert await node.order(CLOSE_SESSION, CloseSession("c")) == 1
        with pytest.raises(RequestError, match="there is no session of 'd'"):
            await node.order(CLOSE_SESSION, CloseSession("d"))

    run(tmp_path, scenario, *desks)


def test_connections_are_closed_on_every_shard(tmp_path):
    desks = [Desk((), [{"pid": "0.1"}, {"pid": "0.2"}]), Desk((), [{"pid": "1.1"}])]

    async def scenario(node):
        everybody = CloseConnections(None, "/", "maintenance")
        assert await node.order(CLOSE_CONNECTIONS, everybody) == 3
        assert await node.order(CLOSE_CONNECTIONS, CloseConnections("1.1", None, "x")) == 1
        assert desks[1].closed[0] == everybody
        desks[1].silent = True
        with pytest.raises(RequestError, match=r"shard-1.*busy"):
            await node.order(CLOSE_CONNECTIONS, everybody)

    run(tmp_path, scenario, *desks)


class Bridge(Desk):
    """A shard that passes questions on to the control processes of other nodes."""

    def __init__(self, nodes, *rest):
        super().__init__(*rest)
        self.nodes = nodes

    def ask(self, body, answered):
        question = NodeQuestion.from_body(body)
        other = self.nodes.get(question.node)
        if other is None:
            answered(Failure(ERROR_AWAY, "cannot be reached"))
            return

        async def answer():
            try:
                answered(await other.answer(ControlMessage(question.kind, 1, question.body)))
            except RequestError as problem:
                answered(Failure(problem.code, str(problem)))

        self.task = asyncio.get_running_loop().create_task(answer())


def cluster_of(node, other, bridge):
    """Make two nodes of a cluster, of three, of which the last is away."""
    shards = lambda: node.listener.processes  # noqa: E731
    others = ControlOfNodes(("b", "c"), shards)
    node.listings = Listings(lambda: node.topology, shards, None, "a", others)
    bridge.nodes["b"] = Listings(
        lambda: other.topology, lambda: other.listener.processes, None, "b"
    )


def cluster(tmp_path, scenario, bridge, *desks):
    async def main():
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        async with (
            asyncio.timeout(30),
            Node(tmp_path / "a", (bridge,)) as node,
            Node(tmp_path / "b", desks) as other,
        ):
            cluster_of(node, other, bridge)
            await scenario(node)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_connections_of_all_nodes_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(row_messages, "PAGE_ROWS_MAX", 2)
    bridge = Bridge({}, (), [{"pid": f"a.{n}", "vhost": "/"} for n in range(3)])
    desks = [
        Desk((), [{"pid": f"b.{shard}.{n}", "vhost": "/"} for n in range(3)]) for shard in range(2)
    ]

    async def scenario(node):
        pages, missing = await node.pages("connections", "pid", "node", vhost=None)
        rows = [(row["pid"], row["node"]) for page in pages for row in page]
        assert sorted(rows) == [
            *((f"a.{n}", "a") for n in range(3)),
            *((f"b.{shard}.{n}", "b") for shard in range(2) for n in range(3)),
        ]
        assert max(map(len, pages)) == 2
        assert missing == ["c"]
        desks[1].silent = True
        _, missing = await node.pages("connections", "pid", vhost=None)
        assert missing == ["shard-1 of b", "c"]

    cluster(tmp_path, scenario, bridge, *desks)


def test_connections_and_sessions_of_all_nodes_are_closed(tmp_path):
    bridge = Bridge({}, (), [{"pid": "a.1"}], ["one"])
    desk = Desk((), [{"pid": "b.1"}, {"pid": "b.2"}], ["one", "two"])

    async def scenario(node):
        assert await node.order(CLOSE_CONNECTIONS, CloseConnections("b.2", None, "x")) == 1
        assert desk.closed[0] == CloseConnections("b.2", None, "x", here=True)
        assert await node.order(CLOSE_CONNECTIONS, CloseConnections("a.1", None, "x")) == 1
        assert len(desk.closed) == 1, "it was found here"
        every = ControlMessage(CLOSE_CONNECTIONS, 1, CloseConnections(None, None, "x").to_body())
        done = await node.listings.answer(every)
        assert AffectedCount.from_body(done) == AffectedCount(3, ("c",))
        assert await node.order(CLOSE_SESSION, CloseSession("one")) == 2
        assert await node.order(CLOSE_SESSION, CloseSession("two")) == 1
        with pytest.raises(RequestError, match="no session of 'three', but c cannot be reached"):
            await node.order(CLOSE_SESSION, CloseSession("three"))
        with pytest.raises(RequestError, match=r"no connection 'c\.1', but c cannot be reached"):
            await node.order(CLOSE_CONNECTIONS, CloseConnections("c.1", None, "x"))
        desk.silent = True
        with pytest.raises(RequestError, match="busy"):
            await node.order(CLOSE_CONNECTIONS, CloseConnections(None, None, "x"))

    cluster(tmp_path, scenario, bridge, desk)
