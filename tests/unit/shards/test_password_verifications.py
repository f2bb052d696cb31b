"""Many logins at once, and many that fail: who waits, who does not, and who is told to come again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.shards.authentication import Authentication
from tests.unit.shards.test_authentication import (
    LOCAL,
    REMOTE,
    Make,
    Outcome,
    check,
    client,
    make,
    user,
    wait,
)

__all__ = ["make"]


def ask(authentication: Authentication, name: str, password: bytes, peer: str) -> Outcome:
    """Ask, and do not wait."""
    outcome = Outcome()
    authentication.verify(name, password, peer, outcome)
    return outcome


def test_a_password_verified_before_does_not_queue(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    """Review finding 8: however many made-up names wait, from the same address too."""
    authentication = make(user(), max_pending_verifications=8, verify_threads=1)
    assert check(authentication, loop, "anna", b"secret").outcome is LoginOutcome.ACCEPTED
    flood = [ask(authentication, f"x{number}", b"x", LOCAL) for number in range(50)]
    assert authentication.pending == 8
    assert ask(authentication, "anna", b"secret", LOCAL).outcome is LoginOutcome.ACCEPTED
    wait(authentication, loop)
    busy = [outcome.outcome for outcome in flood].count(LoginOutcome.BUSY)
    assert busy == 42


def test_addresses_take_turns(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 8: who floods waits behind itself; a user from elsewhere is let in, also for the first time."""
    authentication = make(user(), max_pending_verifications=9, verify_threads=1)
    order: list[str] = []

    def note(name: str) -> Callable[[AuthResult], None]:
        return lambda result: order.append(f"{name} {result.outcome.value}")

    for number in range(30):
        authentication.verify(f"x{number}", b"x", REMOTE, note("x"))
    assert order == ["x busy"] * 21
    authentication.verify("anna", b"secret", "[2001:db8::1]:1", note("anna"))
    wait(authentication, loop)
    assert order.index("anna accepted") == 21 + 1 + 2, "the last one made room, two were before it"
    assert order.count("x wrong") == 8
    bounded = make(user(), max_pending_per_address=4, verify_threads=1)
    flood = [ask(bounded, f"y{number}", b"x", f"192.0.2.7:{number}") for number in range(9)]
    assert bounded.pending == 5
    assert not ask(bounded, "anna", b"secret", "192.0.2.8:1").results
    wait(bounded, loop)
    assert [outcome.outcome for outcome in flood] == [LoginOutcome.WRONG] * 5 + [
        LoginOutcome.BUSY
    ] * 4


def test_logins_that_wait_for_the_same_password_are_verified_once(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    authentication = make(user(), verify_threads=1)
    outcomes = [ask(authentication, "anna", b"secret", REMOTE) for _ in range(20)]
    asked: list[bytes] = []
    check = authentication._verifications._verifier.check

    class Counting:
        def check(self, password: bytes, stored: str | None) -> tuple[bool, str]:
            asked.append(password)
            return check(password, stored)

    authentication._verifications._verifier = Counting()  # type: ignore[assignment]
    wait(authentication, loop)
    assert {outcome.outcome for outcome in outcomes} == {LoginOutcome.ACCEPTED}
    assert not asked


GUESSES = {"per_user": 3, "per_address": 1000, "first_delay": "10s", "max_delay": "40s"}


def test_guessing_is_slowed_down(
    make: Make, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """Review finding 15: also for a name that is nobody's; nobody is locked out elsewhere; a burst has one line."""
    caplog.set_level(logging.INFO, "fluxmq")
    authentication = make(user(), failed_logins=GUESSES)
    for name in ("anna", "nobody"):
        for _ in range(4):
            result = check(authentication, loop, name, b"guess", client(REMOTE))
            assert result.outcome is LoginOutcome.WRONG
        for password in (b"guess", b"secret"):
            again = check(authentication, loop, name, password, client("192.0.2.7:6000"))
            assert again.outcome is LoginOutcome.BUSY
    assert authentication.results["password", "delayed"] == 4
    assert authentication.results["password", "failure"] == 8
    assert (
        check(authentication, loop, "anna", b"secret", client("192.0.2.8:1")).outcome
        is LoginOutcome.ACCEPTED
    )
    assert [record.getMessage() for record in caplog.records] == ["login failed"]
    assert (
        check(authentication, loop, "anna", b"secret", client(REMOTE)).outcome is LoginOutcome.BUSY
    )


def test_guessing_at_many_names_is_slowed_down(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 15: by address; the password that was verified before is no oracle meanwhile."""
    authentication = make(
        user(), user("bob"), failed_logins={**GUESSES, "per_user": 2, "per_address": 3}
    )
    elsewhere = client("192.0.2.8:1")
    assert (
        check(authentication, loop, "anna", b"secret", elsewhere).outcome is LoginOutcome.ACCEPTED
    )
    who = client(REMOTE)
    for number in range(4):
        assert check(authentication, loop, f"x{number}", b"x", who).outcome is LoginOutcome.WRONG
    assert check(authentication, loop, "bob", b"secret", who).outcome is LoginOutcome.BUSY
    assert check(authentication, loop, "bob", b"secret", elsewhere).outcome is LoginOutcome.ACCEPTED
    for _ in range(3):
        assert check(authentication, loop, "anna", b"guess", who).outcome is LoginOutcome.BUSY
    assert check(authentication, loop, "anna", b"secret", who).outcome is LoginOutcome.BUSY, (
        "an oracle"
    )
    assert (
        check(authentication, loop, "anna", b"secret", elsewhere).outcome is LoginOutcome.ACCEPTED
    )


def test_attempts_at_once_are_not_all_tried(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 15: those that wait when the delay begins are refused like those that come then."""
    authentication = make(user(), failed_logins=GUESSES, verify_threads=1)
    outcomes = [ask(authentication, "anna", b"%d" % number, REMOTE) for number in range(20)]
    wait(authentication, loop)
    assert [outcome.outcome for outcome in outcomes] == [LoginOutcome.WRONG] * 4 + [
        LoginOutcome.BUSY
    ] * 16


def test_guessing_by_scram_is_slowed_down(make: Make) -> None:
    """Review finding 15: its work is all the client's."""
    authentication = make(user(), failed_logins=GUESSES)
    for _ in range(4):
        assert authentication.login_refusal("anna", REMOTE) is None
        authentication.scram_result("anna", REMOTE, False)
    assert authentication.login_refusal("anna", REMOTE) == LoginOutcome.BUSY
    assert authentication.login_refusal("anna", LOCAL) is None
    assert authentication.results == {
        ("scram-sha-256", "failure"): 4,
        ("scram-sha-256", "delayed"): 1,
    }
    authentication.revision = -1
    assert authentication.login_refusal("anna", LOCAL) == LoginOutcome.UNAVAILABLE
