"""A queue with a long backlog: what it costs in memory, and how long a start with it takes.

Messages are streamed to one durable queue that nobody consumes. Then the broker is stopped, once cleanly and
once by SIGKILL, and started again on the same data directory; the clock runs from the start of the process to
the first answer of ``/ready`` and to the first delivery to a new consumer. The delivery is not acknowledged, so
the second start finds the same backlog.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perf import brokers, codec, dialects, durable, handshake, processes
from perf.brokers import HOST
from perf.codec import Histogram
from perf.run import Progress, RunError
from perf.workload import Workload

MESSAGES = 10_000_000
WINDOW = 5_000
FILL_RATE_MIN = 5_000.0
"""Messages per second below which filling is given up."""

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.005
INBOUND_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds from the start of the process to readiness and to the first delivery."""

    after: str
    ready_s: float
    first_delivery_s: float


@dataclass(frozen=True, slots=True)
class BacklogMeasurement:
    """Cost of the backlog. Memory is that of the process that grew most, which is the shard, in bytes.

    ``memory_growth`` counts resident pages of all kinds, ``anonymous_growth`` those that no file backs.
    ``empty_start_s``: to readiness with nothing stored, just before.
    """

    target: str
    messages: int
    fill_s: float
    data_bytes: int
    memory_growth: int
    anonymous_growth: int
    empty_start_s: float
    restarts: tuple[Restart, ...]

    @property
    def restart_s(self) -> float:
        """The slowest start, to the first delivery."""
        return max(max(each.ready_s, each.first_delivery_s) for each in self.restarts)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "restart_s": self.restart_s}


class Node:
    """FluxMQ with one durable queue on a data directory that outlives its processes."""

    def __init__(self, folder: Path, port: int, http_port: int) -> None:
        self.folder, self.port, self.http_port = folder, port, http_port
        settings = durable.fluxmq_settings(port, http_port, folder / "data")
        self.command = durable.fluxmq_command(settings, folder)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start and wait for readiness; the moment of the start. Raises ``RunError``."""
        began = time.monotonic()
        log = self.folder / "output"
        self.process = brokers.spawn(self.command, self.folder, durable.environment(), log)
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > began + START_TIMEOUT_S:
                raise RunError(f"not ready: {log.read_text(errors='replace')[-2000:].strip()}")
            time.sleep(POLL_S)
        return began

    def _ready(self) -> bool:
        page = f"http://{HOST}:{self.http_port}/ready"
        try:
            with urllib.request.urlopen(page, timeout=5) as answer:
                return int(answer.status) == 200
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def stop(self, clean: bool) -> None:
        """End all its processes: by SIGTERM and waiting, or at once."""
        if self.process is None:
            return
        if clean:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
        below = processes.tree((self.process.pid,))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def memory(self) -> dict[int, tuple[int, int]]:
        """Resident and anonymous bytes of each process."""
        assert self.process is not None
        return {pid: resident(pid) for pid in processes.tree((self.process.pid,))}


def resident(pid: int) -> tuple[int, int]:
    """Resident and anonymous resident bytes of a process; 0 when it is gone."""
    found = {"VmRSS": 0, "RssAnon": 0}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * 1024
    return found["VmRSS"], found["RssAnon"]


def grown(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Resident and anonymous growth of the process that grew most."""
    changes = [
        (now[0] - then[0], now[1] - then[1])
        for pid, now in after.items()
        if (then := before.get(pid)) is not None
    ]
    return max(changes, default=(0, 0))


def filling(payload: int) -> Workload:
    """Return the workload that fills the backlog of MQTT's case."""
    return Workload(
        protocol="queue", version=5, qos=1, shape="pairs", payload=payload, window=WINDOW
    )


def fill(port: int, messages: int, work: Workload, progress: Progress | None = None) -> float:
    """Publish until so many messages are confirmed; the seconds it took. Raises ``RunError``."""
    dialect = dialects.DIALECTS[work.protocol]
    connection, limit = dialect.open_publisher(HOST, port, work, 0)
    with connection:
        template = dialect.template(work, 0)
        window = min(work.window, limit)
        capacity = min(work.chunk_messages(len(template.message)), window)
        sender = dialect.sender(template, capacity, window, 0, Histogram())
        buffers = bytearray(INBOUND_BYTES), bytearray(INBOUND_BYTES)
        receiver = dialect.receiver(work, buffers, sender, Histogram())
        view, chunk = memoryview(buffers[0]), memoryview(sender.chunk)
        began = time.monotonic()
        give_up = began + messages / FILL_RATE_MIN + START_TIMEOUT_S
        kept = sent = 0
        while sender.acknowledged < messages:
            count = min(sender.room(), messages - sent)
            # Acknowledgements of a whole window fit the sockets' buffers, so a blocking send is safe.
            if count >= min(capacity, messages - sent) and count:
                connection.sendall(chunk[: sender.prepare(count, time.monotonic_ns(), 0)])
                sent += count
                continue
            end = kept + connection.recv_into(view[kept:])
            if end == kept or time.monotonic() > give_up:
                raise RunError(f"the broker stopped confirming after {sender.acknowledged}")
            done = receiver.feed(end, time.monotonic_ns(), False)
            kept = end - done
            view[:kept] = bytes(view[done:end])
            if sender.refused:
                raise RunError(f"refused {sender.refused} messages of {sent}")
            if progress is not None:
                progress(sender.acknowledged, messages)
        connection.sendall(dialect.goodbye)
    return time.monotonic() - began


def first_delivery(port: int) -> float:
    """Subscribe and wait for one delivery, which stays unacknowledged; when it came."""
    connection = handshake.dial(HOST, port)
    connection.settimeout(START_TIMEOUT_S)
    with connection:
        handshake.connect_mqtt(connection, "perf-first", 5)
        connection.sendall(
            codec.subscribe(
                f"$queue/{durable.TOPIC}-0", 1, 5, codec.user_property("consumer-group", "perf")
            )
        )
        while True:
            try:
                first, _ = handshake.read_packet(connection)
            except TimeoutError as error:
                raise RunError("no delivery after the restart") from error
            if first >> 4 == 3:
                return time.monotonic()


def restart(node: Node, clean: bool) -> Restart:
    """Stop and start once."""
    node.stop(clean)
    began = node.start()
    ready = time.monotonic()
    came = first_delivery(node.port)
    return Restart("a clean stop" if clean else "SIGKILL", ready - began, came - began)


def measure(
    messages: int = MESSAGES, payload: int = 256, progress: Progress | None = None
) -> BacklogMeasurement:
    """Fill, stop, start, on a fresh data directory. Raises ``RunError`` or ``OSError``."""
    with tempfile.TemporaryDirectory(prefix="perf-backlog-", ignore_cleanup_errors=True) as name:
        node = Node(Path(name), brokers.free_port(), brokers.free_port())
        try:
            began = node.start()
            empty = time.monotonic() - began
            # The first messages allocate once; that is not part of the backlog.
            work = filling(payload)
            fill(node.port, min(messages, 10 * WINDOW), work)
            before = node.memory()
            seconds = fill(node.port, messages, work, progress)
            growth, anonymous = grown(before, node.memory())
            stored = sum(p.stat().st_size for p in (node.folder / "data").rglob("*") if p.is_file())
            restarts = (restart(node, clean=True), restart(node, clean=False))
        finally:
            node.stop(clean=False)
    return BacklogMeasurement(
        durable.FLUXMQ, messages, seconds, stored, growth, anonymous, empty, restarts
    )
