"""What gRPC is told: one set of options for both sides.

Sources: gRPC's channel arguments (``grpc_types.h``), its guide on keepalive, and proposal A8. The timeout of keepalive is
never armed in gRPC's core (its pull request 39239 says so, and stopping a process shows it): that of the ping does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fluxmq.cluster.wire import MESSAGE_BYTES_MAX

SERVICE: Final = "fluxmq.cluster.v1.Cluster"
CONNECT: Final = "Connect"
ASK: Final = "Ask"

KEEPALIVE_SECONDS: Final = 1.0
"""A side that hears nothing for so long asks whether the other is there."""
KEEPALIVE_TIMEOUT_SECONDS: Final = 1.5
"""And takes it for dead when that is not answered within so long: found within the sum of both.

The question waits behind what the kernel has taken and not yet sent, a few MiB at most: links slower than 3 MB/s are not
for bulk."""

CONNECT_SECONDS: Final = 3.0
"""To connect and shake hands once; a first packet that is lost is repeated by the kernel after one second."""

GREETING_SECONDS: Final = 5.0
"""Until a greeting is answered, all in all."""

METADATA_BYTES_MAX: Final = 8 << 10
"""A greeting is some hundred bytes, and read of strangers."""

STREAMS_PER_SOCKET_MAX: Final = 128
"""Streams and calls on one connection; a node opens one stream on each, or the calls of what it fetches."""

SOCKETS_MAX: Final = 2048
"""Connections to one endpoint: of nine other nodes with 64 shards each, for streams and for calls, and then some."""

_LIMIT: Final = MESSAGE_BYTES_MAX + (64 << 10)  # around what is limited there is a little more

Options = Sequence[tuple[str, int | str]]

_BOTH: Final[Options] = (
    ("grpc.max_receive_message_length", _LIMIT),
    ("grpc.max_send_message_length", _LIMIT),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
    ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
    # As often as that, whether or not there was data, and without the other side minding.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
)

SERVER: Final[Options] = (
    *_BOTH,
    # Otherwise a second process could bind the same port and take half of the connections, silently.
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", STREAMS_PER_SOCKET_MAX),
    ("grpc.max_allowed_incoming_connections", SOCKETS_MAX),
    ("grpc.server_handshake_timeout_ms", int(GREETING_SECONDS * 1000)),
    # Who connects and asks for nothing.
    ("grpc.max_connection_idle_ms", 60_000),
)

CLIENT: Final[Options] = (
    *_BOTH,
    # A message must not be sent twice, and who connects anew, and when, is decided here.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Only the address itself: no proxy out of the environment, no settings out of DNS.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
