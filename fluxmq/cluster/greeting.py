"""Greetings as bytes: the speaker's introduction before anything else, in the metadata of streams
and calls.

gRPC bounds metadata, and an unwelcome speaker is refused before a single message is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from fluxmq.cluster.connection import Hello
from fluxmq.cluster.errors import MalformedStream
from fluxmq.cluster.generated.cluster_pb2 import Greeting

VERSION: Final = 3
"""Version of the protocol between nodes. Nodes of different versions do not speak to each other."""

KEY: Final = "fluxmq-greeting-bin"
"""Key in the metadata; gRPC takes bytes under names with this ending."""

NAME_CHARS_MAX: Final = 256
"""Longest node name or purpose; names in the settings have at most 128 characters."""


def as_metadata(hello: Hello) -> tuple[tuple[str, bytes], ...]:
    """Return a greeting as metadata."""
    greeting = Greeting(version=VERSION, **hello._asdict())
    return ((KEY, greeting.SerializeToString()),)


def from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Hello:
    """Return the greeting in metadata. Raises MalformedStream, for other versions too."""
    found = [value for key, value in metadata or () if key == KEY]
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise MalformedStream("the greeting is missing")
    try:
        greeting = Greeting.FromString(found[0])
    except DecodeError as error:
        raise MalformedStream("the greeting is malformed") from error
    if greeting.version != VERSION:
        raise MalformedStream(
            f"it speaks version {greeting.version} of the inter-node protocol, not {VERSION}"
        )
    hello = Hello(
        greeting.node,
        greeting.shard,
        greeting.workers,
        greeting.epoch,
        greeting.purpose,
        greeting.tells_time,
    )
    if not hello.node or max(len(hello.node), len(hello.purpose)) > NAME_CHARS_MAX:
        raise MalformedStream("the greeting has an invalid name")
    return hello
