"""Many durable queues on a node that may open few files: how long they take to declare, to fill and to start with.

The node has one shard. Queues are declared over a few AMQP connections, pipelined; one message each goes into the first ones,
confirmed; the node is ended (in order, or by SIGKILL) and started again, and a sample of the messages is fetched.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from perf import amqp
from tests.broker import HOST, Broker, free_ports, start_broker

CONNECTIONS = 64
"""Each has one declaration under way at a time: what many ask for meanwhile is written together."""
WINDOW = 100
"""Commands of one connection that are sent before the first is answered."""
TIMEOUT = 600.0
GET, GET_OK, GET_EMPTY = (60, 70), (60, 71), (60, 72)
ACK = (60, 80)
DECLARE_OK = (50, 11)
REPORT_EVERY = 10_000


@dataclass
class Figures:
    """What came of a run. `steps`: seconds of each; `rss`: MiB of the shard after it; `open_max`: descriptors it ever had."""

    queues: int
    messages: int
    limit: int
    steps: dict[str, float] = field(default_factory=dict)
    rss: dict[str, float] = field(default_factory=dict)
    open_max: int = 0
    fetched: int = 0
    problems: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The figures for a person."""
        yield f"{self.queues} durable queues, {self.messages} messages, {self.limit} descriptors"
        for step, seconds in self.steps.items():
            yield f"  {step:<10} {seconds:9.1f} s   {self.rss.get(step, 0.0):8.0f} MiB"
        yield f"  at most {self.open_max} descriptors in the shard; {self.fetched} messages fetched"
        for problem in self.problems:
            yield f"  problem: {problem}"


def name_of(number: int) -> str:
    """A queue's name."""
    return f"capacity-{number:06}"


class Link:
    """One AMQP connection that reads answers frame by frame."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=TIMEOUT)
        amqp.open_channel(self.socket)
        self._rest = b""

    def methods(self) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Methods as they come."""
        while True:
            while len(self._rest) >= 7:
                kind, _, size = struct.unpack_from(">BHI", self._rest)
                if len(self._rest) < size + 8:
                    break
                content, self._rest = self._rest[7 : 7 + size], self._rest[8 + size :]
                if kind == 1:
                    yield struct.unpack_from(">HH", content), content[4:]
            more = self.socket.recv(1 << 16)
            assert more, "the broker has closed the connection"
            self._rest += more

    def close(self) -> None:
        """End it."""
        self.socket.close()


def declare(link: Link, numbers: Iterable[int], told: Callable[[int], None]) -> None:
    """Declare queues on one connection."""
    answers = link.methods()
    waiting = 0
    for number in numbers:
        body = bytes(2) + amqp.short(name_of(number)) + b"\x02" + amqp.table({})
        link.socket.sendall(amqp.method(1, amqp.QUEUE_DECLARE, body))
        waiting += 1
        if waiting == WINDOW:
            waiting = _take(answers, waiting, WINDOW // 2, told)
    _take(answers, waiting, 0, told)


def _take(
    answers: Iterator[tuple[tuple[int, int], bytes]],
    waiting: int,
    left: int,
    told: Callable[[int], None],
) -> int:
    while waiting > left:
        found, content = next(answers)
        assert found == DECLARE_OK, (found, content)
        waiting -= 1
        told(1)
    return waiting


def publish(link: Link, numbers: Iterable[int], told: Callable[[int], None]) -> None:
    """Put one message into each queue, confirmed."""
    amqp.confirm(link.socket)
    answers = link.methods()
    sent = confirmed = 0
    for number in numbers:
        body = f"message {number}".encode()
        front = amqp.method(
            1, amqp.BASIC_PUBLISH, bytes(2) + amqp.short("") + amqp.short(name_of(number)) + b"\x00"
        )
        front += amqp.frame(
            amqp.HEADER, 1, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, amqp.PERSISTENT)
        )
        link.socket.sendall(front + amqp.frame(amqp.BODY, 1, body))
        sent += 1
        while sent - confirmed >= WINDOW:
            confirmed = _confirmed(answers, confirmed, told)
    while confirmed < sent:
        confirmed = _confirmed(answers, confirmed, told)


def _confirmed(
    answers: Iterator[tuple[tuple[int, int], bytes]], before: int, told: Callable[[int], None]
) -> int:
    found, content = next(answers)
    assert found == ACK, (found, content)
    tag, _multiple = struct.unpack(">QB", content)
    told(max(0, int(tag) - before))
    return max(before, int(tag))


def fetch(port: int, numbers: Iterable[int]) -> int:
    """Get and acknowledge the message of each queue; how many there were."""
    link = Link(port)
    answers = link.methods()
    found = 0
    for number in numbers:
        link.socket.sendall(amqp.method(1, GET, bytes(2) + amqp.short(name_of(number)) + b"\x01"))
        name, content = next(answers)
        assert name in (GET_OK, GET_EMPTY), (name, content)
        found += name == GET_OK
    link.close()
    return found


def side_by_side(
    what: Callable[[Link, Iterable[int], Callable[[int], None]], None],
    port: int,
    numbers: range,
    say: Callable[[str], None],
) -> None:
    """Do it on several connections at once."""
    lock = threading.Lock()
    done = 0
    errors: list[BaseException] = []

    def told(count: int) -> None:
        nonlocal done
        with lock:
            before, done = done, done + count
            if before // REPORT_EVERY != done // REPORT_EVERY:
                say(f"{what.__name__}: {done} after {time.monotonic() - began:.0f} s")

    def work(link: Link, part: range) -> None:
        try:
            what(link, part, told)
        except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
            errors.append(error)

    count = max(1, min(CONNECTIONS, len(numbers)))
    links = [
        Link(port) for _ in range(count)
    ]  # one login after another: each costs a tenth of a second
    began = time.monotonic()
    threads = [
        threading.Thread(target=work, args=(link, numbers[first::count]))
        for first, link in enumerate(links)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for link in links:
        link.close()
    if errors:
        raise errors[0]


class Run:
    """One node and what is done to it."""

    def __init__(self, folder: Path, figures: Figures) -> None:
        self._folder = folder
        self._figures = figures
        (self.port,) = free_ports(1)
        self.broker = self.start()

    def start(self) -> Broker:
        """Start the node, on what is there."""
        settings = {
            "server": {
                "amqp": {"tcp": {"addr": f"{HOST}:{self.port}"}},
                "shutdown_timeout": "300s",
            },
            "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
        }
        broker = start_broker(
            self._folder, settings=settings, open_files=self._figures.limit, within=TIMEOUT
        )
        self.shard = psutil.Process(broker.pids()["shard 0"])
        self._watched = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return broker

    def _watch(self) -> None:
        """See how many descriptors the shard has."""
        while not self._watched.wait(0.1):
            try:
                count = self.shard.num_fds()
            except psutil.Error:
                return
            self._figures.open_max = max(self._figures.open_max, count)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step."""
        began = time.monotonic()
        yield
        self._figures.steps[name] = time.monotonic() - began
        self._figures.rss[name] = self.shard.memory_info().rss / (1 << 20)

    def end(self, kill: bool) -> None:
        """End the node, in order or at once."""
        self._watched.set()
        self._watcher.join()
        if kill:
            for pid in self.broker.pids().values():
                os.kill(pid, signal.SIGKILL)
        self.broker.stop(check=not kill, within=TIMEOUT)
        log = self.broker.log()
        if "has failed" in log or "nothing more is acknowledged on it" in log:
            self._figures.problems.append("a group has failed")


def run(
    folder: Path,
    queues: int,
    limit: int,
    messages: int,
    sample: int,
    *,
    kill: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Figures:
    """Declare `queues`, put a message into the first `messages`, restart, fetch up to `sample` of them."""
    figures = Figures(queues, messages, limit)
    node = Run(folder, figures)
    try:
        with node.step("declare"):
            side_by_side(declare, node.port, range(queues), say)
        with node.step("publish"):
            side_by_side(publish, node.port, range(messages), say)
        began = time.monotonic()
        node.end(kill)
        figures.steps["stop"] = time.monotonic() - began
        say(f"stopped after {figures.steps['stop']:.1f} s")
        with node.step("start"):
            node.broker = node.start()
        with node.step("fetch"):
            numbers = range(0, messages, max(1, messages // sample))
            figures.fetched = fetch(node.port, numbers)
        if figures.fetched != len(numbers):
            figures.problems.append(f"{len(numbers) - figures.fetched} messages are missing")
        node.end(kill=False)
    except BaseException:
        node.broker.stop(check=False)
        raise
    return figures
