"""The fixed header's numbers and directions (MQTT 5 sections 2.1.2 and 2.1.3)."""

from fluxmq.protocols.mqtt.packet_types import RESERVED_FLAGS, SENT_BY, PacketType, Sender


def test_reserved_flags_are_those_of_table_2_2() -> None:
    two = {PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE}
    assert {kind for kind, flags in RESERVED_FLAGS.items() if flags == 2} == two
    assert {kind for kind, flags in RESERVED_FLAGS.items() if flags == 0} == (
        set(PacketType) - two - {PacketType.WILL, PacketType.PUBLISH}
    )


def test_every_packet_is_sent_by_somebody() -> None:
    assert SENT_BY[Sender.CLIENT] | SENT_BY[Sender.SERVER] == set(PacketType) - {PacketType.WILL}


def test_what_flows_one_way_only() -> None:
    assert SENT_BY[Sender.CLIENT] - SENT_BY[Sender.SERVER] == {
        PacketType.CONNECT,
        PacketType.SUBSCRIBE,
        PacketType.UNSUBSCRIBE,
        PacketType.PINGREQ,
    }
