"""fluxmqctl's verbs against a real control process, with a shard whose topology is real and whose queues are told."""

import asyncio
import contextlib
import json
import os
import threading

import pytest

from fluxmq.cli import main as cli
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import ERROR_FAILED, Failure, ProcessHello, ProcessNumbers
from fluxmq.ipc.row_messages import AffectedCount, handlers_of, page_of
from fluxmq.ipc.topology_client import TopologyClient
from fluxmq.ipc.user_messages import Users
from fluxmq.routing.topology.changes import Bind, DeclareQueue
from fluxmq.routing.topology.records import Binding, QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import global_parameters
from tests.integration.test_admin import DEADLINE, Node, until

CONNECTIONS = [
    {"pid": "0.1.1", "user": "ann", "vhost": "/", "state": "running", "peer_port": 4711},
    {"pid": "0.1.2", "user": "bob", "vhost": "b", "state": "running", "peer_port": 4712},
]


class Shard(threading.Thread):
    """One shard's topology, on a loop of its own thread, and a dispatcher that tells 5 messages per queue."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node = node
        self.users: list[Users] = []
        self.commands = []
        self.loop = asyncio.new_event_loop()
        self.topics = TopologyClient(self.loop.time, lambda _delta: None)
        handlers = Handlers(
            lambda: (),
            ProcessNumbers,
            self.users.append,
            {**self.topics.commands, **handlers_of(self)},
            self.topics.established,
        )
        self.client = ControlClient(node.socket, ProcessHello("shard", 0, os.getpid()), handlers)
        self.topics.connect(self.client)

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.task = self.loop.create_task(self.client.run())
        with contextlib.suppress(asyncio.CancelledError):
            self.loop.run_until_complete(self.task)
        self.loop.close()

    def stop(self):
        if not self.is_alive():
            return
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.join(DEADLINE)

    def change(self, *changes):
        """Have changes made as a client of this shard would; return the refusal."""
        answered, answers = threading.Event(), []

        def done(refusal):
            answers.append(refusal)
            answered.set()

        self.loop.call_soon_threadsafe(self.topics.change, changes, done)
        assert answered.wait(DEADLINE)
        return answers[0]

    def rows(self, wanted, done):
        if wanted.what == "queues":
            rows = [{"vhost": v, "name": n, "messages": 5} for v, n in wanted.names]
        else:
            rows = CONNECTIONS if wanted.what == "connections" else []
        done(page_of(rows, wanted.after))

    def close_connections(self, wanted, done):
        meant = [
            row
            for row in CONNECTIONS
            if wanted.pid in (None, row["pid"]) and wanted.vhost in (None, row["vhost"])
        ]
        self.commands.append(wanted)
        done(AffectedCount(len(meant)))

    def close_session(self, wanted, done):
        self.commands.append(wanted)
        done(AffectedCount(0))

    def purge_queue(self, order, done):
        self.commands.append(order)
        done(AffectedCount(5))

    def delete_queue(self, order, done):
        self.commands.append(order)
        refusal = f"queue '{order.name}' in vhost '{order.vhost}' not empty"
        done(Failure(ERROR_FAILED, refusal) if order.if_empty else AffectedCount(5))


class Ctl:
    """Runs commands and keeps what they printed."""

    def __init__(self, node, capsys):
        self.node = node
        self.capsys = capsys

    def __call__(self, *arguments, code=0):
        assert cli.run(["--data-dir", str(self.node.path), *arguments]) == code
        self.out, self.err = self.capsys.readouterr()
        return self.out.splitlines()

    def rows(self, *arguments):
        return json.loads("\n".join(self(*arguments, "--formatter", "json")))


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    made.start()
    made.wait_ready()
    yield made
    made.close()


@pytest.fixture
def shard(node):
    made = Shard(node)
    made.start()
    until(lambda: made.topics.known and made.users, "the shard has everything")
    yield made
    made.stop()


@pytest.fixture
def ctl(node, shard, capsys):
    return Ctl(node, capsys)


def test_virtual_hosts_and_limits(ctl, shard):
    assert ctl.rows("list_vhosts") == [{"name": "/"}]
    tags = ("--tags", "x, y", "--description", "B", "--default-queue-type", "quorum")
    assert ctl("add_vhost", "b", *tags) == ['Adding vhost "b" ...']
    assert ctl.rows("list_vhosts", "name", "tags", "description", "default_queue_type")[1] == {
        "name": "b",
        "tags": ["x", "y"],
        "description": "B",
        "default_queue_type": "quorum",
    }
    assert shard.topics.topology.vhost("b").default_queue_type == "quorum"
    ctl("set_vhost_limits", "-p", "b", '{"max-queues": 1}')
    assert ctl.rows("list_vhost_limits", "-p", "b") == [{"limits": {"max-queues": 1}}]
    assert ctl.rows("list_vhost_limits", "--global") == [
        {"vhost": "b", "limits": {"max-queues": 1}}
    ]
    assert shard.change(DeclareQueue(QueueRecord("b", "one"))) is None
    assert shard.change(DeclareQueue(QueueRecord("b", "two"))).code == 406
    ctl("clear_vhost_limits", "-p", "b")
    assert ctl.rows("list_vhost_limits", "--global") == []
    ctl("set_vhost_limits", "[]", code=2)
    ctl("set_vhost_limits", "{", code=2)
    ctl("set_vhost_limits", '{"max-cats": 1}', code=1)
    ctl("set_user_limits", "ann", '{"max-channels": 1}', code=1)
    ctl("add_user", "ann", "geheim")
    ctl("set_user_limits", "ann", '{"max-channels": 1}')
    ctl("set_user_limits", "ann", '{"max-connections": 2}')
    both = {"max-channels": 1, "max-connections": 2}
    assert ctl.rows("list_user_limits", "--user", "ann") == [{"limits": both}]
    assert shard.topics.topology.limits_of_user("ann") == both
    ctl("clear_user_limits", "ann", "max-channels")
    assert ctl.rows("list_user_limits", "--global") == [
        {"user": "ann", "limits": {"max-connections": 2}}
    ]
    ctl("set_user_limits", "ann", '{"max-queues": 1}', code=1)
    ctl("delete_user", "ann")
    assert ctl.rows("list_user_limits", "--global") == [], "limits go with their user"
    # What users were permitted there goes with it.
    ctl("add_user", "ann", "geheim")
    ctl("set_permissions", "-p", "b", "ann", ".*", ".*", ".*")
    ctl("delete_vhost", "b")
    until(lambda: shard.users[-1].users[0].permissions == (), "the permission is gone")
    ctl("delete_vhost", "b", code=1)
    assert "b" in ctl.err
    ctl("list_queues", "-p", "b", code=1)
    assert "does not exist" in ctl.err


def test_parameters(ctl, shard):
    ctl("set_global_parameter", "tags", '{"zone": ["a", null]}')
    ctl("set_cluster_name", "orders")
    assert ctl.rows("list_global_parameters") == [
        {"name": "cluster_name", "value": '"orders"'},
        {"name": "tags", "value": '{"zone":["a",null]}'},
    ]
    assert global_parameters(shard.topics.topology).keys() == {"cluster_name", "tags"}
    ctl("set_global_parameter", "tags", "{", code=2)
    assert "Could not parse JSON document" in ctl.err
    ctl("clear_global_parameter", "tags")
    ctl("clear_global_parameter", "tags", code=1)
    assert "Parameter does not exist" in ctl.err
    operator = '{"pattern": "^q", "definition": {"max-length": 5}}'
    ctl("set_parameter", "operator_policy", "o", operator)
    ctl("set_parameter", "vhost-limits", "limits", '{"max-queues": 9}')
    whole = '{"pattern":"^q","definition":{"max-length":5},"priority":0,"apply-to":"all"}'
    assert ctl.rows("list_parameters") == [
        {"component": "vhost-limits", "name": "limits", "value": '{"max-queues":9}'},
        {"component": "operator_policy", "name": "o", "value": whole},
    ]
    ctl("set_parameter", "shovel", "s", "{}", code=1)
    assert "component shovel not found" in ctl.err
    ctl("clear_parameter", "operator_policy", "o")
    ctl("clear_parameter", "vhost-limits", "limits")
    assert ctl.rows("list_parameters") == []
    ctl("clear_parameter", "shovel", "s", code=1)


def test_policies(ctl, shard):
    assert shard.change(DeclareQueue(QueueRecord("/", "orders", durable=True))) is None
    ctl(
        "set_policy",
        "--priority",
        "7",
        "--apply-to",
        "queues",
        "p",
        "^o",
        '{"max-length": 10, "overflow": "reject-publish"}',
    )
    ctl("set_operator_policy", "o", ".*", '{"max-length": 5}')
    (row,) = ctl.rows("list_policies")
    assert row == {
        "vhost": "/",
        "name": "p",
        "pattern": "^o",
        "apply-to": "queues",
        "definition": {"max-length": 10, "overflow": "reject-publish"},
        "priority": 7,
    }
    assert [row["name"] for row in ctl.rows("list_operator_policies")] == ["o"]
    assert ctl.rows("list_queues", "name", "policy", "operator_policy") == [
        {"name": "orders", "policy": "p", "operator_policy": "o"}
    ]
    explained = ctl.rows("explain-policy", "orders")
    assert [(row["key"], row["value"], row["source"]) for row in explained] == [
        ("max-length", "5", "operator policy 'o'"),
        ("overflow", "reject-publish", "policy 'p'"),
    ]
    assert "policy 'p' says 10" in explained[0]["others"]
    ctl("explain-policy", "nothing", code=1)
    for definition, code in (("{", 2), ("[1]", 2), ("{}", 1), ('{"max-length": -1}', 1)):
        ctl("set_policy", "bad", ".*", definition, code=code)
    ctl("set_policy", "bad", "(", '{"max-length": 1}', code=1)
    assert "regular expression" in ctl.err
    ctl("clear_policy", "p")
    ctl("clear_operator_policy", "o")
    ctl("clear_policy", "p", code=1)
    assert ctl.rows("list_policies") == []
    assert shard.topics.topology.policies("/") == []


@pytest.mark.parametrize(
    ("name", "pattern", "definition"),
    [
        ("ha-two", r"^two\.", '{"ha-mode":"exactly","ha-params":2,"ha-sync-mode":"automatic"}'),
        ("ha-all", r"^ha\.", '{"ha-mode":"all"}'),
        (
            "ha-nodes",
            r"^nodes\.",
            '{"ha-mode":"nodes","ha-params":["rabbit@nodeA", "rabbit@nodeB"]}',
        ),
    ],
)
def test_policies_that_mirror_run_as_rabbitmq_documents_them(ctl, shard, name, pattern, definition):
    """S4-08, S4-34, S4-35, S4-36, S4-77: with a warning that quorum queues are better."""
    (said,) = ctl("set_policy", name, pattern, definition)
    assert said == (
        f'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority "0" for'
        ' vhost "/" ...'
    )
    assert "quorum queues" in ctl.err
    (row,) = ctl.rows("list_policies")
    assert (row["name"], row["definition"]) == (name, json.loads(definition))
    assert [each.name for each in shard.topics.topology.policies("/")] == [name]
    ctl("set_policy", name, pattern, '{"ha-mode":"some"}', code=1)
    assert '<<"some">> is not a valid ha-mode value' in ctl.err
    ctl("set_operator_policy", name, pattern, '{"ha-mode":"all"}', code=1)
    ctl("sync_queue", "q", code=1)
    assert "no queue 'q' in vhost '/'" in ctl.err


def test_lists(ctl, shard):
    changes = [
        DeclareQueue(QueueRecord("/", "q", durable=True)),
        Bind(Binding("/", "amq.topic", "q", routing_key="a.#")),
    ]
    assert shard.change(*changes) is None
    assert ctl("list_queues") == [
        "Listing queues for vhost / ...",
        "name\tmessages",
        "q\t5",
    ]
    assert ctl("list_queues", "-s", "messages", "durable") == ["5\ttrue"]
    assert ctl("list_queues", "--formatter", "csv") == ['"name","messages"', '"q","5"']
    assert ctl("list_queues", "-q", "--formatter=pretty_table")[1:4:2] == [
        "│ name │ messages │",
        "│ q    │ 5        │",
    ]
    assert {"name": "amq.topic", "type": "topic"} in ctl.rows("list_exchanges")
    assert [row["routing_key"] for row in ctl.rows("list_bindings")] == ["q", "a.#"]
    assert ctl.rows("list_connections", "pid", "user") == [
        {"pid": "0.1.1", "user": "ann"},
        {"pid": "0.1.2", "user": "bob"},
    ]
    assert ctl.rows("list_connections")[0] == {
        "user": "ann",
        "peer_host": None,
        "peer_port": 4711,
        "state": "running",
    }
    assert ctl("list_channels", "-q") == ctl("list_consumers", "-q") == []
    ctl("list_queues", "memory", code=2)
    assert "no column 'memory'" in ctl.err


def test_orders(ctl, shard):
    assert shard.change(DeclareQueue(QueueRecord("/", "q"))) is None
    assert ctl("purge_queue", "q")[-1] == "Queue was purged of 5 messages"
    assert ctl("delete_queue", "-u", "q")[-1].endswith("with 5 ready messages")
    ctl("delete_queue", "-e", "q", code=1)
    assert "not empty" in ctl.err
    assert [(order.if_unused, order.if_empty) for order in shard.commands] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    ctl("purge_queue", "nothing", code=1)
    assert "no queue 'nothing' in vhost '/'" in ctl.err
    ctl("close_connection", "0.1.1", "bye")
    assert (shard.commands[-1].pid, shard.commands[-1].reason) == ("0.1.1", "bye")
    ctl("close_connection", "9.9", "bye", code=1)
    assert ctl("close_all_connections", "bye")[0].startswith("Closed 1 connections in vhost /")
    assert ctl("close_all_connections", "--global", "bye")[0].startswith("Closed 2 connections,")


def test_the_first_user_may_log_in(ctl, shard):
    assert ctl.rows("list_users") == [{"user": "guest", "tags": ["administrator"]}]
    assert ctl("authenticate_user", "guest", "guest")[-1] == "Success"
    assert ctl.rows("list_user_permissions", "guest") == [
        {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ]


def test_the_topology_survives_sigkill_and_reaches_the_shard_again(ctl, node, shard):
    ctl("add_vhost", "b")
    assert shard.change(DeclareQueue(QueueRecord("b", "kept", durable=True))) is None
    assert shard.change(DeclareQueue(QueueRecord("b", "also"))) is None
    node.kill()
    until(lambda: not shard.client.established, "the shard notices")
    answers: list[Refusal | None] = []
    declared = DeclareQueue(QueueRecord("b", "meanwhile"))
    shard.loop.call_soon_threadsafe(shard.topics.change, [declared], answers.append)
    node.start()
    node.wait_ready()
    until(lambda: answers, "the change that waited is made")
    assert answers == [None]
    # The node goes on, so what ends with it is there as well.
    found = sorted(row["name"] for row in ctl.rows("list_queues", "-p", "b", "name"))
    assert found == ["also", "kept", "meanwhile"]
    assert sorted(each.name for each in shard.topics.topology.queues("b")) == found


def test_a_shard_that_is_away_is_said(ctl, node, shard):
    shard.stop()
    ctl("add_vhost", "b")
    assert "not confirmed in time by shard-0" in ctl.err
    ctl("purge_queue", "q", code=1)
