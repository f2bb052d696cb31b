"""A shard's timer: often while something happens, seldom otherwise, and never late for what is due."""

from __future__ import annotations

import math
from collections.abc import Callable

from fluxmq.shards.turn_timer import CALM_TURNS, REST_SECONDS, TURN_SECONDS, TurnTimer


class Call:
    """A scheduled call."""

    def __init__(self, at: float, action: Callable[[], None]) -> None:
        self.at = at
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Played:
    """A shard that does nothing but turns, in time that the test plays."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[Call] = []
        self.due = math.inf
        self.stirs_itself = False
        self.turns: list[float] = []
        self.timer = TurnTimer(self.turn, self.call_later, lambda: self.now)

    def call_later(self, seconds: float, action: Callable[[], None]) -> Call:
        self.calls.append(Call(self.now + seconds, action))
        return self.calls[-1]

    def turn(self) -> None:
        self.timer.begin(self.now)
        self.turns.append(self.now)
        if self.stirs_itself:
            self.timer.stir()
        self.timer.end(lambda: self.due)

    @property
    def next(self) -> float:
        """Seconds until the next turn."""
        (call,) = [each for each in self.calls if not each.cancelled]
        return call.at - self.now

    def play(self, until: float) -> None:
        """Let time pass, with all turns."""
        while True:
            (call,) = [each for each in self.calls if not each.cancelled]
            if call.at > until:
                break
            self.calls = []
            self.now = call.at
            call.action()
        self.now = until


def idle() -> Played:
    """A shard in which nothing happens."""
    played = Played()
    played.turn()
    played.play(played.now + 10.0)
    return played


def test_an_idle_shard_asks_for_no_wake_up_sooner_than_its_heartbeat() -> None:
    played = idle()
    played.turns.clear()
    played.play(played.now + 60.0)
    assert len(played.turns) == 60 / REST_SECONDS


def test_a_shard_that_has_just_begun_takes_some_turns_before_it_rests() -> None:
    played = Played()
    played.turn()
    played.play(played.now + (CALM_TURNS - 1) * TURN_SECONDS + 0.001)
    assert len(played.turns) == CALM_TURNS
    assert round(played.next + 0.001, 3) == REST_SECONDS


def test_whatever_happens_brings_the_next_turn_forward() -> None:
    played = idle()
    played.play(played.turns[-1] + 0.3)
    assert played.next > TURN_SECONDS
    played.timer.stir()
    assert round(played.next, 3) == TURN_SECONDS
    played.timer.stir()
    assert round(played.next, 3) == TURN_SECONDS, "once"
    played.turns.clear()
    played.play(played.now + (CALM_TURNS + 1) * TURN_SECONDS + 0.001)
    assert len(played.turns) == CALM_TURNS + 1, "what takes several steps comes to its end"


def test_what_happens_puts_no_turn_off() -> None:
    played = idle()
    played.play(played.turns[-1] + REST_SECONDS - 0.05)
    played.timer.stir()
    assert round(played.next, 3) == 0.05


def test_the_next_turn_is_when_something_is_due() -> None:
    played = idle()
    played.due = played.turns[-1] + REST_SECONDS + 0.4
    played.play(played.turns[-1] + REST_SECONDS)
    assert round(played.next, 3) == 0.4
    played.due = 0.0
    played.play(played.now + 0.401)
    assert round(played.next + 0.001, 3) == TURN_SECONDS, "there is work for every turn"


def test_a_turn_that_leaves_work_is_followed_by_another_soon() -> None:
    played = idle()
    played.stirs_itself = True
    played.play(played.now + REST_SECONDS)
    assert round(played.next, 3) <= TURN_SECONDS


def test_tenths_of_a_second_are_counted_at_rest_too() -> None:
    played = idle()
    passed = 0
    for _ in range(20):
        played.play(played.turns[-1] + REST_SECONDS)
        passed += played.timer.passes(50)
    assert passed == 4, "every five seconds"


def test_a_late_turn_is_told() -> None:
    played = idle()
    assert round(played.timer.begin(played.timer.expected + 0.25), 3) == 0.25
    assert played.timer.begin(played.timer.expected - 0.25) == 0.0


def test_a_timer_that_has_stopped_calls_no_more() -> None:
    played = idle()
    played.timer.stop()
    played.timer.stir()
    assert all(call.cancelled for call in played.calls)
