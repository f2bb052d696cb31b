"""What `fluxmqctl status` shows."""

import orjson
import pytest
from msgspec.structs import replace

from fluxmq.cli.status_view import lines, state_of, to_json
from fluxmq.ipc.messages import NodeStatus, ProcessNumbers, ProcessStatus, Resources

NUMBERS = ProcessNumbers(1203, 1300, 2500, 7, 1_000_000, 3_000_000, 4)
SHARD = ProcessStatus(
    role="shard",
    index=0,
    pid=4242,
    core=3,
    state="ready",
    ready=True,
    uptime=3700.0,
    restarts=0,
    last_exit=None,
    reason="",
    heartbeat_age=0.1,
    connections=(1200, 3, 0, 0, 0, 0, 0, 0),
    numbers=NUMBERS,
)
CONTROL = replace(SHARD, role="control", pid=4300, core=-1, numbers=None, connections=(0,) * 8)


def test_one_line_per_process_and_totals():
    status = NodeStatus("0.1.0", 4, (SHARD, CONTROL))
    title, _, head, shard, control, rule, total = lines(status, colour=False)
    assert title == "FluxMQ 0.1.0, users at revision 4"
    assert head.split() == [
        "PROCESS",
        "STATE",
        "PID",
        "CORE",
        "UPTIME",
        "RESTARTS",
        "CONNECTIONS",
        "SESSIONS",
        "SUBSCRIPTIONS",
        "MESSAGES",
        "IN",
        "MESSAGES",
        "OUT",
    ]
    assert shard.split() == (
        [
            "shard-0",
            "ready",
            "4242",
            "3",
            "1h",
            "1m",
            "0",
            "1,203",
            "1,300",
            "2,500",
            "1,000,000",
            "3,000,000",
        ]
    )
    assert control.split() == [
        "control",
        "ready",
        "4300",
        "-",
        "1h",
        "1m",
        "0",
        "-",
        "-",
        "-",
        "-",
        "-",
    ]
    assert set(rule) == {"─"}
    assert total.split() == ["total", "0", "1,203", "1,300", "2,500", "1,000,000", "3,000,000"]


def test_what_is_wrong_is_said_below():
    silent = replace(SHARD, numbers=None, restarts=2, last_exit=-9)
    gone = replace(SHARD, index=1, pid=0, state="backing_off", reason="address in use")
    text = "\n".join(lines(NodeStatus("0", 0, (silent, gone)), colour=False))
    assert "shard-0: restarted 2 times, last ended by signal 9" in text
    assert "shard-0: did not answer in time" in text
    assert "shard-1: address in use" in text
    assert "backing off" in text
    assert "?" in text


def test_clocks_that_differ_are_told_of():
    """Review finding 3: an alarm says that members' clocks differ."""
    apart = replace(SHARD, numbers=replace(NUMBERS, clocks_apart=1))
    text = "\n".join(lines(NodeStatus("0", 0, (apart,)), colour=False))
    assert "shard-0: clocks of 1 other nodes differ from this node's: check NTP" in text


def test_rates_are_shown_against_an_earlier_answer():
    later = replace(
        SHARD, numbers=replace(NUMBERS, messages_received=1_000_500, messages_sent=3_001_000)
    )
    before, after = NodeStatus("0", 0, (SHARD, CONTROL)), NodeStatus("0", 0, (later, CONTROL))
    shown = lines(after, colour=False, before=before, elapsed=0.5)
    assert shown[2].split()[-2:] == ["IN/S", "OUT/S"]
    assert shown[3].split()[-2:] == ["1,000", "2,000"]
    assert shown[4].split()[-2:] == ["-", "-"]
    assert shown[6].split()[-2:] == ["1,000", "2,000"]


def test_a_restarted_shard_has_no_rate():
    status = NodeStatus("0", 0, (SHARD,))
    restarted = NodeStatus("0", 0, (replace(SHARD, pid=5000),))
    assert lines(restarted, colour=False, before=status, elapsed=1.0)[3].split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, ("ready", "green")),
        ({"pid": 0, "state": "stopped"}, ("stopped", "red")),
        ({"heartbeat_age": 3.5}, ("hangs", "red")),
        ({"heartbeat_age": None, "ready": False, "state": "starting"}, ("starting", "yellow")),
        ({"ready": False}, ("ready", "yellow")),
    ],
)
def test_states_and_their_colours(changes, state):
    assert state_of(replace(SHARD, **changes)) == state


def test_json_has_everything_and_totals():
    body = orjson.loads(orjson.dumps(to_json(NodeStatus("0.1.0", 4, (SHARD, CONTROL)))))
    assert body["totals"] == {
        "connections": 1203,
        "sessions": 1300,
        "subscriptions": 2500,
        "messages_received": 1_000_000,
        "messages_sent": 3_000_000,
    }
    assert body["processes"][0]["numbers"]["retained"] == 7
    assert body["processes"][1]["numbers"] is None


def test_what_the_node_is_short_of():
    """Review finding 14."""
    short = Resources(("memory", "disk"), 212 << 20, 200 << 20, 1 << 30)
    status = NodeStatus("0", 0, (SHARD,), short)
    shown = lines(status, colour=False)
    assert shown[-2:] == [
        "alarm: memory is low: 212 MiB in use, high watermark 200 MiB; publishers are paused",
        "alarm: disk space is low: publishes to durable queues are refused, AMQP publishers are paused",
    ]
    body = to_json(status)
    assert (body["alarms"], body["memory_held"]) == (("memory", "disk"), 212 << 20)
