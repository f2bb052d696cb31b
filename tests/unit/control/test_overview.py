"""Whether a node is ready, judged from every possible state of its processes."""

from collections.abc import Mapping

import pytest

from fluxmq.control.overview import HEARTBEAT_SECONDS_MAX, live_shards, readiness, statuses
from fluxmq.ipc.messages import ProcessNumbers
from fluxmq.ipc.table import ProcessRow, ProcessState

NOW = 1_000_000_000_000


def row(role="shard", index=0, **changes):
    values = {
        "slot": 0,
        "pid": 100 + index,
        "core": index,
        "state": ProcessState.READY,
        "started_at": 50.0,
        "restarts": 0,
        "last_exit": None,
        "heartbeat": NOW - 100_000_000,
        "ready": True,
        "connections": (1, 0, 0, 0, 0, 0, 0, 0),
        "reason": "",
    }
    return ProcessRow(role=role, index=index, **{**values, **changes})


def node(**changes):
    return [row(index=0), row(index=1, **changes), row("acceptor"), row("control")]


def processes_of(body: Mapping[str, object]) -> list[dict[str, object]]:
    """The rows of processes in an answer."""
    processes = body["processes"]
    assert isinstance(processes, list)
    return processes


CONNECTED = {"shard-0": ProcessNumbers(), "shard-1": ProcessNumbers(groups=3)}


def test_a_node_is_ready_when_everything_is():
    verdict = readiness(node(), NOW, CONNECTED, None)
    assert verdict.ready
    body = verdict.to_json()
    assert body["status"] == "ready"
    assert body["alarms"] == []
    assert [each["process"] for each in processes_of(body)] == [
        "shard-0",
        "shard-1",
        "acceptor",
        "control",
    ]
    assert processes_of(body)[0] == {"process": "shard-0", "ready": True, "heartbeat_age": 0.1}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"pid": 0, "state": ProcessState.BACKING_OFF, "reason": "boom"},
            "not running (backing_off): boom",
        ),
        ({"heartbeat": 0}, "no heartbeat yet"),
        ({"heartbeat": NOW - int(HEARTBEAT_SECONDS_MAX * 1e9)}, "no heartbeat for 3.0 s"),
        ({"ready": False, "state": ProcessState.STARTING}, "not ready yet"),
        ({"ready": False, "state": ProcessState.STOPPING}, "stopping"),
    ],
)
def test_one_process_that_does_not_serve_makes_the_node_not_ready(changes, problem):
    verdict = readiness(node(**changes), NOW, CONNECTED, None)
    assert not verdict.ready
    assert [each.problem for each in verdict.processes] == [None, problem, None, None]
    body = verdict.to_json()
    assert body["status"] == "not_ready"
    assert processes_of(body)[1]["problem"] == problem


def test_a_shard_without_control_connection_is_not_ready_an_acceptor_is():
    verdict = readiness(node(), NOW, {"shard-0": ProcessNumbers()}, None)
    assert [each.problem for each in verdict.processes] == [
        None,
        "no control connection",
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        (None, "no answer in time"),
        (ProcessNumbers(groups=3, groups_failed=1), "1 of 3 groups have failed"),
        (ProcessNumbers(groups=3, groups_starting=2), "2 of 3 groups have no leader yet"),
        (ProcessNumbers(state_failed=1), "sessions and retained messages are no longer persisted"),
    ],
)
def test_a_shard_whose_groups_do_not_lead_is_not_ready(numbers, problem):
    verdict = readiness(node(), NOW, {**CONNECTED, "shard-1": numbers}, None)
    assert [each.problem for each in verdict.processes] == [None, problem, None, None]


def test_clocks_that_differ_are_an_alarm_and_no_reason_to_serve_nobody():
    """Review finding 3: whoever looks at the node's health learns of it."""
    numbers = {**CONNECTED, "shard-1": ProcessNumbers(groups=3, clocks_apart=2)}
    verdict = readiness(node(), NOW, numbers, None)
    assert verdict.ready
    alarms = [each.get("alarm") for each in processes_of(verdict.to_json())]
    told = "clocks of 2 other nodes differ from this node's: check NTP"
    assert alarms == [None, told, None, None]


def test_a_control_socket_that_does_not_answer_makes_the_node_not_ready():
    verdict = readiness(node(), NOW, CONNECTED, "connection refused")
    assert not verdict.ready
    assert verdict.to_json()["control_socket"] == "connection refused"


def test_a_node_without_shards_is_not_ready():
    assert not readiness([row("control")], NOW, {}, None).ready


def test_a_heartbeat_just_fresh_enough():
    fresh = NOW - int(HEARTBEAT_SECONDS_MAX * 1e9) + 1_000_000
    assert readiness(node(heartbeat=fresh), NOW, CONNECTED, None).ready


def test_statuses_carry_what_table_and_process_say():
    numbers = {"shard-1": ProcessNumbers(sessions=5)}
    first, second, *_ = statuses(node(restarts=3, last_exit=-9), NOW, 60.0, numbers)
    assert (first.uptime, first.numbers, first.state) == (10.0, None, "ready")
    assert second.numbers == ProcessNumbers(sessions=5)
    assert (second.restarts, second.last_exit, second.heartbeat_age) == (3, -9, 0.1)
    (gone,) = statuses([row(pid=0, heartbeat=0)], NOW, 60.0, {})
    assert (gone.uptime, gone.heartbeat_age) == (0.0, None)


def test_live_shards_are_those_that_serve():
    rows = [row(index=0), row(index=1, ready=False), row(index=2, pid=0), row("acceptor")]
    assert live_shards(rows) == ["shard-0"]


def test_a_node_that_is_short_of_something_serves_all_the_same():
    """Review finding 14: consumers have to reach it, or it stays short."""
    verdict = readiness(node(), NOW, CONNECTED, None, ("memory",))
    assert verdict.ready
    assert verdict.to_json()["alarms"] == ["memory"]
