"""The headers and trailers of gRPC over HTTP/2 (gRPC's PROTOCOL-HTTP2)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final
from urllib.parse import quote, unquote

from fluxmq.cluster.http2_sender import Fields

CONTENT_TYPE: Final = "application/grpc"
_UNQUOTED: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""Characters that stand for themselves in a status's message."""

Metadata = Sequence[tuple[str, bytes]]
"""Names that end in "-bin", and bytes."""


class GrpcStatus(IntEnum):
    """Status codes of gRPC, as far as they are sent or examined here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


def request(path: str, authority: str, tls: bool, metadata: Metadata) -> Fields:
    """Return the headers of a call."""
    return (
        (":method", "POST"),
        (":scheme", "https" if tls else "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", CONTENT_TYPE),
        ("user-agent", "grpc-python-fluxmq"),
        *_written(metadata),
    )


def answer(metadata: Metadata) -> Fields:
    """Return the headers that an answer begins with."""
    return ((":status", "200"), ("content-type", CONTENT_TYPE), *_written(metadata))


def trailers(status: GrpcStatus, why: str = "") -> Fields:
    """Return the trailers of an answer whose headers were sent."""
    fields = [("grpc-status", str(int(status)))]
    if why:
        fields.append(("grpc-message", quote(why, safe=_UNQUOTED)))
    return fields


def refusal(status: GrpcStatus, why: str) -> Fields:
    """Return an answer that consists of its end only."""
    return (*answer(()), *trailers(status, why))


def metadata_of(fields: Fields) -> list[tuple[str, str | bytes]]:
    """Return the metadata among headers, without values that are not base64."""
    found: list[tuple[str, str | bytes]] = []
    for key, value in fields:
        if not key.endswith("-bin"):
            continue
        for each in value.split(","):  # one field may hold several values of a name
            data = each.strip().rstrip("=")
            try:
                found.append((key, base64.b64decode(data + "=" * (-len(data) % 4), validate=True)))
            except binascii.Error:
                continue
    return found


def problem_of(fields: Mapping[str, str]) -> str:
    """Return why headers do not begin an answer of gRPC; empty if they do."""
    status = fields.get(":status", "")
    if status != "200":
        return f"it answered with HTTP status {status[:20]!r}"
    if not fields.get("content-type", "").startswith(CONTENT_TYPE):
        return "its answer is not gRPC"
    return ""


def status_of(fields: Mapping[str, str]) -> tuple[GrpcStatus, str]:
    """Return the status in trailers, and its message."""
    try:
        status = GrpcStatus(int(fields.get("grpc-status", "")))
    except ValueError:
        status = GrpcStatus.UNKNOWN
    why = unquote(fields.get("grpc-message", ""), errors="replace")
    return status, why or status.name


def _written(metadata: Metadata) -> Fields:
    return [(key, base64.b64encode(value).decode().rstrip("=")) for key, value in metadata]
