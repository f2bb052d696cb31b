"""Strategies for messages of AMQP 1.0: the sections of a transfer, in every form that the standard allows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fluxmq.protocols.amqp10.types import Milliseconds, Symbol, UByte, UInt, ULong, Uuid
from tests.props.amqp10_values import SCALARS, VALUES
from tests.unit.protocols.amqp10.sections import encoded

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.just("y" * 300)
IDS = st.one_of(
    st.none(),
    st.binary(min_size=16, max_size=16).map(Uuid),
    st.integers(0, (1 << 64) - 1).map(ULong),
    st.binary(max_size=20),
    TEXTS,
)
SYMBOLS = st.sampled_from(["", "text/plain", "gzip"]).map(Symbol)
TIMES = st.integers(-5, 1 << 50).map(Milliseconds)
ANNOTATION_NAMES = st.one_of(
    st.sampled_from(
        ["x-exchange", "x-opt-dlq-reason", "x-basic-type", "x-opt-deaths", "x-a", "x-b", "other"]
    ).map(Symbol),
    st.integers(0, 300).map(ULong),
)


def properties(fields: dict[int, Any]) -> list[Any]:
    """The list of a properties section of these fields."""
    return [fields.get(index) for index in range(max(fields, default=-1) + 1)]


FORMS = st.integers(0, 3)
HEADERS = st.tuples(
    st.none() | st.booleans(),
    st.none() | st.integers(0, 255).map(UByte),
    st.none() | st.integers(0, (1 << 32) - 1).map(UInt),
).map(list)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        0: IDS,
        1: st.binary(max_size=5),
        2: TEXTS,
        3: TEXTS,
        4: TEXTS | st.sampled_from(["/queues/a%2Fb", "/exchanges/amq.topic/a.b", "/queues/q"]),
        5: IDS,
        6: SYMBOLS,
        7: SYMBOLS,
        8: TIMES,
        9: TIMES,
        10: TEXTS,
        11: st.integers(0, (1 << 32) - 1).map(UInt),
        12: TEXTS,
    },
).map(properties)
ANNOTATIONS = st.dictionaries(ANNOTATION_NAMES, VALUES, max_size=4)
APPLICATION = st.dictionaries(TEXTS, SCALARS, max_size=4)


def _described(code: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.builds(encoded, st.just(code), values, FORMS)


def _wide_data(content: bytes) -> bytes:
    """A data section whose length has four bytes although one is enough."""
    return b"\0\x53\x75\xb0" + len(content).to_bytes(4, "big") + content


BODIES = st.one_of(
    _described(0x75, st.binary(max_size=300)),
    st.binary(max_size=20).map(_wide_data),
    st.lists(_described(0x75, st.binary(max_size=9)), min_size=2, max_size=3).map(b"".join),
    st.lists(_described(0x76, st.lists(SCALARS, max_size=3)), min_size=1, max_size=3).map(b"".join),
    _described(0x77, VALUES),
    _described(0x77, TEXTS),
)


def _maybe(section: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.just(b"") | section


KEPT = (
    _maybe(_described(0x72, ANNOTATIONS)),
    _maybe(_described(0x73, PROPERTIES)),
    _maybe(_described(0x74, APPLICATION)),
)
FOOTERS = _maybe(_described(0x78, st.dictionaries(ANNOTATION_NAMES, SCALARS, max_size=2)))
TRANSFERS = st.tuples(
    _maybe(_described(0x70, HEADERS)),
    _maybe(_described(0x71, ANNOTATIONS)),
    *KEPT,
    BODIES,
    FOOTERS,
).map(b"".join)
"""What transfers carry."""

CONTENTS = st.tuples(st.sampled_from([0, 1, 5, 6, 7, 0x40]).map(lambda form: bytes((form,))), *KEPT)
"""Contents of a block's item AMQP10, as pieces to join."""
