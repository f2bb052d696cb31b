"""Batches and property blocks under fire: only their own errors come out, in time linear in the input.

`FLUXMQ_FUZZ_ROUNDS` makes the search longer, `FLUXMQ_FUZZ_SEED` another one.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable

import pytest
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import BatchError, parse
from fluxmq.model.batches import columns
from fluxmq.model.message_batch import build_message
from fluxmq.model.properties import DEPTH_MAX, ITEMS_MAX, PropertyError, decode
from tests.fuzz.batch_targets import TARGETS
from tests.fuzz.mutation import explore

ROUNDS = int(os.environ.get("FLUXMQ_FUZZ_ROUNDS", "8000"))
SEED = int(os.environ.get("FLUXMQ_FUZZ_SEED", "1"))

OUTCOMES_MIN = {"batch": 6, "sealed_batch": 12, "block": 40, "forward": 10}
"""Fewer different outcomes mean that the search has lost its way."""


@pytest.mark.parametrize("name", TARGETS)
def test_only_their_own_errors(name: str) -> None:
    target, corpus = TARGETS[name]
    outcomes = explore(target, corpus, SEED, ROUNDS)
    assert len(outcomes) >= OUTCOMES_MIN[name], sorted(map(str, outcomes))


@pytest.mark.parametrize("read", [parse, columns])
def test_lengths_that_lie_cost_nothing(read: Callable[[bytes], object]) -> None:
    """Each length announces gigabytes; nothing is allocated for any of them."""
    data = build_message(b"k", b"p", b"payload", 1)
    began = time.perf_counter()
    for at in (8, 40, 44, 48, 52):
        raw = bytearray(data)
        struct.pack_into("<I", raw, at, 0xFFFF_FFF8)
        struct.pack_into("<I", raw, 4, 0)
        struct.pack_into("<I", raw, 4, xxh3_64_intdigest(bytes(raw[:64])) & 0xFFFF_FFFF)
        with pytest.raises(BatchError):
            read(bytes(raw))
    assert time.perf_counter() - began < 0.5


def seconds(block: bytes) -> float:
    began = time.perf_counter()
    with contextlib.suppress(PropertyError):
        decode(block)
    return time.perf_counter() - began


def nested(size: int) -> bytes:
    """Arrays inside arrays, as deep as bytes go."""
    return b"\x06\xff\xff\x03\x00" + b"A\xff\xff\x03" * (size // 4)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(b"\x0d\x00" * ITEMS_MAX, id="items"),
        pytest.param(b"\x0d\x00" * (4 * ITEMS_MAX), id="too many items"),
        pytest.param(nested(1 << 20), id="nested"),
        pytest.param(b"\x06\x04\x00A\x01V" * (1 << 17), id="headers"),
        pytest.param(b"\x06" + b"\xff" * (1 << 20), id="sizes"),
    ],
)
def test_time_is_bounded(block: bytes) -> None:
    assert DEPTH_MAX < 100
    assert min(seconds(block) for _ in range(2)) < 5
