"""Logins with hashes of other brokers, which are replaced afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fluxmq.auth.hash_upgrades import HashUpgrade
from fluxmq.auth.logins import LoginOutcome
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_FAILED, USER_UPGRADE, Body, Failure
from fluxmq.ipc.user_messages import UserUpgrade
from tests.unit.auth.test_hash_upgrades import imported, upgrade
from tests.unit.ipc.travelling import travelled
from tests.unit.shards.test_authentication import (
    HASH,
    LOCAL,
    REMOTE,
    Make,
    Outcome,
    check,
    make,
    user,
    wait,
)

__all__ = ["make"]


class UpgradingControl:
    """Takes the requests to replace hashes; the test answers."""

    def __init__(self) -> None:
        self.asked: list[HashUpgrade] = []
        self._answers: list[Answered] = []

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Take a request."""
        assert kind == USER_UPGRADE
        self.asked += UserUpgrade.from_body(travelled(body)).upgrades
        self._answers.append(answered)
        return True

    def answer(self, answer: Body | Failure) -> None:
        """Answer the oldest request."""
        self._answers.pop(0)(answer)


def test_an_imported_hash_is_replaced_after_the_login(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    """Once, and the password need not be hashed again."""
    anna = user(hash=imported())
    authentication, control = make(anna), UpgradingControl()
    authentication.upgrades.connect(control)
    assert check(authentication, loop, "anna", b"wrong").outcome is LoginOutcome.WRONG
    assert control.asked == []
    for _ in range(2):
        assert check(authentication, loop, "anna", b"secret").outcome is LoginOutcome.ACCEPTED
    (made,) = control.asked
    assert (made.name, made.verified, made.problem()) == ("anna", anna.hash, None)
    assert made.scram is not None
    upgraded = replace(anna, hash=made.hash, scram=made.scram)
    assert authentication.set_users(2, (upgraded,)) == set()
    outcome = Outcome()
    authentication.verify("anna", b"secret", LOCAL, outcome)
    assert outcome.outcome is LoginOutcome.ACCEPTED, "it is remembered"
    assert check(authentication, loop, "anna", b"wrong").outcome is LoginOutcome.WRONG
    assert len(control.asked) == 1


def test_a_login_stays_valid_while_its_hash_is_replaced(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    """Which another shard may have done; another password is another matter."""
    anna = user(hash=imported())
    upgraded = replace(anna, hash=upgrade("anna").hash)
    for after, expected in (
        (upgraded, LoginOutcome.ACCEPTED),
        (replace(anna, hash=HASH), LoginOutcome.WRONG),
    ):
        authentication, control = make(anna), UpgradingControl()
        authentication.upgrades.connect(control)
        outcome = Outcome()
        authentication.verify("anna", b"secret", REMOTE, outcome)
        authentication.set_users(2, (after,))
        wait(authentication, loop)
        assert outcome.outcome is expected
        assert control.asked == []


def test_a_hash_that_was_not_replaced_is_tried_at_the_next_login(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    """Its password is verified anew; nobody else's is."""
    authentication, control = make(user(hash=imported()), user("bert")), UpgradingControl()
    authentication.upgrades.connect(control)
    for name in ("anna", "bert"):
        assert check(authentication, loop, name, b"secret").outcome is LoginOutcome.ACCEPTED
    control.answer(Failure(ERROR_FAILED, "etcd did not answer"))
    for name, pending in (("anna", 1), ("bert", 0)):
        outcome = Outcome()
        authentication.verify(name, b"secret", LOCAL, outcome)
        assert authentication.pending == pending
        wait(authentication, loop)
        assert outcome.outcome is LoginOutcome.ACCEPTED


def test_what_else_changed_with_the_hash_is_told(make: Make) -> None:
    anna = user(hash=imported())
    upgraded = replace(anna, hash=upgrade("anna").hash)
    assert make(anna).set_users(2, (replace(upgraded, publish=()),)) == {"anna"}
    assert make(anna).set_users(2, (replace(anna, hash=HASH),)) == {"anna"}
    assert make(anna).set_users(2, ()) == {"anna"}
