"""Many logins at once, and many that fail: who waits, who does not, and who is told to come again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.sessions.mqtt.ports import Authenticated
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
    assert check(authentication, loop, "anna", b"secret").reason == 0
    flood = [ask(authentication, f"x{number}", b"x", LOCAL) for number in range(50)]
    assert authentication.pending == 8
    assert ask(authentication, "anna", b"secret", LOCAL).reason == 0
    wait(authentication, loop)
    busy = [outcome.reason for outcome in flood].count(Reason.SERVER_BUSY)
    assert busy == 42


def test_addresses_take_turns(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 8: who floods waits behind itself; a user from elsewhere is let in, also for the first time."""
    authentication = make(user(), max_pending_verifications=9, verify_threads=1)
    order: list[str] = []

    def note(name: str) -> Callable[[Authenticated], None]:
        return lambda result: order.append(f"{name} {result.reason:#x}")

    for number in range(30):
        authentication.verify(f"x{number}", b"x", REMOTE, note("x"))
    assert order == ["x 0x89"] * 21
    authentication.verify("anna", b"secret", "[2001:db8::1]:1", note("anna"))
    wait(authentication, loop)
    assert order.index("anna 0x0") == 21 + 1 + 2, "the last one made room, two were before it"
    assert order.count("x 0x86") == 8
    bounded = make(user(), max_pending_per_address=4, verify_threads=1)
    flood = [ask(bounded, f"y{number}", b"x", f"192.0.2.7:{number}") for number in range(9)]
    assert bounded.pending == 5
    assert not ask(bounded, "anna", b"secret", "192.0.2.8:1").results
    wait(bounded, loop)
    assert [outcome.reason for outcome in flood] == [0x86] * 5 + [0x89] * 4


def test_logins_that_wait_for_the_same_password_are_verified_once(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    authentication = make(user(), verify_threads=1)
    outcomes = [ask(authentication, "anna", b"secret", REMOTE) for _ in range(20)]
    asked: list[bytes] = []
    verify = authentication._verifications._verifier.verify

    class Counting:
        def verify(self, password: bytes, stored: str | None) -> bool:
            asked.append(password)
            return verify(password, stored)

    authentication._verifications._verifier = Counting()  # type: ignore[assignment]
    wait(authentication, loop)
    assert {outcome.reason for outcome in outcomes} == {0}
    assert not asked


GUESSES = {"per_user": 3, "per_address": 1000, "first_delay": "10s", "max_delay": "40s"}


def test_guessing_is_slowed_down(
    make: Make, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """Review finding 15: also for a name that is nobody's; nobody is locked out elsewhere; a burst has one line."""
    caplog.set_level(logging.INFO)
    authentication = make(user(), failed_logins=GUESSES)
    for name in ("anna", "nobody"):
        for _ in range(4):
            result = check(authentication, loop, name, b"guess", client(REMOTE))
            assert result.reason == Reason.BAD_USER_NAME_OR_PASSWORD
        for password in (b"guess", b"secret"):
            again = check(authentication, loop, name, password, client("192.0.2.7:6000"))
            assert again.reason == Reason.SERVER_BUSY
    assert authentication.results["password", "delayed"] == 4
    assert authentication.results["password", "failure"] == 8
    assert check(authentication, loop, "anna", b"secret", client("192.0.2.8:1")).reason == 0
    assert [record.getMessage() for record in caplog.records] == ["login failed"]
    assert check(authentication, loop, "anna", b"secret", client(REMOTE)).reason == 0x89


def test_guessing_at_many_names_is_slowed_down(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 15: by address; the password that was verified before is no oracle meanwhile."""
    authentication = make(
        user(), user("bob"), failed_logins={**GUESSES, "per_user": 2, "per_address": 3}
    )
    elsewhere = client("192.0.2.8:1")
    assert check(authentication, loop, "anna", b"secret", elsewhere).reason == 0
    who = client(REMOTE)
    for number in range(4):
        assert check(authentication, loop, f"x{number}", b"x", who).reason == 0x86
    assert check(authentication, loop, "bob", b"secret", who).reason == 0x89
    assert check(authentication, loop, "bob", b"secret", elsewhere).reason == 0
    for _ in range(3):
        assert check(authentication, loop, "anna", b"guess", who).reason == 0x89
    assert check(authentication, loop, "anna", b"secret", who).reason == 0x89, "an oracle"
    assert check(authentication, loop, "anna", b"secret", elsewhere).reason == 0


def test_attempts_at_once_are_not_all_tried(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 15: those that wait when the delay begins are refused like those that come then."""
    authentication = make(user(), failed_logins=GUESSES, verify_threads=1)
    outcomes = [ask(authentication, "anna", b"%d" % number, REMOTE) for number in range(20)]
    wait(authentication, loop)
    assert [outcome.reason for outcome in outcomes] == [0x86] * 4 + [0x89] * 16


def test_guessing_by_scram_is_slowed_down(make: Make) -> None:
    """Review finding 15: its work is all the client's."""
    authentication = make(user(), failed_logins=GUESSES)
    for _ in range(4):
        assert authentication.login_refusal("anna", REMOTE) == 0
        authentication.scram_result("anna", REMOTE, False)
    assert authentication.login_refusal("anna", REMOTE) == Reason.SERVER_BUSY
    assert authentication.login_refusal("anna", LOCAL) == 0
    assert authentication.results == {
        ("scram-sha-256", "failure"): 4,
        ("scram-sha-256", "delayed"): 1,
    }
    authentication.revision = -1
    assert authentication.login_refusal("anna", LOCAL) == Reason.SERVER_UNAVAILABLE
