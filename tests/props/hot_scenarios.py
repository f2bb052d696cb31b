"""Random lives of a shard: clients, bursts, cuts, answers in any order, lost connections; and what must come of it.

`scenarios` draws one, `play` runs it on a shard and gives everything that was written, `check` says whether that
is what MQTT asks for: every message once or again with DUP, in order, within the client's window, by free
identifiers, as the reference codec reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from fluxmq.protocols.mqtt.packets import Publish, Pubrel
from fluxmq.protocols.mqtt.properties import Properties
from tests.props.hot_bursts import TOPICS, Burst, bursts, cuts, packet_ids
from tests.unit.net.shard import Peer, Shard
from tests.unit.protocols.mqtt.wire import numbered, puback, publish, read, read_all
from tests.unit.variants import Hot


@dataclass(frozen=True)
class Subscriber:
    """A client that receives. `next_pid`: where the broker's packet identifiers begin for it."""

    version: int
    topic_filter: bytes
    qos: int
    retain_as_published: bool = False
    identifier: int = 0
    aliases: int = 0
    window: int = 1024
    largest: int = 0
    next_pid: int = 1


@dataclass(frozen=True)
class Send:
    """Publisher `publisher` sends bursts in pieces. `alias`: topic alias to use for each, 0 for none."""

    publisher: int
    bursts: tuple[Burst, ...]
    aliases: tuple[int, ...]
    pieces: tuple[bytes, ...]


@dataclass(frozen=True)
class Answer:
    """Subscriber `subscriber` answers `count` of the packets that ask for it, in an order."""

    subscriber: int
    count: int
    seed: int


@dataclass(frozen=True)
class Reconnect:
    """A subscriber's connection is lost and it comes back to its session."""

    subscriber: int


@dataclass(frozen=True)
class Wait:
    """Time passes."""

    seconds: float


@dataclass(frozen=True)
class Scenario:
    """Publishers by version, subscribers, steps."""

    receive_bytes: int
    publishers: tuple[int, ...]
    subscribers: tuple[Subscriber, ...]
    steps: tuple[Any, ...]


@st.composite
def subscribers(draw: st.DrawFn) -> Subscriber:
    """One subscriber."""
    version = draw(st.sampled_from([4, 5]))
    made = Subscriber(
        version,
        draw(st.sampled_from([b"#", b"#", b"a/+", *TOPICS])),
        draw(st.integers(0, 2)),
        next_pid=draw(st.sampled_from([1, 1, 65_530, 65_535])),
    )
    if version == 4:
        return made
    return replace(
        made,
        retain_as_published=draw(st.booleans()),
        identifier=draw(st.sampled_from([0, 0, 1, 200])),
        aliases=draw(st.sampled_from([0, 0, 2])),
        window=draw(st.sampled_from([1, 3, 1024])),
        largest=draw(st.sampled_from([0, 0, 130, 180])),
    )


def encode_burst(burst: Burst, alias: int) -> bytes:
    """The burst on the wire; with an alias, the first packet names the topic and the others do not."""
    if not alias:
        return b"".join(burst.packets())
    properties = replace(burst.properties, topic_alias=alias)
    first = replace(burst, properties=properties).packets()[:1]
    return b"".join(first + replace(burst, topic=b"", properties=properties).packets()[1:])


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A scenario of a few dozen to a few hundred messages."""
    versions = tuple(draw(st.lists(st.sampled_from([4, 5]), min_size=1, max_size=2)))
    those = tuple(draw(st.lists(subscribers(), min_size=1, max_size=4)))
    next_id = [draw(st.sampled_from([1, 65_520])) for _ in versions]
    sent = 0
    steps: list[Any] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(
            st.sampled_from(["send", "send", "send", "answer", "answer", "reconnect", "wait"])
        )
        if kind == "send":
            publisher = draw(st.integers(0, len(versions) - 1))
            some = []
            for _ in range(draw(st.integers(1, 4))):
                burst = draw(bursts(versions[publisher], plain=True, start=sent))
                burst = replace(burst, retain=draw(st.integers(0, 4)) == 0)
                if burst.qos:
                    count = len(burst.payloads)
                    burst = replace(burst, packet_ids=packet_ids(next_id[publisher], count))
                    next_id[publisher] = (next_id[publisher] - 1 + count) % 65_535 + 1
                sent += len(burst.payloads)
                some.append(burst)
            aliases = [
                draw(st.sampled_from([0, 0, 1, 2])) if burst.version == 5 else 0 for burst in some
            ]
            data = b"".join(map(encode_burst, some, aliases))
            pieces = draw(cuts(data))
            steps.append(Send(publisher, tuple(some), tuple(aliases), tuple(pieces)))
        elif kind == "wait":
            steps.append(Wait(draw(st.sampled_from([0.3, 1.0, 2.5]))))
        else:
            subscriber = draw(st.integers(0, len(those) - 1))
            if kind == "reconnect":
                steps.append(Reconnect(subscriber))
            else:
                steps.append(Answer(subscriber, draw(st.integers(1, 40)), draw(st.integers(0, 3))))
    return Scenario(draw(st.sampled_from([300, 2048, 65_536])), versions, those, tuple(steps))


@dataclass
class Receiver:
    """A subscriber at work: what it got and still owes an answer to, over all its connections."""

    wanted: Subscriber
    peer: Peer
    connections: list[Peer] = field(default_factory=list)
    unanswered: list[bytes] = field(default_factory=list)
    log: list[tuple[str, bytes]] = field(default_factory=list)
    """("got" or "sent", packet), and ("lost", b"") where a connection ended."""

    def collect(self) -> None:
        """Take what has arrived."""
        for packet in self.peer.packets():
            self.log.append(("got", packet))
            kind = packet[0] >> 4
            if (kind == 3 and packet[0] & 6) or kind == 6:
                self.unanswered.append(packet)

    def answer(self, count: int, seed: int) -> None:
        """Answer some: in order (`seed` 0), else in an order of its own."""
        some, self.unanswered = self.unanswered[:count], self.unanswered[count:]
        if seed:
            Random(seed).shuffle(some)
        for packet in some:
            if packet[0] >> 4 == 6:
                answer = b"\x70" + packet[1:4]
            else:
                found = read(packet, self.wanted.version)
                assert isinstance(found, Publish)
                answer = (
                    puback(found.packet_id) if found.qos == 1 else numbered(0x50, found.packet_id)
                )
            self.log.append(("sent", answer))
            self.peer.send(answer)

    def lose(self) -> None:
        """The connection is lost; the session is not."""
        self.log.append(("lost", b""))
        self.unanswered.clear()
        self.peer.socket.close()


@dataclass
class Outcome:
    """Everything a shard wrote and counted."""

    written: list[bytes]
    counts: dict[str | int, int]
    """By name; errors by reason."""
    deliveries: list[tuple[int, ...]]
    receivers: list[Receiver]
    publishers: list[Peer]


COUNTS = (
    *("received0", "received1", "received2", "received_bytes0", "received_bytes1"),
    *("received_bytes2", "sent0", "sent1", "sent2", "sent_bytes0", "sent_bytes1", "sent_bytes2"),
    *("dropped_slow", "dropped_full", "dropped_expired", "dropped_large", "runs"),
)


def play(scenario: Scenario, hot: Hot) -> Outcome:
    """Run a scenario on a fresh shard."""
    shard = Shard(hot, receive_bytes=scenario.receive_bytes, topic_alias_maximum=4)
    try:
        return _play(scenario, shard)
    finally:
        shard.close_all()


def _connect(shard: Shard, number: int, wanted: Subscriber) -> Peer:
    properties = Properties()
    if wanted.version == 5:
        properties = Properties(
            session_expiry_interval=3600,
            receive_maximum=wanted.window,
            topic_alias_maximum=wanted.aliases or None,
            maximum_packet_size=wanted.largest or None,
        )
    return shard.connect(f"s{number}", wanted.version, clean=False, properties=properties)


def _play(scenario: Scenario, shard: Shard) -> Outcome:
    receivers = []
    for number, wanted in enumerate(scenario.subscribers):
        peer = _connect(shard, number, wanted)
        shard.sessions[f"s{number}"].delivery.next_pid = wanted.next_pid
        peer.subscribe(
            wanted.topic_filter,
            wanted.qos,
            retain_as_published=wanted.retain_as_published,
            identifier=wanted.identifier,
        )
        receivers.append(Receiver(wanted, peer, [peer]))
    publishers = [
        shard.connect(f"p{number}", version) for number, version in enumerate(scenario.publishers)
    ]
    for step in scenario.steps:
        if isinstance(step, Send):
            peer = publishers[step.publisher]
            for piece in step.pieces:
                peer.send(piece)
                shard.settle()
            # Publishers release their QoS 2 messages, so that identifiers are free again.
            peer.answer(peer.packets())
        elif isinstance(step, Answer):
            receivers[step.subscriber].answer(step.count, step.seed)
        elif isinstance(step, Wait):
            shard.clock += step.seconds
        else:
            receiver = receivers[step.subscriber]
            receiver.lose()
            shard.settle()
            receiver.peer = _connect(shard, step.subscriber, receiver.wanted)
            receiver.connections.append(receiver.peer)
        shard.settle()
        for receiver in receivers:
            receiver.collect()
    while any(receiver.unanswered for receiver in receivers):
        for receiver in receivers:
            receiver.answer(len(receiver.unanswered), 0)
        shard.settle()
        for receiver in receivers:
            receiver.collect()
    deliveries = [shard.sessions[f"s{number}"].delivery for number in range(len(receivers))]
    return Outcome(
        [bytes(peer.all) for peer in shard.peers],
        {name: getattr(shard.reactor.tally, name) for name in COUNTS} | dict(shard.errors),
        [
            (each.inflight, each.pending_count, each.pending_bytes, each.next_pid)
            for each in deliveries
        ],
        receivers,
        publishers,
    )


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """The filters used here: all, one level below `a`, one topic."""
    if topic_filter == b"#":
        return True
    if topic_filter == b"a/+":
        return topic.startswith(b"a/") and topic.count(b"/") == 1
    return topic == topic_filter


def expected(scenario: Scenario, wanted: Subscriber) -> list[tuple[Any, ...]]:
    """What the subscriber must get, in the order of publication."""
    found = []
    for step in scenario.steps:
        if not isinstance(step, Send):
            continue
        for burst in step.bursts:
            if not matches(wanted.topic_filter, burst.topic):
                continue
            qos = min(burst.qos, wanted.qos)
            retain = burst.retain and wanted.retain_as_published
            properties = burst.properties if wanted.version == 5 else Properties()
            if wanted.identifier:
                properties = replace(properties, subscription_identifiers=[wanted.identifier])
            for payload in burst.payloads:
                size = len(
                    publish(
                        burst.topic,
                        payload,
                        qos,
                        1 if qos else 0,
                        wanted.version,
                        retain=retain,
                        properties=properties,
                    )
                )
                if not wanted.largest or size <= wanted.largest:
                    found.append((burst.topic, payload, qos, retain, timeless(properties)))
    return found


def timeless(properties: Properties) -> Properties:
    """Without what differs by way and time: alias and expiry, of which only the presence counts."""
    expiry = properties.message_expiry_interval
    assert expiry is None or 0 < expiry <= 60
    return replace(
        properties, topic_alias=None, message_expiry_interval=None if expiry is None else 1
    )


def check(scenario: Scenario, outcome: Outcome) -> None:
    """Everything was delivered as MQTT asks."""
    for receiver in outcome.receivers:
        got = received(receiver)
        wanted = expected(scenario, receiver.wanted)
        assert [each for each in got if each[2] == 0] == [each for each in wanted if each[2] == 0]
        assert [each for each in got if each[2]] == [each for each in wanted if each[2]]
    for peer in outcome.publishers:
        read_all(peer.all, peer.version)
    for inflight, pending, pending_bytes, next_pid in outcome.deliveries:
        assert (inflight, pending, pending_bytes) == (0, 0, 0)
        assert 1 <= next_pid <= 65_536


def received(receiver: Receiver) -> list[tuple[Any, ...]]:
    """First deliveries, in order; window, identifiers and repetitions are checked on the way."""
    wanted = receiver.wanted
    found: list[tuple[Any, ...]] = []
    sent: dict[int, tuple[Any, ...]] = {}
    """Unanswered publishes by identifier, in order; those between PUBREC and PUBCOMP are None."""
    releasing: set[int] = set()
    again: list[int] = []
    """Identifiers that a new connection must repeat, in order."""
    aliases: dict[int, bytes] = {}
    for event, packet in receiver.log:
        if event == "lost":
            again = list(sent)
            aliases = {}
            continue
        packet_id = int.from_bytes(packet[2:4], "big")
        if event == "sent":
            if packet[0] == 0x40:
                del sent[packet_id]
            elif packet[0] == 0x50:
                del sent[packet_id]
                releasing.add(packet_id)
            else:
                releasing.discard(packet_id)
            continue
        if wanted.largest:
            assert len(packet) <= wanted.largest
        message = read(packet, wanted.version)
        if isinstance(message, Pubrel):
            assert message.packet_id in releasing
            continue
        assert isinstance(message, Publish), packet
        alias = message.properties.topic_alias
        topic = message.topic
        if alias is not None:
            assert 1 <= alias <= wanted.aliases
            topic = aliases.setdefault(alias, topic) if topic else aliases[alias]
        values = (
            topic,
            message.payload,
            message.qos,
            message.retain,
            timeless(message.properties),
        )
        if message.dup:
            assert again, "nothing is to be repeated"
            assert again.pop(0) == message.packet_id
            assert sent[message.packet_id] == values
            continue
        found.append(values)
        if message.qos:
            assert not again, "new before what is to be repeated"
            assert message.packet_id not in sent
            assert message.packet_id not in releasing
            sent[message.packet_id] = values
            assert len(sent) + len(releasing) <= wanted.window
    assert not sent
    assert not releasing
    return found
