"""Announcements and those who wait until their peers have confirmed them."""

from __future__ import annotations

from fluxmq.shards.confirmations import Confirmations


def test_a_caller_waits_for_all_who_were_told() -> None:
    confirmations, called = Confirmations(), list[str]()
    confirmations.when_known(lambda: called.append("nobody was told"))
    first = confirmations.announce([1, 2])
    confirmations.when_known(lambda: called.append("first"))
    second = confirmations.announce([2])
    confirmations.when_known(lambda: called.append("second"))
    assert called == ["nobody was told"]
    confirmations.confirmed(1, first)
    confirmations.confirmed(2, first)
    assert called[1:] == ["first"]
    confirmations.confirmed(2, second)
    assert called[2:] == ["second"]


def test_a_peer_that_is_lost_is_waited_for_no_longer() -> None:
    confirmations, called = Confirmations(), list[str]()
    confirmations.announce([1, 2])
    confirmations.when_known(lambda: called.append("known"))
    confirmations.confirmed(1, 1)
    confirmations.lost(2)
    assert called == ["known"]
    confirmations.when_known(lambda: called.append("again"))
    assert called == ["known", "again"]


def test_who_is_overdue() -> None:
    confirmations = Confirmations()
    confirmations.announce([1, 2])
    confirmations.when_known(lambda: None, now=10.0)
    assert list(confirmations.overdue(9.9)) == []
    confirmations.confirmed(1, 1)
    assert list(confirmations.overdue(10.0)) == [2]
