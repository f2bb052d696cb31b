"""The checker: a history in which all went well breaks nothing, and each rule notices what breaks it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.chaos import bodies, check
from tests.chaos.bodies import Identity
from tests.chaos.records import (
    FAIL,
    OK,
    SENT,
    UNKNOWN,
    Deliver,
    Drained,
    Fault,
    Finding,
    Forced,
    Group,
    History,
    HistoryError,
    Join,
    Key,
    Lost,
    Moved,
    Probe,
    Publish,
    Queue,
    Record,
    Replica,
    Run,
    Settle,
    decode,
    encode,
    read,
)
from tests.chaos.report import Report, examine
from tests.chaos.run import forcings, moves

WORK, STREAM, DEAD = "work", "stream", "$dlq/work"
RUN = Run(
    *("hand-made", 1, ("node1", "node2", "node3"), "forward", 1.0, 5.0, 10, 2),
    queues=(
        Queue(WORK, "quorum", "default", (Group("g", True), Group("amqp", False)), DEAD),
        Queue(STREAM, "stream", "default", (Group("tail", False),), ""),
    ),
)
CONFIRM_S = 0.01


def digest(key: Key) -> str:
    return bodies.digest(bodies.build(Identity(1, *key)))


def publish(sequence: int, at: float, outcome: str = OK, **changed: Any) -> Publish:
    """An attempt of publisher 1 to the work queue over node1."""
    made = Publish(
        *("p1", "mqtt", "node1", "p1#1", (WORK,), 1, sequence, digest((1, sequence))),
        *(at, at + CONFIRM_S, outcome, "", -1),
    )
    made = made._replace(**changed)
    return made._replace(digest=digest((made.publisher, made.sequence)))


def deliver(sequence: int, at: float, group: str = "g", **changed: Any) -> Deliver:
    """A delivery of publisher 1's message from the work queue, at the offset of its number."""
    made = Deliver(
        *("c1", "mqtt", "node2", "c1#1", WORK, group, sequence, 1, sequence),
        *(digest((1, sequence)), False, False, at),
    )
    return made._replace(**changed)


def amqp(sequence: int, at: float, **changed: Any) -> Deliver:
    """The same to AMQP's group, whose consumers are not told offsets."""
    known = {"protocol": "amqp", "client": "a1", "connection": "a1#1", "offset": -1}
    return deliver(sequence, at, "amqp", **{**known, **changed})


def settle(sequence: int, at: float, outcome: str = OK, **changed: Any) -> Settle:
    made = Settle(
        *("c1", "mqtt", "node2", "c1#1", WORK, "g", "ack", (sequence,), ((1, sequence),)),
        *(at, at + CONFIRM_S, outcome),
    )
    return made._replace(**changed)


def fault(begin: float, end: float, silent: bool = False) -> Fault:
    return Fault("F3 node killed", ("node1",), begin, end, silent, "")


DRAINED = [Drained(WORK, "g", 90.0), Drained(WORK, "amqp", 90.0), Drained(STREAM, "tail", 90.0)]


def good(count: int = 5) -> list[Record]:
    """Messages confirmed, delivered to both groups and settled; equal replicas; everything recovered."""
    records: list[Record] = [RUN]
    for n in range(count):
        records += [publish(n, float(n)), deliver(n, n + 0.02), settle(n, n + 0.03)]
        ack = settle(n, n + 0.05, SENT, group="amqp", connection="a1#1", offsets=())
        records += [amqp(n, n + 0.04), ack]
    for node in RUN.nodes:
        records.append(Replica(node, WORK, "0.seg", 4096, 4096, "aa"))
        records.append(Replica(node, STREAM, "0.seg", 4096, 4096, "aa"))
    records.append(Probe("publish", 80.0, 80.1, 7.0, OK, ""))
    return records + DRAINED


def broken(extra: list[Record], drop: Callable[[Record], bool] = lambda record: False) -> Report:
    """The good history without some records, and with others."""
    return examine([record for record in good() if not drop(record)] + extra)


def given_to(group: str, sequence: int) -> Callable[[Record], bool]:
    return lambda r: isinstance(r, Deliver) and (r.group, r.sequence) == (group, sequence)


def test_a_history_in_which_all_went_well_breaks_nothing() -> None:
    report = examine(good())
    assert report.violations == []
    assert report.clean
    assert report.lines()[-1] == (
        "attempted 5, confirmed 5, ok 5, 0 confirmed lost, unexpected 0, duplicated 0, recovered 0"
    )


def test_i1_a_confirmed_message_that_a_group_was_not_given_is_lost() -> None:
    assert broken([], given_to("amqp", 3)).broken == {"I1": 1}
    report = broken([], given_to("g", 3))
    assert report.broken == {"I1": 1}
    assert (report.lost, report.ok) == (1, 4)
    assert "1/3 was confirmed by node1 over mqtt at 3.010 s" in report.violations[0][1]
    assert "1 confirmed lost" in report.lines()[-1]


def test_i1_a_mirror_that_was_not_synchronised_may_lack_what_was_confirmed_during_the_fault() -> (
    None
):
    at = Forced("mirrors-1", "node2", 4.5)
    report = broken([fault(2.9, 4.0), at], given_to("g", 3))
    assert report.clean
    assert (report.lost, report.forced, report.given_up, report.ok) == (0, 1, 1, 4)
    assert (
        "unsynchronised mirrors that came to lead: 1; confirmed messages that they lacked: 1"
        in (report.lines())
    )
    elsewhere: list[list[Record]] = [[fault(3.5, 4.0), at], [fault(2.9, 4.0)], [at]]
    for extra in elsewhere:
        assert broken(extra, given_to("g", 3)).lost == 1
    earlier = at._replace(time=3.0)
    assert broken([fault(2.9, 4.0), earlier], given_to("g", 3)).lost == 1, "it led already"


def test_nodes_say_that_a_mirror_leads_that_lacks_messages() -> None:
    log = (
        "2026-11-29 07:51:20.235Z error    shard-0    an unsynchronised mirror leads a group: what it lacks"
        " is lost  group=mirrors-c5fd66d90dc795a8 entries=812\n"
        "2026-11-29 07:51:21.000Z warning  control    a mirror becomes the leader of a group  group=g node=a\n"
    )
    epoch = datetime(2026, 11, 29, 7, 51, tzinfo=UTC).timestamp()
    assert forcings(log, "node2", epoch) == [Forced("mirrors-c5fd66d90dc795a8", "node2", 20.235)]


def test_i1_what_was_not_confirmed_may_be_there_or_not() -> None:
    extra: list[Record] = [
        publish(7, 7.0, UNKNOWN),
        publish(8, 8.0, UNKNOWN),
        deliver(8, 8.1),
        amqp(8, 8.1),
    ]
    report = broken([*extra, publish(9, 9.0, FAIL)])
    assert report.clean
    assert (report.attempted, report.confirmed, report.recovered) == (8, 5, 1)


def test_i1_a_reading_of_everything_at_the_end_has_to_have_everything() -> None:
    read_again = [
        deliver(n, 91.0 + n, "audit-1", audit=True, connection="x#1") for n in range(5) if n != 2
    ]
    report = broken([*read_again, Drained(WORK, "audit-1", 99.0)])
    assert report.broken == {"I1": 1}
    assert "lost to audit-1" in report.violations[0][1]
    nothing = broken([Drained(WORK, "audit-2", 99.0)])
    assert nothing.lost == 5


def test_i1_and_i2_dead_letters() -> None:
    rejected = settle(1, 10.0, verb="reject")
    there = deliver(1, 11.0, "undertaker", queue=DEAD, offset=0)
    assert broken([rejected, there]).clean
    assert broken([rejected]).broken == {"I1": 1}
    assert broken([settle(1, 10.0, UNKNOWN, verb="reject")]).clean
    assert broken([there]).broken == {"I2": 1}
    twice = there._replace(offset=1, time=11.1)
    assert broken([rejected, there, twice]).broken == {"I2": 1}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([deliver(9, 9.0)], "was never sent there"),
        ([deliver(9, 9.0, publisher=-1)], "not a body"),
        ([publish(9, 8.0), amqp(9, 9.0), deliver(9, 9.0, digest="00")], "not as it was sent"),
        ([publish(9, 8.0, FAIL), deliver(9, 9.0)], "was refused"),
        ([deliver(2, 9.0, "tail", queue=STREAM)], "was never sent there"),
    ],
)
def test_i2_what_nobody_sent_there_is_unexpected(extra: list[Record], words: str) -> None:
    report = broken(extra)
    assert report.broken["I2"] == report.unexpected == 1
    assert words in next(sentence for rule, sentence in report.violations if rule == "I2")


def test_i3_what_was_settled_for_certain_does_not_come_again() -> None:
    again = deliver(3, 20.0, repeat=True)
    told: list[Record] = [fault(3.2, 4.0), Lost("c1", "c1#1", "node2", 3.5, "")]
    report = broken([again, *told])
    assert report.broken == {"I3": 1}
    assert "settled by g at 3.040 s and came again at 20.000 s" in report.violations[0][1]
    unknown = [record for record in good() if record != settle(3, 3.03)]
    assert examine([*unknown, settle(3, 3.03, UNKNOWN), again, *told]).clean


def test_i3_a_settlement_that_nobody_answers_counts_while_nothing_goes_wrong() -> None:
    again = amqp(3, 9.0, repeat=True)
    assert broken([again, fault(100, 101)]).broken == {"I3": 1}
    assert broken([again, fault(4.0, 5.0)]).clean
    assert broken([again, Lost("a1", "a1#1", "node2", 5.0, "")]).clean
    assert broken([again, Moved("default", 5.0)]).clean
    assert broken([again, Moved("default", 50.0)]).broken == {"I3": 1}


def test_nodes_say_when_they_give_leadership_away() -> None:
    log = (
        "2026-11-23 04:17:01.513Z info     shard-0    leading  group=hot term=4\n"
        "2026-11-23 04:17:41.896Z info     shard-0    transferring leadership to balance leaders  group=default to=node2\n"
    )
    assert moves(log, 1795407454.5) == [Moved("default", 7.396)]


def test_i4_repeats_are_marked() -> None:
    aside: list[Record] = [settle(7, 70.0), publish(7, 60.0), amqp(7, 60.1), deliver(7, 60.1)]
    assert broken([*aside[1:], deliver(7, 60.2), fault(300, 301)]).broken == {"I4": 1}
    assert broken([*aside[1:], deliver(7, 60.2, repeat=True), fault(300, 301)]).clean
    assert broken([*aside[1:], deliver(7, 60.2), fault(55.0, 56.0)]).clean
    assert broken([*aside[1:], amqp(7, 60.3), fault(300, 301)]).broken == {"I4": 1}


def test_i4_a_message_is_there_no_more_often_than_it_was_sent() -> None:
    sent = [publish(7, 60.0, UNKNOWN), publish(7, 61.0, connection="p1#2")]
    thrice = [deliver(7, 62.0 + n, offset=7 + n) for n in range(3)]
    assert broken([*sent, amqp(7, 62.0), *thrice[:2], fault(59, 60)]).clean
    assert broken([*sent, amqp(7, 62.0), *thrice, fault(59, 60)]).broken == {"I4": 1}
    once_refused = [sent[0]._replace(outcome=FAIL), sent[1]]
    report = broken([*once_refused, amqp(7, 62.0), *thrice[:2], fault(59, 60)])
    assert report.broken == {"I4": 1}


def test_i4_repeats_are_no_more_than_were_under_way() -> None:
    record = [settle(n, n + 0.03) for n in range(5)]
    more = [deliver(n, 50.0 + m, repeat=True) for n in range(5) for m in range(5)]
    kept = [each for each in good() if each not in record]
    assert examine([*kept, *more[:20], fault(49, 50)]).clean
    assert examine([*kept, *more, fault(49, 50)]).broken == {"I4": 1}
    assert examine([*kept, *more, fault(49, 50), *[Lost("x", "x#1", "n", 51.0, "")] * 3]).clean


def test_i5_an_offset_holds_one_message_for_everybody() -> None:
    other: list[Record] = [publish(7, 60.0), amqp(7, 60.1), deliver(7, 60.1, offset=3)]
    report = broken(other, given_to("g", 4))
    assert report.broken["I5"] == 1
    assert any("offset 3 was 1/3 and is 1/7" in sentence for _, sentence in report.violations)


def test_i5_who_reads_everything_gets_ascending_offsets() -> None:
    order = [0, 1, 3, 2, 4]
    reading = [
        deliver(n, 91.0 + at, "audit", audit=True, connection="x#1") for at, n in enumerate(order)
    ]
    report = broken([*reading, Drained(WORK, "audit", 99.0)])
    assert report.broken == {"I5": 1}
    assert "was given offset 2 after 3" in report.violations[0][1]
    assert broken([*reading, Drained(WORK, "audit", 99.0), Moved("hot", 93.5)]).clean


def test_i6_a_committed_cursor_does_not_go_back() -> None:
    base: list[Record] = []
    for n in range(4):
        base.append(publish(n, 10.0 + n, publisher=2, queues=(STREAM,)))
        base.append(deliver(n, 10.1 + n, "tail", queue=STREAM, publisher=2, digest=digest((2, n))))
    commit = settle(2, 13.5, verb="commit", queue=STREAM, group="tail", messages=())
    later = Join("t", "t#2", "node3", STREAM, "tail", 20.0)

    def again(offset: int, time: float) -> Deliver:
        known: dict[str, Any] = {"queue": STREAM, "publisher": 2, "digest": digest((2, offset))}
        return deliver(offset, time, "tail", connection="t#2", repeat=True, **known)

    assert broken([*base, commit, later, again(3, 21.0), fault(19, 20)]).clean
    assert broken([*base, commit, later, again(2, 21.0), fault(19, 20)]).broken == {"I6": 1}
    earlier = later._replace(invoke=13.0)
    assert broken([*base, commit, earlier, again(2, 21.0), fault(19, 20)]).clean
    beyond = commit._replace(offsets=(9,))
    assert broken([*base, beyond]).broken == {"I6": 1}


def test_i7_confirmed_before_the_next_was_sent_is_before_it_in_the_queue() -> None:
    there = [deliver(8, 60.1, offset=7), deliver(7, 60.2, offset=8), amqp(7, 61.0), amqp(8, 61.0)]
    one_after_the_other = [publish(7, 60.0, connection="p1#8"), publish(8, 60.05)]
    report = broken([*one_after_the_other, *there])
    assert report.broken["I7"] == 2, "in the queue, and as the single consumer saw it"
    assert "1/8 has offset 7, behind 8" in report.violations[0][1]
    # It was on its way to a connection that was lost, and comes again when that is known.
    marked = [deliver(8, 60.1), deliver(7, 60.2, repeat=True), amqp(7, 61.0), amqp(8, 61.0)]
    assert "I7" not in broken([*one_after_the_other, *marked]).broken
    overlapping = [publish(7, 60.0, connection="p1#8"), publish(8, 60.005)]
    assert broken([*overlapping, *there]).clean


def test_i7_over_one_connection_what_was_sent_first_is_first() -> None:
    there = [deliver(8, 60.1, offset=7), deliver(7, 60.2, offset=8), amqp(7, 61.0), amqp(8, 61.0)]
    assert broken([publish(7, 60.0), publish(8, 60.001), *there]).broken["I7"] == 2
    again = [publish(7, 60.0, UNKNOWN), publish(8, 60.001), publish(7, 60.005, connection="p1#2")]
    assert broken([*again, *there, fault(59, 60)]).clean


def test_i9_what_a_resumed_leader_confirmed_is_there() -> None:
    report = broken([fault(1.0, 2.5, silent=True)], given_to("g", 3))
    assert report.broken == {"I9": 1}


def test_i10_replicas_are_equal() -> None:
    def of(node: str) -> Callable[[Record], bool]:
        return lambda r: isinstance(r, Replica) and (r.node, r.queue) == (node, WORK)

    other = Replica("node3", WORK, "0.seg", 4096, 4096, "bb")
    assert broken([other], of("node3")).broken == {"I10": 1}
    shorter = other._replace(length=4000, digest="aa")
    assert broken([shorter], of("node3")).broken == {"I10": 1}
    nothing = broken(
        [], lambda r: isinstance(r, Replica) and (r.node, r.queue) == ("node3", STREAM)
    )
    assert nothing.broken == {"I10": 1}
    trimmed = [Replica(node, WORK, "9.seg", 64, 64, "cc") for node in RUN.nodes]
    assert broken([*trimmed], of("node2")).clean


def test_i13_what_has_to_work_again_does_so_in_time() -> None:
    probe = Probe("consume", 80.0, 85.0, 7.0, OK, "")
    assert broken([probe]).clean
    assert broken([probe._replace(complete=88.0)]).broken == {"I13": 1}
    assert broken([probe._replace(outcome=FAIL, why="no leader")]).broken == {"I13": 1}
    undrained = broken([], lambda r: r == DRAINED[0])
    assert undrained.broken == {"I13": 1}


def test_i14_several_queues_have_it_or_it_is_not_confirmed() -> None:
    both = publish(7, 60.0, queues=(WORK, STREAM))
    there = [deliver(7, 61.0), amqp(7, 61.0)]
    in_stream = deliver(7, 61.0, "tail", queue=STREAM, offset=0)
    assert broken([both, *there, in_stream]).clean
    assert broken([both, *there]).broken == {"I1": 1, "I14": 1}
    parts = [publish(n, 60.0, transaction=4) for n in (7, 8)]
    all_there = [deliver(7, 61.0), deliver(8, 61.1), amqp(7, 61.0), amqp(8, 61.0)]
    assert broken([*parts, *all_there]).clean
    parts[1] = parts[1]._replace(outcome=UNKNOWN)
    assert broken([*parts, *all_there]).broken == {"I14": 1}


def test_i16_nobody_waits_for_ever_for_a_node_that_runs() -> None:
    waited = publish(7, 60.0, UNKNOWN, complete=67.0, why="timeout")
    assert broken([waited]).broken == {"I16": 1}
    assert broken([waited, fault(59.0, 62.0, silent=True)]).clean
    assert broken([waited, fault(59.0, 62.0)]).broken == {"I16": 1}
    full = fault(59.0, 66.0)._replace(kind="F12 disk full")
    assert broken([waited._replace(protocol="amqp"), full]).clean
    assert broken([waited._replace(protocol="amqp10"), full]).clean
    assert broken([waited, full]).broken == {"I16": 1}
    late = publish(7, 60.0, UNKNOWN, complete=67.5)
    assert broken([late]).broken == {"I16": 1}


def test_what_the_harness_found_counts() -> None:
    assert broken([Finding("I13", "node2 died of itself")]).broken == {"I13": 1}


def test_latency_and_unavailability() -> None:
    records: list[Record] = [RUN, *DRAINED]
    for n in range(100):
        at, took = n * 0.1, 0.5 if 40 <= n < 60 else 0.01
        if not 40 <= n < 50:
            records += [publish(n, at, complete=at + took), deliver(n, at + 1), amqp(n, at + 1)]
    report = examine([*records, Fault("F5 halves", ("node1",), 4.0, 6.0, False, "")])
    assert report.clean
    assert report.latency["before"] == pytest.approx((10.0, 10.0))
    assert report.latency["during"][1] == pytest.approx(500.0)
    assert report.latency["after"][0] == pytest.approx(10.0)
    (gap,) = report.unavailable["F5 halves"]
    assert gap == pytest.approx(1.5, abs=0.11)
    assert any(line.startswith("unavailable at F5 halves: 1 times") for line in report.lines())


def test_records_survive_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [*good(), fault(1, 2), Lost("c", "c#1", "n", 1.5, "reset"), Finding("I13", "x")]
    records.append(Join("c", "c#1", "n", WORK, "g", 0.5))
    with History(tmp_path / "history") as history:
        for record in records:
            history.write(record)
        assert history.count == len(records)
        assert history.now() >= 0
    with (tmp_path / "history").open("ab") as file:
        file.write(b'["Publish", 1')
    with (tmp_path / "history").open("rb") as lines:
        assert list(read(lines)) == records
    assert check.main([str(tmp_path / "history")]) == 1
    assert "broken: I13 1" in capsys.readouterr().out
    (tmp_path / "other").write_bytes(encode(DRAINED[0]))
    assert check.main([str(tmp_path / "other")]) == 2


@pytest.mark.parametrize("line", [b"{}\n", b'["Nobody"]\n', b'["Drained", "q"]\n', b"[]\n", b"x\n"])
def test_a_line_that_says_nothing_is_an_error(line: bytes) -> None:
    with pytest.raises(HistoryError, match="not a record"):
        decode(line)


def test_bodies_prove_themselves() -> None:
    for number in range(40):
        identity = Identity(3, 2, number)
        body = bodies.build(identity)
        assert bodies.parse(body) == identity
        for place in (0, 5, len(body) // 2, len(body) - 1):
            damaged = bytearray(body)
            damaged[place] ^= 1
            assert bodies.parse(bytes(damaged)) is None
    assert bodies.parse(b"") is None
    assert len({len(bodies.build(Identity(1, 1, n))) for n in range(200)}) > 3


def lines_run(count: int) -> int:
    """How many lines run while a history of so many messages is examined: what a slow machine does not change."""
    records = good(count)
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        examine(records)
    finally:
        sys.settrace(before)
    return lines


def test_the_work_grows_with_the_history_and_no_faster() -> None:
    assert lines_run(1600) < 8 * 1.5 * lines_run(200)
