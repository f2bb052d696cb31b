"""Names of queues: vhost and name in AMQP, one text in the queue engine.

In vhost ``/`` the internal name is the name itself, so that ``$queue/<name>`` of MQTT is the same
queue.
"""

from __future__ import annotations

from typing import Final

DEFAULT_VHOST: Final = "/"
SEPARATOR: Final = "\x1f"
"""Separator of vhost and name. Vhost names never contain it, so the first one in an internal name
is always this."""
NAME_BYTES_MAX: Final = 255
"""Maximum bytes of a name: AMQP's short strings have one byte of length."""
RESERVED_PREFIX: Final = "amq."
"""Prefix of names that only the broker assigns."""
APPLY_TO: Final = ("all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams")
"""Kinds of objects that a policy applies to, the default first."""
TRACE_EXCHANGE: Final = "amq.rabbitmq.trace"
EVENT_EXCHANGE: Final = "amq.rabbitmq.event"
"""Exchanges for the broker's own messages: copies of others in every vhost, and events in the
default one."""


def internal_name(vhost: str, name: str) -> str:
    """Return the queue engine's name of a queue; no two queues have the same."""
    if vhost == DEFAULT_VHOST and SEPARATOR not in name:
        return name
    return f"{vhost}{SEPARATOR}{name}"


def public_name(internal: str) -> tuple[str, str]:
    """Return vhost and name of an internal name."""
    vhost, separator, name = internal.partition(SEPARATOR)
    return (vhost, name) if separator else (DEFAULT_VHOST, internal)


def is_reserved(name: str) -> bool:
    """Return whether clients may not create something of this name."""
    return name.startswith(RESERVED_PREFIX)
