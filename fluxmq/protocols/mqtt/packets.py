"""The control packets of MQTT, one slotted dataclass each (MQTT 5 chapter 3).

Values only: topics and filters are bytes because routing keys are, other strings are text. Every
reason is an MQTT 5 reason code, whatever the version on the wire. In version 3.1.1 `properties` is
empty and reasons that it cannot express are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fluxmq.protocols.mqtt.packet_types import VERSION_5
from fluxmq.protocols.mqtt.properties import Properties


@dataclass(slots=True)
class WillPacket:
    """The message that the server publishes when its client is lost (section 3.1.2.5)."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Connect:
    """CONNECT (3.1). `keep_alive` is in seconds, 0 for none; an empty `client_id` asks for one.

    `version` is 4 (3.1.1) or 5; `clean_start` is 3.1.1's Clean Session.
    """

    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    will: WillPacket | None = None
    username: str | None = None
    password: bytes | None = None
    protocol_name: str = "MQTT"
    version: int = VERSION_5
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Connack:
    """CONNACK (3.2)."""

    session_present: bool = False
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Publish:
    """PUBLISH (3.3). `packet_id` is 0 with QoS 0; `topic` may be empty beside a topic alias."""

    topic: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Puback:
    """PUBACK (3.4)."""

    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Pubrec:
    """PUBREC (3.5)."""

    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Pubrel:
    """PUBREL (3.6)."""

    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Pubcomp:
    """PUBCOMP (3.7)."""

    packet_id: int
    reason: int = 0
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Subscription:
    """One filter of a SUBSCRIBE with its options (3.8.3.1).

    `retain_handling`: 0 sends retained messages at every subscribe, 1 for a new subscription, 2
    never. MQTT 3.1.1 has only the QoS.
    """

    filter: bytes
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (3.8), at least one subscription."""

    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Suback:
    """SUBACK (3.9), one reason per filter; any failure is 0x80 in 3.1.1."""

    packet_id: int
    reasons: list[int]
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (3.10), at least one filter."""

    packet_id: int
    filters: list[bytes]
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK (3.11), one reason per filter; 3.1.1 has none."""

    packet_id: int
    reasons: list[int] = field(default_factory=list)
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Pingreq:
    """PINGREQ (3.12)."""


@dataclass(slots=True)
class Pingresp:
    """PINGRESP (3.13)."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (3.14); 3.1.1 has neither reason nor properties, and only a client sends it."""

    reason: int = 0
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Auth:
    """AUTH (3.15), MQTT 5 only."""

    reason: int = 0
    properties: Properties = field(default_factory=Properties)


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
