"""Strategies for the hot path: bursts of PUBLISH packets as clients write them, and where a stream is cut."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from fluxmq.protocols.mqtt.properties import Properties
from tests.unit.protocols.mqtt.wire import publish

TOPICS = (b"a", b"a/b", b"a/bc", b"sensor/" + b"x" * 120 + b"/t", b"\xc3\xa9/\xe6\xbc\xa2")
SIZES = st.sampled_from(
    [0, 1, 3, 60, 118, 119, 120, 121, 122, 123, 124, 125, 126, 300]
) | st.integers(0, 200)
"""Payload sizes, those around the step of the Remaining Length from one byte to two among them."""
PACKET_IDS = st.sampled_from([1, 2, 255, 256, 65_530, 65_535]) | st.integers(1, 65_535)

PROPERTIES = st.sampled_from(
    [
        Properties(),
        Properties(),
        Properties(user_properties=[("k", "v")]),
        Properties(content_type="text", payload_format_indicator=1),
        Properties(response_topic="r", correlation_data=b"\x00" * 130),
        Properties(message_expiry_interval=60),
    ]
)


@dataclass(frozen=True)
class Burst:
    """Neighbouring publishes with equal topic, flags and properties, as sent."""

    topic: bytes
    payloads: tuple[bytes, ...]
    qos: int
    retain: bool
    dup: bool
    packet_ids: tuple[int, ...]
    version: int
    properties: Properties

    def packets(self) -> list[bytes]:
        """Each on the wire."""
        return [
            publish(
                self.topic,
                payload,
                self.qos,
                packet_id,
                self.version,
                retain=self.retain,
                dup=self.dup,
                properties=self.properties,
            )
            for payload, packet_id in zip(self.payloads, self.packet_ids, strict=True)
        ]


def packet_ids(first: int, count: int) -> tuple[int, ...]:
    """`count` identifiers from `first` on, 1 following 65535."""
    return tuple((first - 1 + index) % 65_535 + 1 for index in range(count))


@st.composite
def bursts(
    draw: st.DrawFn, version: int, *, longest: int = 24, plain: bool = False, start: int = 0
) -> Burst:
    """A burst. `plain`: neither retained nor a repetition. Payloads begin with a number if there is room."""
    count = draw(st.integers(1, longest))
    equal = draw(st.booleans())
    if equal:
        sizes = [draw(SIZES)] * count
    else:
        pattern = draw(st.lists(SIZES, min_size=1, max_size=6))
        sizes = [pattern[index % len(pattern)] for index in range(count)]
    filler = bytes(range(256)) * 2
    payloads = tuple(
        ((start + index).to_bytes(4, "big") + filler)[: max(size, 4 if plain else 0)]
        for index, size in enumerate(sizes)
    )
    qos = draw(st.integers(0, 2))
    first = draw(PACKET_IDS)
    return Burst(
        topic=draw(st.sampled_from(TOPICS)),
        payloads=payloads,
        qos=qos,
        retain=False if plain else draw(st.booleans()),
        dup=False if plain else bool(qos) and draw(st.booleans()),
        packet_ids=packet_ids(first, count) if qos else (0,) * count,
        version=version,
        properties=draw(PROPERTIES) if version == 5 else Properties(),
    )


@st.composite
def cuts(draw: st.DrawFn, data: bytes, most: int = 6) -> list[bytes]:
    """The bytes in random pieces."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=most)))
    pieces = []
    at = 0
    for place in [*places, len(data)]:
        if place > at:
            pieces.append(data[at:place])
            at = place
    return pieces
