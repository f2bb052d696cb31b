"""A whole broker whose machine has its time set while messages wait: nothing may come of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import Broker, BrokerFactory
from tests.conformance.client import eventually
from tests.integration.test_queues import DEADLINE, Consumer, running_broker_again
from tests.wall_clock import WallClock

HOUR, YEAR = 3600, 365 * 24 * 3600
TIME_TO_LIVE = 60
BACKOFF = 1.0
SETTINGS: dict[str, Any] = {
    "queues": [
        {"name": "parked"},
        {"name": "patient", "retry": {"initial_backoff": f"{BACKOFF:g}s"}},
        {"name": "hasty", "consumer": {"visibility_timeout": "2s"}},
    ],
    "auth": {"anonymous": {"publish": ["$queue/#"], "subscribe": ["$queue/#"]}},
    "storage": {"wal_file_bytes": "16MiB", "min_free_bytes": 0},
}


def publish(broker: Broker, queue: str, payload: str, expiry: int = 0) -> None:
    """Publish a message and see it acknowledged."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "publisher", protocol=paho.MQTTv5)
    client.connect(broker.host, broker.port)
    client.loop_start()
    properties = Properties(PacketTypes.PUBLISH)
    if expiry:
        properties.MessageExpiryInterval = expiry
    info = client.publish(f"$queue/{queue}", payload, qos=1, properties=properties)
    info.wait_for_publish(DEADLINE)
    assert info.is_published()
    client.disconnect()
    client.loop_stop()


def taken(broker: Broker, queue: str, count: int) -> list[str]:
    """What a consumer is given, once it has so many; it settles them."""
    consumer = Consumer(broker, f"taker-{queue}", f"$queue/{queue}", "takers")
    eventually(lambda: len(consumer.got) >= count, f"{count} messages of {queue}", DEADLINE)
    consumer.leave()
    return [payload.decode() for payload in consumer.got]


def comes_again_in_time(broker: Broker, name: str) -> None:
    """A message that is refused once comes again after its back-off."""
    came: list[float] = []

    def decide(_said: dict[str, str]) -> str:
        came.append(time.monotonic())
        return "nack" if len(came) == 1 else "ack"

    publish(broker, "patient", name)
    consumer = Consumer(broker, f"refusing-{name}", "$queue/patient", "refusing", decide)
    eventually(lambda: len(came) == 2, "it comes again", DEADLINE)
    consumer.leave()
    assert came[1] - came[0] < 5 * BACKOFF
    assert came[1] - came[0] > 0.9 * BACKOFF


def is_passed_on(broker: Broker) -> None:
    """What a consumer does not settle goes to another one."""
    publish(broker, "hasty", "hot")
    idle = Consumer(broker, "idle", "$queue/hasty", "both", lambda _said: "")
    eventually(lambda: idle.got, "somebody has it", DEADLINE)
    idle.crash()
    assert taken_by(broker, "other", "both") == [b"hot"]


def taken_by(broker: Broker, name: str, group: str) -> list[bytes]:
    """What a consumer of a group of "hasty" gets first."""
    consumer = Consumer(broker, name, "$queue/hasty", group)
    eventually(lambda: consumer.got, "it is passed on", 10.0)
    consumer.leave()
    return consumer.got


def test_a_clock_that_was_wrong_once_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_broker: BrokerFactory
) -> None:
    """Review finding 3: the wall clock jumps for a publish and is right again. Messages with a time to live are there, a
    refused one comes again after its back-off, one that is not settled is passed on; after a restart as well."""
    wall = WallClock(tmp_path)
    for name, value in wall.environment.items():
        monkeypatch.setenv(name, value)
    broker = own_broker(settings=SETTINGS)
    publish(broker, "parked", "before", TIME_TO_LIVE)
    wall.set(-YEAR)
    publish(broker, "parked", "meanwhile", TIME_TO_LIVE)
    assert taken(broker, "parked", 2) == ["before", "meanwhile"]
    publish(broker, "parked", "later", TIME_TO_LIVE)
    wall.set(0)
    publish(broker, "parked", "after", TIME_TO_LIVE)
    assert taken(broker, "parked", 2) == ["later", "after"]
    comes_again_in_time(broker, "first")
    is_passed_on(broker)
    publish(broker, "parked", "kept", TIME_TO_LIVE)
    broker.stop()

    with running_broker_again(broker, SETTINGS) as second:
        assert taken(second, "parked", 1) == ["kept"]
        comes_again_in_time(second, "second")
        publish(second, "parked", "briefly", 2)
        time.sleep(3)  # its time to live is real time
        publish(second, "parked", "last", TIME_TO_LIVE)
        assert taken(second, "parked", 1) == ["last"]


def test_a_restart_with_a_wrong_clock_expires_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_broker: BrokerFactory
) -> None:
    """Review finding 3: a process that starts while the wall clock is 8 hours ahead knows from the clock that counts from
    boot for how long it was away."""
    wall = WallClock(tmp_path)
    for name, value in wall.environment.items():
        monkeypatch.setenv(name, value)
    broker = own_broker(settings=SETTINGS)
    publish(broker, "parked", "kept", TIME_TO_LIVE)
    broker.stop()
    wall.set(8 * HOUR)
    with running_broker_again(broker, SETTINGS) as second:
        assert taken(second, "parked", 1) == ["kept"]
        comes_again_in_time(second, "again")
