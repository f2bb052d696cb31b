"""Greetings as bytes: the speaker's introduction before anything else, in the metadata of streams
and calls.

gRPC bounds metadata, and an unwelcome speaker is refused before a single message is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.errors import MalformedStream
from fluxmq.cluster.protobuf import bytes_field, bytes_of, number_field, number_of

VERSION: Final = 3
"""Version of the protocol between nodes. Nodes of different versions do not speak to each other."""

KEY: Final = "fluxmq-greeting-bin"
"""Key in the metadata; gRPC takes bytes under names with this ending."""

NAME_CHARS_MAX: Final = 256
"""Longest node name or purpose; names in the settings have at most 128 characters."""

_VERSION, _NODE, _SHARD, _WORKERS, _EPOCH, _PURPOSE, _TELLS_TIME, _COMBINES = range(1, 9)
"""Numbers of the fields of a greeting."""
_WORD: Final = (1 << 32) - 1


def as_metadata(hello: StreamHello) -> tuple[tuple[str, bytes], ...]:
    """Return a greeting as metadata."""
    greeting = (
        number_field(_VERSION, VERSION),
        bytes_field(_NODE, hello.node.encode()),
        number_field(_SHARD, hello.shard),
        number_field(_WORKERS, hello.workers),
        number_field(_EPOCH, hello.epoch),
        bytes_field(_PURPOSE, hello.purpose.encode()),
        number_field(_TELLS_TIME, hello.tells_time),
        number_field(_COMBINES, hello.combines),
    )
    return ((KEY, b"".join(greeting)),)


def from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> StreamHello:
    """Return the greeting in metadata. Raises MalformedStream, for other versions too."""
    found = [value for key, value in metadata or () if key == KEY]
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise MalformedStream("the greeting is missing")
    try:
        version, hello = _read(found[0])
    except ValueError as error:
        raise MalformedStream("the greeting is malformed") from error
    if version != VERSION:
        raise MalformedStream(
            f"it speaks version {version} of the inter-node protocol, not {VERSION}"
        )
    if not hello.node or max(len(hello.node), len(hello.purpose)) > NAME_CHARS_MAX:
        raise MalformedStream("the greeting has an invalid name")
    return hello


def _read(data: bytes) -> tuple[int, StreamHello]:
    shard = number_of(data, _SHARD) & _WORD
    return number_of(data, _VERSION) & _WORD, StreamHello(
        bytes_of(data, _NODE).decode(),
        shard - (_WORD + 1) if shard >> 31 else shard,
        number_of(data, _WORKERS) & _WORD,
        number_of(data, _EPOCH),
        bytes_of(data, _PURPOSE).decode(),
        number_of(data, _TELLS_TIME) != 0,
        number_of(data, _COMBINES) != 0,
    )
