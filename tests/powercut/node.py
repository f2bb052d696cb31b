"""The node under test: the whole broker with its data on the image, started and killed as a process group.

Everything in its configuration that decides when files change is set small, so that a second of load rotates,
recycles, seals, trims and takes checkpoints many times.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from perf import processes
from tests.broker import HOST, REPOSITORY, free_ports

STREAM, WORK = "cut-stream", "cut-work"
"""A stream, which keeps everything and can be read again from the first offset; a work queue, which forgets."""

READY_DEADLINE_S = 60.0
GONE_DEADLINE_S = 10.0
POLL_S = 0.01
LOG_BYTES = 2000
"""Of its log in a report."""


class NodeError(RuntimeError):
    """The node did not come up; the text has what it logged."""


def busy_storage(data: Path) -> dict[str, Any]:
    """The section ``storage``: everything that decides when files change is small."""
    return {
        "data_dir": str(data),
        "wal_file_bytes": 2 << 20,
        "segment_bytes": 1 << 20,
        "index_bytes": 4096,
        "checkpoint_bytes": 4 << 20,
        "checkpoint_interval": "200ms",
        "min_free_bytes": 0,
    }


def settings(
    data: Path, port: int, amqp_port: int, http_port: int, buffered: bool
) -> dict[str, Any]:
    """The node's configuration. ``buffered``: acknowledge without syncing, which must lose messages."""
    durability = "buffered" if buffered else "fsync"
    common = {"ack_durability": durability, "limits": {"max_depth": 10_000_000}}
    # Longer than a round: a message offered again while its settlement is under way may arrive behind the answer to it.
    consumer = {"visibility_timeout": "60s", "delivery_limit": -1, "max_unsettled": 20_000}
    return {
        "server": {
            "mqtt": {"tcp": {"addr": f"{HOST}:{port}"}},
            "amqp": {"tcp": {"addr": f"{HOST}:{amqp_port}"}},
            "http": {"addr": f"{HOST}:{http_port}"},
        },
        "broker": {"max_packet_size": 1 << 15},
        "session": {"max_inflight_messages": 65_535},
        "queue_manager": {"uncommitted_bytes": 1 << 18, "cache_bytes": 1 << 16},
        "storage": {**busy_storage(data), "queue_sync_interval": "1h" if buffered else "1s"},
        "log": {"level": "info", "format": "text"},
        "queues": [
            {"name": STREAM, "type": "stream", "topics": [f"$queue/{STREAM}"], **common},
            {
                "name": WORK,
                "type": "classic",
                "topics": [f"$queue/{WORK}"],
                "consumer": consumer,
                **common,
            },
        ],
    }


class Processes:
    """The processes of one broker. The log is kept beside the image, so that it survives every cut.

    ``prefix``: words before the command, such as what puts it elsewhere and then becomes it.
    """

    def __init__(
        self,
        folder: Path,
        configuration: dict[str, Any],
        workers: int,
        name: str = "node",
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.workers = workers
        self.prefix = prefix
        self.log = folder / f"{name}.log"
        self.config = folder / f"{name}.json"
        self.config.write_text(json.dumps(configuration))
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        """What is added to its environment."""
        self.started_at = 0

    def launch(self, failpoint: str = "") -> None:
        """Start, without waiting for anything."""
        environment = {k: v for k, v in os.environ.items() if k != "FLUXMQ_FAILPOINT"}
        environment |= {"PYTHONPATH": str(REPOSITORY), **self.environment}
        if failpoint:
            environment["FLUXMQ_FAILPOINT"] = failpoint
        command = [*self.prefix, sys.executable, "-m", "fluxmq.supervisor.main"]
        command += ["--config", str(self.config), "--workers", str(self.workers)]
        with self.log.open("ab") as log:
            self.started_at = log.tell()
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it was started and is still there."""
        return self.process is not None and self.process.poll() is None

    def pids(self) -> list[int]:
        """Its processes."""
        return [] if self.process is None else processes.tree((self.process.pid,))

    def said(self) -> str:
        """The end of its log since the last start."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[self.started_at :][-LOG_BYTES:].decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL to all its processes at once, and wait until they are gone. Raises ``NodeError``."""
        if self.process is None:
            return
        pids = self.pids()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + GONE_DEADLINE_S
        while any(processes.stat_fields(pid)[:1] not in ([], ["Z"]) for pid in pids):
            if time.monotonic() > deadline:
                raise NodeError("killed processes do not go away")
            time.sleep(POLL_S)
        self.process = None

    def stop(self) -> None:
        """SIGTERM and wait; killed when it takes too long."""
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GONE_DEADLINE_S)
        self.kill()


class Node(Processes):
    """One broker that is a node of its own."""

    def __init__(self, folder: Path, data: Path, workers: int, buffered: bool = False) -> None:
        self.port, self.amqp_port, self.http_port = free_ports(3)
        ports = self.port, self.amqp_port, self.http_port
        super().__init__(folder, settings(data, *ports, buffered), workers)

    def start(self, failpoint: str = "") -> None:
        """Start and wait for readiness. Raises ``NodeError``; with a failpoint it may well die first."""
        self.launch(failpoint)
        deadline = time.monotonic() + READY_DEADLINE_S
        seen: set[int] = set()
        while not self.ready():
            now = set(self.pids())
            died = not self.running or (failpoint and bool(seen - now))
            seen |= now
            if died or time.monotonic() > deadline:
                self.kill()
                raise NodeError(f"the node is not ready:\n{self.said()}")
            time.sleep(POLL_S)

    def ready(self) -> bool:
        """Whether ``/ready`` answers 200."""
        return answers_ready(HOST, self.http_port)


def answers_ready(host: str, port: int) -> bool:
    """Whether ``/ready`` answers 200 there."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/ready", timeout=5) as page:
            return int(page.status) == 200
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
