"""The whole shard under fire: only protocol errors come of it, in time linear in the input.

A longer search, or another one::

    FLUXMQ_FUZZ_ROUNDS=1000000 FLUXMQ_FUZZ_SEED=7 python -m pytest tests/fuzz/test_hot.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from fluxmq.protocols.mqtt.codec import encode
from fluxmq.protocols.mqtt.packets import Connect, Subscribe, Subscription, Unsubscribe
from fluxmq.protocols.mqtt.properties import Properties
from tests.fuzz.hot_targets import conversation, corpus, fuzz_shard
from tests.fuzz.mutation import explore
from tests.unit.net.shard import Peer, Shard
from tests.unit.protocols.mqtt.wire import numbered, puback, publish

ROUNDS = int(os.environ.get("FLUXMQ_FUZZ_ROUNDS", "4000"))
SEED = int(os.environ.get("FLUXMQ_FUZZ_SEED", "1"))

OUTCOMES_MIN = 120
"""Fewer different outcomes mean that the search has lost its way."""


def test_only_protocol_errors() -> None:
    outcomes = explore(fuzz_shard, corpus(), SEED, ROUNDS)
    assert len(outcomes) >= OUTCOMES_MIN


def test_findings_can_be_read() -> None:
    for data in corpus():
        assert conversation(data)


# Time in proportion to the input. Each case makes, for a size in bytes, what a connected client sends.


def together(data: bytes, size: int) -> list[bytes]:
    """`data` again and again, all at once."""
    return [data * (size // len(data))]


def acknowledgements(size: int, order: Callable[[list[int]], object]) -> list[bytes]:
    """Identifiers 1 to 1000 acknowledged in some order, again and again."""
    identifiers = list(range(1, 1001))
    order(identifiers)
    return together(puback(*identifiers), size)


def long_packet(size: int) -> list[bytes]:
    """One packet in very small pieces."""
    data = publish(b"t", bytes(size))
    return [data[at : at + 16] for at in range(0, len(data), 16)]


def topics(size: int) -> list[bytes]:
    """Every message on a topic of its own, no run longer than one."""
    return [b"".join(publish(b"t/%06d" % number, b"x") for number in range(size // 14))]


CASES: dict[str, Callable[[int], list[bytes]]] = {
    "one run": lambda size: together(publish(b"t", b"x"), size),
    "runs of one": lambda size: together(publish(b"t", b"x") + publish(b"u", b"x"), size),
    "topics": topics,
    "sizes that differ": lambda size: together(
        publish(b"t", b"x") + publish(b"t", b"xy", 0) + publish(b"t", b""), size
    ),
    "identifiers that repeat": lambda size: together(publish(b"t", b"x", 1, 7), size),
    "QoS 2 that repeats": lambda size: together(publish(b"t", b"x", 2, 7), size),
    "releases of nothing": lambda size: together(numbered(0x62, 9), size),
    "pings": lambda size: together(b"\xc0\x00", size),
    "acknowledgements in order": lambda size: acknowledgements(size, lambda numbers: None),
    "acknowledgements in reverse": lambda size: acknowledgements(size, list.reverse),
    "acknowledgements in disorder": lambda size: acknowledgements(size, Random(1).shuffle),
    "acknowledgements of nothing": lambda size: together(puback(60_000), size),
    "subscriptions": lambda size: [
        b"".join(
            encode(Subscribe(1, [Subscription(b"s/%04d" % (number % 90), 0)]), 4)
            + encode(Unsubscribe(1, [b"s/%04d" % (number % 90)]), 4)
            for number in range(size // 26)
        )
    ],
    "a long packet in small pieces": long_packet,
}


def shard_with_much_in_flight() -> Iterator[tuple[Shard, Peer]]:
    """A client with a thousand messages in flight, each from a run of its own."""
    shard = Shard()
    client = shard.connect("client")
    client.subscribe(b"mine", 1)
    publisher = shard.connect("publisher")
    for number in range(1000):
        publisher.send(publish(b"mine", b"x%d" % number, 1, 1) + publish(b"other", b""))
    shard.settle()
    yield shard, client
    shard.close_all()


def seconds(case: Callable[[int], list[bytes]], size: int) -> float:
    """Return the processor time for the input."""
    spent = 0.0
    for shard, client in shard_with_much_in_flight():
        pieces = case(size)
        started = time.process_time()
        for piece in pieces:
            client.send(piece)
            shard.reactor.tick()
        shard.settle()
        spent = time.process_time() - started
        assert not client.closed
    return spent


@pytest.mark.parametrize("name", CASES)
def test_time_is_linear_in_the_input(name: str) -> None:
    """Eight times the input, about eight times the time; a quadratic path would take 64 times."""
    small, large = 1 << 14, 1 << 17
    case = CASES[name]
    bound = 24 * min(seconds(case, small) for _ in range(3)) + 0.02
    # The best of three counts, so the first within the bound decides.
    assert any(seconds(case, large) < bound for _ in range(3))


def test_user_properties_are_linear_too() -> None:
    def run(count: int) -> float:
        shard = Shard()
        peer = shard.open()
        peer.send(encode(Connect("p", version=5), 5))
        shard.settle()
        properties = Properties(user_properties=[("a", "b")] * 16)
        data = publish(b"t", b"x", version=5, properties=properties)
        other = publish(b"u", b"x", version=5, properties=properties)
        started = time.process_time()
        peer.send((data + other) * count)
        shard.settle()
        spent = time.process_time() - started
        assert not peer.closed
        shard.close_all()
        return spent

    base = min(run(50) for _ in range(3))
    assert min(run(400) for _ in range(3)) < 24 * base + 0.02
