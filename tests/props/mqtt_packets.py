"""Strategies for MQTT: valid packets of both versions, topics, filters, and broken bytes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from fluxmq.protocols.mqtt.packet_types import PacketType, Sender
from fluxmq.protocols.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    WillPacket,
)
from fluxmq.protocols.mqtt.properties import RULES, DataType, Properties, PropertyRule
from fluxmq.protocols.mqtt.reasons import allowed

LEVEL = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0/+#"), max_size=3
) | st.sampled_from(["a", "b", "$SYS", ""])
STRING = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
PACKET_ID = st.integers(1, 65_535)
BINARY = st.binary(max_size=8)


@st.composite
def topics(draw: st.DrawFn) -> bytes:
    """Topic names."""
    levels = draw(st.lists(LEVEL, min_size=1, max_size=5))
    return ("/".join(levels) or "/").encode()


@st.composite
def filters(draw: st.DrawFn, shared: bool = True) -> bytes:
    """Topic filters, `$share` ones among them unless not `shared`."""
    levels = draw(st.lists(LEVEL | st.just("+"), min_size=1, max_size=5))
    if draw(st.booleans()):
        levels[-1] = "#"
    text = "/".join(levels) or "/"
    if shared and draw(st.integers(0, 4)) == 0:
        text = "$share/" + draw(LEVEL.filter(bool)) + "/" + text
    return text.encode()


_BY_TYPE = {
    DataType.BYTE: st.integers(0, 1),
    DataType.TWO_BYTES: st.integers(1, 65_535),
    DataType.FOUR_BYTES: st.integers(1, 0xFFFF_FFFF),
    DataType.VARIABLE: st.integers(1, 268_435_455),
    DataType.STRING: STRING,
    DataType.BINARY: BINARY,
    DataType.PAIR: st.tuples(STRING, STRING),
}


def _value(rule: PropertyRule, packet: PacketType) -> st.SearchStrategy[object]:
    if rule.attribute == "response_topic":
        return topics().map(bytes.decode)
    if rule.attribute == "user_properties":
        return st.lists(_BY_TYPE[DataType.PAIR], max_size=3)
    if rule.attribute == "subscription_identifiers":
        most = 3 if rule.may_repeat(packet) else 1
        return st.lists(_BY_TYPE[DataType.VARIABLE], max_size=most)
    return _BY_TYPE[rule.data_type]


@st.composite
def properties(draw: st.DrawFn, packet: PacketType, sender: Sender) -> Properties:
    """Properties that `sender` may put into this packet."""
    made = Properties()
    for rule in RULES:
        if packet not in rule.packets or not draw(st.booleans()):
            continue
        if (packet, sender) == (PacketType.PUBLISH, Sender.CLIENT) and rule.identifier == 0x0B:
            continue
        if (packet, sender) == (PacketType.DISCONNECT, Sender.SERVER) and rule.identifier == 0x11:
            continue
        setattr(made, rule.attribute, draw(_value(rule, packet)))
    if packet is PacketType.AUTH or made.authentication_data is not None:
        made.authentication_method = made.authentication_method or "method"
    return made


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    """CONNECT."""

    def of(packet: PacketType) -> Properties:
        return draw(properties(packet, Sender.CLIENT)) if version == 5 else Properties()

    will = None
    if draw(st.booleans()):
        will = WillPacket(
            draw(topics()),
            draw(BINARY),
            draw(st.integers(0, 2)),
            draw(st.booleans()),
            of(PacketType.WILL),
        )
    client_id = draw(STRING)
    username = draw(st.none() | STRING)
    return Connect(
        client_id=client_id,
        clean_start=draw(st.booleans()) or (version == 4 and not client_id),
        keep_alive=draw(st.integers(0, 65_535)),
        will=will,
        username=username,
        password=draw(st.none() | BINARY) if version == 5 or username is not None else None,
        version=version,
        properties=of(PacketType.CONNECT),
    )


class _Maker:
    """Draws the parts of packets that `sender` may write in `version`."""

    def __init__(self, draw: st.DrawFn, version: int, sender: Sender) -> None:
        self.draw = draw
        self.version = version
        self.sender = sender
        self.is_5 = version == 5

    def properties(self, packet: PacketType) -> Properties:
        return self.draw(properties(packet, self.sender)) if self.is_5 else Properties()

    def reason(self, packet: PacketType) -> int:
        codes = sorted(allowed(packet, self.sender))
        return self.draw(st.sampled_from(codes)) if self.is_5 else 0

    def reasons(self, packet: PacketType, of_3_1_1: set[int]) -> list[int]:
        codes = sorted(allowed(packet, self.sender) if self.is_5 else of_3_1_1)
        return self.draw(st.lists(st.sampled_from(codes), min_size=1, max_size=3)) if codes else []

    def packet_id(self) -> int:
        return self.draw(PACKET_ID)

    def connect(self) -> Connect:
        return self.draw(connects(self.version))

    def connack(self) -> Connack:
        kind = PacketType.CONNACK
        codes = allowed(kind, self.sender) if self.is_5 else {0, 0x84, 0x85, 0x86, 0x87, 0x88}
        code = self.draw(st.sampled_from(sorted(codes)))
        return Connack(not code and self.draw(st.booleans()), code, self.properties(kind))

    def publish(self) -> Publish:
        qos = self.draw(st.integers(0, 2))
        made = self.properties(PacketType.PUBLISH)
        without_topic = self.is_5 and made.topic_alias is not None and self.draw(st.booleans())
        return Publish(
            topic=b"" if without_topic else self.draw(topics()),
            payload=self.draw(BINARY),
            qos=qos,
            retain=self.draw(st.booleans()),
            dup=bool(qos) and self.draw(st.booleans()),
            packet_id=self.packet_id() if qos else 0,
            properties=made,
        )

    def acknowledgement(self) -> Packet:
        kinds: list[tuple[type[Puback | Pubrec | Pubrel | Pubcomp], PacketType]] = [
            (Puback, PacketType.PUBACK),
            (Pubrec, PacketType.PUBREC),
            (Pubrel, PacketType.PUBREL),
            (Pubcomp, PacketType.PUBCOMP),
        ]
        make, kind = self.draw(st.sampled_from(kinds))
        return make(self.packet_id(), self.reason(kind), self.properties(kind))

    def subscribe(self) -> Subscribe:
        many = range(self.draw(st.integers(1, 3)))
        subscriptions = [self.subscription() for _ in many]
        return Subscribe(self.packet_id(), subscriptions, self.properties(PacketType.SUBSCRIBE))

    def subscription(self) -> Subscription:
        topic_filter = self.draw(filters())
        qos = self.draw(st.integers(0, 2))
        if not self.is_5:
            return Subscription(topic_filter, qos)
        return Subscription(
            topic_filter,
            qos,
            no_local=not topic_filter.startswith(b"$share/") and self.draw(st.booleans()),
            retain_as_published=self.draw(st.booleans()),
            retain_handling=self.draw(st.integers(0, 2)),
        )

    def suback(self) -> Suback:
        kind = PacketType.SUBACK
        reasons = self.reasons(kind, {0, 1, 2, 0x80})
        return Suback(self.packet_id(), reasons, self.properties(kind))

    def unsubscribe(self) -> Unsubscribe:
        several = self.draw(st.lists(filters(), min_size=1, max_size=3))
        return Unsubscribe(self.packet_id(), several, self.properties(PacketType.UNSUBSCRIBE))

    def unsuback(self) -> Unsuback:
        kind = PacketType.UNSUBACK
        return Unsuback(self.packet_id(), self.reasons(kind, set()), self.properties(kind))

    def disconnect(self) -> Disconnect:
        kind = PacketType.DISCONNECT
        return Disconnect(self.reason(kind), self.properties(kind))

    def auth(self) -> Auth:
        return Auth(self.reason(PacketType.AUTH), self.properties(PacketType.AUTH))


@st.composite
def packets(draw: st.DrawFn, version: int, sender: Sender) -> Packet:
    """Any packet that `sender` may write in `version`."""
    maker = _Maker(draw, version, sender)
    kinds: list[Callable[[], Packet]] = [maker.publish, maker.acknowledgement]
    if sender is Sender.CLIENT:
        kinds += [maker.connect, maker.subscribe, maker.unsubscribe, Pingreq]
    else:
        kinds += [maker.connack, maker.suback, maker.unsuback, Pingresp]
    if version == 5 or sender is Sender.CLIENT:
        kinds.append(maker.disconnect)
    if version == 5:
        kinds.append(maker.auth)
    return draw(st.sampled_from(kinds))()


@st.composite
def mutated(draw: st.DrawFn, raw: bytes) -> bytes:
    """`raw` with a few bytes changed, removed or inserted."""
    data = bytearray(raw)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(["set", "cut", "insert", "flip"]))
        if change == "insert" or at == len(data):
            data[at:at] = draw(st.binary(min_size=1, max_size=3))
        elif change == "cut":
            del data[at : at + draw(st.integers(1, 3))]
        elif change == "set":
            data[at] = draw(st.integers(0, 255))
        else:
            data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)
