"""Messages about definitions: everything that is declared, as RabbitMQ's JSON. Pure, like `messages`.

fluxmqctl -> control  export_definitions, import_definitions
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.ipc.control_frames import FRAME_BYTES_MAX
from fluxmq.ipc.messages import MessageBody, Name, Natural

EXPORT_DEFINITIONS: Final = "export_definitions"
IMPORT_DEFINITIONS: Final = "import_definitions"

DEFINITIONS_BYTES_MAX: Final = FRAME_BYTES_MAX - 4096
"""Bytes of definitions in a message."""
KINDS_MAX: Final = 16


class DefinitionsText(MessageBody, frozen=True):
    """Definitions as JSON: the answer to export_definitions, and the request to import them."""

    text: Annotated[bytes, Meta(max_length=DEFINITIONS_BYTES_MAX)]


class ImportedDefinitions(MessageBody, frozen=True):
    """The answer to import_definitions: how many things of each kind, and those that were ignored."""

    counts: Annotated[dict[str, Natural], Meta(max_length=KINDS_MAX)]
    ignored: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
