"""Names of queues: in AMQP a vhost and a name, in the queue engine one text.

In vhost ``/`` the internal name is the name itself, so that ``$queue/<name>`` of MQTT is the same queue.
"""

from __future__ import annotations

from typing import Final

DEFAULT_VHOST: Final = "/"
SEPARATOR: Final = "\x1f"
"""Between vhost and name. No vhost has it in its name, so that the first one in an internal name is always this."""
NAME_BYTES_MAX: Final = 255
"""Bytes of a name: AMQP's short strings have one byte of length."""
RESERVED_PREFIX: Final = "amq."
"""Names that only the broker gives."""


def internal_name(vhost: str, name: str) -> str:
    """The queue engine's name of a queue; no two queues have the same."""
    if vhost == DEFAULT_VHOST and SEPARATOR not in name:
        return name
    return f"{vhost}{SEPARATOR}{name}"


def public_name(internal: str) -> tuple[str, str]:
    """The inverse of `internal_name`: vhost and name."""
    vhost, separator, name = internal.partition(SEPARATOR)
    return (vhost, name) if separator else (DEFAULT_VHOST, internal)


def is_reserved(name: str) -> bool:
    """Whether clients may not make something of this name."""
    return name.startswith(RESERVED_PREFIX)
