# Types of ``reactor``, for the checker: the source's annotations are C types.
#
# ``host`` is the shard that the reactor belongs to, which documents the methods that are called.

import select
from collections.abc import Callable
from typing import Any, Final

from fluxmq.net.route import Route
from fluxmq.protocols.amqp091.parser import AmqpParser
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.run import Run
from fluxmq.protocols.mqtt.scan import Scanner
from fluxmq.protocols.mqtt.tickets import Ticket

EVENTS_MAX: Final = 512
TICKS_MAX: Final = 16
BUSY_MIN: Final = 3
PAUSED_LINK: Final = 1
PAUSED_STEP: Final = 2
PAUSED_OUTPUT: Final = 4
PAUSED_ALARM: Final = 32
ANSWERS_MAX: Final = 2097152
QOS_NOT_SUPPORTED: Final = 0x9B
PROTOCOL_ERROR: Final = 0x82
PACKET_TOO_LARGE: Final = 0x95

class Reactor:
    host: Any
    poller: select.epoll
    tally: Tally
    connections: dict[int, Connection]
    others: dict[int, Callable[[], object]]
    routes: dict[bytes, Route]
    dirty: list[Connection]
    inbound: list[Any]
    routes_max: int
    max_packet: int
    max_first_packet: int
    max_qos: int
    link_full: bool
    alarm: bool
    ticking: bool
    unfinished: bool
    awaited: float
    ticket: Ticket | None
    buffer: bytearray
    scanner: Scanner
    amqp: AmqpParser

    def __init__(
        self,
        host: Any,
        receive_bytes: int,
        max_packet: int,
        max_first_packet: int,
        routes_max: int,
    ) -> None: ...
    def fileno(self) -> int: ...
    def watch(self, fd: int, callback: Callable[[], object]) -> None: ...
    def add(self, connection: Connection) -> None: ...
    def discard(self, connection: Connection) -> None: ...
    def pause(self, connection: Connection, reason: int) -> None: ...
    def resume(self, connection: Connection, reason: int) -> None: ...
    def interest(self, connection: Connection) -> None: ...
    def run_ready(self) -> None: ...
    def tick(self) -> int: ...
    def flush(self) -> int: ...
    def lost(self, connection: Connection) -> int: ...
    def drained(self, connection: Connection) -> int: ...
    def writable(self, connection: Connection) -> int: ...
    def readable(self, connection: Connection) -> int: ...
    def filtered(self, connection: Connection, data: bytes) -> int: ...
    def process(self, connection: Connection, buffer: bytearray, end: int) -> int: ...
    def publish(self, connection: Connection, buffer: bytearray) -> int: ...
    def hold(self) -> Ticket: ...
    def accept(self, connection: Connection, run: Run) -> int: ...
    def publish_run(self, run: Run) -> int: ...
    def forward(self, run: Run, route: Route) -> int: ...
    def deliver(self, run: Run, route: Route) -> int: ...
