"""Errors that make a node unable to continue, and failed reads of the log.

Outcomes (not leader, overloaded) are values in ``types``. These are raised.
"""

from __future__ import annotations

from fluxmq.model.errors import FluxmqError


class InconsistentLog(FluxmqError):  # noqa: N818 - named for the condition
    """A peer's message contradicts this node's log: one of the two lost what it had acknowledged.

    A directory was restored from an old copy, two nodes share an id, or a disk lost synced data.
    The node must not go on with this log.
    """


class Compacted(FluxmqError):  # noqa: N818 - named for the condition
    """The requested entries precede the log's beginning; they are in a snapshot now."""


class MalformedMessage(FluxmqError):  # noqa: N818 - named for the condition
    """A peer's message is not one that a node sends: its parts do not fit together."""
