# Types of ``connection``, for the checker: the source's annotations are C types.
#
# The protocols are what the hot path requires of a stream filter and of the handlers of MQTT and AMQP; packages above
# this one implement them.

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, type_check_only

from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.run import PublishRun
from fluxmq.protocols.mqtt.delivery import Delivery
from fluxmq.protocols.mqtt.run import Run

CHUNK_MIN: Final = 4096
DIRECT_MIN: Final = 32768
WIRE_MQTT: Final = 0
WIRE_AMQP_0_9_1: Final = 1
FRAME_MIN: Final = 4096

@type_check_only
class _Stream(Protocol):
    @property
    def closed(self) -> bool: ...
    def feed(self, data: bytes, /) -> bytes: ...
    def encode(self, chunks: Sequence[bytes | bytearray], /) -> bytes: ...
    def pending(self) -> bytes: ...
    def shutdown(self) -> bytes: ...
    def release(self) -> None: ...

@type_check_only
class _Handler(Protocol):
    def packet(self, connection: Connection, first: int, body: bytes, /) -> object: ...
    def publish(self, connection: Connection, run: Run, raw: bytes, /) -> bool: ...
    def broken(
        self, connection: Connection, reason: int, packet: bytes | bytearray = b"", /
    ) -> object: ...
    def bad_topic(self, connection: Connection, topic: bytes, /) -> object: ...
    def refused(self, connection: Connection, answers: bytes, reason: int, /) -> object: ...
    def lost(self, connection: Connection, /) -> object: ...
    def drained(self, connection: Connection, /) -> object: ...

@type_check_only
class _AmqpHandler(Protocol):
    def protocol_header(self, connection: Connection, header: bytes, /) -> object: ...
    def publish_run(self, connection: Connection, channel: int, run: PublishRun, /) -> object: ...
    def frame(
        self, connection: Connection, kind: int, channel: int, payload: bytes, /
    ) -> object: ...
    def broken(self, connection: Connection, code: int, text: str, /) -> object: ...
    def lost(self, connection: Connection, /) -> object: ...
    def drained(self, connection: Connection, /) -> object: ...

class Tally:
    now: float
    received0: int
    received1: int
    received2: int
    received_bytes0: int
    received_bytes1: int
    received_bytes2: int
    sent0: int
    sent1: int
    sent2: int
    sent_bytes0: int
    sent_bytes1: int
    sent_bytes2: int
    dropped_slow: int
    dropped_full: int
    dropped_expired: int
    dropped_large: int
    route_hits: int
    route_misses: int
    ticks: int
    runs: int
    amqp_published: int
    amqp_published_bytes: int
    amqp_returned: int
    amqp_delivered: int
    amqp_delivered_bytes: int
    amqp_redelivered: int
    amqp_got: int
    amqp_got_empty: int
    amqp_replies: int
    amqp_acknowledged: int
    amqp_requeued: int
    amqp_rejected: int
    amqp_confirmed: int
    amqp_nacked: int
    amqp_committed: int
    amqp_rolled_back: int

    def __init__(self) -> None: ...
    def received(self, qos: int, count: int, size: int) -> int: ...
    def sent(self, qos: int, count: int, size: int) -> int: ...
    def published(self, count: int, size: int) -> int: ...
    def delivered(self, count: int, size: int, again: bool) -> int: ...

class Connection:
    fd: int
    version: int
    wire: int
    frame_max: int
    ledgers: dict[int, ChannelLedger] | None
    paused: int
    listener: int
    alias_maximum: int
    open: bool
    deaf: bool
    closing: bool
    dirty: bool
    waiting: bool
    feeding: bool
    publishing: bool
    active: float
    limit: int
    max_packet_out: int
    sent: int
    size: int
    gathered: int
    needed: int
    encoded: int
    tally: Tally
    dirty_list: list[Connection]
    chunks: list[bytes | bytearray] | None
    tail: bytes | None
    gathering: bytearray | None
    out: bytearray | None
    aliases: dict[bytes, int] | None
    allowed: set[bytes] | None
    stream: _Stream | None
    handler: _Handler | _AmqpHandler | None
    delivery: Delivery | None
    identity: Any
    tickets: deque[Any] | None

    send: Callable[[int, bytes | bytearray, int, int], int]

    def __init__(
        self,
        fd: int,
        tally: Tally,
        dirty: list[Connection],
        limit: int,
        send: Callable[[int, bytes | bytearray, int, int], int],
    ) -> None: ...
    def forget(self) -> int: ...
    def gather(self, buffer: bytearray, at: int, end: int, needed: int, capacity: int) -> int: ...
    def widen(self) -> int: ...
    def fill(self, data: bytes) -> bytes: ...
    def buffer(self) -> bytearray: ...
    def append(self, data: bytes) -> int: ...
    def append_chunk(self, data: bytes) -> int: ...
    def append_slice(self, data: bytes | bytearray, start: int, end: int, kept: bool) -> int: ...
    def write(self, data: bytes | bytearray, start: int, end: int) -> int: ...
    def flush(self) -> int: ...
    def encode(self) -> int: ...
    def room(self) -> int: ...
    def alias(self, topic: bytes) -> int: ...
