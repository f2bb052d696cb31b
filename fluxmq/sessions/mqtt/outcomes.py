"""The engine's outcomes in MQTT's words: reason codes by packet, and causes of disconnects.

Source: MQTT 5.0 sections 3.2.2.2, 3.4.2.1, 3.5.2.1, 3.9.3, 3.11.3 and 3.14.2.1. MQTT 3.1.1 is
served from these by `fluxmq.protocols.mqtt.reasons`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fluxmq.auth.logins import LoginOutcome
from fluxmq.model.outcomes import Outcome
from fluxmq.protocols.mqtt.packet_types import PacketType
from fluxmq.protocols.mqtt.reasons import Reason


class Cause(StrEnum):
    """Cause of a disconnect by the broker, as metrics name it."""

    ADMINISTRATOR = "administrator"
    BANNED = "banned"
    EXPIRED = "expired"
    LEASE_LOST = "lease_lost"
    MEMORY = "memory"
    PERMISSIONS = "permissions"
    SHUTDOWN = "shutdown"
    TAKEN_OVER = "taken_over"


DISCONNECTS: Final[Mapping[Cause, Reason]] = {
    Cause.ADMINISTRATOR: Reason.ADMINISTRATIVE_ACTION,
    Cause.BANNED: Reason.ADMINISTRATIVE_ACTION,
    Cause.EXPIRED: Reason.MAXIMUM_CONNECT_TIME,
    Cause.LEASE_LOST: Reason.USE_ANOTHER_SERVER,
    Cause.MEMORY: Reason.SERVER_BUSY,
    Cause.PERMISSIONS: Reason.NOT_AUTHORIZED,
    Cause.SHUTDOWN: Reason.SERVER_SHUTTING_DOWN,
    Cause.TAKEN_OVER: Reason.SESSION_TAKEN_OVER,
}

LOGINS: Final[Mapping[LoginOutcome, Reason]] = {
    LoginOutcome.ACCEPTED: Reason.SUCCESS,
    LoginOutcome.WRONG: Reason.BAD_USER_NAME_OR_PASSWORD,
    LoginOutcome.DENIED: Reason.NOT_AUTHORIZED,
    LoginOutcome.BANNED: Reason.BANNED,
    LoginOutcome.UNAVAILABLE: Reason.SERVER_UNAVAILABLE,
    LoginOutcome.BUSY: Reason.SERVER_BUSY,
}
"""Reason codes of CONNACK."""

RENEWALS: Final[Mapping[LoginOutcome, Reason]] = {
    LoginOutcome.ACCEPTED: Reason.NOT_AUTHORIZED,
    LoginOutcome.WRONG: Reason.NOT_AUTHORIZED,
    LoginOutcome.DENIED: Reason.NOT_AUTHORIZED,
    LoginOutcome.BANNED: Reason.NOT_AUTHORIZED,
    LoginOutcome.UNAVAILABLE: Reason.SERVER_BUSY,
    LoginOutcome.BUSY: Reason.SERVER_BUSY,
}
"""Reason codes of DISCONNECT after a re-authentication, which has fewer; ``ACCEPTED``: as somebody
else."""

_PUBLISH: Final[Mapping[int, Reason]] = {
    Outcome.OK: Reason.SUCCESS,
    Outcome.NOT_PENDING: Reason.NO_MATCHING_SUBSCRIBERS,
    Outcome.CANCELLED: Reason.UNSPECIFIED_ERROR,
    Outcome.FAILED: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Outcome.DENIED: Reason.NOT_AUTHORIZED,
    Outcome.OVER_LIMIT: Reason.QUOTA_EXCEEDED,
}

REASONS: Final[Mapping[PacketType, Mapping[int, Reason]]] = {
    PacketType.CONNACK: {
        Outcome.OK: Reason.SUCCESS,
        Outcome.FAILED: Reason.SERVER_UNAVAILABLE,
        Outcome.OVER_LIMIT: Reason.QUOTA_EXCEEDED,
    },
    PacketType.PUBACK: _PUBLISH,
    PacketType.PUBREC: _PUBLISH,
    PacketType.SUBACK: {
        Outcome.CANCELLED: Reason.UNSPECIFIED_ERROR,
        Outcome.FAILED: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Outcome.DENIED: Reason.NOT_AUTHORIZED,
        Outcome.OVER_LIMIT: Reason.QUOTA_EXCEEDED,
    },
    PacketType.UNSUBACK: {
        Outcome.FAILED: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        # UNSUBACK has no Quota exceeded.
        Outcome.OVER_LIMIT: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    },
}
"""Reason codes by packet and outcome. The outcomes between hosts and those with an explanation have
the lowest byte of `Outcome.FAILED`."""


def reason_of(outcome: int, packet: PacketType) -> int:
    """Return the reason code for an outcome in a packet.

    Answers that wait for their turn may also be refusals by the session itself: a number that is no
    outcome is already a reason code.
    """
    plain = outcome & 0xFF
    return REASONS[packet].get(plain, plain)
