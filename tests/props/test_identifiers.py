"""Ranges of packet identifiers against plain sets and lists, compiled and uncompiled."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt import identifiers
from fluxmq.protocols.mqtt.scan import COMPILED
from tests.unit.protocols.mqtt.wire import numbered
from tests.unit.variants import from_source

VARIANTS = [identifiers]
if COMPILED:
    VARIANTS.append(from_source("protocols.mqtt.identifiers"))
variants = pytest.mark.parametrize("module", VARIANTS, ids=lambda module: module.__name__)
BASES = st.sampled_from([0, 65_498])
RANGES = st.tuples(st.integers(1, 30), st.integers(1, 8))
STEPS = st.lists(st.tuples(st.booleans(), RANGES), max_size=30)


@variants
@given(base=BASES, steps=STEPS, asked=RANGES)
def test_ranges_are_a_set(
    module: Any, base: int, steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    found, wanted = module.IdentifierRanges(), set[int]()
    for adds, (first, count) in steps:
        numbers = set(range(base + first, base + first + count))
        if adds:
            found.add(base + first, count)
            wanted |= numbers
        else:
            removed = found.remove(base + first, count)
            assert expanded(removed) == sorted(wanted & numbers)
            wanted -= numbers
    ranges = found.ranges()
    assert expanded(ranges) == found.numbers() == sorted(wanted)
    assert found.count == len(wanted)
    assert all(one + count < other for (one, count), (other, _) in pairwise(ranges))
    first, count = base + asked[0], asked[1]
    numbers = set(range(first, first + count))
    assert found.overlaps(first, count) == bool(wanted & numbers)
    assert [found.has(each) for each in numbers] == [each in wanted for each in numbers]
    assert found.near(first, count) == [
        (one, size) for one, size in ranges if one <= first + count and one + size >= first
    ]


@variants
@given(base=BASES, steps=st.lists(st.tuples(st.integers(0, 3), RANGES), max_size=30))
def test_released_identifiers_keep_order_and_numbers(
    module: Any, base: int, steps: list[tuple[int, tuple[int, int]]]
) -> None:
    """Steps 1 to 3 release by a sink of that number, 1 being none; step 0 completes."""
    found: Any = module.ReleasedIdentifiers()
    wanted: dict[int, tuple[int, int]] = {}
    bases = dict.fromkeys((1, 2, 3), 0)
    for sink, (first, count) in steps:
        pid = base + first
        if sink:
            count = next((n for n in range(count) if pid + n in wanted), count)
            if count:
                settle = None if sink == 1 else sink
                found.add(pid, count, settle, bases[sink])
                for each in range(count):
                    wanted[pid + each] = sink, bases[sink] + each
                bases[sink] += count
        else:
            parts = [messages(each) for each in found.take(pid, count)]
            there = [each for each in range(pid, pid + count) if each in wanted]
            assert list(chain(*parts)) == [named(each, *wanted.pop(each)) for each in there]
        assert found.count == len(wanted)
        assert expanded(found.in_order()) == list(wanted)
        assert [found.has(each) for each in range(base + 1, base + 40)] == [
            each in wanted for each in range(base + 1, base + 40)
        ]
    everything = [messages(each) for each in found.parts(0, 65_536)]
    assert list(chain(*everything)) == [named(each, *wanted[each]) for each in sorted(wanted)]


@variants
@given(
    st.lists(st.tuples(st.integers(1, 65_535), st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from([0x50, 0x62, 0x70]),
    st.binary(max_size=3),
)
def test_packets_become_ranges_and_again_packets(
    module: Any, ranges: list[tuple[int, int]], kind: int, before: bytes
) -> None:
    numbers = [(first - 1 + n) % 65_535 + 1 for first, count in ranges for n in range(count)]
    data = bytearray(before + b"".join(numbered(kind, number) for number in numbers))
    found = module.identifier_ranges(data, len(before), len(numbers))
    assert expanded(found) == numbers
    assert all(sum(one) != other[0] for one, other in pairwise(found))
    out = bytearray(before)
    for first, count in found:
        module.append_range(out, kind, first, count)
    assert out == data


def expanded(ranges: list[tuple[int, int]]) -> list[int]:
    """The numbers in ranges."""
    return [number for first, count in ranges for number in range(first, first + count)]


def messages(part: Any) -> list[tuple[int, Any, int]]:
    """The messages of a released range: identifier, sink, number (0 without a sink)."""
    return [named(part.pid + n, part.settle or 1, part.base + n) for n in range(part.count)]


def named(pid: int, sink: int, number: int) -> tuple[int, int, int]:
    """One message; its number matters to a sink only."""
    return pid, sink, number if sink != 1 else 0
