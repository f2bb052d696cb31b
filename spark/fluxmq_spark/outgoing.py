"""Rows as messages: options of writing, column mapping, and names for deduplication by queues.

A task may run twice, and so may the commit of a micro-batch; messages published again must be kept
once. Rows are published in chunks; each is a producer named ``<job>/<part>/<chunk>/<digest of its
rows>``, in which the rows count from 0. A chunk that comes again with the same rows has the same
name and is suppressed; one with other rows, because Spark computed them in another order, has
another name and is published: a message may then come twice, and none is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pika  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from fluxmq_spark.errors import OptionError, SparkSourceError
from fluxmq_spark.publishing import Address, Publisher

DEDUPLICATION_ID: Final = "x-deduplication-id"
"""Header with a message's producer and sequence."""
CHUNK_ROWS: Final = 8192
"""Rows of one producer: a queue remembers the newest 10,000 sequences of each, and 4096
producers."""
CHUNK_ROWS_SPREAD: Final = 1024
"""The same if rows may go to different queues: each gets only some of the sequences, and remembers
1024 ranges of them."""
CHUNK_BYTES: Final = 8 << 20
"""Payload bytes of a chunk, which is held in memory until its name is known."""
WINDOW_DEFAULT: Final = 1000
WINDOW_MAX: Final = 50_000
"""Maximum unconfirmed messages: at 65,536 the broker stops reading."""
TIMEOUT_DEFAULT: Final = 60.0
TIMEOUT_MAX: Final = 86_400.0
"""A day: anyone who wants longer has confused units."""
NAME_BYTES_MAX: Final = 255
"""Maximum bytes of names, routing keys and most properties, short strings. Source: AMQP 0-9-1
section 4.2.5.3."""
PRODUCER_BYTES_MAX: Final = 512
"""A producer's name has 1024 bytes; ours adds part, chunk and digest."""

_OPTIONS: Final = {
    name.lower(): name
    for name in (
        *("url", "queue", "exchange", "routingKey"),
        *("window", "timeout", "caFile", "producerId"),
    )
}
_TEXT: Final = "string"
_COLUMNS: Final = {
    "payload": "binary or string",
    "routing_key": "string",
    "headers": "map<string,string>",
    "properties": "map<string,string>",
}


@dataclass(frozen=True)
class Target:
    """Destination of rows. ``routing_key``: of all rows, None when a column has it. ``producer``:
    name of the job, empty for a generated one."""

    address: Address
    exchange: str
    routing_key: str | None
    chunk_rows: int
    window: int
    timeout: float
    producer: str


class Message(NamedTuple):
    """A row as a message. ``properties``: by pika's names."""

    routing_key: str
    body: bytes
    headers: dict[str, str | None]
    properties: dict[str, Any]


# --- options and columns ---


def target_of(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, others: Sequence[str] = ()
) -> Target:
    """Return the validated options. ``others``: names with a meaning elsewhere. Raises OptionError
    with every mistake."""
    mistakes: list[str] = []
    given = {name.lower(): value for name, value in options.items()}
    known = {*_OPTIONS, *(name.lower() for name in others)}
    mistakes += [f"there is no option {name}" for name in sorted(given) if name not in known]
    if overwrite:
        mistakes.append(
            "mode overwrite (or output mode complete): a queue is not replaced, use append"
        )
    columns = {field.name: field.dataType for field in schema.fields}
    mistakes += _wrong_columns(columns)
    exchange, key = _way(given, "routing_key" in columns, mistakes)
    address = None
    if "url" not in given:
        mistakes.append("option url is missing: amqp://user:password@host:port/vhost")
    else:
        try:
            address = Address.of(given["url"], given.get("cafile", ""))
        except ValueError as error:
            mistakes.append(f"option url: {error}")
    window = _number(given, "window", WINDOW_DEFAULT, WINDOW_MAX, int, mistakes)
    timeout = _number(given, "timeout", TIMEOUT_DEFAULT, TIMEOUT_MAX, float, mistakes)
    producer = given.get("producerid", "")
    if "producerid" in given and not 0 < len(producer.encode()) <= PRODUCER_BYTES_MAX:
        mistakes.append(f"option producerId has 1 to {PRODUCER_BYTES_MAX} bytes")
    if mistakes or address is None:
        raise OptionError("writing to FluxMQ: " + "; ".join(mistakes))
    rows = CHUNK_ROWS if "queue" in given else CHUNK_ROWS_SPREAD
    return Target(address, exchange, key, rows, int(window), timeout, producer)


def _way(given: Mapping[str, str], column: bool, mistakes: list[str]) -> tuple[str, str | None]:
    """Return exchange and routing key; the latter None when each row has its own."""
    mistakes += [
        f"option {_OPTIONS[name]} has at most {NAME_BYTES_MAX} bytes"
        for name in ("queue", "exchange", "routingkey")
        if len(given.get(name, "").encode()) > NAME_BYTES_MAX
    ]
    if "queue" in given:
        if not given["queue"]:
            mistakes.append("option queue is empty")
        if "exchange" in given or "routingkey" in given:
            mistakes.append("option queue cannot be combined with exchange or routingKey")
        if column:
            mistakes.append(
                "option queue cannot be combined with a column routing_key: use option exchange"
            )
        return "", given["queue"]
    if "exchange" not in given:
        mistakes.append("option queue or exchange is missing")
    elif ("routingkey" in given) == column:
        mistakes.append("option exchange needs either option routingKey or a column routing_key")
    return given.get("exchange", ""), None if column else given.get("routingkey", "")


def _number(
    given: Mapping[str, str],
    name: str,
    default: float,
    most: float,
    kind: Callable[[str], float],
    mistakes: list[str],
) -> float:
    try:
        value = kind(given[name]) if name in given else default
        if 0 < value <= most:
            return value
    except ValueError:
        pass
    mistakes.append(f"option {_OPTIONS[name]} is a number above 0, at most {most:g}")
    return default


def _wrong_columns(columns: Mapping[str, DataType]) -> list[str]:
    mistakes = []
    for name, kind in columns.items():
        wanted = _COLUMNS.get(name)
        if wanted is None:
            mistakes.append(f"column {name} is none of {', '.join(_COLUMNS)}")
        elif not _is_of(kind, wanted):
            mistakes.append(f"column {name} is {kind.simpleString()} and has to be {wanted}")
    if "payload" not in columns:
        mistakes.append("column payload is missing")
    return mistakes


def _is_of(kind: DataType, wanted: str) -> bool:
    if wanted.startswith("map"):
        return (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType)
        )
    return isinstance(kind, StringType) or (wanted != _TEXT and isinstance(kind, BinaryType))


# --- rows ---


def messages_of(
    batches: Iterable[pa.RecordBatch], routing_key: str | None, row: int = 0
) -> Iterator[Message]:
    """Yield the rows as messages. Raises SparkSourceError for an invalid one, by its number in the
    task; ``row``: that of the first."""
    for batch in batches:
        columns = {name: batch.column(at).to_pylist() for at, name in enumerate(batch.schema.names)}
        payloads = columns["payload"]
        nothing = [None] * len(payloads)
        rest = zip(
            columns.get("routing_key", nothing),
            columns.get("headers", nothing),
            columns.get("properties", nothing),
            strict=True,
        )
        for payload, (key, headers, properties) in zip(payloads, rest, strict=True):
            try:
                yield Message(
                    _key_of(key) if routing_key is None else routing_key,
                    _body_of(payload),
                    _headers_of(headers) if headers else {},
                    _properties_of(properties) if properties else {"delivery_mode": _PERSISTENT},
                )
            except ValueError as error:
                raise SparkSourceError(f"row {row} of the task: {error}") from None
            row += 1


_PERSISTENT: Final = 2


def _body_of(payload: bytes | str | None) -> bytes:
    if payload is None:
        raise ValueError("payload is null")
    return payload.encode() if isinstance(payload, str) else payload


def _key_of(key: str | None) -> str:
    if key is None:
        raise ValueError("routing_key is null")
    return _short(key, "routing_key")


def _short(value: str, what: str) -> str:
    if len(value.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"{what} has more than {NAME_BYTES_MAX} bytes")
    return value


def _headers_of(entries: list[tuple[str, str | None]]) -> dict[str, str | None]:
    """Return headers by name. Ours replaces one that identifies the message."""
    headers = {_short(name, "a header's name"): value for name, value in entries}
    headers.pop(DEDUPLICATION_ID, None)
    return headers


def _within(most: int) -> Callable[[str], int]:
    def number(value: str) -> int:
        if not (value.isascii() and value.isdigit()) or int(value) > most:
            raise ValueError(f"it is not a whole number up to {most}")
        return int(value)

    return number


def _milliseconds(value: str) -> str:
    if not (value.isascii() and value.isdigit()):
        raise ValueError("it is not a number of milliseconds")
    return _short(value, "it")


def _mode(value: str) -> int:
    if value not in ("1", "2"):
        raise ValueError("it is 1 (transient) or 2 (persistent)")
    return int(value)


def _text(value: str) -> str:
    return _short(value, "it")


_PROPERTIES: Final[Mapping[str, tuple[str, Callable[[str], str | int]]]] = {
    "content_type": ("content_type", _text),
    "content_encoding": ("content_encoding", _text),
    "correlation": ("correlation_id", _text),
    "correlation_id": ("correlation_id", _text),
    "reply_to": ("reply_to", _text),
    "message_id": ("message_id", _text),
    "type": ("type", _text),
    "app_id": ("app_id", _text),
    "expiration": ("expiration", _milliseconds),
    "priority": ("priority", _within(255)),
    "timestamp": ("timestamp", _within((1 << 64) - 1)),
    "delivery_mode": ("delivery_mode", _mode),
}
"""Names in the column ``properties``, with pika's name of each and its check."""


def _properties_of(entries: list[tuple[str, str | None]]) -> dict[str, Any]:
    found: dict[str, Any] = {"delivery_mode": _PERSISTENT}
    for name, value in entries:
        if name not in _PROPERTIES:
            raise ValueError(f"property '{name}' is none of {', '.join(_PROPERTIES)}")
        if value is None:
            continue
        field, convert = _PROPERTIES[name]
        try:
            found[field] = convert(value)
        except ValueError as error:
            raise ValueError(f"property '{name}': {error}") from None
    return found


# --- chunks ---


def chunks(messages: Iterable[Message], rows: int) -> Iterator[list[Message]]:
    """Yield the messages in order, in lists of ``rows``, or fewer if they reach `CHUNK_BYTES`: the
    boundaries depend on the messages only."""
    chunk: list[Message] = []
    size = 0
    for message in messages:
        chunk.append(message)
        size += len(message.body)
        if len(chunk) >= rows or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def digest(chunk: Iterable[Message]) -> str:
    """Return 64 bits of a digest of all the messages' content, in order, as 16 hexadecimal
    digits."""
    hashed = hashlib.blake2b(digest_size=8)
    for key, body, headers, properties in chunk:
        said = [key, len(body), sorted(headers.items()), sorted(properties.items())]
        hashed.update(json.dumps(said).encode())
        hashed.update(body)
    return hashed.hexdigest()


def publish_batches(target: Target, producer: str, batches: Iterable[pa.RecordBatch]) -> int:
    """Publish rows and wait until they are confirmed; return their number. Connects only if there
    are any.

    ``producer``: prefix of the chunks' names. Raises PublishError, and SparkSourceError for an
    invalid row.
    """
    count = 0
    publisher: Publisher | None = None
    with ExitStack() as stack:
        messages = messages_of(batches, target.routing_key)
        for number, chunk in enumerate(chunks(messages, target.chunk_rows)):
            if publisher is None:
                made = Publisher(target.address, window=target.window, timeout=target.timeout)
                publisher = stack.enter_context(made)
            name = f"{producer}/{number}/{digest(chunk)}"
            for sequence, (key, body, headers, properties) in enumerate(chunk):
                named = {**headers, DEDUPLICATION_ID: f"{name}:{sequence}"}
                publisher.publish(
                    target.exchange, key, body, pika.BasicProperties(headers=named, **properties)
                )
            count += len(chunk)
        if publisher is not None:
            publisher.finish()
    return count
