"""The hot path takes a client's packet exactly when the reference codec does.

PUBLISH and PUBACK are read by the scanner, everything else by the codec itself; what the two accept must not
differ, or a packet would be an error for one publisher and pass for another.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt.codec import decode
from fluxmq.protocols.mqtt.packet_types import Sender
from fluxmq.protocols.mqtt.packets import Packet, Puback, Publish
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.wire import write_variable_integer
from tests.props.hot_bursts import bursts
from tests.props.mqtt_packets import mutated
from tests.unit.net.shard import Shard
from tests.unit.protocols.mqtt.wire import body_of


@st.composite
def suspects(draw: st.DrawFn, version: int) -> tuple[int, bytes]:
    """First byte and body of a packet that may be broken; its length is right."""
    if draw(st.integers(0, 4)) == 0:
        return 0x40, draw(
            st.sampled_from([b"\x00\x00", b"\x00\x07", b"\x00\x07\x00", b""])
            | st.binary(max_size=6)
        )
    burst = draw(bursts(version, longest=1))
    packet = burst.packets()[0]
    body = body_of(packet)
    first = packet[0]
    if draw(st.booleans()):
        body = draw(mutated(body))
    if draw(st.integers(0, 3)) == 0:
        first ^= draw(st.integers(0, 15))
    return first, body


def read(first: int, body: bytes, version: int, shard: Shard) -> Packet | None:
    """The packet by the codec, under the shard's limits; None when it is broken."""
    try:
        return decode(first, body, version, sender=Sender.CLIENT, limits=shard.limits.packets)
    except ProtocolError:
        return None


@given(st.data(), st.sampled_from([4, 5]))
def test_the_hot_path_accepts_what_the_codec_accepts(data: st.DataObject, version: int) -> None:
    first, body = data.draw(suspects(version))
    shard = Shard()
    try:
        found = read(first, body, version, shard)
        peer = shard.connect("p", version)
        watcher = shard.connect("w", 5)
        watcher.subscribe(b"#", 2)
        peer.send(bytes((first,)) + write_variable_integer(len(body)) + body)
        shard.settle()
        if isinstance(found, Publish) and found.properties.topic_alias is not None:
            return  # whether the alias is known is the session's question
        assert peer.closed is (found is None)
        assert (len(watcher.received) > 0) is (
            isinstance(found, Publish) and not found.topic.startswith(b"$")
        )
        assert found is None or isinstance(found, Publish | Puback)
    finally:
        shard.close_all()
