"""Messages about the topology: there and back, parts of what is large, sets that are not understood."""

import pytest

from fluxmq.ipc import topology_messages
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.topology_messages import (
    FROM_NOTHING,
    SET_BYTES_MAX,
    SETS_MAX,
    TopologyChanged,
    TopologyPart,
    change_body,
    connection_id,
    pack_set,
    parts,
    read_sets,
    shard_of_connection,
)
from fluxmq.routing.topology.changes import AddVhost, Bind, DeclareQueue, DropOwner
from fluxmq.routing.topology.records import Binding, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology, TopologyRow
from tests.unit.ipc.travelling import travelled


def rows(count):
    return tuple(
        TopologyRow("queue", ("/", str(number)), {"name": str(number)}) for number in range(count)
    )


@pytest.mark.parametrize(
    "value",
    [
        TopologyPart(FROM_NOTHING, 3, Topology().apply(AddVhost(Vhost("/"))).rows),
        TopologyPart(3, 5, (TopologyRow("binding", ("/", "a", b"\xff"), None),), 7, more=True),
        TopologyChanged(3, (None, Refusal(406, "no")), ("shard-1",)),
        TopologyChanged(0, ()),
    ],
)
def test_there_and_back(value):
    assert type(value).from_body(travelled(value.to_body())) == value


@pytest.mark.parametrize(
    "changes",
    [
        {"previous": -2},
        {"revision": -1},
        {"rows": [["queue", ["/", "q"]]]},
        {"rows": [["dance", ["/", "q"], None]]},
        {"rows": [["queue", "q", None]]},
        {"rows": [["queue", [], None]]},
        {"rows": [["queue", ["/", 1], None]]},
        {"rows": [["queue", ["q"], None]] * 8193},
        {"more": 1},
        {"number": -1},
    ],
)
def test_parts_that_are_none_are_refused(changes):
    with pytest.raises(MessageError):
        TopologyPart.from_body({**TopologyPart(0, 1, ()).to_body(), **changes})


@pytest.mark.parametrize(
    "result", [[406], [406, 1], ["406", "x"], 406, {"code": 406}, [406, "x", 1]]
)
def test_results_that_are_none_are_refused(result):
    body = {**TopologyChanged(1, ()).to_body(), "results": [None, result]}
    with pytest.raises(MessageError, match="results"):
        TopologyChanged.from_body(body)


@pytest.mark.parametrize(
    ("rows_max", "bytes_max", "sizes"),
    [(3, 1 << 20, [3, 3, 1]), (100, 50, [2, 2, 2, 1]), (100, 1, [1] * 7), (100, 1 << 20, [7])],
)
def test_what_is_large_comes_in_parts(monkeypatch, rows_max, bytes_max, sizes):
    monkeypatch.setattr(topology_messages, "PART_ROWS_MAX", rows_max)
    monkeypatch.setattr(topology_messages, "PART_BYTES_MAX", bytes_max)
    made = list(parts(4, 9, rows(7)))
    assert [len(part.rows) for part in made] == sizes
    assert [part.number for part in made] == list(range(len(sizes)))
    assert [part.more for part in made] == [True] * (len(sizes) - 1) + [False]
    assert {(part.previous, part.revision) for part in made} == {(4, 9)}
    assert tuple(row for part in made for row in part.rows) == rows(7)


def test_nothing_is_one_part():
    assert list(parts(FROM_NOTHING, 0, ())) == [TopologyPart(FROM_NOTHING, 0, ())]


def test_sets_of_changes_there_and_back():
    first = (
        AddVhost(Vhost("b")),
        DeclareQueue(QueueRecord("b", "q", arguments={"x-max-length": 3})),
    )
    second = (Bind(Binding("/", "amq.topic", "q", routing_key="a.*"), asker="0.1.2"),)
    body = change_body([pack_set(first), pack_set(second)])
    assert read_sets(travelled(body)) == [first, second]


def test_a_set_that_is_not_understood_is_refused_alone():
    good = pack_set((DropOwner("0.1.2"),))
    sets = read_sets({"sets": [[["dance", {}]], good, [], [1], "x"]})
    assert [isinstance(each, Refusal) for each in sets] == [True, False, True, True, True]
    assert {each.code for each in sets if isinstance(each, Refusal)} == {406}
    assert sets[1] == (DropOwner("0.1.2"),)
    with pytest.raises(MessageError):
        read_sets({"sets": [good] * (SETS_MAX + 1)})
    with pytest.raises(MessageError):
        read_sets({})


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (DropOwner("x"),) * (SETS_MAX + 1),
        (DeclareQueue(QueueRecord("/", "q", arguments={"x": object()})),),
        (DeclareQueue(QueueRecord("/", "q", arguments={"x": "y" * SET_BYTES_MAX})),),
    ],
)
def test_sets_that_cannot_be_asked_for(changes):
    with pytest.raises(ValueError, match=r"."):
        pack_set(changes)


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (connection_id(3, 4711, 9), (3, 4711)),
        ("3.4711", None),
        ("", None),
        ("a.b.c", None),
        ("1.2.3.4", None),
        ("-1.2.3", None),
    ],
)
def test_a_connections_id_says_which_process_had_it(connection, expected):
    assert shard_of_connection(connection) == expected
