"""A program with Qpid Proton that sends messages of a file to a queue, or prints those that it gets from one.

``proton_pairing.py send URL QUEUE FILE`` and ``proton_pairing.py receive URL QUEUE COUNT [first]``, the latter for a stream.
Messages are JSON, in the form that `tests.interop.amqp10.pairing_cases` describes.
"""

from __future__ import annotations

import json
import struct
import sys
import uuid
from pathlib import Path
from typing import Any, Final

import proton
from proton import Array, Data, Described, Message
from proton.reactor import Filter, ReceiverOption
from proton.utils import BlockingConnection

WITHIN_S = 30
FRAME_MAX = 8192
"""Small, so that large messages come in hundreds of frames."""
INTEGERS: Final[dict[str, tuple[type[int], int]]] = {
    "ubyte": (proton.ubyte, 1),
    "ushort": (proton.ushort, 2),
    "uint": (proton.uint, 4),
    "ulong": (proton.ulong, 8),
    "byte": (proton.byte, 1),
    "short": (proton.short, 2),
    "int": (proton.int32, 4),
    "long": (int, 8),
    "timestamp": (proton.timestamp, 8),
    "decimal32": (proton.decimal32, 4),
    "decimal64": (proton.decimal64, 8),
}
SIGNED: Final = ("byte", "short", "int", "long", "timestamp")
KINDS: Final = {kind: (name, width) for name, (kind, width) in INTEGERS.items()}
ELEMENTS: Final = {
    name: getattr(Data, {"boolean": "BOOL"}.get(name, name.upper()))
    for name in (*INTEGERS, *["boolean", "float", "double", "decimal128", "char", "uuid", "binary", "string", "symbol", "list", "map", "array"])
}  # fmt: skip
HEADER: Final = {
    "durable": "boolean",
    "priority": "ubyte",
    "ttl": "uint",
    "first-acquirer": "boolean",
    "delivery-count": "uint",
}
PROPERTIES: Final = {
    "message-id": "",
    "user-id": "binary",
    "to": "string",
    "subject": "string",
    "reply-to": "string",
    "correlation-id": "",
    "content-type": "symbol",
    "content-encoding": "symbol",
    "absolute-expiry-time": "timestamp",
    "creation-time": "timestamp",
    "group-id": "string",
    "group-sequence": "uint",
    "reply-to-group-id": "string",
}
NAMES: Final = {"message-id": "id", "to": "address", "absolute-expiry-time": "expiry_time"}
SECONDS: Final = ("ttl", "absolute-expiry-time", "creation-time")
MAPS: Final = {
    "application": "properties",
    "annotations": "annotations",
    "delivery": "instructions",
}


def made(value: list[Any]) -> Any:
    """Return Proton's object for a value."""
    kind, content = value
    if kind in INTEGERS:
        signed = kind in SIGNED
        return INTEGERS[kind][0](int.from_bytes(bytes.fromhex(content), "big", signed=signed))
    match kind:
        case "null":
            return None
        case "boolean":
            return content == "01"
        case "float":
            return proton.float32(struct.unpack(">f", bytes.fromhex(content))[0])
        case "double":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        case "decimal128":
            return proton.decimal128(bytes.fromhex(content))
        case "char":
            return proton.char(chr(int(content, 16)))
        case "uuid":
            return uuid.UUID(hex=content)
        case "binary":
            return bytes.fromhex(content)
        case "symbol":
            return proton.symbol(content)
        case "list":
            return [made(each) for each in content]
        case "map":
            return {made(key): made(each) for key, each in content}
        case "array":
            element, values, descriptor = content
            described: Any = proton.UNDESCRIBED if descriptor is None else made(descriptor)
            return Array(described, ELEMENTS[element], *map(made, values))
        case "described":
            return Described(made(content[0]), made(content[1]))
    return content


def written(value: Any) -> list[Any]:
    """Return the value that an object of Proton stands for."""
    kind = type(value)
    if kind in KINDS:
        name, width = KINDS[kind]
        return [name, int(value).to_bytes(width, "big", signed=name in SIGNED).hex()]
    match value:
        case None:
            return ["null", ""]
        case bool():
            return ["boolean", "01" if value else "00"]
        case proton.float32():
            return ["float", struct.pack(">f", value).hex()]
        case float():
            return ["double", struct.pack(">d", value).hex()]
        case proton.decimal128():
            return ["decimal128", value.hex()]
        case proton.char():
            return ["char", f"{ord(value):08x}"]
        case uuid.UUID():
            return ["uuid", value.hex]
        case bytes() | memoryview():
            return ["binary", value.hex()]
        case proton.symbol():
            return ["symbol", str(value)]
        case str():
            return ["string", value]
        case list():
            return ["list", [written(each) for each in value]]
        case dict():
            return ["map", [[written(key), written(each)] for key, each in value.items()]]
        case Array():
            element = next(name for name, code in ELEMENTS.items() if code == value.type)
            undescribed = value.descriptor == proton.UNDESCRIBED
            descriptor = None if undescribed else written(value.descriptor)
            return ["array", [element, [written(each) for each in value.elements], descriptor]]
        case Described():
            return ["described", [written(value.descriptor), written(value.value)]]
    raise TypeError(f"no type of AMQP: {value!r}")


def attribute(field: str) -> str:
    return NAMES.get(field, field.replace("-", "_"))


def made_message(case: dict[str, Any]) -> Message:
    """Return the message of a case."""
    kind, content = case["body"]
    match kind:
        case "data":
            message = Message(bytes.fromhex(content[0]), inferred=True)
        case "sequence":
            message = Message([made(each) for each in content], inferred=True)
        case _:
            message = Message(made(content))
    for field, value in {**case.get("header", {}), **case.get("properties", {})}.items():
        plain = made(value)
        setattr(message, attribute(field), plain / 1000 if field in SECONDS else plain)
    for section, name in MAPS.items():
        if section in case:
            setattr(message, name, {key: made(value) for key, value in case[section]})
    return message


def written_message(message: Message) -> dict[str, Any]:
    """Return the case that a message stands for; without a field that has its default, which Proton does not tell apart."""
    body = message.body
    if message.inferred and isinstance(body, list):
        content = ["sequence", [written(each) for each in body]]
    elif message.inferred:
        content = ["data", [bytes(body).hex()]]  # type: ignore[arg-type]
    else:
        content = ["value", written(body)]
    return {
        "body": content,
        "header": fields(message, HEADER),
        "properties": fields(message, PROPERTIES),
        **{
            section: [[str(key), written(value)] for key, value in (getattr(message, name) or {}).items()]
            for section, name in MAPS.items()
        },
    }  # fmt: skip


def fields(message: Message, kinds: dict[str, str]) -> dict[str, list[Any]]:
    """Return fields of a message that are not their defaults."""
    found = {}
    nothing = Message()
    for field, kind in kinds.items():
        value = getattr(message, attribute(field))
        if value == getattr(nothing, attribute(field)):
            continue
        if field in SECONDS:
            value = round(value * 1000)
        if kind in INTEGERS:
            value = INTEGERS[kind][0](value)
        elif not kind and isinstance(value, int):
            value = proton.ulong(value)
        found[field] = written(value)
    return found


def main(does: str, url: str, queue: str, *rest: str) -> None:
    """Send, or receive."""
    connection = BlockingConnection(
        url,
        timeout=WITHIN_S,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
        max_frame_size=FRAME_MAX,
    )
    if does == "send":
        sender = connection.create_sender(f"/queues/{queue}")
        for case in json.loads(Path(rest[0]).read_text()):
            sender.send(made_message(case))
    else:
        first = Described(proton.symbol("rabbitmq:stream-offset-spec"), "first")
        offset = Filter({proton.symbol("rabbitmq:stream-offset-spec"): first})
        options: list[ReceiverOption] = [offset] if rest[1:] == ("first",) else []
        receiver = connection.create_receiver(f"/queues/{queue}", credit=100, options=options)
        received = []
        for _ in range(int(rest[0])):
            received.append(written_message(receiver.receive(timeout=WITHIN_S)))
            receiver.accept()
        print(json.dumps(received))
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
