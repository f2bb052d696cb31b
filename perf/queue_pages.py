"""``python -m perf queue-pages``: how long a page of the list of queues takes, by order and filter, with very many queues.

A node of two shards has so many durable queues, every hundredth with messages. Each page is asked for several times, one
after the other; the median and the longest are told, with the processor time that all processes of the node take for a
page. At the end nobody asks for some seconds, and the node's processor time for that is told too.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from perf import processes, report
from perf.brokers import HOST, ROOT, Broker, BrokerError, answers_mqtt, free_port, launch

AT_ONCE: Final = 2000
"""Queues that a request declares."""
HOLDING: Final = 100
"""Every so manieth queue has messages."""
QUIET_SECONDS: Final = 10.0
LAST: Final = "page=LAST&sort=messages&sort_reverse=true"
PAGES: Final = (
    "page=1",
    "page=LAST",
    "page=1&sort=name",
    "page=1&sort=name&sort_reverse=true",
    "page=1&sort=messages&sort_reverse=true",
    "page=1&page_size=500&sort=messages&sort_reverse=true",
    LAST,
    "page=1&sort=consumers",
    "page=1&sort=state",
    "page=1&sort=leader",
    "page=1&sort=policy",
    "page=1&sort=arguments",
    "page=1&sort=message_stats.publish_details.rate&sort_reverse=true",
    "page=1&sort=messages_details.rate",
    "page=1&name=9",
    "page=1&name=9$&use_regex=true",
    "page=1&name=9$&use_regex=true&sort=messages&sort_reverse=true",
)
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
    command.add_argument("--queues", type=int, default=100_000)
    command.add_argument("--rounds", type=int, default=5, help="requests for each page")
    command.add_argument("--name", default="queue-pages", help="of the file written")
    command.add_argument("--results", type=Path, default=report.RESULTS, help="folder for files")


class Site:
    """The management interface of a node of two shards."""

    def __init__(self) -> None:
        """Start the node. Raises ``BrokerError``."""
        port = free_port()

        def command(folder: Path, mqtt: int) -> list[str]:
            settings = folder / "fluxmq.yaml"
            settings.write_text(SETTINGS.format(port=mqtt, http=port, data=folder / "data"))
            arguments = ["--config", str(settings), "--workers", "2"]
            return [sys.executable, "-m", "fluxmq.supervisor.main", *arguments]

        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.broker: Broker = launch("fluxmq", command, answers_mqtt, environment, None)
        self._connection = http.client.HTTPConnection(HOST, port, timeout=300)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return an answer's body. Raises ``BrokerError`` for a refusal."""
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, f"/api/{path}", data, _HEADERS)
        answer = self._connection.getresponse()
        raw = answer.read()
        if answer.status >= 300:
            raise BrokerError(f"{path}: {answer.status} {raw[:200]!r}")
        return json.loads(raw) if raw else None

    def declare(self, queues: int) -> None:
        """Declare durable queues, and publish to some of them."""
        for begin in range(0, queues, AT_ONCE):
            numbers = range(begin, min(begin + AT_ONCE, queues))
            rows = [
                {"name": f"perf-{number}", "vhost": "/", "durable": True, "auto_delete": False}
                for number in numbers
            ]
            self.ask("POST", "definitions", {"queues": [{**row, "arguments": {}} for row in rows]})
        for number in range(0, queues, HOLDING):
            for _ in range(number // HOLDING % 5):
                message = {"routing_key": f"perf-{number}", "payload": "x", "properties": {}}
                self.ask(
                    "POST",
                    "exchanges/%2F/amq.default/publish",
                    {**message, "payload_encoding": "string"},
                )


def measure(site: Site, queues: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds that each page takes, and the processor time."""
    pids = processes.tree([site.broker.process.pid])
    found = {}
    for page in PAGES:
        path = f"queues?page_size=100&{page}".replace("LAST", str(queues // 100))
        seconds = []
        before = processes.cpu_seconds(pids)
        for _ in range(rounds):
            began = time.monotonic()
            answer = site.ask("GET", path)
            seconds.append(time.monotonic() - began)
            assert answer["total_count"] == queues, f"{answer['total_count']} queues"
        used = (processes.cpu_seconds(pids) - before) / rounds
        middle, longest = statistics.median(seconds), max(seconds)
        found[page] = {"median": middle, "longest": longest, "processor": used}
        print(
            f"{page}: {middle:.3f} s, at most {longest:.3f} s, processor {used:.3f} s", flush=True
        )
    before = processes.cpu_seconds(pids)
    time.sleep(QUIET_SECONDS)
    cores = (processes.cpu_seconds(pids) - before) / QUIET_SECONDS
    found["nobody asks"] = {"cores": cores}
    print(f"nobody asks: {cores:.3f} cores")
    return found


def main(options: argparse.Namespace) -> int:
    """Measure, print and write the result; the exit code is 0."""
    site = Site()
    try:
        site.declare(options.queues)
        pages = measure(site, options.queues, options.rounds)
    finally:
        site.broker.stop()
    about = {"time": report.now(), "queues": options.queues, **report.machine()}
    report.write_json(options.results / f"{options.name}.json", {"about": about, "pages": pages})
    return 0
