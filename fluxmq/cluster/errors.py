"""Errors between nodes."""

from __future__ import annotations

from fluxmq.model.errors import FluxmqError


class ClusterError(FluxmqError):
    """Root of everything that this package raises."""


class SecurityError(ClusterError):
    """Certificates or addresses contradict the settings, or are not enough to trust a node."""


class EndpointError(ClusterError):
    """An address cannot be listened on."""


class MalformedStream(ClusterError):  # noqa: N818 - named for the condition
    """Another node violated the protocol; the stream ends."""


class StreamEnded(ClusterError):  # noqa: N818 - named for the condition
    """A stream has ended; the text gives the reason."""


class CallRefused(ClusterError):  # noqa: N818 - named for the condition
    """The callee refuses a call; the text gives the reason."""


class CallFailed(ClusterError):  # noqa: N818 - named for the condition
    """A call was not answered in time, or its connection was lost."""
