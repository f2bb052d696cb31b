"""``python -m perf observers``: what a scrape and open pages cost a shard that is busy.

A broker of one shard carries messages at a fixed rate, with and without observers in turn: five pages of the management
interface, each told by a stream of events, and a scrape every five seconds. The processor time of the shard's process
(from ``/proc``) is related to the messages that it carried meanwhile. Messages come in batches of one size, since what one
costs depends on how many come together, and that on what else the machine does. Pairs of neighbouring intervals are
compared, the first of them by turns with and without, so that the rest of that falls on both. The difference, times the
rate, is the share of a core that observers take from a shard; as much of its throughput is gone when it has nothing to spare.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import itertools
import os
import statistics
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from perf import codec, handshake, processes, report
from perf.brokers import HOST, ROOT, Broker, BrokerError, answers_mqtt, free_port, launch

QUEUES: Final = 1000
"""Durable queues at rest, which pages list."""
BATCH: Final = 500
"""Messages that a publisher sends together, with QoS 1; the next ones when all have been acknowledged."""
PAYLOAD: Final = 256
WARM_SECONDS: Final = 2.0
"""Before each interval: streams have begun, and have told everything once."""
PUBACK_BYTES: Final = 4
SCRAPE_SECONDS: Final = 5.0
PAGES: Final = (
    ("overview?msg_rates_age=600&msg_rates_incr=10&lengths_age=600&lengths_incr=10",),
    ("nodes",),
    ("queues?page=1&page_size=50&sort=name&sort_reverse=false&name=", "vhosts?columns=name"),
    ("connections?page=1&page_size=100&sort=name&sort_reverse=false&name=",),
    ("fluxmq/v1/raft", "fluxmq/v1/groups"),
)
"""What the pages ask for: overview, nodes, queues, connections and replication groups."""
SETTINGS: Final = """\
server:
  mqtt:
    tcp: {{addr: "127.0.0.1:{port}"}}
  http: {{addr: "127.0.0.1:{http}"}}
storage: {{data_dir: "{data}", min_free_bytes: 0}}
log: {{level: warning, format: text}}
"""
_HEADERS: Final = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("--rate", type=float, default=5000.0, help="messages a second")
    command.add_argument("--seconds", type=float, default=10.0, help="of each interval")
    command.add_argument("--pairs", type=int, default=12, help="of intervals")
    command.add_argument("--queues", type=int, default=QUEUES)
    command.add_argument("--name", default="observers", help="of the files written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


def start(http_port: int) -> Broker:
    """Start a broker of one shard with the management interface. Raises ``BrokerError``."""

    def command(folder: Path, port: int) -> list[str]:
        settings = folder / "fluxmq.yaml"
        settings.write_text(SETTINGS.format(port=port, http=http_port, data=folder / "data"))
        arguments = ["--config", str(settings), "--workers", "1"]
        return [sys.executable, "-m", "fluxmq.supervisor.main", *arguments]

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return launch("fluxmq", command, answers_mqtt, environment, None)


def shard_of(broker: Broker) -> int:
    """Return the process id of the shard. Raises ``BrokerError``."""
    for pid in processes.tree([broker.process.pid]):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text("ascii").strip() == "fluxmq-shard-0":
                return pid
    raise BrokerError("the broker has no shard")


def declare(http_port: int, queues: int) -> None:
    """Declare durable queues."""
    connection = http.client.HTTPConnection(HOST, http_port, timeout=60)
    for number in range(queues):
        connection.request("PUT", f"/api/queues/%2F/perf-{number}", b"{}", _HEADERS)
        answer = connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise BrokerError(f"a queue was refused: {answer.status} {answer.reason}")
    connection.close()


class Observers:
    """Five pages, and a scrape every few seconds; ``events`` counts what pages have been told."""

    def __init__(self, http_port: int) -> None:
        self.events = 0
        self.scrapes = 0
        self._port = http_port
        self._ended = threading.Event()
        self._open: set[http.client.HTTPConnection] = set()
        self._threads = [
            threading.Thread(target=self._page, args=(paths,), daemon=True) for paths in PAGES
        ]
        self._threads.append(threading.Thread(target=self._scrape, daemon=True))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look while a block runs."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for connection in list(self._open):
                with suppress(OSError, AttributeError):
                    connection.sock.shutdown(2)
            for thread in self._threads:
                thread.join(30)

    def _page(self, paths: tuple[str, ...]) -> None:
        query = urllib.parse.urlencode([("path", path) for path in paths])
        while not self._ended.is_set():
            with self._connected() as connection:
                connection.request("GET", f"/api/fluxmq/v1/events?{query}", headers=_HEADERS)
                answer = connection.getresponse()
                while answer.status == 200 and (line := answer.readline()):
                    self.events += line.startswith(b"event:")
            self._ended.wait(0.1)

    def _scrape(self) -> None:
        while not self._ended.wait(SCRAPE_SECONDS / 2 if not self.scrapes else SCRAPE_SECONDS):
            with self._connected() as connection:
                connection.request("GET", "/metrics", headers=_HEADERS)
                self.scrapes += len(connection.getresponse().read()) > 0

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=60)
        self._open.add(connection)
        with suppress(OSError, http.client.HTTPException, ValueError):
            yield connection
        self._open.discard(connection)
        connection.close()


class Load:
    """A publisher and a subscriber of one topic, both with a connection of their own."""

    def __init__(self, port: int, rate: float) -> None:
        self._pause = BATCH / rate
        self._publisher, self._subscriber = (handshake.dial(HOST, port) for _ in range(2))
        handshake.connect_mqtt(self._publisher, "perf-publisher", 4)
        handshake.connect_mqtt(self._subscriber, "perf-subscriber", 4)
        handshake.subscribe_mqtt(self._subscriber, "perf", 0, 4)
        body = codec.text("perf")
        self._batch = b"".join(
            codec.packet(0x32, body + number.to_bytes(2) + bytes(PAYLOAD))
            for number in range(1, BATCH + 1)
        )
        self._delivered = BATCH * len(codec.packet(0x30, body + bytes(PAYLOAD)))

    def close(self) -> None:
        """Close both connections."""
        self._publisher.close()
        self._subscriber.close()

    def run(self, seconds: float) -> int:
        """Publish for so long; return the number of messages, all of which have come."""
        began, batches = time.monotonic(), 0
        while batches * self._pause < seconds:
            time.sleep(max(0.0, began + batches * self._pause - time.monotonic()))
            self._publisher.sendall(self._batch)
            handshake.read_exactly(self._publisher, PUBACK_BYTES * BATCH)
            handshake.read_exactly(self._subscriber, self._delivered)
            batches += 1
        return batches * BATCH


def run_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, as exactly as the kernel has it."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text("ascii").split()[0]) for each in threads) / 1e9


def interval(load: Load, shard: int, seconds: float, http_port: int) -> float:
    """Return the shard's processor time for each message in µs; observed if there is a port."""

    def measured() -> float:
        load.run(WARM_SECONDS)
        before = run_seconds(shard)
        messages = load.run(seconds)
        return 1e6 * (run_seconds(shard) - before) / messages

    if not http_port:
        return measured()
    observers = Observers(http_port)
    with observers.looking():
        found = measured()
    if observers.events < len(PAGES) or not observers.scrapes:
        raise BrokerError(f"{observers.events} events and {observers.scrapes} scrapes")
    return found


def measure(
    load: Load, shard: int, seconds: float, pairs: int, http_port: int
) -> list[dict[str, float]]:
    """Return the shard's processor time for each message in µs, for each pair of intervals."""
    interval(load, shard, seconds, http_port)  # hashes the password, fills caches
    found: list[dict[str, float]] = []
    orders = itertools.cycle(((True, False), (False, True)))
    for order in itertools.islice(orders, pairs):
        pair = {
            "with" if observed else "without": interval(
                load, shard, seconds, http_port if observed else 0
            )
            for observed in order
        }
        found.append(pair)
        print(f"pair {len(found)}: {pair}", flush=True)
    return found


def main(options: argparse.Namespace) -> int:
    """Measure, print and write the result; the exit code is 0."""
    http_port = free_port()
    broker = start(http_port)
    try:
        declare(http_port, options.queues)
        with closing(Load(broker.port, options.rate)) as load:
            pairs = measure(load, shard_of(broker), options.seconds, options.pairs, http_port)
    finally:
        broker.stop()
    rows = summary(pairs, options.rate)
    about = {"time": report.now(), "rate": options.rate, "batch": BATCH, **report.machine()}
    report.write_json(
        options.results / f"{options.name}.json", {"about": about, "pairs": pairs, **rows}
    )
    for name, value in rows.items():
        print(f"{name}: {value}")
    return 0


def summary(pairs: list[dict[str, float]], rate: float) -> dict[str, Any]:
    """Return the median without observers, and what they take: in ms of processor time for 100,000 messages, and as a
    share of a core, with its mean and its quartiles."""
    taken = sorted(each["with"] - each["without"] for each in pairs)
    low, middle, high = statistics.quantiles(taken, n=4, method="inclusive")
    return {
        "ms for 100,000 messages": 100 * statistics.median(each["without"] for each in pairs),
        "ms more with observers": [100 * each for each in (low, middle, high)],
        "share of a core": [rate * each / 1e6 for each in (low, middle, high)],
        "mean share of a core": rate * statistics.mean(taken) / 1e6,
        "least and most": [rate * each / 1e6 for each in (taken[0], taken[-1])],
    }
