"""Answers that wait: who is told, once everything that was waited for is done."""

from __future__ import annotations

import pytest

from tests.unit.variants import INSTALLED, Hot, uncompiled


@pytest.mark.parametrize("hot", [INSTALLED, uncompiled()], ids=lambda hot: hot.name)
def test_whoever_is_no_mqtt_client_is_told_of_the_greatest_reason_once(hot: Hot) -> None:
    told: list[int] = []
    ticket = hot.pending_acks.PendingAck(None)
    ticket.notify = told.append
    ticket.hold()
    ticket.hold()
    ticket.done(0x97)
    assert told == []
    ticket.done()
    assert told == [0x97]
    ticket.hold()
    ticket.done()
    assert told == [0x97]
