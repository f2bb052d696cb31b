"""What AMQP asks of queues, on the host's shard and from another: one message, counts, purge, delete, limits, refusals."""

from __future__ import annotations

import pytest

from fluxmq.engine import group_server
from fluxmq.engine.ports import BROWSE, QueueStats
from fluxmq.model.outcomes import QueueOutcome
from fluxmq.queues.commands import Verb
from fluxmq.queues.limits import UNSETTLED_MAX
from tests.unit.engine.asking import Asker, ask, host_of, publish
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode

BOTH = pytest.mark.parametrize("elsewhere", [False, True])


def place(node: QueueNode, elsewhere: bool, queue: str = "work") -> int:
    """The shard to ask from."""
    host = next(shard.index for shard in node if node.group(queue, shard.index) is not None)
    return 1 - host if elsewhere else host


@BOTH
def test_one_message_is_taken_after_what_was_published_before(
    make_queues: MakeQueues, elsewhere: bool
) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    asker = Asker(node, shard, taking=True)
    assert asker.take() is None
    publish(node, shard, b"a", b"b", b"c")
    assert asker.take() == (b"a", 1, 2)
    node.run()
    assert asker.payloads == [b"a"]
    asker.settle(Verb.RELEASE, 0)
    assert asker.take() == (b"a", 2, 2), "given back, it has its place again"
    assert asker.take() == (b"b", 1, 1)
    asker.settle(Verb.ACK, 0, 1)
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK, 1, 0, 0)
    assert asker.take() == (b"c", 1, 0)
    assert asker.take() is None
    assert asker.held is not None
    asker.held.detach()
    again = Asker(node, shard, taking=True)
    assert again.take() == (b"c", 2, 0)


@BOTH
def test_a_browser_is_told_when_it_has_seen_everything(
    make_queues: MakeQueues, elsewhere: bool
) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    publish(node, shard, b"a", b"b", b"c")
    browser = Asker(node, shard, start=(BROWSE, 0), qos=0, limit=2)
    assert browser.payloads == [b"a", b"b"]
    said: list[tuple[bool, int, int]] = []

    def ask_how_many() -> None:
        assert browser.held is not None
        browser.held.take(lambda asked, left: said.append((asked, left, len(browser.payloads))))

    ask_how_many()
    node.run()
    browser.settle(Verb.REJECT, 0, 1)
    ask_how_many()
    node.run()
    publish(node, shard, b"d")
    ask_how_many()
    node.run()
    assert said == [(True, 1, 2), (True, 0, 3), (True, 0, 4)]
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK, 4, 0, 0)
    assert Asker(node, shard).payloads == [b"a", b"b", b"c", b"d"], "nothing was taken or rejected"
    assert browser.held is not None
    browser.held.detach()
    node.run()
    ask_how_many()
    node.run()
    assert said[-1][:2] == (False, 0)


@BOTH
def test_what_a_channel_gave_back_at_its_end_is_taken_at_once(
    make_queues: MakeQueues, elsewhere: bool
) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    publish(node, shard, b"a", b"b")
    consumer = Asker(node, shard)
    taker = Asker(node, shard, taking=True)
    assert consumer.payloads == [b"a", b"b"]
    assert taker.take() is None
    assert consumer.held is not None
    consumer.held.detach()
    assert taker.take() == (b"a", 2, 1)


def test_takes_wait_for_the_disk_as_publishes_do(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    asker = Asker(node, 0, taking=True)
    node.hold_syncs()
    confirmed = publish(node, 0, b"a")
    answers: list[tuple[bool, int]] = []
    assert asker.held is not None
    asker.held.take(lambda found, ready: answers.append((found, ready)))
    node.run()
    assert (confirmed, answers) == ([], [])
    node.hold_syncs(False)
    assert (confirmed, answers, asker.payloads) == ([0], [(True, 0)], [b"a"])


@BOTH
def test_an_automatic_taker_settles_what_it_takes(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    publish(node, shard, b"a", b"b")
    asker = Asker(node, shard, taking=True, automatic=True, limit=1)
    assert asker.take() == (b"a", 1, 1)
    assert asker.take() == (b"b", 1, 0)
    assert asker.take() is None
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK, 0, 0, 0)
    assert asker.held is not None
    asker.held.detach()
    assert Asker(node, shard).payloads == []


@BOTH
def test_an_automatic_consumer_of_another_shard(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    asker = Asker(node, shard, automatic=True, limit=2)
    publish(node, shard, b"a", b"b", b"c", b"d")
    node.run()
    assert asker.payloads == [b"a", b"b"]
    asker.settle(Verb.ACK, 0)
    node.run()
    assert asker.payloads == [b"a", b"b", b"c"]
    node.advance(0.1)
    node.kill(shard)
    node.start(shard)
    node.advance(1)
    assert Asker(node, shard).payloads == [b"d"], "only what was handed out is settled"


@BOTH
def test_counts_follow_what_was_asked_before(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK)
    publish(node, shard, b"a", b"b", b"c")
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK, 3)
    consumer = Asker(node, shard, limit=2)
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK, 1, 2, 1)
    consumer.settle(Verb.RELEASE, 1)
    assert consumer.held is not None
    consumer.held.stop()
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK, 2, 1, 0)
    consumer.settle(Verb.ACK, 0)
    assert ask(node, shard, "purge") == QueueStats(QueueOutcome.OK, 2)
    assert ask(node, shard, "status") == QueueStats(QueueOutcome.OK)


@BOTH
def test_a_queue_is_deleted_as_asked(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    consumer = Asker(node, shard, limit=1)
    publish(node, shard, b"a", b"b")
    assert ask(node, shard, "delete", "work", True, False) == QueueStats(
        QueueOutcome.IN_USE, consumers=1
    )
    assert ask(node, shard, "delete", "work", False, True) == QueueStats(QueueOutcome.NOT_EMPTY, 1)
    assert consumer.cancellations == 0
    assert ask(node, shard, "delete", "work", False, False) == QueueStats(QueueOutcome.OK, 1)
    assert consumer.cancellations == 1
    assert node.machine("work", 0) is None
    assert node.machine("work", 1) is None


@BOTH
def test_a_queue_that_is_not_there(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    host = host_of(node, shard)
    answers: list[QueueStats] = []
    host.status("nothing", answers.append)
    host.purge("nothing", answers.append)
    host.delete("nothing", False, False, answers.append)
    node.run()
    # Which group a name belongs to is looked up where the question arrives: an unknown one is an ephemeral queue's.
    assert answers == [QueueStats(QueueOutcome.NO_QUEUE)] * 3


@BOTH
def test_refusals_say_why(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    only = Asker(node, shard, exclusive=True)
    assert only.held is not None
    second = Asker(node, shard)
    assert second.held is None
    assert second.answer is not None
    assert (second.answer.reason, second.answer.outcome) == (0x83, QueueOutcome.EXCLUSIVE)
    only.held.detach()
    node.run()
    pattern = Asker(node, shard, qos=0)
    assert pattern.answer is not None
    assert pattern.answer.outcome == QueueOutcome.REFUSED


@BOTH
def test_a_limit_may_change_and_none_is_bounded(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    asker = Asker(node, shard, limit=1)
    publish(node, shard, *(b"%d" % number for number in range(5)))
    node.run()
    assert asker.offsets == [0]
    assert asker.held is not None
    asker.held.set_limit(3)
    node.run()
    assert asker.offsets == [0, 1, 2]
    asker.held.set_limit(1)
    asker.settle(Verb.ACK, 0, 1)
    node.run()
    assert asker.offsets == [0, 1, 2]
    asker.held.set_limit(0)
    node.run()
    assert asker.offsets == [0, 1, 2, 3, 4]
    host = place(node, False)
    (consumer,) = node.group("work", host).ports
    assert consumer.limit == UNSETTLED_MAX


@BOTH
def test_priority_reaches_the_host(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    low = Asker(node, shard, limit=1)
    high = Asker(node, shard, limit=1, priority=1)
    publish(node, shard, b"a")
    node.run()
    publish(node, shard, b"b")
    node.run()
    assert (high.payloads, low.payloads) == ([b"a"], [b"b"])


@BOTH
def test_a_stream_is_read_from_a_time_ago(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work", "type": "stream"}, workers=2)
    shard = place(node, elsewhere)
    publish(node, shard, b"old")
    node.advance(100)
    publish(node, shard, b"new")
    node.run()
    asker = Asker(node, shard, start=("interval", 50_000_000), temporary=True)
    assert asker.payloads == [b"new"]
    host = place(node, False)
    assert len(node.machine("work", host).groups) == 1
    assert asker.held is not None
    asker.held.detach()
    node.advance(0.1)
    assert node.machine("work", host).groups == {}


def test_an_answer_waits_for_the_message_before_it(
    make_queues: MakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, True)
    publish(node, shard, b"a")
    asker = Asker(node, shard, taking=True)
    monkeypatch.setattr(group_server, "BACKLOG_BYTES_MAX", -1)
    answers: list[tuple[bool, int]] = []
    assert asker.held is not None
    asker.held.take(lambda found, ready: answers.append((found, ready)))
    node.run()
    assert (answers, asker.payloads) == ([], [])
    monkeypatch.undo()
    node.advance(0.1)
    assert (answers, asker.payloads) == ([(True, 0)], [b"a"])


def test_a_host_that_dies_answers_who_waits(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"}, workers=2)
    host, other = place(node, False), place(node, True)
    asker = Asker(node, other, taking=True)
    node.hold_syncs()
    publish(node, other, b"a")
    told: list[QueueStats] = []
    found: list[bool] = []
    assert asker.held is not None
    asker.held.take(lambda got, _ready: found.append(got))
    host_of(node, other).status("work", told.append)
    node.run()
    assert (told, found) == ([], [])
    node.kill(host)
    node.advance(1)
    assert (told, found) == ([QueueStats(QueueOutcome.UNAVAILABLE)], [False])
    host_of(node, other).status("work", told.append)
    asker.held.take(lambda got, _ready: found.append(got))
    assert (told[1:], found[1:]) == ([QueueStats(QueueOutcome.UNAVAILABLE)], [False])


def test_a_group_that_fails_answers_who_waits(make_queues: MakeQueues) -> None:
    node = make_queues({"name": "work"})
    asker = Asker(node, 0, taking=True)
    node.hold_syncs()
    publish(node, 0, b"a")
    told: list[QueueStats] = []
    found: list[bool] = []
    assert asker.held is not None
    asker.held.take(lambda got, _ready: found.append(got))
    group = node.group("work")
    group.status("work", told.append)
    group.fail("for a test")
    node.run()
    assert (told, found) == ([QueueStats(QueueOutcome.UNAVAILABLE)], [False])
    for what in ("status", "purge"):
        assert ask(node, 0, what) == QueueStats(QueueOutcome.UNAVAILABLE)
    asker.held.take(lambda got, _ready: found.append(got))
    assert found == [False, False]
    node.held = False


@BOTH
def test_who_takes_may_hold_what_it_took(make_queues: MakeQueues, elsewhere: bool) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, elsewhere)
    asker = Asker(node, shard, taking=True, limit=1)
    publish(node, shard, b"a", b"b", b"c")
    assert [asker.take(), asker.take(), asker.take()] == [(b"a", 1, 2), (b"b", 1, 1), (b"c", 1, 0)]


def test_takes_of_a_slow_link_all_arrive(
    make_queues: MakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_queues({"name": "work"}, workers=2)
    shard = place(node, True)
    publish(node, shard, b"a", b"b", b"c")
    asker = Asker(node, shard, taking=True, limit=1)
    monkeypatch.setattr(group_server, "BACKLOG_BYTES_MAX", -1)
    found: list[bool] = []
    assert asker.held is not None
    for _ in range(3):
        asker.held.take(lambda got, _ready: found.append(got))
    node.run()
    monkeypatch.undo()
    node.advance(0.1)
    assert (found, asker.payloads) == ([True] * 3, [b"a", b"b", b"c"])
