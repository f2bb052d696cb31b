"""Strategies for MQTT: valid packets of both versions, topics, filters, and broken bytes."""

from __future__ import annotations

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
    Will,
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
        will = Will(
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


@st.composite
def packets(draw: st.DrawFn, version: int, sender: Sender) -> Packet:
    """Any packet that `sender` may write in `version`."""
    is_5 = version == 5

    def of(packet: PacketType) -> Properties:
        return draw(properties(packet, sender)) if is_5 else Properties()

    def reason(packet: PacketType) -> int:
        return draw(st.sampled_from(sorted(allowed(packet, sender)))) if is_5 else 0

    def publish() -> Publish:
        qos = draw(st.integers(0, 2))
        made = of(PacketType.PUBLISH)
        without_topic = is_5 and made.topic_alias is not None and draw(st.booleans())
        return Publish(
            topic=b"" if without_topic else draw(topics()),
            payload=draw(BINARY),
            qos=qos,
            retain=draw(st.booleans()),
            dup=bool(qos) and draw(st.booleans()),
            packet_id=draw(PACKET_ID) if qos else 0,
            properties=made,
        )

    def acknowledgement(make: type[Puback | Pubrec | Pubrel | Pubcomp], kind: PacketType) -> Packet:
        return make(draw(PACKET_ID), reason(kind), of(kind))

    def connack() -> Connack:
        codes = allowed(PacketType.CONNACK, sender) if is_5 else {0, 0x84, 0x85, 0x86, 0x87, 0x88}
        code = draw(st.sampled_from(sorted(codes)))
        return Connack(not code and draw(st.booleans()), code, of(PacketType.CONNACK))

    def subscription() -> Subscription:
        topic_filter = draw(filters())
        options = (draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2)))
        if not is_5:
            options = (False, False, 0)
        no_local = options[0] and not topic_filter.startswith(b"$share/")
        return Subscription(topic_filter, draw(st.integers(0, 2)), no_local, *options[1:])

    def several() -> range:
        return range(draw(st.integers(1, 3)))

    def reasons(kind: PacketType, of_3_1_1: set[int]) -> list[int]:
        codes = allowed(kind, sender) if is_5 else of_3_1_1
        return [draw(st.sampled_from(sorted(codes))) for _ in several()] if codes else []

    makers = [
        publish,
        lambda: acknowledgement(Puback, PacketType.PUBACK),
        lambda: acknowledgement(Pubrec, PacketType.PUBREC),
        lambda: acknowledgement(Pubrel, PacketType.PUBREL),
        lambda: acknowledgement(Pubcomp, PacketType.PUBCOMP),
    ]
    if sender is Sender.CLIENT:
        makers += [
            lambda: draw(connects(version)),
            lambda: Subscribe(
                draw(PACKET_ID), [subscription() for _ in several()], of(PacketType.SUBSCRIBE)
            ),
            lambda: Unsubscribe(
                draw(PACKET_ID), [draw(filters()) for _ in several()], of(PacketType.UNSUBSCRIBE)
            ),
            Pingreq,
        ]
    else:
        makers += [
            connack,
            lambda: Suback(
                draw(PACKET_ID),
                reasons(PacketType.SUBACK, {0, 1, 2, 0x80}),
                of(PacketType.SUBACK),
            ),
            lambda: Unsuback(
                draw(PACKET_ID), reasons(PacketType.UNSUBACK, set()), of(PacketType.UNSUBACK)
            ),
            Pingresp,
        ]
    if is_5 or sender is Sender.CLIENT:
        makers.append(lambda: Disconnect(reason(PacketType.DISCONNECT), of(PacketType.DISCONNECT)))
    if is_5:
        makers.append(lambda: Auth(reason(PacketType.AUTH), of(PacketType.AUTH)))
    return draw(st.sampled_from(makers))()


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
