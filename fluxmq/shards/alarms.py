"""Resource alarms: while the node is low on memory or disk space, its shards stop reading
publishers.

Every shard measures its own memory, adds the figures that other processes wrote into the process
table, and checks whether its groups find their disk full. An alarm that one shard raises holds on
all shards, through the same table. During an alarm a connection that has published is no longer
read, and a new one is stopped after its first publish. Consumers, other shards and other nodes are
served as usual, so that queues can drain. AMQP clients are notified (``on_change``). Most MQTT
messages need no disk, and those that do are refused one by one, so the disk alarm does not stop
MQTT publishers. Beyond the critical mark new connections, declarations and transactions are refused
as well.

A publisher that is not read can neither complete a message nor commit a transaction, and the memory
these hold may be the very cause of the alarm. After ``RELIEF_SECONDS`` they are dropped
(``on_relief``), so that the alarm can end.

A busy shard measures itself ten times a second, which bounds the growth between two samples to what
its clients can send in a tenth of a second. An idle one does so once a second.

Source: RabbitMQ's resource alarms.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

from fluxmq.ipc.memory import SAMPLE_SECONDS, Watermark, Watermarks
from fluxmq.ipc.table import ALARMS, DISK, MEMORY, ProcessTable
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.net.reactor import PAUSED_ALARM, WATCH_ALARM, Reactor
from fluxmq.protocols.connection import WIRE_MQTT, Connection

RELIEF_SECONDS = 10.0
"""Time for which incomplete messages and uncommitted transactions of stopped publishers are kept:
it gives consumers a chance to make room."""
QUIET_TICKS = 4
"""Ticks per tenth of a second up to which a shard counts as idle: its timer alone causes one or
two."""
TRIM_PAUSE = 20
"""Pause after a trim, in multiples of its duration: a large heap takes some tenths of a second, and
consumers wait for them."""
REFUSED = ("connection", "declaration", "transaction", "budget", "incomplete")
"""Kinds of refusals for want of memory: new connections, declarations and transactional publishes
beyond the critical mark; publishes that would take an AMQP connection above
``amqp.max_incomplete_bytes``; incomplete work dropped to end an alarm."""

_log = get_logger("fluxmq.alarms")


class Alarms:
    """The alarms in force on one shard, and the connections that are not read because of them.

    ``on_change`` is called with the alarms in force, in the order of ``ALARMS``, whenever they
    change; ``on_relief`` when the memory alarm has lasted for ``RELIEF_SECONDS``.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self.raised: tuple[str, ...] = ()
        self.critical = False
        self.held: dict[Connection, None] = {}
        self.refused: Counter[str] = Counter()
        self.on_change: list[Callable[[tuple[str, ...]], None]] = []
        self.on_relief: list[Callable[[], None]] = []
        self.log = RateLimited(_log, per_second=0.2, burst=5)

    def set(self, raised: tuple[str, ...], critical: bool = False) -> None:
        """Put exactly these alarms in force."""
        self.critical = critical
        if raised == self.raised:
            return
        self.raised = raised
        others = self._reactor.watching & ~WATCH_ALARM
        self._reactor.watching = others | WATCH_ALARM if MEMORY in raised else others
        for told in self.on_change:
            told(raised)
        for connection in list(self.held):
            # Resuming one may end another.
            if connection in self.held and not self._stops(connection):
                del self.held[connection]
                self._resume(connection)

    def hold_publisher(self, connection: Connection) -> None:
        """Stop reading a connection that has published, or that sends a packet too large to be
        anything but a publish."""
        publishes = connection.publishing or self.is_large(connection)
        if publishes and connection.fd >= 0 and self._stops(connection):
            self.held[connection] = None
            self._reactor.pause(connection, PAUSED_ALARM)

    def is_large(self, connection: Connection) -> bool:
        """Return whether a packet larger than the receive buffer is coming, which therefore has a
        buffer of its own."""
        return connection.gathering is not None and connection.needed > len(self._reactor.buffer)

    def release(self, connection: Connection) -> None:
        """Read a connection that is closing, alarm or not: its last answer is awaited."""
        connection.publishing = False
        if connection in self.held:
            del self.held[connection]
            self._resume(connection)

    def forget(self, connection: Connection) -> None:
        """Drop a connection that has gone."""
        self.held.pop(connection, None)

    def refuse(self, what: str) -> None:
        """Count something refused for want of memory, and log some."""
        self.refused[what] += 1
        self.log.event(logging.WARNING, what, "refused because memory is low: %s", what)

    def relieve(self) -> None:
        """Drop incomplete input of stopped publishers."""
        for give_up in self.on_relief:
            give_up()

    def samples(self) -> Iterator[Sample]:
        """Yield this shard's metrics."""
        yield "fluxmq_connections_blocked", {}, len(self.held)
        for what in REFUSED:
            yield "fluxmq_memory_refused_total", {"what": what}, self.refused[what]

    def _stops(self, connection: Connection) -> bool:
        """Return whether the alarms in force stop publishers of the connection's protocol."""
        return MEMORY in self.raised or (bool(self.raised) and connection.wire != WIRE_MQTT)

    def _resume(self, connection: Connection) -> None:
        # The broker did not listen: keep alive and heartbeat start anew.
        connection.active = self._reactor.tally.now
        self._reactor.resume(connection, PAUSED_ALARM)


class Watch:
    """Measures resources and sets ``Alarms``. One per shard; ``step`` is called ten times a second.

    ``measure`` returns the bytes that this process holds; ``trim`` returns freed memory to the
    kernel and says how many seconds that took.
    """

    def __init__(
        self,
        alarms: Alarms,
        reactor: Reactor,
        table: ProcessTable,
        slot: int,
        watermarks: Watermarks,
        measure: Callable[[], int],
        trim: Callable[[], float],
        disk_full: Callable[[], bool],
    ) -> None:
        self._alarms = alarms
        self._tally = reactor.tally
        self._table = table
        self._slot = slot
        self._measure = measure
        self._trim = trim
        self._disk_full = disk_full
        self._watermark = Watermark(watermarks)
        self._found: set[str] = set()
        self._ticks = 0
        self._next = 0.0
        self._trim_at = 0.0
        self._relieve_at = 0.0

    def configure(self, watermarks: Watermarks) -> None:
        """Change the marks."""
        self._watermark.watermarks = watermarks
        self._next = 0.0

    def step(self, now: float) -> None:
        """Measure when it is time to, and put in force the alarms that any shard has raised."""
        ticks = self._tally.ticks
        busy = ticks - self._ticks > QUIET_TICKS
        self._ticks = ticks
        self._find(DISK, self._disk_full())
        if busy or self._watermark.above or now >= self._next:
            self._next = now + SAMPLE_SECONDS
            self._find(MEMORY, self._watermark.update(self._use(now)))
        raised = self._table.alarms()
        self._alarms.set(raised, self._watermark.critical)
        if MEMORY not in raised:
            self._relieve_at = now + RELIEF_SECONDS
        elif now >= self._relieve_at:
            self._relieve_at = now + RELIEF_SECONDS
            self._alarms.relieve()

    def _use(self, now: float) -> int:
        """Return the bytes that the node holds, after a trim of this process where they are too
        many."""
        self._table.set_memory(self._slot, self._measure())
        too_much = self._watermark.above or self._table.memory() >= self._watermark.watermarks.high
        if too_much and now >= self._trim_at:
            took = self._trim()
            self._trim_at = now + max(SAMPLE_SECONDS, TRIM_PAUSE * took)
            self._table.set_memory(self._slot, self._measure())
        return self._table.memory()

    def _find(self, kind: str, short: bool) -> None:
        if short == (kind in self._found):
            return
        if short:
            self._found.add(kind)
        else:
            self._found.discard(kind)
        self._table.set_alarms(self._slot, self._found)
        text = "alarm raised: %s is low" if short else "alarm cleared: %s is no longer low"
        held, mark = self._table.memory(), self._watermark.watermarks.high
        key = f"{kind} {short}"
        self._alarms.log.event(logging.WARNING, key, text, kind, held=held, mark=mark)


def reason_of(raised: tuple[str, ...]) -> str:
    """Return the reason given in connection.blocked, in RabbitMQ's words."""
    return "low on " + " & ".join(kind for kind in ALARMS if kind in raised)


def trim() -> float:
    """Return freed memory to the kernel and return the seconds that took.

    The C library keeps free memory that lies between pieces in use; without a trim the node would
    stay above the mark after its queues have drained. Does nothing where the C library cannot.
    """
    began = time.monotonic()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
    return time.monotonic() - began
