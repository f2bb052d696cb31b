"""A queue moves to another group while it is used: nothing is lost, nothing comes twice that was settled, order stays."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]

from fluxmq.cli.data_directory import control_socket
from fluxmq.ipc.migrations import MIGRATE_QUEUE, MIGRATION, Migrate, Migrating
from fluxmq.ipc.polling_client import ControlCaller
from tests.broker import HOST, REPOSITORY
from tests.cluster.nodes import Cluster, Node
from tests.conformance.client import DEADLINE, eventually

SETTINGS: dict[str, Any] = {"cluster": {"raft": {"ack_timeout": "10s"}}}
BEFORE = 20_000
WINDOW = 200
QUEUE = "moving"
BODY = b"." * 1000


def _channel(node: Node, stack: ExitStack) -> Any:
    parameters = pika.ConnectionParameters(HOST, node.amqp_port, heartbeat=0)
    connection = stack.enter_context(pika.BlockingConnection(parameters))
    return connection.channel()


class Publisher(threading.Thread):
    """Publishes one message after another, each when the one before is confirmed."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self.confirmed = 0
        self.longest = 0.0
        """Seconds between two confirmations, at most."""
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self._node = node

    def run(self) -> None:
        try:
            with ExitStack() as stack:
                channel = _channel(self._node, stack)
                channel.confirm_delivery()
                last = time.monotonic()
                while not self.stopped.is_set():
                    body = b"%d" % (BEFORE + self.confirmed)
                    channel.basic_publish("", QUEUE, body)
                    now = time.monotonic()
                    self.longest = max(self.longest, now - last)
                    last = now
                    self.confirmed += 1
        except BaseException as failure:
            self.failure = failure
            raise


class Consumer(threading.Thread):
    """Takes and acknowledges everything, up to a number of distinct messages."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self.first: list[int] = []
        """Numbers of messages, each when it came for the first time."""
        self.again: list[tuple[int, bool]] = []
        """Numbers of those that came again, and whether they were marked as redelivered."""
        self.wanted = 1 << 62
        self._node = node

    def run(self) -> None:
        seen: set[int] = set()
        with ExitStack() as stack:
            channel = _channel(self._node, stack)
            channel.basic_qos(prefetch_count=WINDOW)
            for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.1):
                if method is not None:
                    number = int(body.split(b".")[0])
                    if number in seen:
                        self.again.append((number, method.redelivered))
                    else:
                        seen.add(number)
                        self.first.append(number)
                    channel.basic_ack(method.delivery_tag)
                if len(self.first) >= self.wanted:
                    return


def _ctl(node: Node, *arguments: str) -> str:
    command = [sys.executable, "-m", "fluxmq.cli.main", "--data-dir", str(node.folder / "data")]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=DEADLINE * 6,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _socket(node: Node) -> Path:
    return control_socket(node.folder / "data")


def _count(channel: Any) -> int:
    return int(channel.queue_declare(QUEUE, passive=True).method.message_count)


def test_a_queue_that_is_used_moves_to_another_group_and_one_whose_move_is_aborted_stays(
    cluster: Cluster,
) -> None:
    leader = cluster.leader("default")
    mine, theirs = cluster.followers("default")
    with ExitStack() as stack:
        channel = _channel(mine, stack)
        arguments = {"x-queue-type": "quorum", "x-fluxmq-group": "default"}
        channel.queue_declare(QUEUE, durable=True, arguments=arguments)
        for number in range(BEFORE):
            channel.basic_publish("", QUEUE, b"%d" % number + BODY)
        eventually(lambda: _count(channel) == BEFORE, "all are there")
        # Aborted long before 20 MB are there: everything is where it was.
        with ControlCaller(_socket(leader), DEADLINE) as caller:
            begun = caller.call(MIGRATE_QUEUE, Migrate("/", QUEUE, "other").to_body())
            assert Migrating.from_body(begun).moving_to == "other"
            ended = caller.call(MIGRATE_QUEUE, Migrate("/", QUEUE, abort=True).to_body())
            assert Migrating.from_body(ended) == Migrating("default", "", "", "quorum")
        assert _count(channel) == BEFORE
        publisher, consumer = Publisher(mine), Consumer(theirs)
        publisher.start()
        consumer.start()
        eventually(lambda: publisher.confirmed > 50 and len(consumer.first) > 500, "both are busy")
        told = _ctl(theirs, "migrate-queue", QUEUE, "--to", "other")
        assert f"queue '{QUEUE}' is in group 'other'" in told, told
        confirmed = publisher.confirmed
        eventually(lambda: publisher.confirmed > confirmed + 50, "publishing goes on")
        publisher.stopped.set()
        publisher.join(DEADLINE)
        assert publisher.failure is None
        consumer.wanted = BEFORE + publisher.confirmed
        consumer.join(DEADLINE * 6)
        assert consumer.first == list(range(BEFORE + publisher.confirmed))
        assert len(consumer.again) <= WINDOW
        assert all(marked for _, marked in consumer.again)
        print(
            f"{publisher.confirmed} confirmed, longest pause {publisher.longest * 1000:.0f} ms,"
            f" {len(consumer.again)} given again"
        )
        eventually(lambda: _count(channel) == 0, "all are settled")
        with ControlCaller(_socket(mine), DEADLINE) as caller:
            where = caller.call(MIGRATION, Migrate("/", QUEUE).to_body())
        assert Migrating.from_body(where) == Migrating("other", "", "", "quorum")
