"""Limits of connections between nodes, and what is called there."""

from __future__ import annotations

from typing import Final

from fluxmq.cluster.wire import MESSAGE_BYTES_MAX

SERVICE: Final = "fluxmq.cluster.v1.Cluster"
CONNECT: Final = f"/{SERVICE}/Connect"
ASK: Final = f"/{SERVICE}/Ask"

KEEPALIVE_SECONDS: Final = 1.0
"""A side that hears nothing for so long asks whether the other is there."""
KEEPALIVE_TIMEOUT_SECONDS: Final = 1.5
"""And takes it for dead when that is not answered within so long: found within the sum of both, and half a second more.

The question waits behind what the kernel has taken and not yet sent, a few MiB at most: links slower than 3 MB/s are not
for bulk."""

CONNECT_SECONDS: Final = 3.0
"""To connect and shake hands once; a first packet that is lost is repeated by the kernel after one second."""

GREETING_SECONDS: Final = 5.0
"""Until a greeting is answered, all in all."""

CLOSING_SECONDS: Final = 1.0
"""How long the other side is given to say goodbye as well."""

IDLE_SECONDS: Final = 60.0
"""How long a connection may carry nothing."""

STREAMS_PER_SOCKET_MAX: Final = 128
"""Streams and calls on one connection; a node opens one stream on each, or the calls of what it fetches."""

SOCKETS_MAX: Final = 2048
"""Connections to one endpoint: of nine other nodes with 64 shards each, for streams and for calls, and then some."""

STRANGERS_MAX: Final = 512
"""Of those, from addresses that are none of a configured member's: the rest is kept for members, whoever else comes."""

HANDSHAKES_MAX: Final = 1024
"""TLS handshakes under way at one endpoint: all shards of nine nodes that come back at once, and then some."""

STRANGERS_HANDSHAKES_MAX: Final = 128
"""Of those, with addresses of no member: each costs computing time, and may take `GREETING_SECONDS`."""

WRITE_BUFFER_BYTES: Final = 1 << 20
"""Of what waits to be written by the kernel: behind it streams wait, where what they have is counted."""

PROBLEM_CHARS_MAX: Final = 300
"""Of what a log line says about a problem: another node may have written it."""

MESSAGE_LIMIT: Final = MESSAGE_BYTES_MAX + (
    64 << 10
)  # around what is limited there is a little more

STREAMS_MAX: Final = 1024
"""Streams to one endpoint: of nine other nodes with 64 shards each, and as many that are about to be replaced."""

CALLS_MAX: Final = 64
"""Calls answered at once by one endpoint: nine followers that fetch, with some chunks under way each."""

CALL_SECONDS_MAX: Final = 3600.0
"""The longest that a call may take as a whole, however well it goes on."""
