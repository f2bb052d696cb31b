"""Delivery to one session: window, order, bounds, resumption, identifiers, sizes, aliases.

Longer than 500 lines because all of it is one class."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.protocols.mqtt.delivery import EARLY_MAX, EVICT, REJECT, STEP_BYTES
from fluxmq.protocols.mqtt.packets import Publish, Pubrel
from tests.unit.protocols.mqtt.lines import Line, messages, numbers
from tests.unit.protocols.mqtt.wire import publish

Lines = Callable[..., Line]


def ids(found: list[Publish]) -> list[int]:
    return [packet.packet_id for packet in found]


# Window and acknowledgements


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_than_the_window_is_unacknowledged(line: Lines, qos: int) -> None:
    one = line()
    one.attach(window=3)
    one.offer(messages(10, qos))
    found = one.publishes()
    assert (numbers(found), ids(found)) == ([0, 1, 2], [1, 2, 3])
    assert (one.delivery.inflight, one.delivery.pending_count) == (3, 7)


def test_acknowledgements_in_order_let_as_many_follow(line: Lines) -> None:
    one = line()
    one.attach(window=3)
    one.offer(messages(10))
    one.packets()
    one.puback(1, 2)
    assert one.numbers() == [3, 4]
    one.puback(3, 4, 5)
    assert one.numbers() == [5, 6, 7]


def test_an_acknowledgement_out_of_order_frees_itself_only(line: Lines) -> None:
    one = line()
    one.attach(window=3)
    one.offer(messages(10))
    one.packets()
    one.puback(3)
    assert one.numbers() == [3]
    assert one.delivery.inflight == 3
    one.puback(1)
    assert one.numbers() == [4]
    # 1 and 3 are answered, 2 is not: it is repeated, they are not.
    one.detach()
    one.attach(window=10)
    found = one.publishes()
    assert numbers(found) == [1, 3, 4, 5, 6, 7, 8, 9]
    assert [packet.dup for packet in found] == [True] * 3 + [False] * 5


def test_acknowledgements_in_reverse_order_end_the_flight(line: Lines) -> None:
    one = line()
    one.attach(window=100)
    for start in range(0, 50, 5):
        one.offer(messages(5, start=start))
    one.puback(*range(50, 0, -1))
    assert one.delivery.inflight == 0
    assert not one.delivery.unanswered_ranges
    assert not one.delivery.early


@pytest.mark.parametrize("packet_ids", [(9,), (0,), (65_535,), (1, 1, 1)])
def test_answers_to_nothing_change_nothing(line: Lines, packet_ids: tuple[int, ...]) -> None:
    one = line()
    one.attach(window=3)
    one.offer(messages(5))
    one.packets()
    one.puback(*packet_ids)
    freed = 1 if packet_ids[0] == 1 else 0
    assert one.delivery.inflight == 3
    assert len(one.numbers()) == freed
    assert one.delivery.pending_count == 2 - freed


def test_a_second_answer_out_of_order_counts_once(line: Lines) -> None:
    one = line()
    one.attach(window=4)
    one.offer(messages(4))
    one.puback(3, 3, 3)
    assert one.delivery.inflight == 3


def test_the_wrong_kind_of_answer_is_none(line: Lines) -> None:
    one = line()
    one.attach()
    one.offer(messages(1, 1))
    one.offer(messages(1, 2, start=1))
    assert not one.delivery.receive(1)
    assert not one.delivery.acknowledge(2, 1)
    assert one.pubcomp(2) == 0
    assert one.delivery.inflight == 2


def test_answers_out_of_order_are_remembered_up_to_a_bound(line: Lines) -> None:
    """Nothing more is sent behind a message that the client leaves unanswered for so long."""
    one = line()
    one.attach(window=10)
    one.offer(messages(5000))
    for packet_id in range(2, 5000):
        one.puback(packet_id)
    assert one.delivery.early is not None
    assert len(one.delivery.early) <= EARLY_MAX + 10
    assert len(one.publishes()) <= EARLY_MAX + 20
    one.puback(1)
    assert not one.delivery.early
    assert one.numbers()


def test_what_is_offered_in_portions_is_written_in_order(line: Lines) -> None:
    one = line()
    one.attach(window=4)
    for start in range(0, 12, 3):
        one.offer(messages(3, 1 + start % 2, start=start))
    seen = []
    packets = one.publishes()
    while packets:
        seen += numbers(packets)
        for packet in packets:
            if packet.qos == 1:
                one.puback(packet.packet_id)
            else:
                assert one.delivery.receive(packet.packet_id)
                assert one.pubcomp(packet.packet_id) == 1
        packets = one.publishes()
    assert seen == list(range(12))


def test_what_waits_survives_the_next_reading(line: Lines) -> None:
    """A run looks into the receive buffer, which is soon full of something else."""
    one = line()
    one.attach(window=1)
    run = messages(3)
    buffer = run.buffer
    assert isinstance(buffer, bytearray)
    one.offer(run)
    buffer[:] = bytes(len(buffer))
    assert one.numbers() == [0]
    one.puback(1)
    assert one.numbers() == [1]
    one.detach()
    one.attach()
    assert one.numbers() == [1, 2]


# QoS 2


def test_a_qos_2_message_takes_its_place_in_the_window_until_pubcomp(line: Lines) -> None:
    one = line()
    one.attach(window=1)
    one.offer(messages(2, 2))
    assert one.numbers() == [0]
    assert one.delivery.receive(1)
    assert one.publishes() == []
    assert one.delivery.inflight == 1
    assert one.delivery.receive(1), "a repeated PUBREC is answered again"
    assert one.pubcomp(1) == 1
    assert one.numbers() == [1]
    assert one.pubcomp(1) == 0


def test_after_pubrec_the_release_is_repeated_and_not_the_message(line: Lines) -> None:
    one = line()
    one.attach()
    one.offer(messages(3, 2))
    one.packets()
    one.delivery.receive(2)
    one.detach()
    assert one.delivery.inflight == 1
    one.attach()
    found = one.packets()
    assert isinstance(found[0], Pubrel)
    assert found[0].packet_id == 2
    again = [packet for packet in found if isinstance(packet, Publish)]
    assert [(packet.packet_id, packet.dup, packet.qos) for packet in again] == [
        (1, True, 2),
        (3, True, 2),
    ]
    assert one.delivery.inflight == 3


def test_qos_2_is_answered_by_ranges(line: Lines) -> None:
    """As far as the oldest unanswered messages are meant, and not beyond those answered before."""
    one = line()
    one.attach(window=10)
    one.offer(messages(4, 2))
    one.offer(messages(20, 2, start=4))
    assert one.numbers() == list(range(10))
    assert one.delivery.receive_front(2, 3) == 0, "1 is the oldest"
    assert one.delivery.receive_front(1, 10) == 4, "the first run"
    assert one.delivery.receive(7)
    assert one.delivery.receive_front(5, 6) == 1, "7 was answered already"
    assert one.delivery.receive_front(6, 1) == 1
    assert one.delivery.receive_front(8, 3) == 3
    released = one.delivery.released
    assert released is not None
    assert released.in_order() == [(1, 4), (7, 1), (5, 2), (8, 3)]
    assert one.pubcomp(2, 8) == 8
    assert one.numbers() == list(range(10, 18))
    assert released.in_order() == [(1, 1), (10, 1)]
    assert one.delivery.inflight == 10


def test_releases_are_repeated_in_the_order_of_the_receipts(line: Lines) -> None:
    """[MQTT-4.6.0-4], also where identifiers begin anew."""
    one = line()
    one.attach()
    one.delivery.next_pid = 65_534
    one.offer(messages(2, 2))
    one.offer(messages(3, 2))
    assert ids(one.publishes()) == [65_534, 65_535, 1, 2, 3]
    assert one.delivery.receive_front(65_534, 2) == 2
    assert one.delivery.receive_front(1, 2) == 2
    one.pubcomp(65_535)
    one.detach()
    one.attach()
    found = [packet for packet in one.packets() if isinstance(packet, Pubrel)]
    assert [packet.packet_id for packet in found] == [65_534, 1, 2]


def test_a_refused_message_is_done_with(line: Lines) -> None:
    one = line()
    one.attach(window=2)
    one.offer(messages(1, 1))
    one.offer(messages(3, 2, start=1))
    one.packets()
    assert one.delivery.refuse(2, 2)
    assert one.numbers() == [2]
    assert one.delivery.refuse(1, 1)
    assert one.numbers() == [3]
    assert not one.delivery.refuse(1, 1)
    assert one.delivery.inflight == 2
    assert one.delivery.released is None


# Bounds of what waits


def test_a_full_queue_of_an_absent_client_evicts_the_oldest(line: Lines) -> None:
    one = line(pending=5, policy=EVICT)
    one.offer(messages(4))
    one.offer(messages(4, start=4))
    assert (one.delivery.pending_count, one.tally.dropped_full) == (5, 3)
    one.attach()
    assert one.numbers() == [3, 4, 5, 6, 7]


def test_a_full_queue_rejects_the_newest_where_asked(line: Lines) -> None:
    one = line(pending=5, policy=REJECT)
    one.offer(messages(4))
    one.offer(messages(4, start=4))
    one.offer(messages(4, start=8))
    assert (one.delivery.pending_count, one.tally.dropped_full) == (5, 7)
    one.attach()
    assert one.numbers() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("policy", "kept"), [(EVICT, [6, 7, 8, 9]), (REJECT, [0, 1, 2, 3])])
def test_bytes_are_bounded_too(line: Lines, policy: int, kept: list[int]) -> None:
    size = len(publish(b"t", bytes(100), 1, 1))
    one = line(pending_bytes=4 * size, policy=policy)
    for start in range(0, 10, 5):
        one.offer(messages(5, start=start, size=100))
    assert one.delivery.pending_bytes == 4 * size
    assert one.tally.dropped_full == 6
    one.attach()
    assert one.numbers() == kept
    assert one.delivery.pending_bytes == 0


def test_a_connected_client_has_a_bound_of_its_own(line: Lines) -> None:
    one = line(pending=5, pending_connected=20)
    one.attach(window=1)
    one.offer(messages(30))
    assert (one.delivery.pending_count, one.tally.dropped_full) == (20, 9)
    one.detach()
    one.delivery.trim()
    assert (one.delivery.pending_count, one.tally.dropped_full) == (5, 24)


def test_what_is_in_flight_is_not_dropped(line: Lines) -> None:
    one = line(pending=2, pending_connected=2)
    one.attach(window=5)
    one.offer(messages(5))
    one.packets()
    one.offer(messages(4, start=5))
    one.detach()
    one.attach(window=100)
    assert one.numbers() == [0, 1, 2, 3, 4, 7, 8]


def test_absent_clients_get_no_qos_0(line: Lines) -> None:
    one = line()
    one.offer(messages(3, 0))
    one.offer(messages(3, 1), qos=0)
    one.attach()
    assert one.publishes() == []


# Slow clients


def test_qos_0_is_dropped_and_counted_when_the_client_is_too_slow(line: Lines) -> None:
    one = line(limit=1000)
    connection = one.attach()
    one.offer(messages(1, 0, size=1 << 20))
    one.offer(messages(7, 0))
    assert one.tally.dropped_slow == 7
    assert connection.dirty
    assert len(one.publishes()) == 1
    one.offer(messages(7, 0))
    assert one.tally.dropped_slow == 7
    assert len(one.publishes()) == 7


def test_qos_1_stays_in_the_session_when_the_client_is_too_slow(line: Lines) -> None:
    one = line(limit=1000)
    one.attach()
    one.offer(messages(1, 1, size=1 << 20))
    one.offer(messages(7, 1, start=1))
    assert one.delivery.pending_count == 7
    assert one.numbers() == [0]
    one.delivery.pump()
    assert one.numbers() == [1, 2, 3, 4, 5, 6, 7]


def test_a_long_tick_is_written_before_anything_is_given_up(line: Lines) -> None:
    one = line(limit=1000)
    one.attach()
    for start in range(0, 100, 10):
        one.offer(messages(10, 0, start=start, size=50))
    assert one.tally.dropped_slow == 0
    assert one.numbers() == list(range(100))


def test_a_run_that_grows_is_written_in_steps(line: Lines) -> None:
    """Topics that came as aliases, and many subscription identifiers, are written with every message."""
    one = line(limit=1000)
    connection = one.attach(version=5)
    run = messages(3000, 0)
    run.verbatim = False
    run.topic = b"x" * 4000
    one.offer(run)
    assert connection.size <= 1000 + 2 * STEP_BYTES
    assert 0 < one.tally.dropped_slow < 3000
    assert one.tally.sent0 + one.tally.dropped_slow == 3000
    written = one.publishes()
    assert {packet.topic for packet in written} == {run.topic}
    assert numbers(written) == list(range(one.tally.sent0))

    one.offer(messages(3000, 0), ids=b"\x0b\x01" * 2000)
    assert connection.size <= 1000 + 2 * STEP_BYTES
    assert one.tally.sent0 + one.tally.dropped_slow == 6000

    one.packets()
    one.delivery.window = 3000
    one.offer(messages(3000, 1), ids=b"\x0b\x01" * 2000)
    assert connection.size <= 1000 + 2 * STEP_BYTES
    assert one.delivery.inflight + one.delivery.pending_count == 3000


# Resumption


def test_unanswered_messages_are_repeated_in_order_before_new_ones(line: Lines) -> None:
    one = line()
    one.attach(window=4)
    one.offer(messages(3))
    one.offer(messages(3, 2, start=3))
    first = one.publishes()
    assert [packet.dup for packet in first] == [False] * 4
    one.detach()
    assert one.delivery.inflight == 0
    one.offer(messages(2, start=6))
    one.attach(window=100)
    found = one.publishes()
    assert numbers(found) == list(range(8))
    assert [packet.dup for packet in found] == [True] * 4 + [False] * 4
    assert ids(found)[:4] == ids(first)


def test_a_smaller_window_repeats_some_at_a_time(line: Lines) -> None:
    one = line()
    one.attach(window=10)
    one.offer(messages(6))
    one.offer(messages(6, start=6))
    one.packets()
    one.detach()
    one.attach(window=4)
    found = one.publishes()
    assert (numbers(found), ids(found)) == ([0, 1, 2, 3], [1, 2, 3, 4])
    one.detach()
    one.attach(window=7)
    found = one.publishes()
    assert (numbers(found), ids(found)) == (list(range(7)), list(range(1, 8)))
    assert all(packet.dup for packet in found)
    one.puback(*range(1, 8))
    found = one.publishes()
    assert numbers(found) == [7, 8, 9, 10, 11]
    assert [packet.dup for packet in found] == [True] * 3 + [False] * 2


def test_nothing_is_repeated_on_the_same_connection(line: Lines) -> None:
    one = line()
    one.attach()
    one.offer(messages(3))
    one.packets()
    one.delivery.pump()
    assert one.publishes() == []


# Packet identifiers


def test_identifiers_begin_anew_after_the_last(line: Lines) -> None:
    one = line()
    one.attach(window=10)
    one.delivery.next_pid = 65_533
    one.offer(messages(6))
    assert ids(one.publishes()) == [65_533, 65_534, 65_535, 1, 2, 3]
    one.puback(65_533, 65_534, 65_535, 1, 2, 3)
    assert one.delivery.inflight == 0
    assert not one.delivery.unanswered_ranges


@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_in_use_are_passed_over(line: Lines, qos: int) -> None:
    one = line()
    one.attach(window=65_535)
    one.offer(messages(4, qos))
    one.packets()
    one.delivery.next_pid = 65_534
    one.offer(messages(4, start=4))
    assert ids(one.publishes()) == [65_534, 65_535, 5, 6]


def test_identifiers_between_pubrec_and_pubcomp_are_in_use(line: Lines) -> None:
    one = line()
    one.attach(window=100)
    one.offer(messages(3, 2))
    one.packets()
    one.delivery.receive(2)
    one.delivery.receive(1)
    one.delivery.receive(3)
    one.pubcomp(1)
    one.pubcomp(3)
    one.delivery.next_pid = 65_535
    one.offer(messages(4))
    assert ids(one.publishes()) == [65_535, 1, 3, 4]


def test_identifiers_that_are_still_to_be_repeated_are_in_use(line: Lines) -> None:
    one = line()
    one.attach(window=10)
    one.offer(messages(3))
    one.packets()
    one.detach()
    one.delivery.next_pid = 65_535
    one.attach(window=1)
    one.puback(1)
    one.delivery.window = 10
    one.offer(messages(3, start=3))
    found = one.publishes()
    assert (numbers(found), ids(found)) == ([0, 1, 2, 3, 4, 5], [1, 2, 3, 65_535, 1, 4])


def test_when_all_identifiers_are_in_use_messages_wait(line: Lines) -> None:
    one = line(limit=1 << 30)
    one.attach(window=65_535)
    one.delivery.next_pid = 100
    one.offer(messages(65_535, size=4))
    one.offer(messages(2, start=65_535))
    assert (one.delivery.inflight, one.delivery.pending_count) == (65_535, 2)
    found = one.publishes()
    assert sorted(ids(found)) == list(range(1, 65_536))
    one.delivery.window = 70_000
    one.delivery.pump()
    assert one.delivery.pending_count == 2
    one.puback(*ids(found)[:1])
    assert ids(one.publishes()) == [100]


# Expiry


def test_messages_that_expire_while_they_wait_are_dropped_and_counted(line: Lines) -> None:
    one = line()
    for start, deadline in ((0, 105.0), (3, 0.0), (6, 200.0)):
        run = messages(3, start=start, version=5)
        run.verbatim = False
        run.deadline = deadline
        one.offer(run)
    one.tally.now = 105.0
    one.attach(version=5)
    found = one.publishes()
    assert numbers(found) == [3, 4, 5, 6, 7, 8]
    assert [packet.properties.message_expiry_interval for packet in found] == [None] * 3 + [95] * 3
    assert one.tally.dropped_expired == 3
    assert (one.delivery.pending_count, one.delivery.pending_bytes) == (0, 0)


def test_qos_0_that_has_expired_is_dropped(line: Lines) -> None:
    one = line()
    one.attach(version=5)
    run = messages(2, 0, version=5)
    run.verbatim = False
    run.deadline = 99.0
    one.offer(run)
    assert one.publishes() == []
    assert one.tally.dropped_expired == 2


FAR = 0xFFFFFFFF
LEFT = {100.001: 1, 100.4: 1, 101.0: 1, 101.001: 1, 101.5: 2, 102.0: 2, 160.9: 61, 100.1 + FAR: FAR}


def test_the_rest_of_the_expiry_is_passed_on_in_whole_seconds(line: Lines) -> None:
    """Row F3: rounded up, so that a message that has not expired never says 0, nor one passed on at once less than it said."""
    one = line()
    one.attach(version=5)
    for deadline, rest in LEFT.items():
        run = messages(1, 1, version=5)
        run.verbatim = False
        run.deadline = deadline
        one.offer(run)
        (found,) = one.publishes()
        assert found.properties.message_expiry_interval == rest
