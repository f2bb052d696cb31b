"""The files that tell readers outside where consumer groups are: current, not too often, and no danger to a queue."""

from __future__ import annotations

import errno
import itertools
import logging
from pathlib import Path

import pytest

from fluxmq.engine import group_files
from fluxmq.engine.group_files import (
    FILES_MAX,
    INTERVAL_SECONDS,
    RETRY_SECONDS,
    SHARE,
    TURN_SECONDS,
)
from fluxmq.model.group_states import GROUPS_NAME, ConsumerGroupState, QueueGroups, decode
from fluxmq.queues.states import QueueState
from tests.conformance import wire
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode, consume, drain, fill, offsets, user

SOON = INTERVAL_SECONDS + 0.2
"""Seconds after which a change is in the file, whenever the file was written last."""


def path_of(node: QueueNode, queue: str) -> Path:
    """Where a queue's file is."""
    service = node[0].queues.service
    group = service.names.info(queue).group
    return Path(service._paths.queue(group, queue)) / GROUPS_NAME


def read(node: QueueNode, queue: str = "work") -> QueueGroups:
    """What a queue's file says."""
    return decode(path_of(node, queue).read_bytes())


def only(node: QueueNode, queue: str = "work") -> ConsumerGroupState:
    """The one group that a queue's file has."""
    (group,) = read(node, queue).groups
    return group


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues of which a state was taken to be written, in order."""
    taken: list[str] = []

    def state_of(queue: QueueState, time: int) -> QueueGroups:
        taken.append(queue.name)
        return usual(queue, time)

    usual = group_files.state_of
    monkeypatch.setattr(group_files, "state_of", state_of)
    return taken


def test_a_file_says_what_is_pending_and_what_is_settled(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    node.advance(SOON)
    assert read(node)[1:] == (0, 0, ())
    fill(node.connect(0, "publisher"), "work", 10)
    client = node.connect(0, "client", props=[(wire.RECEIVE_MAXIMUM, 4)])
    client.subscribe("$queue/work", qos=1)
    given = drain(client)
    assert offsets(given) == [0, 1, 2, 3]
    before = round(node.clock.now * 1_000_000)
    node.advance(SOON)
    group = only(node)
    assert (group.mode, group.members, group.cursor, group.pending) == ("work", 1, 4, ((0, 3, 1),))
    assert (group.floor, group.pending_messages, group.whole) == (0, 4, True)
    assert (read(node).next_offset, group.dead) == (10, ())
    assert before - 1 <= read(node).time <= node.clock.now * 1_000_000
    client.send(wire.acknowledge(wire.PUBACK, given[1].packet_id, 0))
    assert offsets(drain(client)) == [4]
    node.advance(SOON)
    assert only(node).pending == ((0, 0, 1), (2, 4, 1))
    # Once nothing is left to give an acknowledgement wakes nobody, and is in the file all the same.
    consume(client)
    node.advance(SOON)
    client.send(wire.acknowledge(wire.PUBACK, given[2].packet_id, 0))
    node.advance(SOON)
    assert 2 not in [first for first, _, _ in only(node).pending]


def test_a_stream_says_where_its_group_is(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "log", "type": "stream"})
    fill(node.connect(0, "publisher"), "log", 5)
    client = node.connect(0, "client")
    client.subscribe("$queue/log", qos=1, props=user(("ack-mode", "explicit")))
    assert len(consume(client)) == 5
    node.advance(SOON)
    assert (only(node, "log").mode, only(node, "log").cursor) == ("stream", 0)
    props = user(("message-id", "log:3"), ("group-id", "client"))
    assert client.publish("$queue/log/$commit", qos=1, props=props) == 0
    node.advance(SOON)
    assert only(node, "log").cursor == 4


def test_a_file_is_written_once_a_second_however_much_changes(
    make_queues: MakeQueues, counted: list[str]
) -> None:
    node = make_queues({"name": "work"}, {"name": "rest"})
    node.advance(SOON)
    counted.clear()
    publisher = node.connect(0, "publisher")
    for _ in range(30):
        fill(publisher, "work", 1)
        node.advance(0.1)
    # A write on the thread that takes longer than a second of the test postpones the next one.
    assert 1 <= counted.count("work") <= 4
    assert counted.count("rest") == 0
    node.advance(SOON)
    counted.clear()
    node.advance(5)
    assert counted == []
    assert read(node).next_offset == 30
    assert node[0].queues.service.group_files._changed == {}


def test_many_queues_have_their_turns(make_queues: MakeQueues, counted: list[str]) -> None:
    names = [f"q{number}" for number in range(2 * FILES_MAX + 1)]
    node = make_queues(*({"name": name} for name in names))
    node.advance(SOON)
    publisher = node.connect(0, "publisher")
    for name in names:
        fill(publisher, name, 1)
    node.advance(SOON)
    counted.clear()
    for name in names:
        fill(publisher, name, 1)
    service = node[0].queues.service
    service.group_files._stopwatch = lambda: 0.0
    now = service._reactor.tally.now + SOON
    for step in range(3):
        service.group_files.housekeeping(service.groups, now + step)
        assert len(counted) == min((step + 1) * FILES_MAX, len(names))
    assert sorted(counted) == sorted(names)
    assert {read(node, name).next_offset for name in names} == {2}


def test_a_slow_disk_has_few_files_at_a_time(make_queues: MakeQueues, counted: list[str]) -> None:
    names = [f"q{number}" for number in range(5)]
    node = make_queues(*({"name": name} for name in names))
    node.advance(SOON)
    service = node[0].queues.service
    publisher = node.connect(0, "publisher")
    for name in names:
        fill(publisher, name, 1)
    ticks = itertools.count(step=TURN_SECONDS / 2)
    service.group_files._stopwatch = lambda: next(ticks)
    counted.clear()
    now = service._reactor.tally.now + SOON
    for turn in range(1, 6):
        service.group_files.housekeeping(service.groups, now)
        assert len(counted) == turn
    assert sorted(counted) == names


def test_a_file_that_takes_long_is_written_less_often(
    make_queues: MakeQueues, counted: list[str]
) -> None:
    node = make_queues({"name": "work"})
    node.advance(SOON)
    ticks = itertools.count(step=0.2)
    node[0].queues.service.group_files._stopwatch = lambda: next(ticks)
    publisher = node.connect(0, "publisher")
    fill(publisher, "work", 1)
    node.advance(SOON)
    counted.clear()
    fill(publisher, "work", 1)
    node.advance(SHARE * 0.2 - 1.5)
    assert counted == []
    node.advance(2)
    assert counted == ["work"]


def test_a_restart_writes_what_is_so_then(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 7)
    node.advance(SOON)
    path = path_of(node, "work")
    path.write_bytes(b"what a crash left")
    (path.parent / "groups.tmp").write_bytes(b"and longer than what comes, " * 100)
    node.restart()
    node.advance(SOON)
    assert read(node).next_offset == 7
    assert not (path.parent / "groups.tmp").exists()


def test_an_end_in_order_writes_the_last_state(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    node.advance(SOON)
    fill(node.connect(0, "publisher"), "work", 7)
    assert read(node).next_offset == 0
    service = node[0].queues.service
    node.loop.run_until_complete(service.stop())
    assert read(node).next_offset == 7


def test_a_disk_that_fails_ends_no_group(
    make_queues: MakeQueues, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    node = make_queues({"name": "work"})
    node.advance(SOON)
    publisher = node.connect(0, "publisher")
    service = node[0].queues.service
    old = path_of(node, "work").read_bytes()
    node.failing[0].fail_always("rename", errno.ENOSPC)
    fill(publisher, "work", 1)
    counted.clear()
    with caplog.at_level(logging.WARNING):
        node.advance(3)
    assert (counted, service.group_files.failures) == (["work"], 1)
    assert "cannot write the file" in caplog.text
    assert path_of(node, "work").read_bytes() == old
    assert [each.name for each in path_of(node, "work").parent.glob("groups*")] == [GROUPS_NAME]
    node.failing[0].work_again()
    node.advance(RETRY_SECONDS)
    assert (node.group("work").failed, read(node).next_offset) == ("", 1)


def test_a_queue_that_goes_takes_its_file_with_it(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    node.advance(SOON)
    directory = path_of(node, "work").parent
    fill(node.connect(0, "publisher"), "work", 1)
    answers: list[object] = []
    node.group("work").delete("work", False, False, answers.append)
    node.run()
    node.advance(SOON)
    assert len(answers) == 1
    assert not directory.exists()
    assert node[0].queues.service.group_files.failures == 0
    assert node[0].queues.service.group_files._changed == {}


def test_too_many_ranges_are_counted_and_left_out(
    make_queues: MakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_files, "RANGES_MAX", 2)
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 6)
    client = node.connect(0, "client")
    client.subscribe("$queue/work", qos=1)
    given = drain(client)
    for packet in given[1:4:2]:
        client.send(wire.acknowledge(wire.PUBACK, packet.packet_id, 0))
    node.advance(SOON)
    group = only(node)
    assert (group.whole, group.pending, group.pending_messages, group.floor) == (False, (), 4, 0)
    client.send(wire.acknowledge(wire.PUBACK, given[0].packet_id, 0))
    node.advance(SOON)
    assert only(node).pending == ((2, 2, 1), (4, 5, 1))
