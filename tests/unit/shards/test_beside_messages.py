"""Use of the streams between nodes besides messages: connections by vhost, direct replies, and
questions of control processes."""

from __future__ import annotations

import pytest

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_UNKNOWN_KIND, Body, Failure
from fluxmq.ipc.node_messages import OF_NODE, NodeQuestion
from fluxmq.ipc.row_messages import LIST, PURGE_QUEUE
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.shards.node_questions import ANSWER_SECONDS
from tests.unit.shards.amqp.test_replies import NOTHING, Port
from tests.unit.shards.conftest import MakeNet
from tests.unit.shards.net_of_nodes import Net


def counts(net: Net, vhost: str = "/") -> list[list[int]]:
    """The view of each shard of each node."""
    return [[shard.amqp.vhost_connections.count(vhost) for shard in node] for node in net.nodes]


def test_connections_of_all_nodes_count(make_net: MakeNet) -> None:
    net = make_net(2, 1, 3)
    for node, shard in ((0, 0), (0, 1), (0, 1), (1, 0), (2, 2)):
        net.nodes[node][shard].amqp.vhost_connections.enter("/")
    net.nodes[1][0].amqp.vhost_connections.enter("other")
    net.advance(0.3)
    assert counts(net) == [[5, 5], [5], [5, 5, 5]]
    assert counts(net, "other") == [[1, 1], [1], [1, 1, 1]]
    net.nodes[0][1].amqp.vhost_connections.leave("/")
    net.advance(0.3)
    assert counts(net) == [[4, 4], [4], [4, 4, 4]]


def test_connections_of_a_node_that_cannot_be_reached_do_not_count(make_net: MakeNet) -> None:
    net = make_net(2, 1)
    net.nodes[0][0].amqp.vhost_connections.enter("/")
    net.nodes[1][0].amqp.vhost_connections.enter("/")
    net.advance(0.3)
    net.cut(0, 1)
    assert counts(net) == [[1, 1], [1]]
    net.nodes[0][0].amqp.vhost_connections.enter("/")
    net.connect()
    net.advance(0.3)
    assert counts(net) == [[3, 3], [3]]


def test_nothing_is_told_while_nothing_changes(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    for link in net.ends(0, 1):
        link.held = True
    net.advance(5)
    assert all(not link.inbox for link in net.ends(0, 1))


class Control:
    """A shard's control process, which answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.away = False
        self.silent = False
        self.asked: list[tuple[str, Body]] = []

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        if self.away:
            return False
        self.asked.append((kind, body))
        if not self.silent:
            answered({"from": self.name})
        return True


def connected(net: Net) -> list[list[Control]]:
    """Control processes of all shards of all nodes."""
    made = []
    for name, node in zip(net.names, net.nodes, strict=True):
        made.append([Control(name) for _ in node])
        for shard, control in zip(node, made[-1], strict=True):
            shard.node_questions.connect(control)
    return made


def ask(net: Net, node: int, shard: int, of: str, kind: str = LIST) -> list[Body | Failure]:
    """The answers that a shard gives its control process."""
    answers: list[Body | Failure] = []
    body = NodeQuestion(of, kind, {"what": "connections"}).to_body()
    net.nodes[node][shard].node_questions.commands[OF_NODE](body, answers.append)
    net.run()
    return answers


def test_another_nodes_control_process_answers(make_net: MakeNet) -> None:
    net = make_net(2, 3, 1)
    controls = connected(net)
    for node, shard in ((0, 0), (0, 1), (2, 0)):
        assert ask(net, node, shard, "n1") == [{"from": "n1"}]
    assert sum(len(each.asked) for each in controls[1]) == 3
    assert controls[1][0].asked[0] == (LIST, {"what": "connections"})


def test_what_other_nodes_may_not_ask_is_refused(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    (_, (there,)) = connected(net)
    (answer,) = ask(net, 0, 0, "n1", PURGE_QUEUE)
    assert isinstance(answer, Failure)
    assert answer.code == ERROR_UNKNOWN_KIND
    assert there.asked == []


def test_a_question_that_cannot_be_answered_fails(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    (_, (there,)) = connected(net)
    there.away = True
    for of in ("n1", "n7"):
        (answer,) = ask(net, 0, 0, of)
        assert isinstance(answer, Failure)
        assert answer.code == ERROR_AWAY
    there.away, there.silent = False, True
    answers = ask(net, 0, 0, "n1")
    assert answers == []
    net.cut(0, 1)
    (cut,) = answers
    assert isinstance(cut, Failure)
    assert "has gone" in cut.text
    net.connect()
    late = ask(net, 0, 0, "n1")
    net.advance(ANSWER_SECONDS + 1)
    (failure,) = late
    assert isinstance(failure, Failure)
    assert "in time" in failure.text


def send(net: Net, node: int, shard: int, address: str, payload: bytes) -> bool:
    """Send a direct reply."""
    key = b"amq.rabbitmq.reply-to." + address.encode()
    run = AmqpPublishRun.of(1, b"", key, False, False, NOTHING, payload)
    sent = net.nodes[node][shard].amqp.replies.send(address, run, b"")
    net.run()
    return sent


def exists(net: Net, node: int, shard: int, address: str) -> list[bool]:
    """Ask whether somebody waits at an address."""
    told: list[bool] = []
    net.nodes[node][shard].amqp.replies.exists(address, told.append)
    net.run()
    return told


PLACES = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0)]


@pytest.mark.parametrize("home", [(0, 1), (1, 2), (2, 0)])
def test_direct_replies_cross_nodes(make_net: MakeNet, home: tuple[int, int]) -> None:
    net = make_net(2, 3, 1)
    port = Port()
    replies = net.nodes[home[0]][home[1]].amqp.replies
    address = replies.open(port)
    for number, place in enumerate(PLACES):
        assert exists(net, *place, address) == [True]
        assert send(net, *place, address, b"%d" % number)
    assert port.payloads == [b"%d" % number for number in range(len(PLACES))]
    replies.close(address)
    assert [exists(net, *place, address) for place in PLACES] == [[False]] * len(PLACES)
    for place in PLACES:
        send(net, *place, address, b"late")
    assert len(port.payloads) == len(PLACES)


def test_a_node_that_cannot_be_reached_has_no_addresses(make_net: MakeNet) -> None:
    net = make_net(1, 1, 1)
    port = Port()
    address = net.nodes[0][0].amqp.replies.open(port)
    net.cut(0, 1)
    assert exists(net, 1, 0, address) == [False]
    assert not send(net, 1, 0, address, b"lost")
    assert exists(net, 2, 0, address) == [True]
    assert exists(net, 2, 0, address.replace("@n0", "@n1")) == [False], "nor is it passed on"
    assert exists(net, 2, 0, address.replace("@n0", "@n9")) == [False]
    assert port.payloads == []
