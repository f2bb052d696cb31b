"""Timeouts: on time, once, and nothing is kept for what has ended."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.net import sockets
from fluxmq.net.reactor import PAUSED_ALARM, PAUSED_LINK, PAUSED_OUTPUT
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.delivery import EVICT, SessionDelivery
from fluxmq.sessions.mqtt.session import MqttClient, MqttStage, Session
from fluxmq.shards.timers import LONG_SECONDS, SLACK, DueTimes, SilenceWheel

TALLY = Tally()


def schedule(timers: DueTimes[Session], session: Session) -> None:
    timers.set_earliest(session, session.will_at, session.expires_at)


def client(active: float = 0.0) -> MqttClient:
    """A connected client that was last heard at `active`."""
    found = MqttClient(Connection(-1, TALLY, [], 1000, sockets.send), "127.0.0.1:1", 0)
    found.connection.active = active
    found.stage = MqttStage.CONNECTED
    return found


def session(expires_at: float = 0.0, will_at: float = 0.0) -> Session:
    """An absent client's session."""
    found = Session("s", SessionDelivery(TALLY, 10, 10, 1000, EVICT))
    found.expires_at, found.will_at = expires_at, will_at
    return found


@given(
    st.floats(0, 1e6),
    st.floats(0.001, 1000),
    st.lists(st.floats(0.001, 3), min_size=1, max_size=50),
)
def test_silence_is_noticed_within_the_resolution(
    start: float, seconds: float, steps: list[float]
) -> None:
    wheel = SilenceWheel(0.25)
    silent = client(start)
    wheel.watch(silent, seconds, start)
    now = start
    deadline = start + seconds
    for step in (*steps, max(0.0, deadline - start) + 1):
        before, now = now, now + step
        found = wheel.expired(now)
        if found:
            assert found == [silent]
            assert now >= deadline
            assert before < deadline + (0.25 if seconds < LONG_SECONDS else 1.0)
            assert len(wheel) == 0
            assert wheel.expired(now + 10_000) == []
            return
    raise AssertionError("never noticed")


def test_the_next_look_is_told_and_not_before_the_time() -> None:
    wheel = SilenceWheel(0.25)
    assert wheel.next_due == math.inf
    wheel.watch(client(100.0), 5.0, 100.0)
    assert 105.0 <= wheel.next_due <= 105.25
    assert wheel.expired(wheel.next_due - 0.01) == []
    assert len(wheel.expired(wheel.next_due)) == 1
    assert wheel.next_due == math.inf


def test_many_long_silences_are_looked_at_once_a_second() -> None:
    """Keep-alives of a minute, of clients that came one after the other."""
    wheel = SilenceWheel(0.25)
    for number in range(1000):
        wheel.watch(client(number / 100), 90.0, number / 100)
    looks = set()
    while wheel.next_due < math.inf:
        looks.add(wheel.next_due)
        wheel.expired(wheel.next_due)
    assert len(looks) <= 11
    assert not len(wheel)


def test_the_first_item_that_is_due_is_told() -> None:
    timers: DueTimes[str] = DueTimes()
    assert timers.next_due == math.inf
    timers.set("late", 9.0)
    timers.set("early", 5.0)
    assert timers.next_due == 5.0
    timers.cancel("early")
    assert timers.next_due == 9.0, "it is not woken for what was cancelled"
    timers.due(9.0, lambda _item: None)
    assert timers.next_due == math.inf


def test_who_speaks_is_watched_on() -> None:
    wheel = SilenceWheel(0.25)
    talker = client(0.0)
    wheel.watch(talker, 10.0, 0.0)
    now = 0.0
    while now < 100.0:
        now += 0.1
        talker.connection.active = now - 5.0
        assert wheel.expired(now) == []
    assert len(wheel) == 1
    last = talker.connection.active
    while not (found := wheel.expired(now)):
        now += 0.1
    assert found == [talker]
    assert last + 10.0 <= now <= last + 10.5


def test_who_does_not_connect_in_time_is_found_however_much_it_says() -> None:
    wheel = SilenceWheel(0.25)
    slow, quick = client(), client()
    slow.stage = MqttStage.OPENED
    for each in (slow, quick):
        wheel.watch_connect(each, 10.0, 0.0)
    for now in (1.0, 5.0, 9.9):
        slow.connection.active = now
        assert wheel.expired(now) == []
    assert wheel.expired(10.5) == [slow]
    assert len(wheel) == 0, "who is connected is not watched any more"


@pytest.mark.parametrize("reason", [PAUSED_LINK, PAUSED_ALARM])
def test_who_is_not_listened_to_is_not_silent(reason: int) -> None:
    """While we do not read a connection for reasons of our own its client may well be speaking."""
    wheel = SilenceWheel(0.25)
    held, deaf = client(), client()
    held.connection.paused = reason
    deaf.connection.paused = PAUSED_OUTPUT
    for each in (held, deaf):
        wheel.watch(each, 10.0, 0.0)
    assert wheel.expired(30.0) == [deaf], "who does not take answers is"
    held.connection.paused = 0
    assert wheel.expired(39.0) == []
    assert wheel.expired(41.0) == [held]


def test_a_client_is_watched_for_one_thing() -> None:
    """Its keep-alive replaces the wait for CONNECT."""
    wheel = SilenceWheel(0.25)
    one = client()
    wheel.watch_connect(one, 10.0, 0.0)
    wheel.watch(one, 100.0, 0.0)
    assert len(wheel) == 1
    assert wheel.expired(50.0) == []
    assert wheel.expired(101.0) == [one]


def test_a_wheel_forgets_who_has_gone() -> None:
    """A keep-alive of 27 hours must not hold what is left of a connection for 27 hours."""
    wheel = SilenceWheel(0.25)
    for number in range(1000):
        one = client(float(number))
        wheel.watch_connect(one, 10.0, number)
        wheel.watch(one, 98_302.0, number)
        wheel.forget(one)
        wheel.forget(one)
    assert len(wheel) == 0
    assert not wheel._buckets


def test_a_wheel_that_turns_late_misses_nobody() -> None:
    """The first look, or one after the process was stopped for a while, comes after the time."""
    wheel = SilenceWheel(0.25)
    one = client(100.0)
    wheel.watch(one, 1.0, 100.0)
    assert wheel.expired(1000.0) == [one]
    other = client(1000.0)
    wheel.watch(other, 1.0, 1000.0)
    assert wheel.expired(2000.0) == [other]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(0, 20))), st.data())
def test_sessions_wake_at_the_earlier_of_their_times(
    events: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Scheduled, scheduled again, cancelled: only what was said last holds."""
    timers: DueTimes[Session] = DueTimes()
    sessions = [session() for _ in range(5)]
    expected: dict[Session, float] = {}
    for which, expires, will in events:
        one = sessions[which]
        if data.draw(st.booleans()):
            timers.cancel(one)
            expected.pop(one, None)
            continue
        one.expires_at, one.will_at = float(expires), float(will)
        schedule(timers, one)
        times = [time for time in (one.expires_at, one.will_at) if time]
        expected.pop(one, None)
        if times:
            expected[one] = min(times)
    assert len(timers) == len(expected)
    woken: list[tuple[float, Session]] = []
    for now in range(22):

        def wake(one: Session, now: float = now) -> None:
            woken.append((now, one))

        timers.due(now, wake)
    assert sorted(woken, key=lambda entry: id(entry[1])) == sorted(
        ((when, one) for one, when in expected.items()), key=lambda entry: id(entry[1])
    )
    assert len(timers) == 0


def test_acting_may_schedule_again() -> None:
    timers: DueTimes[Session] = DueTimes()
    one = session(expires_at=10.0, will_at=5.0)
    schedule(timers, one)
    woken = []

    def act(found: Session) -> None:
        woken.append(found.will_at or found.expires_at)
        found.will_at = 0.0
        schedule(timers, found)

    timers.due(7.0, act)
    assert woken == [5.0]
    assert len(timers) == 1


@pytest.mark.parametrize("distinct", [True, False])
def test_a_heap_does_not_grow_with_comings_and_goings(distinct: bool) -> None:
    """Each disconnect schedules an expiry days away and each return cancels it."""
    timers: DueTimes[Session] = DueTimes()
    lasting = [session(expires_at=1e9 + number) for number in range(10)]
    for one in lasting:
        schedule(timers, one)
    chance = random.Random(3)
    one = session()
    for number in range(20_000):
        if distinct:
            one = session()
        one.expires_at = 604_800.0 + number
        schedule(timers, one)
        if chance.random() < 0.9 or distinct:
            timers.cancel(one)
        assert len(timers._heap) <= 2 * (len(timers) + 1) + SLACK
    timers.cancel(one)
    woken: list[Session] = []
    timers.due(2e9, woken.append)
    assert woken == lasting
