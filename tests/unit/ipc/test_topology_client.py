"""A shard's copy of the topology and its changes, over a conversation whose other end these tests write."""

import pytest

from fluxmq.ipc import topology_client
from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.conversation import Conversation, Handlers
from fluxmq.ipc.messages import (
    ERROR,
    ERROR_FAILED,
    REPLY,
    ControlMessage,
    Failure,
    ProcessHello,
    ProcessNumbers,
    error,
)
from fluxmq.ipc.topology_client import AWAY_SECONDS, TopologyClient
from fluxmq.ipc.topology_messages import (
    FROM_NOTHING,
    TOPOLOGY,
    TOPOLOGY_CHANGE,
    TopologyChanged,
    parts,
    read_sets,
)
from fluxmq.ipc.user_messages import Confirmed
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, DeleteQueue, DropGroup
from fluxmq.routing.topology.records import QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Delta, Topology


def queue(name, vhost="/"):
    return DeclareQueue(QueueRecord(vhost, name))


class World:
    """A shard's side, made of the real parts, and control's topology."""

    def __init__(self, first=()):
        self.time = 100.0
        self.changed: list[Delta] = []
        self.control = Topology()
        self.control.apply(AddVhost(Vhost("/")))
        self.client = TopologyClient(lambda: self.time, self.changed.append, first)
        self.conversation = Conversation(
            ProcessHello("shard", 0, 1),
            Handlers(
                lambda: (),
                ProcessNumbers,
                commands=self.client.commands,
                established=self.client.established,
            ),
        )
        self.sent = b""
        self.decoder = FrameDecoder()
        self.client.connect(self.conversation)

    def establish(self):
        """A new connection on which control answers hello."""
        self.sent = b""
        self.decoder = FrameDecoder()
        self.conversation.send = self._send
        self.conversation.connected()
        self.tell(ControlMessage(REPLY, 1, {}))

    def _send(self, data):
        self.sent += data

    def tell(self, *messages):
        for message in messages:
            self._send(self.conversation.receive(encode_frame(message.to_wire())))

    def received(self):
        data, self.sent = self.sent, b""
        return [ControlMessage.from_wire(value) for value in self.decoder.feed(data)]

    def requests(self):
        """Requests since the last call, as number and sets of changes."""
        found = [each for each in self.received() if each.kind == TOPOLOGY_CHANGE]
        return [(each.id, read_sets(each.body)) for each in found]

    def push(self, previous, rows, revision=None):
        """Tell rows; return the answer to the last part."""
        for part in parts(previous, revision or self.control.revision, rows):
            self.tell(ControlMessage(TOPOLOGY, 77, part.to_body()))
        return self.received()[-1]

    def push_all(self):
        return self.push(FROM_NOTHING, self.control.snapshot().rows)

    def same(self):
        return self.client.topology.snapshot() == self.control.snapshot()


@pytest.fixture
def world():
    made = World()
    made.establish()
    return made


def test_the_copy_is_what_control_told(world):
    assert not world.client.known
    answer = world.push_all()
    assert Confirmed.from_body(answer.body).revision == world.control.revision
    assert world.client.known
    assert world.same()
    (delta,) = world.changed
    assert delta.rows == world.control.snapshot().rows
    delta = world.control.apply(queue("q"))
    world.push(delta.previous, delta.rows)
    assert world.same()
    assert world.changed[1:] == [delta]


def test_parts_count_only_together(world, monkeypatch):
    monkeypatch.setattr("fluxmq.ipc.topology_messages.PART_ROWS_MAX", 2)
    first, *others = parts(FROM_NOTHING, 1, world.control.snapshot().rows)
    world.tell(ControlMessage(TOPOLOGY, 5, first.to_body()))
    assert not world.client.known
    assert world.client.arriving
    # Begun again: what came before does not count.
    world.tell(ControlMessage(TOPOLOGY, 6, first.to_body()))
    for part in others:
        world.tell(ControlMessage(TOPOLOGY, 7, part.to_body()))
    assert [answer.id for answer in world.received()] == [5, 6] + [7] * len(others)
    assert world.same()
    assert not world.client.arriving
    assert len(world.changed) == 1
    rows = world.changed[0].rows
    assert len({(row.kind, row.key) for row in rows}) == len(rows)


def test_a_snapshot_that_brings_nothing_new_tells_nobody(world):
    world.push_all()
    world.push_all()
    assert len(world.changed) == 1


def test_a_copy_that_is_held_is_confirmed_with_the_first_part(world, monkeypatch):
    world.push_all()
    monkeypatch.setattr("fluxmq.ipc.topology_messages.PART_ROWS_MAX", 2)
    first, *_others = parts(FROM_NOTHING, world.control.revision, world.control.snapshot().rows)
    world.tell(ControlMessage(TOPOLOGY, 5, first.to_body()))
    (answer,) = world.received()
    assert Confirmed.from_body(answer.body).revision == world.control.revision
    assert world.same()


def test_a_snapshot_brings_what_is_different(world):
    world.control.apply(queue("old"))
    world.push_all()
    world.control.apply_all([DeleteQueue("/", "old"), queue("new")])
    world.push_all()
    assert world.same()
    rows = world.changed[1].rows
    assert [(row.key, row.row is None) for row in rows] == [
        (("/", "old"), True),
        (("/", "new"), False),
    ]


def test_a_delta_that_does_not_fit_is_refused_and_changes_nothing(world):
    world.push_all()
    before = world.client.topology.snapshot()
    world.control.apply(queue("missed"))
    delta = world.control.apply(queue("q"))
    answer = world.push(delta.previous, delta.rows)
    assert answer.kind == ERROR
    assert Failure.from_body(answer.body).code == ERROR_FAILED
    assert world.client.topology.snapshot() == before
    assert len(world.changed) == 1


def test_a_delta_that_was_taken_already_is_confirmed_again(world):
    world.push_all()
    delta = world.control.apply(queue("q"))
    for _ in range(2):
        answer = world.push(delta.previous, delta.rows)
        assert Confirmed.from_body(answer.body).revision == delta.revision
    assert len(world.changed) == 2


def codes(answers):
    """The codes of answers, which have to be refusals."""
    assert all(isinstance(each, Refusal) for each in answers), answers
    return [each.code for each in answers]


def test_a_change_is_answered_when_the_copy_has_it(world):
    world.push_all()
    answers: list[Refusal | str | None] = []
    world.client.change([queue("q")], answers.append)
    ((number, sets),) = world.requests()
    assert sets == [(queue("q"),)]
    delta = world.control.apply(queue("q"))
    world.tell(ControlMessage(REPLY, number, TopologyChanged(delta.revision, (None,)).to_body()))
    assert answers == []
    world.push(delta.previous, delta.rows)
    assert answers == [None]
    assert world.client.topology.queue("/", "q") is not None


def test_changes_go_together_while_others_are_under_way(world, monkeypatch):
    monkeypatch.setattr(topology_client, "REQUESTS_MAX", 1)
    answers: list[tuple[str, Refusal | None]] = []
    for name in "abcd":
        world.client.change(
            [queue(name)], lambda refusal, name=name: answers.append((name, refusal))
        )
    ((number, sets),) = world.requests()
    assert sets == [(queue("a"),)]
    world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None,)).to_body()))
    ((number, sets),) = world.requests()
    assert sets == [(queue(name),) for name in "bcd"]
    refusal = Refusal(406, "no")
    world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None, refusal, None)).to_body()))
    assert answers == [("a", None), ("b", None), ("c", refusal), ("d", None)]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({"SETS_MAX": 2}, [2, 2, 1]),
        ({"REQUEST_BYTES_MAX": 780}, [3, 2]),
        ({"REQUEST_BYTES_MAX": 1}, [1] * 5),
        ({}, [5]),
    ],
)
def test_requests_are_bounded_by_sets_and_bytes(world, monkeypatch, limits, sizes):
    monkeypatch.setattr(topology_client, "REQUESTS_MAX", 1)
    for name, value in limits.items():
        monkeypatch.setattr(topology_client, name, value)
    world.conversation.disconnected()
    answers: list[Refusal | str | None] = []
    for name in "abcde":
        world.client.change([queue(name * 100)], answers.append)
    world.establish()
    found = []
    while len(answers) < 5:
        ((number, sets),) = world.requests()
        found.append(len(sets))
        results = (None,) * len(sets)
        world.tell(ControlMessage(REPLY, number, TopologyChanged(0, results).to_body()))
    assert found == sizes


def test_what_waits_is_bounded(world, monkeypatch):
    world.conversation.disconnected()
    monkeypatch.setattr(topology_client, "WAITING_MAX", 2)
    answers: list[Refusal | str | None] = []
    for name in "abc":
        world.client.change([queue(name)], answers.append)
    assert codes(answers) == [506]
    monkeypatch.setattr(topology_client, "WAITING_MAX", 100)
    monkeypatch.setattr(topology_client, "WAITING_BYTES_MAX", 1000)
    world.client.change([queue("x" * 200)] * 10, answers.append)
    assert codes(answers) == [506, 506]
    # What was sent waits no more.
    world.establish()
    world.client.change([queue("d")], answers.append)
    assert len(answers) == 2


def test_changes_that_are_none_are_refused_at_once(world):
    answers: list[Refusal | str | None] = []
    world.client.change([], answers.append)
    world.client.change(
        [DeclareQueue(QueueRecord("/", "q", arguments={"x": object()}))], answers.append
    )
    assert codes(answers) == [406, 406]
    assert world.requests() == []


def test_changes_are_sent_again_in_order_when_control_is_back(world, monkeypatch):
    monkeypatch.setattr(topology_client, "REQUESTS_MAX", 2)
    answers: list[str] = []
    for name in "abcd":
        world.client.change([queue(name)], lambda refusal, name=name: answers.append(name))
    first = world.requests()
    assert [sets for _, sets in first] == [[(queue("a"),)], [(queue("b"),)]]
    world.conversation.disconnected()
    world.client.change([queue("e")], lambda refusal: answers.append("e"))
    assert (world.requests(), answers) == ([], [])
    world.establish()
    ((number, sets),) = world.requests()
    assert sets == [(queue(name),) for name in "abcde"]
    world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None,) * 5).to_body()))
    assert answers == list("abcde")


def test_changes_are_refused_when_control_is_away_too_long(world):
    answers: list[Refusal | str | None] = []
    world.client.change([queue("sent")], answers.append)
    ((number, _),) = world.requests()
    world.conversation.disconnected()
    world.client.change([queue("waiting")], answers.append)
    world.time += AWAY_SECONDS / 2
    world.client.change([queue("later")], lambda _refusal: answers.append("later"))
    world.client.tick()
    assert answers == []
    world.time += AWAY_SECONDS / 2
    world.client.tick()
    assert codes(answers) == [541, 541]
    # Those are not made any more; the third is.
    world.establish()
    ((number, sets),) = world.requests()
    assert sets == [(queue("later"),)]
    world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None,)).to_body()))
    assert answers[2:] == ["later"]


def test_a_control_that_does_not_answer_is_not_waited_for(world):
    answers: list[Refusal | str | None] = []
    world.client.change([queue("a")], answers.append)
    ((number, _),) = world.requests()
    world.time += AWAY_SECONDS
    world.client.tick()
    assert codes(answers) == [541]
    world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None,)).to_body()))
    assert len(answers) == 1


def test_a_change_that_was_refused_is_not_made_later(world, monkeypatch):
    monkeypatch.setattr(topology_client, "REQUESTS_MAX", 1)
    answers: list[Refusal | str | None] = []
    world.client.change([queue("slow")], answers.append)
    world.client.change([queue("behind")], answers.append)
    ((number, _),) = world.requests()
    world.time += AWAY_SECONDS
    world.client.tick()
    assert codes(answers) == [541, 541]
    world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None,)).to_body()))
    assert world.requests() == []


def test_a_copy_that_does_not_get_there_is_not_waited_for(world):
    world.push_all()
    answers: list[Refusal | str | None] = []
    world.client.change([queue("a")], answers.append)
    ((number, _),) = world.requests()
    world.tell(ControlMessage(REPLY, number, TopologyChanged(99, (None,)).to_body()))
    assert answers == []
    world.time += AWAY_SECONDS
    world.client.tick()
    assert codes(answers) == [541]


@pytest.mark.parametrize(
    "answer",
    [
        lambda number: error(number, ERROR_FAILED, "the disk is full"),
        lambda number: ControlMessage(REPLY, number, {}),
        lambda number: ControlMessage(REPLY, number, TopologyChanged(0, ()).to_body()),
    ],
)
def test_a_request_that_failed_is_a_refusal_of_all_its_changes(world, answer):
    answers: list[Refusal | str | None] = []
    world.client.change([queue("a")], answers.append)
    ((number, _),) = world.requests()
    world.tell(answer(number))
    assert codes(answers) == [541]


def test_what_a_predecessor_lost_is_told_before_anything_else():
    world = World(first=[DropGroup("ephemeral-0")])
    world.client.change([queue("a")], lambda _refusal: None)
    assert world.requests() == []
    world.establish()
    ((number, sets),) = world.requests()
    assert sets == [(DropGroup("ephemeral-0"),), (queue("a"),)]
    world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None, None)).to_body()))
    world.conversation.disconnected()
    world.establish()
    assert world.requests() == []


def test_whoever_is_answered_may_ask_again(world, monkeypatch):
    monkeypatch.setattr(topology_client, "REQUESTS_MAX", 1)
    answers: list[Refusal | str | None] = []

    def again(refusal):
        answers.append(refusal)
        if len(answers) < 3:
            world.client.change([queue(str(len(answers)))], again)

    world.client.change([queue("0")], again)
    for _ in range(3):
        ((number, _),) = world.requests()
        world.tell(ControlMessage(REPLY, number, TopologyChanged(0, (None,)).to_body()))
    assert answers == [None] * 3
    assert world.requests() == []
