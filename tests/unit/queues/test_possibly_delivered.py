"""What an earlier leader may have handed out without anybody knowing comes as what comes again."""

from fluxmq.model.batch_format import DELAY
from fluxmq.queues import commands
from fluxmq.queues.commands import Verb
from fluxmq.queues.limits import CLOCKS_APART_MAX, RUN_AHEAD_MAX
from fluxmq.queues.possibly_delivered import AGAIN, REACH
from tests.unit.queues.support import NOW, SECOND, Host, batch_of, given


def lost(host: Host) -> None:
    """The leader is lost with what it had proposed, and another node leads."""
    host.proposed.clear()
    host.held_back.clear()
    host.hold = False
    host.dispatch.reset()
    host.lead(host.term + 1, others=host.now)


def test_what_was_handed_out_and_never_claimed_comes_again_as_such() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "old")
    host.publish(queue, 2)
    host.run()
    host.publish(queue, 3)
    step = host.dispatch.run(queue.id, host.now, 100)
    assert [each.count for each in step.deliveries] == [3]  # and its claim is lost
    lost(host)
    host.attach(queue, "new")
    host.publish(queue, 1)
    assert host.run() == [("new", offset, AGAIN) for offset in range(5)] + [("new", 5, 1)]


def test_the_mark_ends_inside_of_a_batch() -> None:
    host = Host()
    queue = host.declare(max_depth=0)
    host.attach(queue, "old", limit=1)
    host.publish(queue, 1)
    host.run()
    host.do(*[commands.append(queue.id, batch_of([b"x"] * 4_000)) for _ in range(35)])
    lost(host)
    host.attach(queue, "new", limit=2 * REACH)
    found = {offset: attempts for _, offset, attempts in host.run()}
    assert len(found) == 140_001
    assert {attempts for offset, attempts in found.items() if offset <= REACH} == {AGAIN}
    assert {attempts for offset, attempts in found.items() if offset > REACH} == {1}


def test_nothing_was_handed_out_where_nobody_consumed() -> None:
    host = Host()
    queue = host.declare()
    host.do(commands.create_group(queue.id, "g"))
    host.publish(queue, 3)
    lost(host)
    host.attach(queue, "new")
    assert host.run() == [("new", offset, 1) for offset in range(3)]


def test_it_is_marked_once_and_a_node_that_is_alone_has_no_doubts() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "old", limit=1)
    host.publish(queue, 2)
    host.run()
    host.dispatch.reset()
    host.lead(2)
    new = host.attach(queue, "new")
    assert host.run() == [("new", 0, 2), ("new", 1, 1)]
    lost(host)
    new = host.attach(queue, "newer")
    assert host.run() == [("newer", 0, 3), ("newer", 1, 2)]
    host.settle(new, Verb.RELEASE, (0, 1))
    assert host.run() == [("newer", 0, 4), ("newer", 1, 3)]


def test_what_was_delayed_is_in_doubt_once_it_was_due() -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue, "old")
    soon, late = NOW + CLOCKS_APART_MAX, NOW + CLOCKS_APART_MAX + SECOND
    for due in (soon, late):
        host.do(commands.append(queue.id, batch_of([b"x"], flags=DELAY, eights=[[due]])))
    host.run()  # the cursor moves over both
    lost(host)
    host.attach(queue, "new")
    host.now = late
    assert sorted(host.run()) == [("new", 0, AGAIN), ("new", 1, 1)]


def test_a_leader_runs_only_so_far_ahead_of_what_is_applied() -> None:
    host = Host()
    queue = host.declare(max_depth=0)
    host.attach(queue, "m", limit=4 * RUN_AHEAD_MAX)
    host.run()
    host.do(*[commands.append(queue.id, batch_of([b"x"] * 4_000)) for _ in range(100)])
    host.hold = True
    step = host.dispatch.run(queue.id, host.now, 50_000)
    ahead = len(given(step.deliveries))
    while step.deliveries:
        host.do(*step.commands)
        step = host.dispatch.run(queue.id, host.now, 50_000)
        ahead += len(given(step.deliveries))
    assert RUN_AHEAD_MAX <= ahead <= REACH
    assert not step.more  # it is not tried all the time
    host.release()
    assert queue.id in host.dispatch.due(host.now)
    assert host.dispatch.run(queue.id, host.now, 50_000).deliveries
