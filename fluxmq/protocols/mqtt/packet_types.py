"""The control packet types of MQTT and their permitted senders.

Numbers only: the upper four bits of a packet's first byte (MQTT 5 section 2.1.2) and the lower four
bits that are reserved for all types but PUBLISH (section 2.1.3).
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final


class PacketType(IntEnum):
    """Control packet type. `WILL` (the reserved 0) names the will's place in the property table."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Sender(Enum):
    """The end of the connection that wrote a packet; some fields are legal from one end only."""

    CLIENT = "client"
    SERVER = "server"


VERSION_3_1_1: Final = 4
VERSION_5: Final = 5

RESERVED_FLAGS: Final[dict[PacketType, int]] = {
    kind: 0b0010 if kind in (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE) else 0
    for kind in PacketType
    if kind not in (PacketType.WILL, PacketType.PUBLISH)
}
"""Lower four bits of the first byte [MQTT-2.1.3-1]; PUBLISH uses them for DUP, QoS and RETAIN."""

SENT_BY: Final[dict[Sender, frozenset[PacketType]]] = {
    Sender.CLIENT: frozenset(
        {
            PacketType.CONNECT,
            PacketType.PUBLISH,
            PacketType.PUBACK,
            PacketType.PUBREC,
            PacketType.PUBREL,
            PacketType.PUBCOMP,
            PacketType.SUBSCRIBE,
            PacketType.UNSUBSCRIBE,
            PacketType.PINGREQ,
            PacketType.DISCONNECT,
            PacketType.AUTH,
        }
    ),
    Sender.SERVER: frozenset(
        {
            PacketType.CONNACK,
            PacketType.PUBLISH,
            PacketType.PUBACK,
            PacketType.PUBREC,
            PacketType.PUBREL,
            PacketType.PUBCOMP,
            PacketType.SUBACK,
            PacketType.UNSUBACK,
            PacketType.PINGRESP,
            PacketType.DISCONNECT,
            PacketType.AUTH,
        }
    ),
}
"""Direction of flow (MQTT 5 table 2-1)."""

SINCE_VERSION_5: Final[frozenset[tuple[Sender, PacketType]]] = frozenset(
    {
        (Sender.CLIENT, PacketType.AUTH),
        (Sender.SERVER, PacketType.AUTH),
        (Sender.SERVER, PacketType.DISCONNECT),
    }
)
"""Packets that MQTT 3.1.1 does not have."""
