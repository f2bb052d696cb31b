"""Limits of connections between nodes, and the names of their gRPC methods."""

from __future__ import annotations

from typing import Final

from fluxmq.cluster.wire import MESSAGE_BYTES_MAX

SERVICE: Final = "fluxmq.cluster.v1.Cluster"
CONNECT: Final = f"/{SERVICE}/Connect"
ASK: Final = f"/{SERVICE}/Ask"
QUESTION_NAME, QUESTION_BODY, ANSWER_BODY = 1, 2, 1
"""Numbers of the fields of a question, and of an answer."""

KEEPALIVE_SECONDS: Final = 1.0
"""Silence after which a side pings the other."""
KEEPALIVE_TIMEOUT_SECONDS: Final = 1.5
"""Time without an answer after which the other side counts as dead: detected within the sum of
both, plus half a second.

The ping waits behind what the kernel has taken and not yet sent, a few MiB at most: links slower
than 3 MB/s are not for bulk.
"""

CONNECT_SECONDS: Final = 3.0
"""Time to connect and complete the handshake once; the kernel retransmits a lost first packet after
one second.
"""

GREETING_SECONDS: Final = 5.0
"""Time until a greeting is answered, all in all."""

CLOSING_SECONDS: Final = 1.0
"""Time for the other side to close as well."""

IDLE_SECONDS: Final = 60.0
"""Time that a connection may carry nothing."""

STREAMS_PER_SOCKET_MAX: Final = 128
"""Streams and calls on one connection; a node opens one stream on each, or one fetch's calls."""

SOCKETS_MAX: Final = 2048
"""Connections to one endpoint: of nine other nodes with 64 shards each, for streams of two purposes
and calls, with a margin.
"""

STRANGERS_MAX: Final = 512
"""Share of those from addresses of no configured member: the rest is reserved for members."""

HANDSHAKES_MAX: Final = 1024
"""Pending TLS handshakes at one endpoint: all shards of nine returning nodes, with a margin; what
is beyond it tries again."""

STRANGERS_HANDSHAKES_MAX: Final = 128
"""Share of those with addresses of no member: each costs CPU time, up to `GREETING_SECONDS`."""

WRITE_BUFFER_BYTES: Final = 1 << 20
"""Bytes that may wait for the kernel: beyond it streams wait, where their backlog is counted."""

PROBLEM_CHARS_MAX: Final = 300
"""Characters of a problem in a log line: another node may have written it."""

MESSAGE_LIMIT: Final = MESSAGE_BYTES_MAX + (
    64 << 10
)  # the limited content comes with a little overhead

STREAMS_MAX: Final = 2048
"""Streams to one endpoint: of nine other nodes with 64 shards each, for two purposes, and their
replacements."""

CALLS_MAX: Final = 64
"""Calls answered at once by one endpoint: nine fetching followers with some chunks each."""

CALL_SECONDS_MAX: Final = 3600.0
"""Maximum duration of a call as a whole, however well it progresses."""
