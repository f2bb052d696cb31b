"""Queues that deliver before the sync: consumers come first, and whatever outlives the process waits for the log."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from fluxmq.model.outcomes import Outcome
from fluxmq.queues.commands import Verb
from fluxmq.storage.files import Files
from fluxmq.storage.head import read_head
from tests.conformance import wire
from tests.unit.engine.asking import Asker, ask, publish
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode, consume, drain

EARLY = {"name": "work", "deliver_before_sync": True}
ORDINARY = {"name": "other"}


def one_group() -> dict[str, Any]:
    """Settings by which all queues are in one group, and share entries."""
    return {"queue_manager": {"local_groups": 1}}


def step(node: QueueNode) -> None:
    """End the sync in flight; the next one begins, and is held."""
    node.syncers[0].sync()
    node.run()


def committed(node: QueueNode, queue: str = "work") -> int:
    """The offset up to which readers of the files may read."""
    head = read_head(Files(), node.group(queue).logs[node.machine(queue).id].directory)
    return 0 if head is None else head.committed


def segments(node: QueueNode, queue: str = "work") -> list[str]:
    """Names of the files of segments."""
    directory = node.group(queue).logs[node.machine(queue).id].directory
    return sorted(path.name for path in Path(directory).glob("*.seg"))


def test_a_message_is_delivered_before_its_sync_and_confirmed_after_it(
    make_queues: MakeQueues,
) -> None:
    node = make_queues(EARLY, ORDINARY)
    taker, other = Asker(node, 0), Asker(node, 0, "other")
    node.advance(1)
    node.hold_syncs()
    answers = publish(node, 0, b"1")
    node.run()
    later = publish(node, 0, b"2") + publish(node, 0, b"3", queue="other")
    node.run()
    assert taker.payloads == [b"1", b"2"]
    node.advance(1)
    assert (other.payloads, answers, later) == ([], [], [])
    step(node)
    assert (taker.payloads, answers) == ([b"1", b"2"], [0])
    node.hold_syncs(False)
    assert other.payloads == [b"3"]


def test_nothing_is_delivered_before_its_sync_unless_asked_for(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    taker = Asker(node, 0)
    node.hold_syncs()
    publish(node, 0, b"1")
    node.advance(1)
    assert taker.payloads == []
    node.hold_syncs(False)
    assert taker.payloads == [b"1"]


def test_each_write_is_confirmed_by_its_own_sync(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    taker = Asker(node, 0)
    node.hold_syncs()
    answers = []
    for payload in (b"1", b"2", b"3"):
        answers.append(publish(node, 0, payload))
        node.run()
    assert taker.payloads == [b"1", b"2", b"3"]
    step(node)
    assert answers == [[0], [], []]
    step(node)
    assert answers == [[0], [0], [0]]


def test_a_client_of_each_protocol_side_sees_it(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY, workers=2)
    clients = []
    for shard in (0, 1):
        clients.append(node.connect(shard, node.id_of(shard, f"taker{shard}")))
        clients[-1].subscribe(f"$share/g{shard}/$queue/work", qos=1)
    publisher = node.connect(1, node.id_of(1, "publisher"))
    node.advance(1)
    node.hold_syncs()
    publisher.send(wire.publish(wire.V5, "$queue/work", b"1", qos=1, packet_id=9))
    for client in clients:
        assert [packet.payload for packet in consume(client)] == [b"1"]
    assert drain(publisher) == []
    node.hold_syncs(False)
    assert [packet.packet_id for packet in drain(publisher)] == [9]


def test_an_entry_with_another_queues_commands_waits_and_so_do_later_ones(
    make_queues: MakeQueues,
) -> None:
    node = make_queues(EARLY, ORDINARY, **one_group())
    taker, other = Asker(node, 0), Asker(node, 0, "other")
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"1")
    publish(node, 0, b"2", queue="other")
    node.run()
    publish(node, 0, b"3")
    node.run()
    assert (taker.payloads, other.payloads) == ([b"1"], [])
    step(node)
    assert (taker.payloads, other.payloads) == ([b"1", b"3"], [b"2"])


def test_a_lost_message_was_never_confirmed_and_its_retry_is_kept(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    node.keeps_synced = True
    publish(node, 0, b"0")
    node.run()
    taker = Asker(node, 0)
    node.advance(1)
    node.hold_syncs()
    answers = publish(node, 0, b"1")
    node.run()
    assert (taker.payloads, answers) == ([b"0", b"1"], [])
    node.cut_power()
    assert publish(node, 0, b"2") == []
    node.run()
    again = Asker(node, 0)
    assert again.payloads == [b"0", b"2"]
    assert again.offsets == [0, 1], "the offset of the lost message is free again"


def test_what_was_acknowledged_before_the_sync_returns_if_the_power_fails(
    make_queues: MakeQueues,
) -> None:
    node = make_queues(EARLY)
    node.keeps_synced = True
    taker = Asker(node, 0)
    publish(node, 0, b"1")
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"2")
    node.run()
    taker.settle(Verb.ACK, 0, 1)
    node.advance(0.5)
    publish(node, 0, b"3")
    node.run()
    assert node.machine("work").start == 2
    node.cut_power()
    assert Asker(node, 0).payloads == [b"1"]


def test_readers_of_the_files_are_not_shown_what_is_not_synced(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    node.keeps_synced = True
    publish(node, 0, b"1")
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"2", b"3")
    node.advance(1)
    assert (node.machine("work").next_offset, committed(node)) == (3, 1)
    node.cut_power()
    assert not node.group("work").failed
    assert committed(node) == 1
    publish(node, 0, b"4")
    node.advance(1)
    assert Asker(node, 0).payloads == [b"1", b"4"]
    assert committed(node) == 2


def test_the_files_catch_up_while_there_is_always_a_sync_in_flight(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    taker = Asker(node, 0, limit=0)
    node.advance(1)
    node.hold_syncs()
    shown = []
    for number in range(20):
        publish(node, 0, b"%d" % number)
        node.run()
        node.clock.now += 0.3
        for shard in node:
            shard.timer()
        step(node)
        shown.append(committed(node))
    assert len(taker.payloads) >= 18
    assert shown[-1] >= 16
    assert len(set(shown)) >= 4, "not only at the end"


def test_segments_stay_until_it_is_synced_that_nobody_needs_them(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY, storage={"segment_bytes": 65536})
    node.keeps_synced = True
    for number in range(20):
        publish(node, 0, b"%d" % number + bytes(10_000))
        node.run()
    node.advance(1)
    node.checkpoint()
    names = segments(node)
    assert len(names) > 2
    taker = Asker(node, 0, limit=100)
    node.advance(1)
    node.hold_syncs()
    taker.settle(Verb.ACK, 0, 19)
    node.advance(1)
    assert node.machine("work").start == 20
    assert segments(node) == names
    node.cut_power()
    assert not node.group("work").failed
    again = Asker(node, 0, limit=100)
    assert again.offsets == list(range(20))
    again.settle(Verb.ACK, 0, 19)
    node.advance(1)
    assert segments(node) == []


@pytest.mark.parametrize("settled", [False, True])
def test_a_checkpoint_keeps_what_it_has_whether_the_log_has_it_or_not(
    make_queues: MakeQueues, settled: bool
) -> None:
    node = make_queues(EARLY)
    node.keeps_synced = True
    taker = Asker(node, 0)
    publish(node, 0, b"1")
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"2")
    node.run()
    if settled:
        taker.settle(Verb.ACK, 0)
        node.advance(0.5)
    answers = publish(node, 0, b"3")
    node.run()
    node.checkpoint()
    assert answers == []
    node.cut_power()
    assert not node.group("work").failed
    publish(node, 0, b"4")
    node.advance(1)
    expected = [b"1", b"2", b"3", b"4"][settled:]
    assert Asker(node, 0).payloads == expected
    node.restart(kill=False)
    assert Asker(node, 0).payloads == expected


def test_dead_letters_wait_for_the_sync(make_queues: MakeQueues) -> None:
    """In another shard's log a dead letter would outlive its original."""
    letters = "letters-3"
    node = make_queues(
        {**EARLY, "dlq": {"enabled": True, "topic": f"$queue/{letters}"}},
        {"name": letters},
        workers=2,
    )
    shards = [
        node[0].queues.places.shard_of(node[0].queues.names.info(queue).group)
        for queue in ("work", letters)
    ]
    assert shards == [0, 1]
    node.keeps_synced = True
    publish(node, 0, b"0")
    node.advance(1)
    taker = Asker(node, 0)
    node.advance(1)
    node.syncers[node.directories.index(node[0].queues.service.logs.directory("wal"))].held = True
    node.held = True
    publish(node, 0, b"1")
    node.run()
    assert taker.payloads == [b"0", b"1"]
    taker.settle(Verb.REJECT, 1)
    node.advance(0.5)
    publish(node, 0, b"lost with it")
    node.advance(0.5)
    node.cut_power()
    node.advance(1)
    publish(node, 0, b"2")
    node.advance(1)
    taker = Asker(node, 0)
    assert (taker.payloads, taker.offsets) == ([b"0", b"2"], [0, 1])
    taker.settle(Verb.REJECT, 1)
    node.advance(1)
    assert Asker(node, 1, letters).payloads == [b"2"]


@pytest.mark.parametrize("limits", [{"max_length": 1}, {"max_length_bytes": 5}])
def test_a_queue_that_dead_letters_beyond_its_length_waits(
    make_queues: MakeQueues, limits: dict[str, int]
) -> None:
    early = {**EARLY, "limits": limits}
    node = make_queues({**early, "dlq": {"enabled": True}}, {**early, "name": "plain"})
    taker, plain = Asker(node, 0, limit=1), Asker(node, 0, "plain", limit=1)
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"1")
    publish(node, 0, b"2", queue="plain")
    node.run()
    assert (taker.payloads, plain.payloads) == ([], [b"2"])


def test_messages_that_expire_wait_for_the_sync(make_queues: MakeQueues) -> None:
    node = make_queues({**EARLY, "dlq": {"enabled": True}})
    letters = Asker(node, 0, "$dlq/work")
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"1", expires=1000)
    node.advance(1)
    assert letters.payloads == []
    assert node.machine("work").next_offset == 1
    assert node.machine("work").nobodys.cursor == 0
    node.hold_syncs(False)
    node.advance(1)
    assert letters.payloads == [b"1"]


def test_a_consumer_on_another_node_gets_synced_messages_only(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    near = Asker(node, 0, limit=100)
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"1")
    node.run()
    assert near.payloads == [b"1"]
    far = Asker(node, 0, group="far", abroad=True)
    publish(node, 0, b"2")
    node.run()
    assert (near.payloads, far.payloads) == ([b"1"], [])
    node.hold_syncs(False)
    assert (near.payloads, far.payloads) == ([b"1", b"2"], [b"1", b"2"])
    node.hold_syncs()
    publish(node, 0, b"3")
    node.run()
    assert (len(near.payloads), len(far.payloads)) == (2, 2)
    node.hold_syncs(False)
    assert far.held is not None
    far.held.detach()
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"4")
    node.run()
    assert near.payloads == [b"1", b"2", b"3", b"4"]


def test_a_late_acknowledgement_is_not_that_of_the_message_that_has_the_offset_now(
    make_queues: MakeQueues,
) -> None:
    node = make_queues(EARLY, workers=2)
    node.keeps_synced = True
    before = Asker(node, 1)
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"1")
    node.run()
    assert (before.payloads, before.offsets) == ([b"1"], [0])
    node.cut_power()
    node.advance(1)
    assert before.cancellations == 1
    publish(node, 0, b"2")
    after = Asker(node, 1)
    assert (after.payloads, after.offsets) == ([b"2"], [0])
    before.settle(Verb.ACK, 0)
    node.advance(1)
    assert node.machine("work").start == 0
    assert after.held is not None
    after.held.detach()
    assert Asker(node, 1).payloads == [b"2"]


def test_a_failed_log_refuses_all_that_waited_for_it(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    taker = Asker(node, 0)
    node.hold_syncs()
    answers = publish(node, 0, b"1")
    node.run()
    answers_later = publish(node, 0, b"2")
    node.run()
    assert taker.payloads == [b"1", b"2"]
    node.syncers[0].sync(errno.EIO)
    node.run()
    assert (answers, answers_later) == ([Outcome.FAILED], [Outcome.FAILED])
    assert taker.cancellations == 1


def test_a_group_with_other_members_never_runs_ahead(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    group = node.group("work")
    assert group.answers.ahead.wanted
    group.join(group.driver, True)
    assert not group.answers.ahead.wanted


def test_publishers_pause_while_much_waits_for_the_disk(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY, queue_manager={"uncommitted_bytes": 1 << 16})
    taker = Asker(node, 0, limit=0)
    group = node.group("work")
    node.hold_syncs()
    publish(node, 0, bytes(40_000))
    node.run()
    assert not group.above_high_watermark
    publish(node, 0, bytes(40_000))
    node.run()
    assert len(taker.payloads) == 2
    assert group.above_high_watermark
    node.hold_syncs(False)
    assert group.below_low_watermark
    assert group.uncommitted == 0


def test_a_group_is_busy_while_answers_wait(make_queues: MakeQueues) -> None:
    """A shard that stops waits for that, and a group that moves."""
    node = make_queues(EARLY)
    group = node.group("work")
    node.hold_syncs()
    publish(node, 0, b"1")
    node.run()
    assert node.machine("work").next_offset == 1
    assert not group.idle
    node.hold_syncs(False)
    assert group.idle


def test_a_get_sees_what_is_synced_and_answers_then(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    taker = Asker(node, 0, taking=True, automatic=True)
    node.hold_syncs()
    publish(node, 0, b"1")
    node.run()
    assert taker.held is not None
    answers: list[tuple[bool, int]] = []
    taker.held.take(lambda found, ready: answers.append((found, ready)))
    node.run()
    node.hold_syncs(False)
    assert (answers, taker.payloads) == ([(True, 0)], [b"1"])


def test_a_redelivery_says_so(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    first = Asker(node, 0)
    node.hold_syncs()
    publish(node, 0, b"1")
    node.run()
    assert (first.payloads, first.attempts) == ([b"1"], [1])
    assert first.held is not None
    first.held.detach()
    second = Asker(node, 0)
    node.hold_syncs(False)
    node.advance(1)
    assert (second.payloads, second.attempts) == ([b"1"], [2])


def test_a_queue_declared_again_and_purged_keeps_its_order(make_queues: MakeQueues) -> None:
    node = make_queues(EARLY)
    taker = Asker(node, 0, limit=1)
    node.advance(1)
    node.hold_syncs()
    publish(node, 0, b"1", b"2")
    node.run()
    purged: list[Any] = []
    node.group("work").purge("work", purged.append)
    node.run()
    after = publish(node, 0, b"3")
    node.run()
    assert (purged, after) == ([], [])
    node.hold_syncs(False)
    node.advance(1)
    assert purged[0].ready == 1
    taker.settle(Verb.ACK, 0)
    node.advance(1)
    assert taker.payloads == [b"1", b"3"]
    assert ask(node, 0, "status").ready == 0
