"""The trace context that a message carries: `traceparent` and `tracestate`, as its publisher wrote them.

Both are user properties of MQTT 5, headers of AMQP 0.9.1 or application properties of AMQP 1.0, and so headers
of the property block, or read as such. They are only read
here: a message keeps them byte for byte. Everything about a trace that several processes decide, they decide by its id,
so that all of them decide alike.

Source: W3C Trace Context, sections 3.2 (traceparent) and 3.3 (tracestate).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from fluxmq.model.amqp10_readers import SectionReader, expanded
from fluxmq.model.properties import Item, PropertyError, PropertyKind, Value, decode

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
STATE_BYTES_MAX: Final = 512
"""Longest tracestate that is read; a longer one may be cut off, says the source (3.3.1.5)."""
PARENT_BYTES_MAX: Final = 512
"""Longest traceparent that is read: one of a later version may be longer than the 55 bytes of today's."""

_SAMPLED: Final = 1
_HALF: Final = 1 << 64
_FIELDS: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """A place in a trace. ``span_id``: the publisher's span; ``state``: systems' own notes, unread."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""

    @property
    def sampled(self) -> bool:
        """True if the publisher records the trace."""
        return bool(self.flags & _SAMPLED)

    def drawn(self, ratio: float) -> bool:
        """Return whether the trace is among this share of all: by its id, as OpenTelemetry's sampler does."""
        return self.trace_id % _HALF < round(ratio * _HALF)


def context_of(items: Iterable[Item]) -> TraceContext | None:
    """Return the trace context among a message's items; None if there is none, or no valid one.

    Of several values of ``traceparent``, none is valid.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for kind, value, name in items:
        if kind is PropertyKind.HEADER and isinstance(value, Value):
            if name == TRACEPARENT and isinstance(value.content, bytes):
                parents.append(value.content)
            elif name == TRACESTATE and isinstance(value.content, bytes):
                states.append(value.content)
    return parse_context(parents[0], b",".join(states)) if len(parents) == 1 else None


def context_of_block(block: bytes) -> TraceContext | None:
    """Return the trace context in a property block; None as for `context_of`, or for invalid bytes."""
    try:
        return context_of(expanded(decode(block), SectionReader.AMQP_0_9_1))
    except PropertyError:
        return None


def parse_context(parent: bytes, state: bytes = b"") -> TraceContext | None:
    """Return the context of a ``traceparent`` and a ``tracestate``; None unless the first is valid."""
    if len(parent) > PARENT_BYTES_MAX:
        return None
    match = _FIELDS.fullmatch(parent)
    if match is None:
        return None
    version, trace_id, span_id = (int(match[index], 16) for index in (1, 2, 3))
    longer = match[5] is not None
    if version == 0xFF or not trace_id or not span_id or (longer and version == 0):
        return None
    kept = state if len(state) <= STATE_BYTES_MAX else b""
    return TraceContext(trace_id, span_id, int(match[4], 16), kept.decode("ascii", "replace"))
