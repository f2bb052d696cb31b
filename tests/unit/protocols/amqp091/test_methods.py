"""Methods: the bytes of every one, what is refused and how."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest
from pamqp import commands

from fluxmq.protocols.amqp091 import methods
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.method_codec import decode, encode, frame, ids
from fluxmq.protocols.amqp091.methods import (
    LAYOUTS,
    BasicAck,
    BasicPublish,
    BasicQos,
    ConnectionOpen,
    ConnectionTune,
    Method,
    QueueDeclare,
    QueuePurge,
)
from tests.unit.protocols.amqp091.traces import traces

TRACES = [
    (text, cast("Method", value), raw) for text, value, raw in traces("methods.txt", vars(methods))
]


@pytest.mark.parametrize(("text", "method", "raw"), TRACES, ids=[each[0] for each in TRACES])
def test_traces(text: str, method: Method, raw: bytes) -> None:
    assert encode(method) == raw, text
    found = decode(raw)
    assert type(found) is type(method)
    assert found == method
    assert frame(513, method) == b"\x01\x02\x01" + struct.pack(">I", len(raw)) + raw + b"\xce"
    assert struct.pack(">HH", *ids(method)) == raw[:4]
    assert ids(type(method)) == ids(method)


def test_every_method_is_traced() -> None:
    assert {type(method) for _, method, _ in TRACES} == {make for _, _, make, _ in LAYOUTS}
    assert len({(class_id, method_id) for class_id, method_id, _, _ in LAYOUTS}) == len(LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout[2].__name__)
def test_every_field_has_a_place(layout: tuple[int, int, type[Method], str]) -> None:
    _, _, make, fields = layout
    named = [code for code in fields.split() if code[0] != "-"]
    types = {"B": "int", "H": "int", "I": "int", "Q": "int", "s": "str", "S": "bytes"}
    types |= {"F": "Table", "?": "bool"}
    annotations = [each.__forward_arg__ for each in make.__annotations__.values()]
    assert annotations == [types[code] for code in named]


PAMQP_TYPES = {
    "octet": "B",
    "short": "H",
    "long": "I",
    "longlong": "Q",
    "shortstr": "s",
    "longstr": "S",
    "table": "F",
    "bit": "?",
}
PAMQP_NAMES = {"nowait": "no_wait", "exchange_type": "type"}


def test_another_implementation_has_the_same_methods() -> None:
    """pamqp's tables are generated from the specification's machine-readable form."""
    ours = {
        class_id << 16 | method_id: (make, fields) for class_id, method_id, make, fields in LAYOUTS
    }
    known: dict[int, Any] = commands.INDEX_MAPPING
    for index, theirs in known.items():
        make, fields = ours.pop(index)
        assert theirs.name.replace(".", "") == make.__name__
        names = theirs.attributes()
        codes = [PAMQP_TYPES[getattr(theirs, f"_{name}")] for name in names]
        assert [code[-1] for code in fields.split()] == codes, make
        given = [
            name
            for name, code in zip(names, fields.split(), strict=True)
            if not code.startswith("-")
        ]
        assert list(make.__annotations__) == [PAMQP_NAMES.get(name, name) for name in given]
    assert {make.__name__ for make, _ in ours.values()} == {
        *("AccessRequest", "AccessRequestOk", "BasicCredit", "BasicCreditOk", "BasicCreditDrained")
    }, "of AMQP 0-8, and of RabbitMQ's AMQP 1.0 plug-in"


@pytest.mark.parametrize(("text", "method", "raw"), TRACES, ids=[each[0] for each in TRACES])
def test_every_byte_is_needed_and_no_more(text: str, method: Method, raw: bytes) -> None:
    for broken in [raw[:size] for size in range(len(raw))] + [raw + b"\0"]:
        with pytest.raises(HardError) as caught:
            decode(broken)
        assert caught.value.code is ReplyCode.FRAME_ERROR, text
        expected = ids(method) if len(broken) >= 4 else (0, 0)
        assert (caught.value.class_id, caught.value.method_id) == expected


def test_what_is_reserved_is_read_over() -> None:
    assert decode(bytes.fromhex("000a 0028 01 2f 03 616263 01")) == ConnectionOpen("/")
    assert decode(bytes.fromhex("003c 0028 ffff 00 01 6b 00")) == BasicPublish("", "k")


def test_bits_that_stand_for_nothing() -> None:
    assert decode(bytes.fromhex("003c 000a 00000000 0001 ff")) == BasicQos(0, 1, True)
    assert decode(bytes.fromhex("003c 000a 00000000 0001 fe")) == BasicQos(0, 1, False)


@pytest.mark.parametrize(
    ("raw", "code", "text", "where"),
    [
        ("", 501, "type 1, all octets = <<>>: unknown_frame", (0, 0)),
        ("000b", 501, "type 1, all octets = <<0,11>>: unknown_frame", (0, 0)),
        ("003c 000a 0102", 501, "cannot decode <<1,2>>", (60, 10)),
        ("0032 001e 0000 01 ff 00", 501, "Malformed UTF-8 in shortstr", (50, 30)),
        ("003c 0063", 540, "unknown method 99 of class 60", (60, 99)),
        ("0046 000a", 540, "unknown method 10 of class 70", (70, 10)),
        ("0028 0029", 540, "unknown method 41 of class 40", (40, 41)),
        (
            "0032 000a 0000 01 41 00 00000004 01 41 5a 00",
            502,
            "malformed field table: a value of type 90, which is not known",
            (50, 10),
        ),
        (
            "0032 000a 0000 01 71 00 00000040 01 41 5a 00",
            501,
            "cannot decode <<0,0,1,113,0,0,0,0,64,1,65,90,0>>",
            (50, 10),
        ),
    ],
)
def test_refused(raw: str, code: int, text: str, where: tuple[int, int]) -> None:
    with pytest.raises(HardError) as caught:
        decode(bytes.fromhex(raw))
    assert caught.value.code == code
    assert caught.value.text == text
    assert (caught.value.class_id, caught.value.method_id) == where


@pytest.mark.parametrize(
    "method",
    [
        QueuePurge("q" * 256),
        QueueDeclare("é" * 128),
        QueueDeclare("q", arguments={"a": 1 << 64}),
        ConnectionTune(65_536, 0, 0),
        ConnectionTune(0, -1, 0),
    ],
)
def test_what_a_field_cannot_hold(method: Method) -> None:
    with pytest.raises(ValueError, match=r"255 bytes|cannot hold"):
        encode(method)


def test_the_longest_of_short_strings() -> None:
    assert decode(encode(QueuePurge("q" * 255))) == QueuePurge("q" * 255)


@pytest.mark.parametrize("multiple", [True, False])
def test_the_fast_path_writes_the_same(multiple: bool) -> None:
    method = BasicAck((1 << 64) - 1, multiple)
    assert frame(65_535, method)[7:-1] == encode(method)
