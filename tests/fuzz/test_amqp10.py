"""The AMQP 1.0 parsers under fire: only protocol errors come out, in time linear in the input.

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

from fluxmq.model.amqp10_values import AmqpValueError, read_value
from fluxmq.model.properties import PropertyError
from fluxmq.protocols.amqp10.codec import EMPTY_ITEMS_MAX, MalformedError, decode, encode
from fluxmq.protocols.amqp10.filters import sql_name
from fluxmq.protocols.amqp10.message import from_sections
from fluxmq.protocols.amqp10.message_template import sections_of
from fluxmq.protocols.amqp10.selectors import LENGTH_MAX, SelectorError, compile_selector
from tests.fuzz.amqp10_targets import TARGETS
from tests.fuzz.mutation import explore
from tests.unit.protocols.amqp10.sections import encoded

ROUNDS = int(os.environ.get("FLUXMQ_FUZZ_ROUNDS", "8000"))
SEED = int(os.environ.get("FLUXMQ_FUZZ_SEED", "1"))

ROUNDS_OF_STREAMS = 40
"""A stream runs through sessions three times, which takes as long as this many other inputs."""

OUTCOMES_MIN = {
    "body": 90,
    "value": 60,
    "message": 35,
    "stored": 28,
    "foreign": 20,
    "stream": 12,
    "selector": 11,
    "filters": 14,
    "address": 9,
    "request": 24,
}
"""Fewer different outcomes mean that the search has lost its way, not that the parser got better."""


@pytest.mark.parametrize("name", TARGETS)
def test_only_protocol_errors(name: str) -> None:
    target, corpus = TARGETS[name]
    rounds = ROUNDS // ROUNDS_OF_STREAMS if name == "stream" else ROUNDS
    outcomes = explore(target, corpus, SEED, rounds)
    assert len(outcomes) >= OUTCOMES_MIN[name], sorted(map(str, outcomes))


def _compound(code: int, count: int, content: bytes) -> bytes:
    """A wide list, map or array."""
    return bytes((code,)) + struct.pack(">II", len(content) + 4, count) + content


def _nested(size: int) -> bytes:
    """Lists inside lists, as deep as bytes go; each length is true."""
    raw = b"\x45"
    for _ in range(size // 9):
        raw = _compound(0xD0, 1, raw)
    return raw


def _read(raw: bytes) -> None:
    """Read a value by both readers, and as a message's."""
    with contextlib.suppress(MalformedError):
        encode(decode(raw)[0])
    with contextlib.suppress(AmqpValueError):
        read_value(raw, 0, len(raw))
    with contextlib.suppress(AmqpValueError, PropertyError):
        message = from_sections(b"\0\x53\x72" + raw + b"\0\x53\x75\xa0\0")
        sections_of(message.block("", ""), b"", message.payload)


def _message(raw: bytes) -> None:
    with contextlib.suppress(AmqpValueError, PropertyError):
        message = from_sections(raw)
        sections_of(message.block("", ""), b"", message.payload)


def _keys(size: int) -> bytes:
    """A map of described keys, each compared by what it describes."""
    entries = [b"\0\xa3\1k\x70" + struct.pack(">I", each) + b"\x40" for each in range(size // 10)]
    return _compound(0xD1, 2 * len(entries), b"".join(entries))


def _keyed(size: int) -> bytes:
    """Maps as values of the keys of maps, thirty deep."""
    raw = b"\xb0" + struct.pack(">I", size) + bytes(size)
    for _ in range(14):
        raw = _compound(0xD1, 2, b"\0\x44" + raw + b"\x40")
    return raw


# Each makes, for a size in bytes, the call to be timed.
CASES: dict[str, Callable[[int], Callable[[], None]]] = {
    "a list": lambda size: partial(_read, _compound(0xD0, size, b"\x40" * size)),
    "a list, the last value broken": lambda size: partial(
        _read, _compound(0xD0, size, b"\x45" * (size - 1) + b"\1")
    ),
    "lists inside lists": lambda size: partial(_read, _nested(size)),
    "descriptions inside each other": lambda size: partial(_read, bytes(size)),
    "a map": lambda size: partial(
        _read,
        _compound(
            0xD1,
            size // 8 * 2,
            b"".join(b"\xa3\5%05d\x40" % each for each in range(size // 8)),
        ),
    ),
    "a map of described keys": lambda size: partial(_read, _keys(size)),
    "maps as keys of maps": lambda size: partial(_read, _keyed(size)),
    "an array": lambda size: partial(_read, _compound(0xF0, size // 2, b"\x60" + bytes(size))),
    "arrays of values without bytes": lambda size: partial(
        _read, _compound(0xD0, size // 4, b"\xe0\2\xff\x45" * (size // 4))
    ),
    "text": lambda size: partial(
        _read, b"\xb1" + struct.pack(">I", size + 1) + b"\xc3\xa9" * (size // 2) + b"\xff"
    ),
    "application properties": lambda size: partial(
        _message,
        encoded(0x74, {str(each): None for each in range(size // 8)}) + encoded(0x75, b""),
    ),
    "sections": lambda size: partial(_message, b"\0\x53\x75\xa0\0" * (size // 5)),
}


def _seconds(run: Callable[[], None]) -> float:
    times = []
    for _ in range(3):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)


@pytest.mark.parametrize("name", CASES)
def test_time_is_linear_in_the_input(name: str) -> None:
    """Eight times the input, about eight times the time; a quadratic path would always take 64 times."""
    small, large = 1 << 12, 1 << 15
    assert any(
        _seconds(CASES[name](large)) < 40 * _seconds(CASES[name](small)) + 0.005 for _ in range(5)
    )


@pytest.mark.parametrize("code", range(0x40, 0x46))
def test_counts_that_lie_cost_nothing(code: int) -> None:
    """An array of values without bytes, alone and many times in a list."""
    began = time.process_time()
    for count in (EMPTY_ITEMS_MAX + 1, 1_000_000_000, 0xFFFFFFFF):
        raw = _compound(0xF0, count, bytes((code,)))
        with pytest.raises(MalformedError):
            decode(raw)
        if count > EMPTY_ITEMS_MAX + 1:
            with pytest.raises(AmqpValueError):
                read_value(raw, 0, len(raw))
    many = 100_000
    raw = _compound(0xD0, many, (b"\xe0\2\xff" + bytes((code,))) * many)
    with pytest.raises(MalformedError):
        decode(raw)
    with pytest.raises(AmqpValueError):
        read_value(raw, 0, len(raw))
    assert time.process_time() - began < 0.5


def test_sizes_that_lie_cost_nothing() -> None:
    began = time.process_time()
    for code in (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0):
        for size in (b"\xff\xff\xff\xff", b"\0\0\0\5"):
            raw = bytes((code,)) + size + b"\xff" * 4
            with pytest.raises(MalformedError):
                decode(raw)
            with pytest.raises(AmqpValueError):
                read_value(raw, 0, len(raw))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "text",
    [
        *("'" * LENGTH_MAX, '"' * (LENGTH_MAX - 1), "[" * LENGTH_MAX, "1" * LENGTH_MAX),
        *("a." * (LENGTH_MAX // 2), " " * LENGTH_MAX, "(" * LENGTH_MAX, "1e" * (LENGTH_MAX // 2)),
        "(" * 30 + "missing" + " BETWEEN 1 AND 2)" * 30,
        "NOT " * 30 + "missing",
        "missing" + " IN (missing)" * 30,
    ],
)
def test_selectors_cost_little(text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(SelectorError):
        compile_selector(text, sql_name).matches({}, 0)
    assert time.process_time() - began < 0.5
