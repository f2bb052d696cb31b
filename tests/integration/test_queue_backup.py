"""The backup of one queue of a running broker, restored into another one."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest

from fluxmq.cli.data_directory import control_socket
from fluxmq.cli.main import run
from fluxmq.ipc.polling_client import CallError, ControlCaller
from fluxmq.ipc.queue_backups import RESTORE_BATCH, RestoreBatch
from fluxmq.model.batches import BatchMessage, encode
from tests.broker import HOST, Broker, free_ports, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp

SETTINGS: dict[str, Any] = {
    "auth": {"anonymous": {"publish": ["#", "$queue/#"], "subscribe": ["#", "$queue/#"]}},
    "storage": {"segment_bytes": "32MiB", "min_free_bytes": 0},
}
COUNT = 300
BODY = b"." * 500
LARGE = 9 << 20
"""Bytes of a message that crosses the control socket in pieces."""
PROPERTIES = pika.BasicProperties(
    content_type="text/plain", headers={"n": 1, "deep": {"x": [1, "y"]}}, priority=3,
    message_id="first", delivery_mode=2, timestamp=1_790_000_000, type="kind", app_id="app",
)  # fmt: skip


def body_of(number: int) -> bytes:
    return b"%d %s" % (number, BODY)


@contextlib.contextmanager
def channel(port: int) -> Iterator[Any]:
    """A channel in confirm mode."""
    with contextlib.closing(pika.BlockingConnection(pika.ConnectionParameters(HOST, port))) as made:
        opened = made.channel()
        opened.confirm_delivery()
        yield opened


@contextlib.contextmanager
def broker_on(folder: Path, port: int) -> Iterator[Broker]:
    folder.mkdir()
    settings = {**SETTINGS, "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}}
    with running_broker(folder, workers=2, settings=settings) as broker:
        yield broker


def ctl(broker: Broker, *arguments: str, code: int = 0) -> str:
    """Run fluxmqctl in this process; return what it says."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert run(["--config", str(broker.config), *arguments]) == code, out.getvalue()
    return out.getvalue()


def taken(opened: Any, queue: str) -> list[tuple[Any, Any, bytes]]:
    """Take every message of a queue."""
    found = []
    while (got := opened.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got)
    return found


def numbers(found: list[tuple[Any, Any, bytes]]) -> list[int]:
    return [int(body.split()[0]) for _, _, body in found]


def read_stream(opened: Any, queue: str, count: int) -> list[bytes]:
    """Read the first messages of a stream."""
    opened.basic_qos(prefetch_count=100)
    found = []
    for method, _, body in opened.consume(queue, arguments={"x-stream-offset": "first"}):
        found.append(body)
        opened.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    opened.cancel()
    return found


def fill(opened: Any, broker: Broker) -> None:
    """Declare three queues; publish over both protocols, and settle some messages of one."""
    opened.exchange_declare("news", "topic", durable=True)
    for name, arguments in (
        ("work", {"x-max-priority": 5}),
        ("votes", {"x-queue-type": "quorum"}),
        ("facts", {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 100_000}),
    ):
        opened.queue_declare(name, durable=True, arguments=arguments)
    opened.queue_bind("work", "news", "sports.#")
    opened.basic_publish("news", "sports.x", body_of(0), PROPERTIES)
    opened.basic_publish("", "work", b"%d " % 1 + bytes(LARGE))
    client = Client(tcp(broker.host, broker.port), wire.V5)
    client.connect("publisher")
    properties = [(wire.CONTENT_TYPE, "text/plain"), (wire.USER_PROPERTY, ("k", "v"))]
    for number in range(2, 10):
        for queue in ("work", "votes", "facts"):
            topic = f"$queue/{queue}/some/key"
            assert client.publish(topic, body_of(number), qos=1, props=properties) == 0
    client.disconnect()
    for number in range(10, COUNT):
        opened.basic_publish("", "votes", body_of(number))
        opened.basic_publish("", "facts", body_of(number))


def settle(opened: Any, queue: str, numbers: list[int], held: list[int]) -> None:
    """Acknowledge some of the first messages of a queue, and hold others back."""
    last = max(*numbers, *held)
    for _ in range(last + 1):
        method, _, body = opened.basic_get(queue)
        if int(body.split()[0]) in numbers:
            opened.basic_ack(method.delivery_tag)
    opened.queue_declare(queue, passive=True)  # the acknowledgements were taken


@pytest.mark.slow
def test_a_queue_is_backed_up_while_it_is_used_and_restored_elsewhere(tmp_path: Path) -> None:
    """Definition and messages of a classic queue, a quorum queue and a stream are in their backups; what was
    acknowledged is not; a restore appends each message once, and refuses a queue that has some."""
    ports = free_ports(2)
    backups = {name: tmp_path / "backups" / name for name in ("work", "votes", "facts")}
    with broker_on(tmp_path / "first", ports[0]) as broker, channel(ports[0]) as opened:
        fill(opened, broker)
        settle(opened, "votes", [2, 4, 5], [3, 6])
        backups["work"].parent.mkdir()
        ended = threading.Event()
        after = [COUNT]

        def go_on() -> None:
            with channel(ports[0]) as other:
                while not ended.is_set():
                    other.basic_publish("", "votes", body_of(after[0]))
                    after[0] += 1

        writing = threading.Thread(target=go_on)
        writing.start()
        try:
            eventually(lambda: after[0] > COUNT, "it is published to while it is backed up")
            confirmed = after[0]
            said = {
                name: ctl(broker, "backup-queue", name, str(path)) for name, path in backups.items()
            }
        finally:
            ended.set()
            writing.join()
        assert f"{backups['work']}: 10 messages of queue 'work', " in said["work"]
        assert "exists already" in ctl(broker, "backup-queue", "work", str(backups["work"]), code=1)
        assert "no queue 'none'" in ctl(
            broker, "backup-queue", "none", str(tmp_path / "none"), code=1
        )
        opened.queue_declare("passing", exclusive=True)
        assert "not durable" in ctl(
            broker, "backup-queue", "passing", str(tmp_path / "none"), code=1
        )
        assert not list(tmp_path.glob("**/*.incomplete"))
        assert opened.queue_declare("work", passive=True).method.message_count == 10
        assert "queue 'work' has 10 messages" in ctl(
            broker, "restore-queue", str(backups["work"]), code=1
        )
        assert "10 messages appended" in ctl(
            broker, "restore-queue", str(backups["work"]), "--append", "--no-bindings"
        )
        assert opened.queue_declare("work", passive=True).method.message_count == 20
    _restore(tmp_path / "second", ports[1], backups, confirmed, after[0])


def _restore(
    folder: Path, port: int, backups: dict[str, Path], confirmed: int, published: int
) -> None:
    manifest = json.loads((backups["votes"] / "queue.json").read_text())
    with broker_on(folder, port) as broker, channel(port) as opened:
        said = ctl(broker, "restore-queue", str(backups["work"]))
        assert said.startswith("queue 'work' in vhost '/': 10 messages appended")
        assert "not bound to exchange 'news'" in said
        votes = ctl(broker, "restore-queue", str(backups["votes"]))
        assert f"{manifest['messages']:,} messages appended" in votes
        ctl(broker, "restore-queue", str(backups["votes"]), "--name", "again")
        for _ in range(2):  # as after a restore that was killed before it heard of its last batch
            ctl(
                broker, "restore-queue", str(backups["votes"]), "--name", "on", "--continue", "7f:0"
            )
        count = opened.queue_declare("on", passive=True).method.message_count
        assert count == manifest["messages"]
        opened.queue_delete("on")
        ctl(broker, "restore-queue", str(backups["facts"]))
        listed = ctl(
            broker, "list_queues", "-s", "name", "type", "arguments", "--formatter", "json"
        )
        types = {row["name"]: row["type"] for row in json.loads(listed)}
        assert types == {"work": "classic", "votes": "quorum", "again": "quorum", "facts": "stream"}
        assert "other properties" in ctl(
            broker, "restore-queue", str(backups["facts"]), "--name", "votes", code=1
        )
        found = taken(opened, "votes")
        there = numbers(found)
        assert there[:4] == [3, 6, 7, 8]
        assert there == [3, *range(6, there[-1] + 1)]
        assert confirmed <= there[-1] + 1 <= published
        # Some were held back by a consumer, the next had not been delivered.
        assert [each[0].redelivered for each in found[:5]] == [True, True, True, True, False]
        assert found[0][1].content_type == "text/plain"
        assert found[0][1].headers["k"] == "v"
        assert numbers(taken(opened, "again")) == there
        assert [int(body.split()[0]) for body in read_stream(opened, "facts", COUNT - 2)] == list(
            range(2, COUNT)
        )
        work = taken(opened, "work")
        assert numbers(work) == list(range(10))
        first = work[0][1]
        assert (first.content_type, first.priority, first.message_id) == ("text/plain", 3, "first")
        assert first.headers == {"n": 1, "deep": {"x": [1, "y"]}}
        assert (first.timestamp, first.type, first.app_id) == (1_790_000_000, "kind", "app")
        assert len(work[1][2]) == LARGE + 2
        _is_appended_once(broker, opened)


def _is_appended_once(broker: Broker, opened: Any) -> None:
    """A batch that is sent twice is kept once, and so is one whose pieces come anew."""
    batch = encode([BatchMessage(b"", b"", b"once", 0)])
    body = RestoreBatch("/", "again", 77, 5, batch).to_body()
    with ControlCaller(control_socket(broker.config.parent / "data"), 30) as caller:
        for _ in range(2):
            assert caller.call(RESTORE_BATCH, body) == {}
        first = RestoreBatch("/", "again", 78, 0, batch[:40], last=False).to_body()
        caller.call(RESTORE_BATCH, first)
        with pytest.raises(CallError, match="not a batch"):
            caller.call(RESTORE_BATCH, RestoreBatch("/", "again", 78, 0, batch).to_body())
        caller.call(RESTORE_BATCH, first)
        assert (
            caller.call(RESTORE_BATCH, RestoreBatch("/", "again", 78, 0, batch[40:]).to_body())
            == {}
        )
    assert [body for _, _, body in taken(opened, "again")] == [b"once", b"once"]
