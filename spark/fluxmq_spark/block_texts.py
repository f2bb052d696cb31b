"""Text of property blocks' values: of one value by its definition, and of many byte strings at
once.

As in ``docs/message-properties.md``: ``true`` and ``false``, numbers in decimal, timestamps of
headers and of the publisher as seconds, void as nothing, PROTOCOL as its name, the times of a dead
letter as RFC 3339, its transfer in hexadecimal. Values that MQTT cannot express are JSON here:
tables are objects, arrays are arrays, bytes inside them and by themselves are base64, numbers that
JSON lacks are their text. Text that is not UTF-8 has U+FFFD for invalid bytes; only CORRELATION,
which may be any bytes, is then base64 as a whole.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from fluxmq.model.properties import Item, PropertyKind, Value

_PROTOCOLS: Final = {1: "mqtt", 2: "amqp", 3: "amqp1"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Integers = NDArray[numpy.int64]

# --- one value at a time ---------------------------------------------------------------------------------------------


def text_of(item: Item) -> str:
    """Return the text of an item's value."""
    value = item.value
    if isinstance(value, Value):
        return _value_text(value)
    if isinstance(value, bytes):
        if item.kind is PropertyKind.DEAD_TRANSFER:
            return value.hex()
        if item.kind is PropertyKind.CORRELATION:
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        return value.decode("utf-8", "replace")
    if value is None:
        return ""
    if item.kind is PropertyKind.PROTOCOL:
        return _PROTOCOLS.get(value, str(value))
    if item.kind in (PropertyKind.DEAD_FIRST_TIME, PropertyKind.DEAD_TIME):
        return _moment(value)
    return str(value)


def name_of(item: Item) -> str:
    """Return an item's name in its map."""
    if item.name or item.kind is PropertyKind.HEADER:
        return item.name.decode("utf-8", "replace")
    return item.kind.name.lower()


def _moment(time_us: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return str(time_us)
    return moment.isoformat().replace("+00:00", "Z")


def _value_text(value: Value) -> str:
    tag, content = value
    if tag == "V":
        return ""
    if tag == "t":
        return "true" if content else "false"
    plain = _json_value(value)
    if tag in ("A", "F"):
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return str(plain)


def _json_value(value: Value) -> object:
    """Return a value as JSON; Decimal numbers, and floats that JSON lacks, become their text."""
    tag, content = value
    if isinstance(content, bytes):
        if tag == "x":
            return base64.b64encode(content).decode()
        return content.decode("utf-8", "replace")
    if isinstance(content, float) and not math.isfinite(content):
        return repr(content)
    if not isinstance(content, tuple):
        return content
    if tag == "D":
        scale, unscaled = content
        return str(Decimal(unscaled).scaleb(-scale))
    if tag == "A":
        return [_json_value(each) for each in content]
    return {name.decode("utf-8", "replace"): _json_value(each) for name, each in content}


# --- many at once ----------------------------------------------------------------------------------------------------

NAMES: Final = b"".join(kind.name.lower().encode() for kind in PropertyKind)
"""Names of all kinds, back to back: they follow the blocks in every source."""


def _name_places() -> tuple[Integers, Integers]:
    """Return position and size of each kind's name in these, by the kind's number."""
    at, sizes = numpy.zeros(256, numpy.int64), numpy.zeros(256, numpy.int64)
    end = 0
    for kind in PropertyKind:
        at[kind], sizes[kind] = end, len(kind.name)
        end += len(kind.name)
    return at, sizes


NAME_AT, NAME_SIZE = _name_places()


class Source:
    """Bytes to take texts from: those of all blocks, followed by generated texts."""

    def __init__(self, data: memoryview) -> None:
        self._pieces: list[bytes | memoryview] = [data]
        self._joined: pa.Buffer | None = None
        self.size = len(data)
        self.put(NAMES)

    def put(self, text: bytes) -> tuple[int, int]:
        """Add a text; return its position and size."""
        at = self.size
        self._add(text)
        return at, len(text)

    def put_array(self, texts: pa.StringArray) -> tuple[Integers, Integers]:
        """Add many texts; return their positions and sizes."""
        offsets = numpy.frombuffer(
            texts.buffers()[1], numpy.int32, len(texts) + 1, 4 * texts.offset
        )
        at = self.size
        self._add(memoryview(texts.buffers()[2] or b"")[offsets[0] : offsets[-1]])
        sizes = numpy.diff(offsets).astype(numpy.int64)
        return (offsets[:-1] - offsets[0]).astype(numpy.int64) + at, sizes

    def _add(self, data: bytes | memoryview) -> None:
        self._pieces.append(data)
        self._joined = None
        self.size += len(data)

    def texts(self, at: Integers, sizes: Integers) -> pa.StringArray:
        """Return the texts at these places; invalid UTF-8 in them is replaced."""
        # Every second value is wanted; the gaps between are arbitrary. The first and the last
        # offset span all bytes.
        gaps = numpy.zeros(2 * len(at) + 2, numpy.int32)
        gaps[1:-1:2] = at
        gaps[2:-1:2] = at + sizes
        gaps[-1] = self.size
        if self._joined is None:
            self._joined = pa.py_buffer(b"".join(self._pieces))
        values = pa.BinaryArray.from_buffers(
            pa.binary(), len(gaps) - 1, [None, pa.py_buffer(gaps), self._joined]
        )
        return strings(values.take(pa.array(numpy.arange(1, 2 * len(at) + 1, 2))))


def strings(values: pa.BinaryArray) -> pa.StringArray:
    """Return byte strings as text; bytes that are not UTF-8 become U+FFFD."""
    text = pa.StringArray.from_buffers(
        len(values),
        values.buffers()[1],
        values.buffers()[2],
        values.buffers()[0],
        -1,
        values.offset,
    )
    data = values.buffers()[2]
    # Nearly all names and many texts are ASCII, which is a faster check than UTF-8.
    if data is None or not data.size or numpy.frombuffer(data, numpy.int8).min() >= 0:
        return text
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        fixed = [
            None if each is None else each.decode("utf-8", "replace") for each in values.to_pylist()
        ]
        return pa.array(fixed, pa.string())
    return text
