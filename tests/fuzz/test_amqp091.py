"""The AMQP 0.9.1 parsers under fire: only protocol errors come out, in time linear in the input.

`FLUXMQ_FUZZ_ROUNDS` makes the search longer, `FLUXMQ_FUZZ_SEED` another one.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable
from functools import partial

import pytest

from fluxmq.protocols.amqp091.content import decode_properties
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.message_properties import from_block, to_block
from fluxmq.protocols.amqp091.method_codec import decode
from fluxmq.protocols.amqp091.tables import ENTRIES_MAX
from tests.fuzz.amqp091_targets import TARGETS
from tests.fuzz.mutation import explore

ROUNDS = int(os.environ.get("FLUXMQ_FUZZ_ROUNDS", "8000"))
SEED = int(os.environ.get("FLUXMQ_FUZZ_SEED", "1"))

OUTCOMES_MIN = {
    "method": 80,
    "table": 40,
    "header": 26,
    "headers": 30,
    "block": 110,
    "sasl": 15,
}
"""Fewer different outcomes mean that the search has lost its way, not that the parser got better."""


@pytest.mark.parametrize("name", TARGETS)
def test_only_protocol_errors(name: str) -> None:
    target, corpus = TARGETS[name]
    outcomes = explore(target, corpus, SEED, ROUNDS)
    assert len(outcomes) >= OUTCOMES_MIN[name], sorted(map(str, outcomes))


def _table(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def _nested(size: int) -> bytes:
    """Arrays inside arrays, as deep as bytes go; each length is true."""
    raw = b""
    for _ in range(size // 5):
        raw = b"A" + struct.pack(">I", len(raw)) + raw
    return b"\1a" + raw


def _properties(raw: bytes) -> None:
    with contextlib.suppress(HardError):
        decode_properties(b"\x20\0" + _table(raw))
        from_block(to_block(b"\x20\0" + _table(raw), "e", "u"))


def _declare(raw: bytes) -> None:
    with contextlib.suppress(HardError):
        decode(b"\0\x32\0\x0a\0\0\1q\0" + _table(raw))


# Each makes, for a size in bytes, the call to be timed.
CASES: dict[str, Callable[[int], Callable[[], None]]] = {
    "headers": lambda size: partial(_properties, b"\2abV" * (size // 4)),
    "headers, the last one broken": lambda size: partial(
        _properties, b"\2abV" * (size // 4) + b"\1"
    ),
    "arguments": lambda size: partial(_declare, b"\2abV" * (size // 4)),
    "an array": lambda size: partial(_declare, b"\1aA" + _table(b"t\1" * (size // 2))),
    "text": lambda size: partial(
        _properties, b"\1aS" + _table(b"\xc3\xa9" * (size // 2) + b"\xff")
    ),
    "nested": lambda size: partial(_declare, _nested(size)),
}


def _seconds(run: Callable[[], None]) -> float:
    times = []
    for _ in range(5):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)


@pytest.mark.parametrize("name", CASES)
def test_time_is_linear_in_the_input(name: str) -> None:
    """Eight times the input, about eight times the time; a quadratic path would always take 64 times."""
    small, large = 1 << 13, 1 << 16
    assert large // 4 <= ENTRIES_MAX, "the larger input is refused before it is read"
    assert any(
        _seconds(CASES[name](large)) < 40 * _seconds(CASES[name](small)) + 0.005 for _ in range(5)
    )


def test_lengths_that_lie_cost_nothing() -> None:
    began = time.perf_counter()
    for letter in b"SxFA":
        with pytest.raises(HardError):
            decode(b"\0\x32\0\x0a\0\0\1q\0" + _table(b"\1a" + bytes((letter,)) + b"\xff" * 5))
        with pytest.raises(HardError):
            decode_properties(b"\x20\0\xff\xff\xff\xff\1a" + bytes((letter,)))
    assert time.perf_counter() - began < 0.5
