"""The engine's outcomes in reason codes."""

from __future__ import annotations

import pytest

from fluxmq.auth.logins import LoginOutcome
from fluxmq.model.outcomes import Explanations, Outcome
from fluxmq.protocols.mqtt.packet_types import PacketType, Sender
from fluxmq.protocols.mqtt.reasons import Reason, allowed
from fluxmq.sessions.mqtt.outcomes import DISCONNECTS, LOGINS, REASONS, Cause, reason_of


@pytest.mark.parametrize("packet", [PacketType.PUBACK, PacketType.PUBREC])
def test_answers_to_publishes(packet: PacketType) -> None:
    assert [reason_of(each, packet) for each in Outcome] == [
        Reason.SUCCESS,
        Reason.NO_MATCHING_SUBSCRIBERS,
        Reason.UNSPECIFIED_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Reason.NOT_AUTHORIZED,
        Reason.QUOTA_EXCEEDED,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    ]


@pytest.mark.parametrize("packet", sorted(REASONS))
def test_packets_carry_only_codes_that_they_may(packet: PacketType) -> None:
    assert allowed(packet, Sender.SERVER).issuperset(REASONS[packet].values())


def test_causes_and_logins_have_codes_that_their_packets_may_carry() -> None:
    assert set(DISCONNECTS) == set(Cause)
    assert allowed(PacketType.DISCONNECT, Sender.SERVER).issuperset(DISCONNECTS.values())
    assert set(LOGINS) == set(LoginOutcome)
    assert allowed(PacketType.CONNACK, Sender.SERVER).issuperset(LOGINS.values())


def test_an_explained_outcome_has_the_code_of_a_plain_one() -> None:
    explained = Explanations().explain(Outcome.FAILED, "group g is led by b")
    assert reason_of(explained, PacketType.PUBACK) == Reason.IMPLEMENTATION_SPECIFIC_ERROR


def test_refusals_by_the_session_itself_keep_their_codes() -> None:
    """A refusal that waits behind an earlier answer travels as an outcome would."""
    for reason in allowed(PacketType.PUBACK, Sender.SERVER):
        assert reason_of(reason, PacketType.PUBACK) == reason


def test_unsuback_has_no_quota() -> None:
    """MQTT 5 section 3.11.3: 0x97 was sent there when a session could not be persisted."""
    assert (
        reason_of(Outcome.OVER_LIMIT, PacketType.UNSUBACK) == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    )
    assert reason_of(Outcome.OVER_LIMIT, PacketType.SUBACK) == Reason.QUOTA_EXCEEDED
