"""The MQTT parsers under fire: only protocol errors come out, in time linear in the input.

`FLUXMQ_FUZZ_ROUNDS` makes the search longer, `FLUXMQ_FUZZ_SEED` another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

import pytest

from fluxmq.protocols.mqtt.codec import Limits, decode
from fluxmq.protocols.mqtt.packet_types import Sender
from fluxmq.protocols.mqtt.properties import parse_publish_properties
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.topics import validate_filter, validate_topic
from fluxmq.protocols.mqtt.wire import write_binary, write_variable_integer
from tests.fuzz.mqtt_targets import TARGETS
from tests.fuzz.mutation import explore

ROUNDS = int(os.environ.get("FLUXMQ_FUZZ_ROUNDS", "15000"))
SEED = int(os.environ.get("FLUXMQ_FUZZ_SEED", "1"))

# Fewer different outcomes mean that the search has lost its way, not that the parser got better.
OUTCOMES_MIN = {
    "packet": 120,
    "length": 6,
    "properties": 100,
    "publish_properties": 12,
    "topic": 14,
}


@pytest.mark.parametrize("name", TARGETS)
def test_only_protocol_errors(name: str) -> None:
    target, corpus = TARGETS[name]
    outcomes = explore(target, corpus, SEED, ROUNDS)
    assert len(outcomes) >= OUTCOMES_MIN[name]


WIDE = Limits(max_user_properties=1 << 30, max_filters=1 << 30)
USER = b"\x26\x00\x01a\x00\x01b"


def _block(raw: bytes) -> bytes:
    return write_variable_integer(len(raw)) + raw


def _decode(first: int, body: bytes, version: int, sender: Sender = Sender.CLIENT) -> None:
    try:
        decode(first, body, version, sender=sender, limits=WIDE)
    except ProtocolError:
        return


def _parse(raw: bytes) -> None:
    try:
        parse_publish_properties(raw, 1 << 30)
    except ProtocolError:
        return


def _validate(check: Callable[[bytes], object], raw: bytes) -> None:
    try:
        check(raw)
    except ProtocolError:
        return


# Each makes, for a size in bytes, the call to be timed.
CASES: dict[str, Callable[[int], Callable[[], None]]] = {
    "user properties": lambda size: partial(
        _decode, 0x30, b"\x00\x01a" + _block(USER * (size // 7)), 5
    ),
    "user properties in transit, the last one broken": lambda size: partial(
        _parse, USER * (size // 7) + b"\x26\x00"
    ),
    "filters, the last one broken": lambda size: partial(
        _decode, 0x82, b"\x00\x01" + b"\x00\x01#\x00" * (size // 4) + b"\xff", 4
    ),
    "filters to unsubscribe": lambda size: partial(
        _decode, 0xA2, b"\x00\x01\x00" + b"\x00\x01#" * (size // 3), 5
    ),
    "subscription identifiers": lambda size: partial(
        _decode, 0x30, b"\x00\x01a" + _block(b"\x0b\x01" * (size // 2)), 5, Sender.SERVER
    ),
    "reasons, the last one broken": lambda size: partial(
        _decode, 0x90, b"\x00\x01\x00" + bytes(size) + b"\x05", 5, Sender.SERVER
    ),
    "levels of a filter": lambda size: partial(
        _validate, validate_filter, b"+/" * (size // 2) + b"a#"
    ),
    "levels of a topic": lambda size: partial(_validate, validate_topic, b"/" * size + b"\xff"),
    "a topic ill-formed at its end": lambda size: partial(
        _decode, 0x30, write_binary("é".encode() * (size // 16) + b"\xc3"), 4
    ),
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
    """Eight times the input, about eight times the time; a quadratic path would take 64 times."""
    small, large = 1 << 14, 1 << 17
    base = _seconds(CASES[name](small))
    assert _seconds(CASES[name](large)) < 24 * base + 0.005
