"""Hashes that wait to be replaced: one request at a time, none repeated."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.auth.hash_upgrades import HashUpgrade
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.hash_upgrades import PAUSE_SECONDS, WAITING_MAX, HashUpgrades
from fluxmq.ipc.messages import ERROR_FAILED, USER_UPGRADE, Body, Failure
from fluxmq.ipc.user_messages import UPGRADES_MAX, UserUpgrade
from tests.unit.auth.test_hash_upgrades import upgrade
from tests.unit.ipc.travelling import travelled

MADE = upgrade()


def of(name: str) -> HashUpgrade:
    """An upgrade of a user."""
    return HashUpgrade(name, MADE.verified, MADE.hash, MADE.scram)


class Process:
    """A process that verifies passwords, its control and its clock."""

    def __init__(self, *, connected: bool = True) -> None:
        self.connected = connected
        self.asked: list[list[str]] = []
        """Users of each request."""
        self.given_up: list[str] = []
        self._answers: list[Answered] = []
        self._pauses: list[Callable[[], None]] = []
        self.upgrades = HashUpgrades(self._call_later, lambda each: self.given_up.append(each.name))
        self.upgrades.connect(self)

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Take a request."""
        assert kind == USER_UPGRADE
        if self.connected:
            asked = UserUpgrade.from_body(travelled(body))
            self.asked.append([each.name for each in asked.upgrades])
            self._answers.append(answered)
        return self.connected

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == PAUSE_SECONDS
        self._pauses.append(call)

    def answer(self, answer: Body | Failure) -> None:
        """Answer the request that is under way."""
        self._answers.pop(0)(answer)

    def pause(self) -> None:
        """Let the pause end."""
        (call,) = self._pauses
        self._pauses.clear()
        call()


def test_what_comes_meanwhile_shares_the_next_request_after_a_pause() -> None:
    process = Process()
    for name in ("ann", "bob", "eve", "bob"):
        process.upgrades.add(of(name))
    assert process.asked == [["ann"]]
    process.answer({})
    assert process.asked == [["ann"]]
    process.pause()
    assert process.asked == [["ann"], ["bob", "eve"]]
    process.answer({})
    process.pause()
    assert len(process.asked) == 2, "nothing waits"
    process.upgrades.add(of("tom"))
    assert process.asked[2:] == [["tom"]]
    assert process.given_up == []


def test_what_is_refused_is_given_up_and_not_asked_again() -> None:
    process = Process()
    process.upgrades.add(of("ann"))
    process.answer(Failure(ERROR_FAILED, "etcd cannot be reached"))
    assert process.given_up == ["ann"]
    process.upgrades.add(of("bob"))
    assert process.asked == [["ann"]], "not before the pause"
    process.pause()
    assert process.asked == [["ann"], ["bob"]]


def test_without_a_connection_it_is_given_up() -> None:
    process = Process(connected=False)
    process.upgrades.add(of("ann"))
    assert process.given_up == ["ann"]
    process.connected = True
    process.upgrades.add(of("ann"))
    assert process.asked == []
    process.pause()
    assert process.asked == [["ann"]]


def test_as_many_wait_as_may_and_as_many_are_asked_for() -> None:
    process = Process()
    for number in range(1 + WAITING_MAX + 2):
        process.upgrades.add(of(f"u{number}"))
    assert process.upgrades.waiting == WAITING_MAX
    assert process.given_up == [f"u{WAITING_MAX + 1}", f"u{WAITING_MAX + 2}"]
    process.upgrades.add(of("u1"))
    assert len(process.given_up) == 2, "it waits already"
    process.answer({})
    process.pause()
    assert process.asked[1] == [f"u{1 + number}" for number in range(UPGRADES_MAX)]
    assert process.upgrades.waiting == WAITING_MAX - UPGRADES_MAX


def test_a_hash_that_is_not_in_force_any_more_is_forgotten() -> None:
    process = Process()
    for name in ("ann", "bob", "eve"):
        process.upgrades.add(of(name))
    process.upgrades.drop({"bob": "another", "eve": MADE.verified}.get)
    process.answer({})
    process.pause()
    assert process.asked == [["ann"], ["eve"]]
    assert process.given_up == []
