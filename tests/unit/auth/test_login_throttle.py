"""How failed logins delay the next ones."""

from __future__ import annotations

import pytest

from fluxmq.auth import login_throttle
from fluxmq.auth.login_throttle import LoginThrottle, ThrottleLimits

HERE, THERE = "192.0.2.1", "192.0.2.2"
LIMITS = ThrottleLimits(3, 10, 1.0, 8.0, 100.0)


def test_delays_double_up_to_a_limit() -> None:
    """Review finding 15."""
    found = LoginThrottle(LIMITS)
    now, waits = 0.0, []
    for _ in range(9):
        found.failed("ann", HERE, now)
        waits.append(found.wait("ann", HERE, now))
        now += waits[-1]
        assert found.wait("ann", HERE, now) == 0, "after its delay it may be tried"
    assert waits == [0, 0, 0, 1, 2, 4, 8, 8, 8]
    assert found.wait("ann", THERE, 0.0) == 0, "the user is not locked out elsewhere"
    assert found.wait("bob", HERE, 0.0) == 0, "nor others there, yet"


def test_failures_are_forgotten() -> None:
    found = LoginThrottle(LIMITS)
    for _ in range(5):
        found.failed("ann", HERE, 0.0)
    assert found.wait_of_user("ann", HERE, 0.5) == 1.5
    found.failed("ann", HERE, 102.0)
    assert found.wait_of_user("ann", HERE, 102.0) == 4.0, "so long after the delay they count"
    found.failed("ann", HERE, 206.5)
    assert found.wait_of_user("ann", HERE, 206.5) == 0.0
    for _ in range(3):
        found.failed("ann", HERE, 207.0)
    found.succeeded("ann", HERE, 207.0)
    found.failed("ann", HERE, 207.0)
    assert found.wait_of_user("ann", HERE, 207.0) == 0.0, "a login that held forgives them"


def test_an_address_waits_whoever_it_names() -> None:
    """Review finding 15: but not who logged in from there."""
    found = LoginThrottle(LIMITS)
    found.succeeded("ann", HERE, 0.0)
    for number in range(12):
        found.failed(f"user{number}", HERE, 0.0)
    assert found.wait("bob", HERE, 0.0) == 2.0
    assert found.wait_of_user("bob", HERE, 0.0) == 0.0
    assert found.wait("bob", THERE, 0.0) == 0.0
    assert found.wait("ann", HERE, 0.0) == 0.0
    found.succeeded("bob", HERE, 0.0)
    assert found.wait("eve", HERE, 0.0) == 2.0, "a login that held says nothing of others"


def test_the_known_are_known_for_a_while() -> None:
    found = LoginThrottle(LIMITS)
    found.succeeded("ann", HERE, 0.0)
    for number in range(12):
        found.failed(f"user{number}", HERE, 99.5)
    assert found.wait("ann", HERE, 100.0) == 0.0
    assert found.wait("ann", HERE, 100.5) == 1.0


def test_no_delay_at_all() -> None:
    found = LoginThrottle(ThrottleLimits(1, 1, 0.0, 8.0, 100.0))
    for _ in range(2000):
        found.failed("ann", HERE, 0.0)
    assert found.wait("ann", HERE, 0.0) == 0.0


@pytest.mark.uncompiled
def test_the_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was quiet for longest is forgotten first; long names cost no more than short ones."""
    monkeypatch.setattr(login_throttle, "ENTRIES_MAX", 10)
    found = LoginThrottle(LIMITS)
    for _ in range(4):
        found.failed("ann", HERE, 0.0)
    for number in range(50):
        found.failed("x" * 65_000 + str(number), f"192.0.2.{number}", 0.0)
        found.succeeded(str(number), HERE, 0.0)
        if number < 9:
            found.failed("ann", HERE, 0.0)
    assert [len(table) for table in (found._pairs, found._addresses, found._known)] == [10] * 3
    assert all(len(key) == login_throttle.KEY_BYTES for key in (*found._pairs, *found._known))
    assert found.wait("ann", HERE, 0.0) == 0.0
