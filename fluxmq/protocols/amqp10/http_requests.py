"""HTTP-like requests in messages, for the management of a broker: reading requests, writing answers.

A request is a message whose subject is the method (GET, PUT, POST, DELETE), whose ``to`` is the path
with an optional query, whose body is an amqp-value, and which expects its answer on the other link of
its pair (reply-to ``$me``). The answer's subject is the status, its correlation-id the request's
message-id.

Source: OASIS AMQP link pairing 1.0 section 2.1; HTTP over AMQP 1.0 working draft 06 section 5.1;
RabbitMQ 4's management over AMQP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from fluxmq.model.amqp10_readers import unquoted
from fluxmq.model.amqp10_sections import NAMES, PROPERTIES, VALUE, PropertyField
from fluxmq.protocols.amqp10 import codec
from fluxmq.protocols.amqp10.conditions import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    LinkConditionError,
)
from fluxmq.protocols.amqp10.types import Described, ULong

REQUEST_BYTES_MAX: Final = 128 << 10
"""Bytes of a request: its arguments are one table, as large as a frame of AMQP 0.9.1."""
PARAMETERS_MAX: Final = 16
"""Parameters of a query; those that are known are four."""
_PROPERTIES: Final = NAMES[PROPERTIES].decode()
_VALUE: Final = NAMES[VALUE].decode()
HERE: Final = "$me"
"""The reply-to that names the other link of the pair."""


class HttpRequest(NamedTuple):
    """A request. ``path``: its segments, percent-encoded. ``body``: decoded, None for none."""

    message_id: object
    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    body: object


class StatusError(Exception):
    """A request is answered with an error: its status and what is wrong."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


def read_request(data: bytes) -> HttpRequest:
    """Return the request in a message. Raises `LinkConditionError` for a message that is none."""
    if len(data) > REQUEST_BYTES_MAX:
        raise LinkConditionError(
            MESSAGE_SIZE_EXCEEDED, f"a request of more than {REQUEST_BYTES_MAX} bytes"
        )
    fields: list[object] = []
    body: object = None
    try:
        for section in _sections(data):
            found = section.value
            if section.descriptor in (PROPERTIES, _PROPERTIES):
                fields = found if isinstance(found, list) else []
            elif section.descriptor in (VALUE, _VALUE):
                body = found
    except codec.MalformedError as error:
        raise LinkConditionError(DECODE_ERROR, str(error)) from None
    fields += [None] * (len(PropertyField) - len(fields))
    method, target, reply_to = (
        _text(fields[index], index)
        for index in (PropertyField.SUBJECT, PropertyField.TO, PropertyField.REPLY_TO)
    )
    if reply_to != HERE:
        raise LinkConditionError(INVALID_FIELD, f"a request whose reply-to is not {HERE}")
    path, query = _target(target)
    return HttpRequest(fields[PropertyField.MESSAGE_ID], method, path, query, body)


def _sections(data: bytes) -> Iterator[Described]:
    """Yield the sections of a message, in any order: RabbitMQ's Python client sends an empty body
    first. Raises `MalformedError`."""
    at = 0
    while at < len(data):
        section, at = codec.decode(data, at)
        if not isinstance(section, Described):
            raise codec.MalformedError("a value that is no section")
        yield section


def _text(value: object, index: PropertyField) -> str:
    if type(value) is not str:
        name = index.name.lower().replace("_", "-")
        raise LinkConditionError(INVALID_FIELD, f"a request without {name}")
    return value


def _target(target: str) -> tuple[tuple[str, ...], Mapping[str, str]]:
    path, _, query = target.partition("?")
    segments = path.split("/")
    if segments[0]:
        return (), {}  # no path: nothing is there
    try:
        return tuple(segments[1:]), dict(parse_qsl(query, True, max_num_fields=PARAMETERS_MAX))
    except ValueError:
        return (), {}


def decoded(segment: str) -> str:
    """Return a segment of a path. Raises `StatusError` 400 for a malformed escape."""
    found = unquoted(segment.encode("utf-8", "surrogatepass"))
    if found is None:
        raise StatusError(400, f"bad path segment '{segment}'")
    return found.decode()


def write_response(message_id: object, status: int, body: object) -> bytes:
    """Return the message that answers a request. Raises `ValueError` for a body that has no
    encoding."""
    fields: list[object] = [None] * (PropertyField.CORRELATION_ID + 1)
    fields[PropertyField.SUBJECT] = str(status)
    fields[PropertyField.CORRELATION_ID] = message_id
    sections = (
        Described(ULong(PROPERTIES), fields),
        Described(ULong(PROPERTIES + 1), {"http:response": "1.1"}),
        Described(ULong(VALUE), body),
    )
    return b"".join(map(codec.encode, sections))
