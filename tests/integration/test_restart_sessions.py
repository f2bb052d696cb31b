"""What was acknowledged before the whole node was killed is there when it is back, for 3.1.1 and 5."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.files import Files
from fluxmq.storage.state_redistribution import redistribute
from tests.broker import REPOSITORY, Broker, start_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, payloads, tcp

KEEP = [(wire.SESSION_EXPIRY_INTERVAL, 600)]


class Mortal:
    """A broker that is killed and started again on the same directory."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.stack = ExitStack()

    def client(self, client_id: str, version: int = wire.V5, **fields: object) -> Client:
        """A connected client."""
        made = Client(tcp(self.broker.host, self.broker.port), version)
        self.stack.callback(made.drop)
        answer = made.connect(client_id, **fields)
        assert answer.reason == 0
        return made

    def kill(self) -> None:
        """SIGKILL every process of the node at once."""
        process = self.broker.process
        assert process is not None
        tree = psutil.Process(process.pid)
        for each in [*tree.children(), tree]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGSTOP)
        for each in [*tree.children(), tree]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(10)
        self.stack.close()

    def start(self, workers: int = 0) -> None:
        """Start it again."""
        workers = workers or self.broker.workers
        command = [sys.executable, "-m", "fluxmq.supervisor.main"]
        command += ["--config", str(self.broker.config), "--workers", str(workers)]
        with self.broker.output.open("ab") as log:
            self.broker.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY)
        self.broker.workers = workers
        self.broker.wait_ready()

    def restart(self, workers: int = 0) -> None:
        """Kill and start."""
        self.kill()
        self.start(workers)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    """A broker of two shards."""
    broker = start_broker(tmp_path, workers=2)
    made = Mortal(broker)
    try:
        yield made
    finally:
        made.stack.close()
        broker.stop(check=False)
        print(broker.log())


def test_what_an_absent_client_is_owed_survives(mortal: Mortal) -> None:
    for number, version in enumerate((wire.V4, wire.V5)):
        name = f"absent-{number}"
        props = KEEP if version == wire.V5 else ()
        fields = {"clean": False, "props": props} if version == wire.V5 else {"clean": False}
        client = mortal.client(name, version, **fields)
        client.subscribe(f"a/{number}/+", qos=2)
        client.drop()
    publisher = mortal.client("publisher")
    for number in range(2):
        for qos in (1, 2):
            for index in range(5):
                publisher.publish(f"a/{number}/{qos}", b"%d" % index, qos=qos)
    mortal.restart()
    for number, version in enumerate((wire.V4, wire.V5)):
        kept: dict[str, object] = {"props": KEEP} if version == wire.V5 else {}
        client = mortal.client(f"absent-{number}", version, clean=False, **kept)
        assert client.present
        got = [client.receive() for _ in range(10)]
        for qos in (1, 2):
            topic = f"a/{number}/{qos}"
            assert payloads(each for each in got if each.topic == topic) == [
                b"%d" % index for index in range(5)
            ]


def test_what_absent_members_of_a_group_are_owed_survives(mortal: Mortal) -> None:
    names = [f"member-{index}" for index in range(4)]
    for name in names:
        client = mortal.client(name, clean=False, props=KEEP)
        client.subscribe("$share/g/work", qos=1)
        client.drop()
    publisher = mortal.client("publisher")
    for index in range(16):
        publisher.publish("work", b"%02d" % index, qos=1)
    mortal.restart()
    found: list[bytes] = []
    for name in names:
        client = mortal.client(name, clean=False, props=KEEP)
        assert client.present
        found += payloads(client.receive() for _ in range(4))
    assert sorted(found) == [b"%02d" % index for index in range(16)]


def test_retained_messages_survive_and_their_deletion(mortal: Mortal) -> None:
    client = mortal.client("publisher")
    for index in range(20):
        client.publish(f"r/{index}", b"kept", qos=1, retain=True)
    for index in range(0, 20, 2):
        client.publish(f"r/{index}", b"", qos=1, retain=True)
    mortal.restart()
    reader = mortal.client("reader")
    reader.subscribe("r/#", qos=0)
    got = sorted(reader.receive().topic for _ in range(10))
    assert got == sorted(f"r/{index}" for index in range(1, 20, 2))
    reader.quiet(0.2)


def test_a_qos_2_message_is_routed_once_over_a_restart(mortal: Mortal) -> None:
    reader = mortal.client("reader", clean=False, props=KEEP)
    reader.subscribe("once", qos=2)
    reader.drop()
    publisher = mortal.client("publisher", clean=False, props=KEEP)
    publisher.send(wire.publish(wire.V5, "once", b"m", qos=2, packet_id=7))
    assert publisher.expect(wire.PUBREC).packet_id == 7
    mortal.restart()
    publisher = mortal.client("publisher", clean=False, props=KEEP)
    assert publisher.present
    publisher.send(wire.publish(wire.V5, "once", b"m", qos=2, packet_id=7, dup=True))
    assert publisher.expect(wire.PUBREC).packet_id == 7
    reader = mortal.client("reader", clean=False, props=KEEP)
    assert reader.receive().payload == b"m"
    reader.quiet(0.2)


def test_a_start_with_other_shards_has_everything(mortal: Mortal) -> None:
    names = [f"client-{index}" for index in range(8)]
    for name in names:
        client = mortal.client(name, clean=False, props=KEEP)
        client.subscribe(f"to/{name}", qos=1)
        client.drop()
    publisher = mortal.client("publisher")
    for name in names:
        publisher.publish(f"to/{name}", name.encode(), qos=1)
        publisher.publish(f"kept/{name}", name.encode(), qos=1, retain=True)
    mortal.kill()
    workers = 3 - mortal.broker.workers
    paths = DataPaths(str(mortal.broker.config.parent / "data"))
    assert redistribute(Files(), paths, workers) > 0
    assert redistribute(Files(), paths, workers) == 0
    mortal.start(workers)
    for name in names:
        client = mortal.client(name, clean=False, props=KEEP)
        assert client.present
        assert client.receive().payload == name.encode()
    reader = mortal.client("reader")
    reader.subscribe("kept/+", qos=0)
    assert sorted(reader.receive().payload.decode() for _ in names) == names


def test_a_shard_that_is_killed_comes_back_with_its_sessions(mortal: Mortal) -> None:
    names = [f"client-{index}" for index in range(6)]
    for name in names:
        client = mortal.client(name, clean=False, props=KEEP)
        client.subscribe("all", qos=1)
        client.drop()
    publisher = mortal.client("publisher")
    publisher.publish("all", b"before", qos=1)
    publisher.drop()
    before = mortal.broker.pids()["shard 0"]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: mortal.broker.pids().get("shard 0") not in (None, 0, before), "a new shard")
    mortal.broker.wait_ready()
    publisher = mortal.client("publisher")
    publisher.publish("all", b"after", qos=1)
    for name in names:
        client = mortal.client(name, clean=False, props=KEEP)
        assert client.present
        assert payloads([client.receive(), client.receive()]) == [b"before", b"after"]


def test_a_will_whose_time_came_meanwhile_is_published(mortal: Mortal) -> None:
    reader = mortal.client("reader", clean=False, props=KEEP)
    reader.subscribe("wills/#", qos=1)
    reader.drop()
    dying = mortal.client(
        "dying",
        clean=False,
        props=KEEP,
        will=wire.Will("wills/dying", b"gone", qos=1),
    )
    dying.subscribe("anything", qos=1)  # its answer says that the session is on disk
    mortal.restart()
    reader = mortal.client("reader", clean=False, props=KEEP)
    assert reader.receive().payload == b"gone"
