"""Groups that move between shards, and nodes that start with other shards: nothing lost, doubled or out of order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
import yaml
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from fluxmq.cli.data_directory import control_socket
from fluxmq.ipc.control_frames import FramingError
from fluxmq.ipc.placements import GROUPS, PIN, QUEUES, Pin, PinResult
from fluxmq.ipc.polling_client import CallError, ControlCaller
from tests.broker import REPOSITORY, Broker, BrokerFactory, start_broker

DEADLINE = 30.0
PUBLISHERS = 3
MOVES = 4
PAUSE_MAX = 0.5
PACE_SECONDS = 0.004
"""Between two messages of a publisher: the consumers here are slower than the broker."""
SETTINGS = {
    "queues": [
        {"name": "log", "type": "stream"},
        {"name": "work", "type": "classic"},
        {"name": "fast", "type": "classic", "ack_durability": "buffered"},
    ],
    "auth": {"anonymous": {"publish": ["#", "$queue/#"], "subscribe": ["#", "$queue/#"]}},
    "storage": {"wal_file_bytes": "16MiB"},
}


class Publisher(threading.Thread):
    """Publishes numbers to some queues, with a window of unanswered ones, until told to stop."""

    WINDOW = 50

    def __init__(self, broker: Broker, name: str, queues: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self.client_name = name
        self.sent = 0
        self.refused: list[str] = []
        self._queues = queues
        self._stopping = threading.Event()
        self._room = threading.Semaphore(self.WINDOW)
        self._client = client(f"{name}-{uuid.uuid4().hex[:6]}")
        self._client.max_inflight_messages_set(self.WINDOW)
        self._client.on_publish = self._answered
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        self._unanswered = 0

    def has_sent(self, count: int) -> bool:
        """Whether it has sent more than so many."""
        return self.sent > count

    def _answered(self, _client: Any, _data: Any, _mid: int, reason: Any, _props: Any) -> None:
        if reason.is_failure:
            self.refused.append(str(reason))
        self._unanswered -= 1
        self._room.release()

    def run(self) -> None:
        """Publish; the same number goes to every queue before the next one."""
        while not self._stopping.is_set():
            for queue in self._queues:
                self._room.acquire()
                self._unanswered += 1
                payload = f"{self.client_name} {self.sent}"
                self._client.publish(f"$queue/{queue}", payload, qos=1)
            self.sent += 1
            self._stopping.wait(PACE_SECONDS)

    def finish(self) -> None:
        """Stop, and wait for the last answers."""
        self._stopping.set()
        self.join(DEADLINE)
        wait_for(lambda: self._unanswered == 0, f"{self._unanswered} are not answered")
        self._client.disconnect()
        self._client.loop_stop()


class Consumer:
    """Takes what a queue gives, and notes it in order."""

    def __init__(self, broker: Broker, queue: str, group: str = "") -> None:
        self.taken: list[str] = []
        self.offsets: list[int] = []
        self._client = client(f"consumer-{uuid.uuid4().hex[:6]}")
        self._client.on_message = self._on_message
        self._ready = threading.Event()
        self._granted: list[int] = []
        self._client.on_subscribe = self._on_subscribe
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        properties = Properties(PacketTypes.SUBSCRIBE)
        if group:
            properties.UserProperty = [("consumer-group", group), ("start", "first")]
        self._client.subscribe(
            f"$queue/{queue}", options=SubscribeOptions(qos=1), properties=properties
        )
        assert self._ready.wait(DEADLINE), "no SUBACK"
        assert self._granted == [1]

    def _on_subscribe(self, _c: Any, _d: Any, _mid: int, reasons: Any, _p: Any) -> None:
        self._granted = [reason.value for reason in reasons]
        self._ready.set()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.taken.append(message.payload.decode())
        for name, value in getattr(message.properties, "UserProperty", ()):
            if name == "offset":
                self.offsets.append(int(value))

    def wait(self, count: int) -> list[str]:
        """Wait until so many different messages have come."""
        wait_for(
            lambda: len(set(self.taken)) >= count,
            lambda: f"{len(set(self.taken))} different messages of {count}",
        )
        return self.taken

    def close(self) -> None:
        """Go."""
        self._client.disconnect()
        self._client.loop_stop()


def client(name: str) -> paho.Client:
    return paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)


def wait_for(condition: Callable[[], bool], problem: str | Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, problem() if callable(problem) else problem
        time.sleep(0.01)


def ask(broker: Broker, kind: str, body: dict[str, Any]) -> Mapping[str, Any]:
    """What the control process answers, asked as fluxmqctl does."""
    data = Path(yaml.safe_load(broker.config.read_text())["storage"]["data_dir"])
    with ControlCaller(control_socket(data), DEADLINE) as caller:
        return caller.call(kind, body)


def groups(broker: Broker) -> dict[str, dict[str, Any]]:
    """The replication groups by name."""
    return {row["group"]: row for row in ask(broker, GROUPS, {})["groups"]}


def queues(broker: Broker) -> dict[str, dict[str, Any]]:
    """The queues by name."""
    return {row["queue"]: row for row in ask(broker, QUEUES, {})["queues"]}


def check_order(taken: list[str], sent: dict[str, int]) -> None:
    """Every publisher's messages are there, and the first time each came they were in order."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for text in dict.fromkeys(taken):
        name, number = text.split()
        numbers[name].append(int(number))
    assert {name: len(found) for name, found in numbers.items()} == sent
    for name, found in numbers.items():
        assert found == sorted(found), f"{name} out of order"


def move(broker: Broker, group: str, shard: int) -> float:
    """Pin a group to a shard; how long it paused, in seconds."""
    placed = PinResult.from_body(ask(broker, PIN, Pin(group, shard=shard).to_body()))
    assert placed.shard == shard
    return placed.pause


def test_groups_move_under_load(own_broker: BrokerFactory) -> None:
    broker = own_broker(workers=2, settings=SETTINGS)
    log, work = queues(broker)["log"]["group"], queues(broker)["work"]["group"]
    consumer = Consumer(broker, "work")
    reader = Consumer(broker, "log", "live")
    publishers = [Publisher(broker, f"p{number}", ("log", "work")) for number in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start()
    pauses = []
    for _ in range(MOVES):
        for group in {log, work}:
            before = publishers[0].sent
            wait_for(partial(publishers[0].has_sent, before + 20), "no load")
            pauses.append(move(broker, group, 1 - groups(broker)[group]["shard"]))
    assert "no longer pinned" in broker.control("unpin", log)
    for publisher in publishers:
        publisher.finish()
    sent = {publisher.client_name: publisher.sent for publisher in publishers}
    total = sum(sent.values())
    assert total > 100
    assert [publisher.refused for publisher in publishers] == [[]] * PUBLISHERS
    check_order(consumer.wait(total), sent)
    check_order(reader.wait(total), sent)
    late = Consumer(broker, "log", "late")
    assert len(late.wait(total)) == total  # nothing was stored twice
    check_order(late.taken, sent)
    assert late.offsets == list(range(total))
    assert sorted(pauses)[len(pauses) // 2] <= PAUSE_MAX, pauses
    for each in (consumer, reader, late):
        each.close()
    wait_for(lambda: queues(broker)["work"]["messages"] == 0, "not all is settled")


def publish_all(broker: Broker, name: str, count: int) -> None:
    """Publish numbers to every queue, and have them confirmed."""
    publisher = client(f"{name}-{uuid.uuid4().hex[:6]}")
    publisher.connect(broker.host, broker.port)
    publisher.loop_start()
    asked = [
        publisher.publish(f"$queue/{queue}", f"{name} {number}", qos=1)
        for number in range(count)
        for queue in ("log", "work", "fast")
    ]
    for each in asked:
        each.wait_for_publish(DEADLINE)
    publisher.disconnect()
    publisher.loop_stop()


def again(broker: Broker, workers: int, *options: str) -> Broker:
    """Start a broker once more in the same directory, with other shards."""
    directory = broker.config.parent
    started = Broker(
        host=broker.host,
        port=broker.port,
        http_port=broker.http_port,
        workers=workers,
        config=broker.config,
        output=directory / f"broker-{workers}-{uuid.uuid4().hex[:4]}.log",
    )
    command = [sys.executable, "-m", "fluxmq.supervisor.main", "--config", str(broker.config)]
    with started.output.open("wb") as log:
        started.process = subprocess.Popen(
            [*command, "--workers", str(workers), *options],
            stdout=log,
            stderr=log,
            cwd=REPOSITORY,
        )
    started.wait_ready()
    return started


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def kill(broker: Broker) -> None:
    """SIGKILL the whole node."""
    pids = broker.pids()
    broker.stopped = True
    assert broker.process is not None
    os.kill(pids["supervisor"], signal.SIGKILL)
    broker.process.wait(DEADLINE)
    for name, pid in pids.items():
        wait_for(partial(is_gone, pid), f"{name} is still there")


def test_other_numbers_of_shards(tmp_path: Path) -> None:
    broker = start_broker(tmp_path, workers=2, settings=SETTINGS)
    running = broker
    try:
        publish_all(running, "a", 50)
        consumer = Consumer(running, "work")
        consumer.wait(50)
        consumer.close()
        wait_for(lambda: queues(running)["work"]["messages"] == 0, "not all is settled")
        running.stop()
        running = again(broker, 3)
        assert {row["shard"] for row in groups(running).values()} <= {0, 1, 2}
        publish_all(running, "b", 50)
        kill(running)
        name = groups_of(tmp_path)[0]
        running = again(broker, 1, "--pin", f"{name}={min(os.sched_getaffinity(0))}")
        assert {row["shard"] for row in groups(running).values()} == {0}
        assert groups(running)[name]["pinned"]
        shards = tmp_path / "data" / "shards"
        assert not list(shards.glob("[12]/wal*"))
        publish_all(running, "c", 50)
        sent = dict.fromkeys("abc", 50)
        for queue, expected in (("log", sent), ("work", {"b": 50, "c": 50}), ("fast", sent)):
            reader = Consumer(running, queue, "readers" if queue == "log" else "")
            taken = reader.wait(sum(expected.values()))
            check_order(taken, expected)
            if queue == "log":
                assert reader.offsets == list(range(150))
            reader.close()
    finally:
        running.stop(check=False)


def groups_of(directory: Path) -> list[str]:
    """Names of the groups in a data directory."""
    return sorted(each.name for each in (directory / "data" / "groups").iterdir())


def test_whoever_ends_during_a_move_loses_nothing(
    own_broker: BrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The control process ends at its second writing: when the first move is to be decided.
    monkeypatch.setenv("FLUXMQ_FAILPOINT", "placement.write:2")
    broker = own_broker(workers=2, settings=SETTINGS)
    log = queues(broker)["log"]["group"]
    source = groups(broker)[log]["shard"]
    publisher = Publisher(broker, "p", ("log",))
    publisher.start()
    wait_for(lambda: publisher.sent > 50, "no load")
    with pytest.raises((CallError, ConnectionError, FramingError)):
        move(broker, log, 1 - source)
    broker.wait_ready()
    assert groups(broker)[log]["shard"] == source
    before = publisher.sent
    wait_for(lambda: publisher.sent > before + 50, "no load after the move was given up")
    broker.kill_shard(source)
    broker.wait_ready()
    assert groups(broker)[log]["shard"] == source
    before = publisher.sent
    wait_for(lambda: publisher.sent > before + 50, "no load after the shard ended")
    publisher.finish()
    assert publisher.refused == []
    reader = Consumer(broker, "log", "all")
    check_order(reader.wait(publisher.sent), {"p": publisher.sent})
    reader.close()
