"""The death recorded in a dead letter, and the original message.

There are two forms: a dead-letter queue of the settings file sets the properties ``dead_reason``
and the like, a dead-letter exchange of AMQP the header ``x-death``, a list of deaths with the
newest first. Both become the same columns here. Message by message, in Python: dead letters are
few.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from fluxmq_spark.jobs.arguments import microseconds

SAMPLE_BYTES: Final = 256
"""Maximum bytes of a payload that a report shows."""

ROUTING_KEY_BYTES_MAX: Final = 255
"""Maximum of AMQP 0.9.1's short strings."""

DEATH: Final = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("consumers", pa.string()),
        pa.field("attempts", pa.int64()),
        pa.field("died", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("sample", pa.binary(), nullable=False),
    ]
)
"""A dead letter's death. `queue`: the queue that holds it; `source`: where it died; `consumers`:
the group; `died`: µs since the epoch."""

DEATH_DDL: Final = (
    "queue string not null, offset long not null, source string, reason string not null, key string not null,"
    " consumers string, attempts long, died long not null, size long not null, sample binary not null"
)

_TEXTS: Final = pa.map_(pa.string(), pa.string())

LETTER: Final = pa.schema(
    [
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("routing_key", pa.string(), nullable=False),
        pa.field("headers", _TEXTS, nullable=False),
        pa.field("properties", _TEXTS, nullable=False),
    ]
)
"""A message as the source's writer takes it."""

LETTER_DDL: Final = (
    "payload binary not null, routing_key string not null, headers map<string,string> not null,"
    " properties map<string,string> not null"
)

KEPT_PROPERTIES: Final = frozenset(
    {
        *("content_type", "content_encoding", "correlation", "reply_to", "message_id", "type"),
        *("app_id", "priority", "timestamp", "delivery_mode"),
    }
)
"""Properties that are kept when a message is republished. Not its expiration: it would expire at
once."""

_MARKS: Final = frozenset(
    {
        *("x-death", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange"),
        *("x-delivery-count", "x-deduplication-id"),
    }
)
"""Headers about a message's history instead of its content."""

COLUMNS: Final = "queue,offset,timestamp,key,headers,properties,payload"
UNKNOWN: Final = "unknown"


class DeadLetterRow(NamedTuple):
    """Reason, place and time of a message's death. `died`: µs since the epoch, None if unknown."""

    source: str | None
    reason: str
    key: str
    consumers: str | None = None
    attempts: int | None = None
    died: int | None = None
    exchange: bool = False


def death_of(key: str, headers: Mapping[str, str], properties: Mapping[str, str]) -> DeadLetterRow:
    """Return the death of a dead letter. The broker's own properties take precedence over a
    header."""
    reason = properties.get("dead_reason")
    if reason is not None:
        return DeadLetterRow(
            properties.get("dead_queue"),
            reason,
            properties.get("dead_key", key),
            properties.get("dead_group") or None,
            _number(properties.get("dead_attempts")),
            time_of(properties.get("dead_time")),
        )
    newest = _newest(headers.get("x-death"))
    if newest is None:
        return DeadLetterRow(None, UNKNOWN, key)
    keys = newest.get("routing-keys")
    return DeadLetterRow(
        _text(newest.get("queue")),
        _text(newest.get("reason")) or UNKNOWN,
        str(keys[0]) if isinstance(keys, list) and keys else key,
        None,
        _number(newest.get("count")),
        time_of(newest.get("time")),
        exchange=True,
    )


def _newest(text: str | None) -> Mapping[str, Any] | None:
    try:
        deaths = json.loads(text or "")
    except ValueError:
        return None
    first = deaths[0] if isinstance(deaths, list) and deaths else None
    return first if isinstance(first, dict) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return None


def time_of(value: object) -> int | None:
    """Return µs since the epoch of a time in properties: RFC 3339, seconds (AMQP's) or µs (the
    broker's)."""
    number = _number(value)
    if number is not None:
        return number if number > 1 << 40 else number * 1_000_000
    try:
        return microseconds(datetime.fromisoformat(str(value)))
    except (TypeError, ValueError):
        return None


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch, their maps as mappings."""
    for row in batch.to_pylist():
        yield {**row, "headers": dict(row["headers"]), "properties": dict(row["properties"])}


def flatten(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the deaths of dead letters (`COLUMNS`), as `DEATH`. A missing time is replaced by the
    letter's."""
    for batch in batches:
        rows = []
        for row in rows_of(batch):
            death = death_of(row["key"], row["headers"], row["properties"])
            payload = row["payload"]
            rows.append(
                {
                    "queue": row["queue"],
                    "offset": row["offset"],
                    "source": death.source,
                    "reason": death.reason,
                    "key": death.key,
                    "consumers": death.consumers,
                    "attempts": death.attempts,
                    "died": microseconds(row["timestamp"]) if death.died is None else death.died,
                    "size": len(payload),
                    "sample": payload[:SAMPLE_BYTES],
                }
            )
        yield pa.RecordBatch.from_pylist(rows, schema=DEATH)


def address_for(death: DeadLetterRow) -> str | None:
    """Return the routing key with which the default exchange returns a message to the queue it died
    in.

    An MQTT address if the message had a key of its own, which it then gets back. None if the queue
    is unknown.
    """
    if not death.source:
        return None
    home = f"$queue/{death.source}"
    if death.exchange or death.key in ("", death.source, home):
        return death.source
    address = death.key if death.key.startswith(f"{home}/") else f"{home}/{death.key}"
    wild = any(each in address for each in "+#\0")
    if wild or len(address.encode()) > ROUTING_KEY_BYTES_MAX:
        return death.source
    return address


def revive(
    batches: Iterable[pa.RecordBatch], reasons: Sequence[str], sources: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield dead letters (`COLUMNS`) as the original messages, for the queues they died in; as
    `LETTER`.

    Only those with these reasons and from these queues, or all if none are given; letters without a
    queue are skipped.
    """
    for batch in batches:
        rows = []
        for row in rows_of(batch):
            death = death_of(row["key"], row["headers"], row["properties"])
            address = address_for(death)
            if address is None or (reasons and death.reason not in reasons):
                continue
            if sources and death.source not in sources:
                continue
            headers = {name: value for name, value in row["headers"].items() if name not in _MARKS}
            headers["x-redriven-from"] = f"{row['queue']}/{row['offset']}"
            kept = {k: v for k, v in row["properties"].items() if k in KEPT_PROPERTIES}
            rows.append(
                {
                    "payload": row["payload"],
                    "routing_key": address,
                    "headers": list(headers.items()),
                    "properties": list(kept.items()),
                }
            )
        yield pa.RecordBatch.from_pylist(rows, schema=LETTER)
