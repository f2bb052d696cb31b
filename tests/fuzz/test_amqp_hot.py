"""AMQP 0.9.1's parser under fire: what it hands over is what the frames say, in time linear in the input.

`FLUXMQ_FUZZ_ROUNDS` makes the search longer, `FLUXMQ_FUZZ_SEED` another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.fuzz.amqp_hot_targets import corpus, fuzz_parser
from tests.fuzz.mutation import explore
from tests.unit.protocols.amqp091.line import (
    HEARTBEAT,
    Line,
    ack,
    content_header,
    publish,
    publish_method,
)

ROUNDS = int(os.environ.get("FLUXMQ_FUZZ_ROUNDS", "6000"))
SEED = int(os.environ.get("FLUXMQ_FUZZ_SEED", "1"))

OUTCOMES_MIN = 60
"""Fewer different outcomes mean that the search has lost its way."""


def test_the_handler_gets_what_the_frames_say() -> None:
    outcomes = explore(fuzz_parser, corpus(), SEED, ROUNDS)
    assert len(outcomes) >= OUTCOMES_MIN


def together(data: bytes, size: int) -> list[bytes]:
    """`data` again and again, all at once."""
    return [data * (size // len(data))]


def begun(size: int) -> list[bytes]:
    """One publish in very small pieces."""
    data = publish(bytes(size), piece=1 << 20)
    return [data[at : at + 64] for at in range(0, len(data), 64)]


CASES: dict[str, Callable[[int], list[bytes]]] = {
    "one run": lambda size: together(publish(b"x"), size),
    "runs of one": lambda size: together(publish(b"x") + publish(b"x", key=b"r"), size),
    "sizes that differ": lambda size: together(publish(b"x") + publish(b"") + publish(b"xy"), size),
    "bodies of one byte": lambda size: together(publish(bytes(64), piece=1), size),
    "methods without content": lambda size: together(publish_method(1, b"", b"q"), size),
    "headers without method": lambda size: together(content_header(1, 5), size),
    "heartbeats": lambda size: together(HEARTBEAT, size),
    "acknowledgements of nothing": lambda size: together(ack(1 << 40), size),
    "acknowledgements in disorder": lambda size: [
        b"".join(ack(number * 7919 % 10_000 + 1) for number in range(size // 21))
    ],
    "a publish in small pieces": begun,
}


def seconds(case: Callable[[int], list[bytes]], size: int) -> float:
    """Processor time for the input, the best of three."""
    times = []
    for _ in range(3):
        line = Line()
        line.connection.frame_max = 1 << 20
        ledger = line.ledger()
        for number in range(10_000):
            ledger.given("consumer", 1, 2 * number)
        pieces = case(size)
        started = time.process_time()
        line.send(*pieces)
        times.append(time.process_time() - started)
        assert not line.ended
        line.close()
    return min(times)


@pytest.mark.parametrize("name", CASES)
def test_time_is_linear_in_the_input(name: str) -> None:
    """Eight times the input, about eight times the time; a quadratic path would take 64 times."""
    small, large = 1 << 14, 1 << 17
    base = seconds(CASES[name], small)
    assert seconds(CASES[name], large) < 24 * base + 0.02
