"""The whole shard for fuzzing: bytes of a hostile client in, what it and others were sent out.

The first byte of an input chooses the client's state (not connected, 3.1.1, 5) and where the bytes are cut. After
every input the shard must be well: what it wrote is what the reference codec reads, a client that broke the
protocol is gone, nothing of it is left, and another client is still served.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Final

from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    WillPacket,
)
from fluxmq.protocols.mqtt.properties import Properties
from fluxmq.protocols.mqtt.reasons import ProtocolError
from tests.unit.net.shard import Peer, Shard
from tests.unit.protocols.mqtt.wire import cut, read, read_all

PINGREQ: Final = b"\xc0\x00"
STATES: Final = (0, 4, 5)
"""Version of a client that has connected, 0 for one that has not."""


def fuzz_shard(data: bytes) -> Hashable:
    """Choice byte, bytes of the client."""
    if not data:
        return "short"
    version = STATES[data[0] % 3]
    shard = Shard(receive_bytes=256, max_packet=2048, topic_alias_maximum=4, max_inflight=16)
    try:
        watcher = shard.connect("watcher", 5)
        watcher.subscribe(b"#", 2)
        if version:
            hostile = shard.connect("hostile", version)
            hostile.subscribe(b"a/#", 2)
        else:
            hostile = shard.open()
            hostile.version = 0
        deliver(shard, hostile, data[1:], Random(data[0] // 3))
        return outcome(shard, hostile, watcher)
    finally:
        shard.close_all()


def deliver(shard: Shard, peer: Peer, data: bytes, random: Random) -> None:
    """Send the bytes in pieces; a seed of 0 sends them at once."""
    at = 0
    whole = random.getstate() == Random(0).getstate()
    while at < len(data):
        size = len(data) if whole else random.choice((1, 2, 3, 7, 40, 200))
        peer.send(data[at : at + size])
        shard.settle()
        at += size


def outcome(shard: Shard, hostile: Peer, watcher: Peer) -> Hashable:
    """What came of it; raises when the shard is not well."""
    seen = [type(packet).__name__ for packet in read_all(watcher.received, 5)]
    watcher.received.clear()
    version = hostile.version or connected_version(hostile.received)
    answers = [type(packet).__name__ for packet in read_all(hostile.received, version)]
    tally = shard.reactor.tally
    errors = tuple(shard.errors)
    # A refused publish of an MQTT 3.1.1 client is counted as an error, acknowledged and dropped.
    refused = version == 4 and (shard.drops["queue_refused"] or shard.drops["no_permission"])
    if errors and not refused:
        assert hostile.closed, "a client that broke the protocol is still there"
    connection = hostile.connection
    if hostile.closed:
        assert connection.fd == -1
        assert connection.size == 0
    else:
        assert len(connection.tail or b"") + connection.gathered <= 2048 + 256
    watcher.send(PINGREQ)
    shard.settle()
    assert watcher.received.endswith(b"\xd0\x00"), "another client is not served any more"
    return (
        errors,
        hostile.closed,
        *(tuple(dict.fromkeys(each)) for each in (answers, seen)),
        *(bool(each) for each in (tally.received0, tally.received1, tally.received2)),
    )


def connected_version(received: bytearray) -> int:
    """By which version to read the answers to whoever had not connected."""
    packets, _ = cut(received)
    if packets and packets[0][0] == 0x20 and len(packets[0]) == 4:
        return 4
    return 5


def _connects() -> list[Packet]:
    will = WillPacket(b"a/w", b"gone", 1)
    return [
        Connect("x", version=4),
        Connect("x", False, 10, will, version=4),
        Connect("x", version=5),
        Connect(
            "",
            version=5,
            will=will,
            properties=Properties(
                session_expiry_interval=9,
                receive_maximum=3,
                maximum_packet_size=64,
                topic_alias_maximum=2,
            ),
        ),
    ]


def _packets(version: int) -> list[Packet]:
    def only_5(**values: object) -> Properties:
        return Properties(**values) if version == 5 else Properties()  # type: ignore[arg-type]

    return [
        Publish(b"a/b", b"one"),
        Publish(b"a/b", b"two"),
        Publish(b"a/b", b"three", 1, packet_id=1),
        Publish(b"a/b", b"four", 2, packet_id=2),
        Publish(b"a/b", b"four", 2, dup=True, packet_id=2),
        Publish(b"b", b"kept", 1, True, packet_id=3),
        Publish(b"b", b"", retain=True),
        Publish(b"a/c", b"x", properties=only_5(topic_alias=1, message_expiry_interval=5)),
        Publish(
            b"" if version == 5 else b"a", b"x", 1, packet_id=4, properties=only_5(topic_alias=1)
        ),
        Publish(b"a/c", b"x", properties=only_5(user_properties=[("k", "v")], content_type="t")),
        Puback(1),
        Puback(2, 0x10 if version == 5 else 0),
        Pubrec(2),
        Pubrel(2),
        Pubcomp(3),
        Subscribe(5, [Subscription(b"b/#", 1), Subscription(b"$share/g/b", 2)]),
        Unsubscribe(6, [b"a/#", b"none"]),
        Pingreq(),
        Disconnect(),
    ]


def corpus() -> list[bytes]:
    """Good conversations: every packet by itself, and several together."""
    found = [bytes((0,)) + encode(packet, packet.version) for packet in _connects()]  # type: ignore[union-attr]
    for state, version in ((1, 4), (2, 5)):
        packets = [encode(packet, version) for packet in _packets(version)]
        found += [bytes((state + 3,)) + packet for packet in packets]
        found += [
            bytes((state,)) + b"".join(packets[:4] * 6),
            bytes((state + 3,)) + b"".join(packets[:-1]),
            bytes((state + 6,)) + b"".join(packets[10:15] + packets[:4]),
            bytes((0,)) + encode(Connect("y", version=version), version) + b"".join(packets),
        ]
    found.append(bytes((2,)) + encode(Auth(0x19, Properties(authentication_method="m")), 5))
    found.append(bytes((1,)) + encode(Publish(b"a/l", bytes(1500), 1, packet_id=9), 4) * 2)
    return found


def conversation(data: bytes) -> list[str]:
    """An input in words, for the report of a finding."""
    version = STATES[data[0] % 3] or 4
    packets, rest = cut(data[1:])
    names = []
    for packet in packets:
        try:
            names.append(repr(read(packet, version)))
        except ProtocolError as error:
            names.append(f"{packet.hex()}: {error}")
    return [*names, rest.hex()]
