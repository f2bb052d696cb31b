"""Messages that each client sends to each other client, and what a client cannot express.

A value is written as its type and its content. Content of a type of fixed width is its bytes in hexadecimal, as the standard
puts them on the wire without a shorter encoding; so is that of binary. Content of string and symbol is text, of a list its
values, of a map pairs of values, of an array the type of its elements, its elements and their descriptor (or None), of a
described value the descriptor and the value.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

Value = list[Any]
Message = dict[str, Any]

LIFE_MS: Final = 600_000
NULL: Final[Value] = ["null", ""]
SIGNED: Final = {"byte": 8, "short": 16, "int": 32, "long": 64}
UNSIGNED: Final = {"ubyte": 8, "ushort": 16, "uint": 32, "ulong": 64}


class Limit(NamedTuple):
    """A case that a client cannot send or receive, and why. ``sends``, ``receives``: the client; "*" is each of them."""

    sends: str
    receives: str
    case: str
    reason: str


LIMITS: Final = (
    Limit("*", "rhea", "long 2^53+1", "a Number from 2^53 up to 2^53 + 2^32 loses its last bit"),
    Limit("*", "rhea", "ulong 2^53+1", "the same"),
    Limit("rhea", "*", "nan with a payload", "JavaScript leaves the bits of a NaN to the engine"),
    Limit("*", "rhea", "nan with a payload", "JavaScript leaves the bits of a NaN to the engine"),
    Limit("*", "rhea", "timestamp beyond Date", "read as a Date, which ends at 8.64e15 ms"),
    Limit("rhea", "*", "array of arrays", "the writer loses the inner arrays' constructors"),
    Limit("rhea", "*", "described body", "the section's descriptor takes the place of the value's"),
    Limit("*", "rhea", "described body", "the reader keeps the outermost of several descriptors"),
    Limit("rhea", "*", "described twice", "a value has one descriptor"),
    Limit("*", "rhea", "described twice", "the reader keeps the outermost of several descriptors"),
    Limit("proton", "*", "footer", "a Message has none"),
    Limit("rhea", "*", "footer", "written before the body: out of order, so the broker rejects it"),
    Limit("proton", "*", "null", "left out, and a message without a body is rejected"),
    Limit("proton", "*", "several data sections", "a Message has one body"),
    Limit("*", "proton", "several data sections", "a Message keeps the last"),
)


def fixed(kind: str, number: int, bits: int) -> Value:
    return [kind, (number % (1 << bits)).to_bytes(bits // 8, "big").hex()]


def text(content: str) -> Value:
    return ["string", content]


def symbol(content: str) -> Value:
    return ["symbol", content]


def uint(number: int) -> Value:
    return fixed("uint", number, 32)


def array(kind: str, elements: list[Value], descriptor: Value | None = None) -> Value:
    return ["array", [kind, elements, descriptor]]


def integers() -> Iterator[tuple[str, Value]]:
    """The ends of each width, and the values around the ends of the narrower ones."""
    for kind, bits in UNSIGNED.items():
        ends = {
            0,
            1,
            *(end for each in (7, 8, 15, 16, 31, 32, 63, 64) for end in _around(1 << each)),
        }
        for number in sorted(each for each in ends if each < 1 << bits):
            yield f"{kind} {number}", fixed(kind, number, bits)
    for kind, bits in SIGNED.items():
        ends = {0, 1, *(end for each in (7, 15, 31, 63) for end in _around(1 << each))}
        for number in sorted(ends | {-each for each in ends}):
            if -(1 << bits - 1) <= number < 1 << bits - 1:
                yield f"{kind} {number}", fixed(kind, number, bits)
    for exponent, difference in ((53, -1), (53, 0), (53, 1), (56, 3)):
        number = (1 << exponent) + difference
        name = f"2^{exponent}{difference:+}" if difference else f"2^{exponent}"
        yield f"ulong {name}", fixed("ulong", number, 64)
        yield f"long {name}", fixed("long", number, 64)
        yield f"long -({name})", fixed("long", -number, 64)


def _around(end: int) -> tuple[int, int]:
    return end - 1, end


FLOATS: Final = [
    "00000000",
    "80000000",
    "3f800000",
    "bf800000",
    "40490fdb",
    "00000001",
    "80000001",
    "007fffff",
    "00800000",
    "7f7fffff",
    "ff7fffff",
    "7f800000",
    "ff800000",
    "7fc00000",
]
DOUBLES: Final = [
    "0000000000000000",
    "8000000000000000",
    "3ff0000000000000",
    "bff0000000000000",
    "400921fb54442d18",
    "0000000000000001",
    "8000000000000001",
    "000fffffffffffff",
    "0010000000000000",
    "7fefffffffffffff",
    "ffefffffffffffff",
    "7ff0000000000000",
    "fff0000000000000",
    "7ff8000000000000",
]
DECIMALS: Final = {
    "decimal32": ("00000000", "22500001", "a2500001", "78000000", "7c000000"),
    "decimal64": ("0000000000000000", "2238000000000001", "f800000000000000", "7c00000000000000"),
    "decimal128": (
        "00000000000000000000000000000000",
        "22080000000000000000000000000001",
        "000102030405060708090a0b0c0d0e0f",
        "78000000000000000000000000000000",
    ),
}
CHARS: Final = (0, 0x20, 0x41, 0x7F, 0xA9, 0x418, 0x2764, 0xFFFD, 0x1F4A9, 0x10FFFF)
TIMESTAMPS: Final = (
    -8_640_000_000_000_000,
    -1,
    0,
    1,
    946_684_800_000,
    2**41,
    8_640_000_000_000_000,
)
UUIDS: Final = ("00" * 16, "0123456789abcdef0123456789abcdef", "ff" * 16)
BINARIES: Final = ("", "00", "ff", "deadbeef", "aa" * 255, "bb" * 256)
STRINGS: Final = (
    "",
    "a",
    "\0",
    "ñoño",
    "你好世界",
    "🚀🌟",
    "a\n\t\"'\\",
    "a" * 255,
    "b" * 256,
    "ü" * 128,
)
SYMBOLS: Final = ("", "a", "amqp:message-id:string", "s" * 255, "t" * 256)


def primitives() -> Iterator[tuple[str, Value]]:
    """Every primitive type with its boundary values."""
    yield "null", NULL
    yield "true", ["boolean", "01"]
    yield "false", ["boolean", "00"]
    yield from integers()
    for kind, patterns in {"float": FLOATS, "double": DOUBLES, **DECIMALS, "uuid": UUIDS}.items():
        yield from ((f"{kind} {pattern}", [kind, pattern]) for pattern in patterns)
    yield "nan with a payload", ["double", "fff8000000000001"]
    yield from ((f"char {code:x}", fixed("char", code, 32)) for code in CHARS)
    yield from ((f"timestamp {ms}", fixed("timestamp", ms, 64)) for ms in TIMESTAMPS)
    yield "timestamp beyond Date", ["timestamp", "8000000000000000"]
    for kind, contents in {"binary": BINARIES, "string": STRINGS, "symbol": SYMBOLS}.items():
        yield from ((f"{kind} {index}", [kind, each]) for index, each in enumerate(contents))


ONE_OF_EACH: Final[list[Value]] = [
    NULL,
    ["boolean", "01"],
    ["ubyte", "ff"],
    ["ushort", "ffff"],
    ["uint", "ffffffff"],
    ["ulong", "ffffffffffffffff"],
    ["byte", "80"],
    ["short", "8000"],
    ["int", "80000000"],
    ["long", "8000000000000000"],
    ["float", "80000000"],
    ["double", "7ff0000000000000"],
    ["decimal32", "22500001"],
    ["decimal64", "2238000000000001"],
    ["decimal128", "22080000000000000000000000000001"],
    ["char", "0001f4a9"],
    ["timestamp", "ffffffffffffffff"],
    ["uuid", "0123456789abcdef0123456789abcdef"],
    ["binary", "00ff"],
    text("ü"),
    symbol("s"),
]


def composites() -> Iterator[tuple[str, Value]]:
    """Lists, maps, arrays of every type, and described values, inside each other."""
    words = ["list", [text("a"), fixed("int", 1, 32)]]
    one_pair = ["map", [[text("k"), ["list", [uint(1), NULL]]]]]
    yield "empty list", ["list", []]
    yield "empty map", ["map", []]
    yield "empty array", array("uint", [])
    yield "list of each type", ["list", ONE_OF_EACH]
    yield "list of 300", ["list", [uint(number) for number in range(300)]]
    yield "lists in lists", ["list", [words, ["list", [["list", []], words]], one_pair]]
    yield "map with values of each type", ["map", [[text(each[0]), each] for each in ONE_OF_EACH]]
    # A number, a text and a symbol that are equal would be one key in a dict.
    keys = [
        uint(0),
        fixed("long", -1, 64),
        fixed("ulong", 256, 64),
        text("k"),
        symbol("s"),
        ONE_OF_EACH[17],
    ]
    yield "map with keys of several types", ["map", [[key, words] for key in keys]]
    yield "maps in maps", ["map", [[text("outer"), one_pair], [text("other"), ["map", []]]]]
    for each in ONE_OF_EACH[1:]:
        yield f"array of {each[0]}", array(each[0], [each, each])
    yield "array of boundaries", array("uint", [uint(0), uint(255), uint(256), uint(2**32 - 1)])
    yield "array of strings", array("string", [text(""), text("ü"), text("x" * 300)])
    yield "array of lists", array("list", [words, ["list", []]])
    yield "array of maps", array("map", [one_pair, one_pair])
    yield "array of arrays", array("array", [array("ushort", [["ushort", "0001"]])] * 2)
    yield "array of described", array("string", [text("a"), text("b")], symbol("example:d"))
    yield "array in a list", ["list", [text("before"), array("uint", [uint(1)]), text("after")]]
    code = fixed("ulong", 2**40, 64)
    yield (
        "described in a list",
        [
            "list",
            [
                ["described", [symbol("example:a"), text("x")]],
                ["described", [code, ["list", [["described", [symbol("example:b"), one_pair]]]]]],
            ],
        ],
    )
    yield "described body", ["described", [symbol("example:a"), words]]
    yield "described twice", ["list", [["described", [code, ["described", [code, text("x")]]]]]]


def message(name: str, value: Value, **sections: Any) -> Message:
    return {"name": name, "body": ["value", value], **sections}


def bodies() -> Iterator[Message]:
    """Messages that are a value each, and bodies that are data or a sequence."""
    yield from (message(name, value) for name, value in primitives())
    yield from (message(name, value) for name, value in composites())
    yield {"name": "data", "body": ["data", ["00ff"]]}
    yield {"name": "empty data", "body": ["data", [""]]}
    yield {"name": "several data sections", "body": ["data", ["00", "", "ff"]]}
    yield {"name": "sequence", "body": ["sequence", [uint(1), text("a"), ["list", [NULL]]]]}


def headers() -> Iterator[Message]:
    """The fields of header and properties, and the sections that are maps."""
    body = text("headers")
    for field, value in (
        ("durable", ["boolean", "01"]),
        ("priority", ["ubyte", "00"]),
        ("priority", ["ubyte", "ff"]),
        ("ttl", uint(60_000)),
        ("ttl", uint(2**32 - 1)),
        ("first-acquirer", ["boolean", "01"]),
        ("delivery-count", uint(5)),
    ):
        yield message(f"{field} {value[1]}", body, header={field: value})
    for value in (
        text("id"),
        text(""),
        fixed("ulong", 0, 64),
        fixed("ulong", 2**64 - 1, 64),
        ["uuid", UUIDS[1]],
        ["binary", "00ff"],
    ):
        ids = {"message-id": value, "correlation-id": value}
        yield message(f"ids {value[0]} {value[1]}", body, properties=ids)
    now_ms = int(time.time() * 1000)
    every = {
        "message-id": text("m"),
        "user-id": ["binary", b"guest".hex()],
        "to": text("/queues/ü"),
        "subject": text("subject"),
        "reply-to": text("/queues/replies"),
        "correlation-id": fixed("ulong", 7, 64),
        "content-type": symbol("text/plain"),
        "content-encoding": symbol("gzip"),
        "absolute-expiry-time": fixed("timestamp", now_ms + LIFE_MS, 64),
        "creation-time": fixed("timestamp", now_ms, 64),
        "group-id": text("group"),
        "group-sequence": uint(2**32 - 1),
        "reply-to-group-id": text("other group"),
    }
    for field, value in every.items():
        yield message(field, body, properties={field: value})
    yield message("each property", body, properties=every)
    pairs = [[each[0], each] for each in ONE_OF_EACH]
    yield message("application properties", body, application=pairs)
    annotations = [[f"x-opt-{name}", value] for name, value in pairs]
    inner = ["other", ["map", [[symbol("k"), ["list", [uint(1)]]]]]]
    yield message("annotations", body, annotations=[*annotations, inner])
    yield message("delivery annotations", body, delivery=[["x-opt-hop", text("one")]])
    yield message("footer", body, footer=[["x-opt-sum", uint(1)]])


def large() -> Iterator[Message]:
    """Bodies of 1 byte to some MiB. Qpid Proton's lists have up to 65,535 values, nested ones included."""
    chance = random.Random(1)
    for size in (1, 1 << 16, 1 << 20, 4 << 20):
        content = chance.randbytes(size)
        yield message(f"binary of {size}", ["binary", content.hex()])
        yield {"name": f"data of {size}", "body": ["data", [content.hex()]]}
        yield message(f"string of {size}", text("aü🚀 "[: min(size, 4)] * (size // 8) or "x"))
    block = "x" * 1024
    yield message("list of 30000", ["list", [uint(number) for number in range(30_000)]])
    yield message("list of 2 MiB", ["list", [text(f"{number} {block}") for number in range(2048)]])
    pairs = [[text(f"key {number}"), text(block)] for number in range(2048)]
    yield message("map of 2 MiB", ["map", pairs])
    longs = [fixed("long", -(number << 30) - 1, 64) for number in range(30_000)]
    yield message("array of 30000", array("long", longs))


def jms_messages() -> list[Message]:
    """The messages that JmsPairing.java sends, and receives of others: JMS has these kinds and types."""
    kinds = ("boolean", "byte", "short", "int", "long", "float", "double")
    values = [[each[0], each] for each in ONE_OF_EACH if each[0] in kinds]
    values.append(["string", text("ü🚀")])
    pairs = [[text(key), value] for key, value in values]
    further = [[text("char"), fixed("char", ord("ü"), 32)], [text("binary"), ["binary", "00ff"]]]
    properties = {
        "subject": text("type"),
        "correlation-id": text("correlation"),
        "group-id": text("group"),
        "group-sequence": uint(5),
    }
    made = [
        *(
            message(f"text {at}", text(each))
            for at, each in enumerate(("", "ü🚀", "x" * (1 << 20)))
        ),
        *({"name": f"bytes {size}", "body": ["data", ["00" * size]]} for size in (1, 1 << 20)),
        message("map", ["map", [*pairs, *further]]),
        {"name": "stream", "body": ["sequence", [value for _, value in values]]},
        message(
            "properties",
            text("properties"),
            header={"priority": ["ubyte", "07"]},
            properties=properties,
            # Names are identifiers of Java, which `byte` is not.
            application=[[f"{key}_", value] for key, value in values],
        ),
    ]
    kind = {"map": "02", "bytes": "03", "stream": "04"}
    for each in made:
        code = kind.get(each["name"].split()[0], "05")
        each["annotations"] = [["x-opt-jms-msg-type", ["byte", code]]]
    return made


def every_message() -> list[Message]:
    """The messages of all groups."""
    return [*bodies(), *headers(), *large()]


def limited(sender: str, receiver: str) -> set[str]:
    """Names of the cases that this pairing cannot carry."""
    return {
        each.case
        for each in LIMITS
        if each.sends in ("*", sender) and each.receives in ("*", receiver)
    }
