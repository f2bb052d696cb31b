"""What can go wrong between nodes."""

from __future__ import annotations

from fluxmq.model.errors import FluxmqError


class ClusterError(FluxmqError):
    """Root of everything that this package raises."""


class SecurityError(ClusterError):
    """Certificates or addresses are not what the settings say, or not enough to trust another node."""


class EndpointError(ClusterError):
    """An address cannot be listened on."""


class MalformedStream(ClusterError):  # noqa: N818 - says what is the case
    """What another node sent is not what this protocol has; the stream ends."""


class StreamEnded(ClusterError):  # noqa: N818 - says what is the case
    """A stream has ended; the text says why."""


class CallRefused(ClusterError):  # noqa: N818 - says what is the case
    """Whoever was called does not do what was asked; the text says why."""


class CallFailed(ClusterError):  # noqa: N818 - says what is the case
    """A call was not answered in time, or its connection was lost."""
