"""The composition root: a whole shard on an event loop, in this process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fluxmq.ipc import handoff
from fluxmq.ipc.launch import Launch, write_settings
from fluxmq.ipc.table import ProcessTable
from fluxmq.ipc.topology_messages import FROM_NOTHING, TOPOLOGY, parts
from fluxmq.ipc.user_messages import Users
from fluxmq.routing.topology.changes import AddVhost
from fluxmq.routing.topology.records import Vhost
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.schema import Settings
from fluxmq.shards import worker as module
from fluxmq.shards.turn_timer import TURN_SECONDS
from fluxmq.shards.worker import Worker, is_late
from tests.broker import merged
from tests.conformance import wire
from tests.conformance.received import Packet, decode
from tests.unit.shards.node import BASE

DEADLINE = 20.0


def settings_of(**sections: Any) -> Settings:
    """Settings with a TCP listener."""
    return Settings.model_validate(merged(BASE, sections))


class Bench:
    """A worker, and what the supervisor and the acceptor would hold."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self.table = ProcessTable.create(1)
        self.table.assign(0, "shard", 0)
        self.table.set_started(0, os.getpid(), 0, 0)
        self.settings_fd = os.memfd_create("settings")
        self.acceptor, receiver = handoff.pair()
        self.write(settings)
        launch = Launch(
            role="shard",
            index=0,
            workers=1,
            parent_pid=os.getpid(),
            slot=0,
            settings_fd=self.settings_fd,
            table_fd=self.table.fd,
            run_dir=str(directory),
            data_dir=str(directory),
            handoff_fds=[receiver.detach()],
        )
        storage = settings.storage.model_copy(update={"data_dir": str(directory)})
        settings = settings.model_copy(update={"storage": storage})
        self.worker = Worker(launch, settings, self.table)

    def tell(self, users: Users) -> None:
        """What control tells first: who there is, and what."""
        self.worker.set_users(users)
        topology = Topology()
        topology.apply(AddVhost(Vhost("/")))
        snapshot = topology.snapshot()
        for part in parts(FROM_NOTHING, snapshot.revision, snapshot.rows):
            self.worker.shard.amqp.commands[TOPOLOGY](part.to_body(), lambda _answer: None)

    def write(self, settings: Settings) -> None:
        """What the supervisor does before SIGHUP."""
        write_settings(self.settings_fd, settings.model_dump_json().encode())

    def close(self) -> None:
        """After the worker has stopped."""
        assert self.worker.timer._next is None, "the timer uses what is closed"
        loop = self.worker.loop
        loop.remove_reader(self.worker.shard.reactor.fileno())
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        self.worker.shard.intake._socket.close()
        self.worker.shard.reactor.poller.close()
        self.acceptor.close()
        os.close(self.settings_fd)
        self.table.close()
        os.close(self.table.fd)

    def ready(self) -> bool:
        """What the supervisor sees."""
        return self.table.ready(0)

    def client(self) -> socket.socket:
        """A connection handed over."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        with theirs:
            batch = [handoff.Handoff(theirs.fileno(), 0, "127.0.0.1:9", b"")]
            assert handoff.send(self.acceptor, batch) == 1
        return ours


async def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait for something."""
    end = asyncio.get_running_loop().time() + DEADLINE
    while not (found := condition()):
        assert asyncio.get_running_loop().time() < end, what
        await asyncio.sleep(0.005)
    return found


async def packet(sock: socket.socket) -> Packet | None:
    """The next packet of a version 5 client; short ones only. None when the connection has ended."""
    loop = asyncio.get_running_loop()
    head = await asyncio.wait_for(loop.sock_recv(sock, 2), DEADLINE)
    if not head:
        return None
    body = b""
    while len(body) < head[1]:
        body += await asyncio.wait_for(loop.sock_recv(sock, head[1] - len(body)), DEADLINE)
    return decode(5, head[0], body, 2 + len(body))


Play = Callable[[Bench], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Run a worker and a play with it."""

    def start(play: Play, settings: Settings | None = None) -> None:
        async def main() -> None:
            bench = Bench(tmp_path, settings or settings_of())
            bench.worker.start()
            try:
                await play(bench)
            finally:
                await bench.worker.stop()
                bench.close()

        asyncio.run(main())

    yield start
    gc.unfreeze()
    gc.enable()


def users(*found: Any) -> Users:
    """What control pushes."""
    return Users(1, tuple(found))


def test_a_shard_is_ready_when_it_knows_the_users(run: Callable[..., None]) -> None:
    async def play(bench: Bench) -> None:
        await eventually(lambda: bench.worker.timer.tenths > 2, "some turns of the timer")
        assert bench.table.row(0).heartbeat
        assert not bench.ready()
        bench.tell(users())
        await eventually(bench.ready, "ready")
        assert not gc.isenabled(), "the shard says when garbage is collected"

    run(play)


def test_a_shard_does_not_wait_for_ever(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the control process it serves whom it can."""
    monkeypatch.setattr(module, "READY_SECONDS_MAX", 0.3)
    monkeypatch.setattr(module, "TOPOLOGY_SECONDS_MAX", 0.3)

    async def play(bench: Bench) -> None:
        await eventually(bench.ready, "ready")
        with closing(bench.client()) as sock:
            sock.send(wire.connect(5, "c"))
            connack = await packet(sock)
            assert connack is not None
            assert connack.reason == 0
        with closing(bench.client()) as sock:
            sock.send(wire.connect(5, "c", username="u", password=b"p"))
            connack = await packet(sock)
            assert connack is not None
            assert connack.reason == 0x88

    run(play)


def test_a_shard_waits_for_a_topology_that_is_coming(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Review finding 4: with 100,000 queues it takes seconds, and a client that came meanwhile was told that / is not there."""
    monkeypatch.setattr(module, "READY_SECONDS_MAX", 0.2)
    monkeypatch.setattr("fluxmq.ipc.topology_messages.PART_ROWS_MAX", 1)

    async def play(bench: Bench) -> None:
        topology = Topology()
        topology.apply(AddVhost(Vhost("/")))
        snapshot = topology.snapshot()
        first, *others = parts(FROM_NOTHING, snapshot.revision, snapshot.rows)
        assert others
        take = bench.worker.shard.amqp.commands[TOPOLOGY]
        late = bench.worker._started + 0.2 + 3 * TURN_SECONDS
        await eventually(
            lambda: bench.worker.timer.expected > late, "it has looked whether it is late"
        )
        assert not bench.ready(), "the control process reads the topology before it connects"
        take(first.to_body(), lambda _answer: None)
        late = bench.worker.timer.expected + 3 * TURN_SECONDS
        await eventually(
            lambda: bench.worker.timer.expected > late, "it has looked whether it is late"
        )
        assert not bench.ready()
        for part in others:
            take(part.to_body(), lambda _answer: None)
        await eventually(bench.ready, "ready")

    run(play)


def test_a_shard_serves_and_stops_in_order(run: Callable[..., None]) -> None:
    """Connected clients are told; those that are not connected yet do not hold it up."""
    told: list[Packet | None] = []
    socks: list[socket.socket] = []
    listeners: list[asyncio.Task[None]] = []

    async def play(bench: Bench) -> None:
        bench.tell(users())
        await eventually(bench.ready, "ready")
        client, silent = bench.client(), bench.client()
        socks.extend((client, silent))
        client.send(wire.connect(5, "c"))
        connack = await packet(client)
        assert connack is not None
        await eventually(lambda: bench.table.connections(0) == 2, "two connections counted")
        client.send(wire.subscribe(5, 1, [wire.Filter("$SYS/broker/uptime")]))
        suback = await packet(client)
        assert suback is not None
        assert suback.kind == wire.SUBACK
        uptime = await packet(client)
        assert uptime is not None
        assert uptime.topic == "$SYS/broker/uptime"

        async def listen() -> None:
            told.append(await packet(client))
            client.close()

        listeners.append(asyncio.get_running_loop().create_task(listen()))

    began = time.monotonic()
    run(play, settings_of(broker={"sys_interval": 0.05}))
    assert time.monotonic() - began < 5
    for sock in socks:
        sock.close()
    (goodbye,) = told
    assert goodbye is not None
    assert (goodbye.kind, goodbye.reason) == (wire.DISCONNECT, 0x8B)


def test_a_shard_stops_before_it_was_ready(run: Callable[..., None]) -> None:
    async def play(bench: Bench) -> None:
        assert not bench.ready()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(bench.worker.stopping.wait(), DEADLINE)

    run(play)


def test_a_shard_whose_acceptor_has_gone_stops_all_the_same(run: Callable[..., None]) -> None:
    async def play(bench: Bench) -> None:
        bench.tell(users())
        await eventually(bench.ready, "ready")
        bench.acceptor.close()
        # What is left to watch is the disk.
        disk = {bench.worker.store.fileno()}
        await eventually(lambda: set(bench.worker.shard.reactor.others) == disk, "noticed")

    run(play)


def test_settings_are_read_again(run: Callable[..., None]) -> None:
    """SIGHUP: what may change live changes, for who is here and for who comes."""

    async def play(bench: Bench) -> None:
        bench.tell(users())
        await eventually(bench.ready, "ready")
        with closing(bench.client()) as here:
            here.send(wire.connect(5, "here"))
            connack = await packet(here)
            assert connack is not None
            assert connack.property(wire.MAXIMUM_QOS) is None
            here.send(wire.publish(5, "t", b"x", qos=2, packet_id=1))
            pubrec = await packet(here)
            assert pubrec is not None
            assert pubrec.kind == wire.PUBREC
            bench.write(settings_of(broker={"max_qos": 1}, session={"max_inflight_messages": 3}))
            os.kill(os.getpid(), signal.SIGHUP)
            await eventually(lambda: bench.worker.settings.broker.max_qos == 1, "reloaded")
            with closing(bench.client()) as fresh:
                fresh.send(wire.connect(5, "fresh"))
                connack = await packet(fresh)
                assert connack is not None
                assert connack.property(wire.MAXIMUM_QOS) == 1
                assert connack.property(wire.RECEIVE_MAXIMUM) == 3
            here.send(wire.publish(5, "t", b"x", qos=2, packet_id=2))
            goodbye = await packet(here)
            assert goodbye is not None
            assert goodbye.reason == 0x9B
        with closing(bench.client()) as here:
            here.send(wire.connect(5, "here"))
            assert await packet(here)
            bench.write(settings_of(auth={"anonymous": {"allow": "never"}}))
            os.kill(os.getpid(), signal.SIGHUP)
            goodbye = await packet(here)
            assert goodbye is not None
            assert (goodbye.kind, goodbye.reason) == (wire.DISCONNECT, 0x87)

    run(play)


def test_what_a_shard_reports(run: Callable[..., None]) -> None:
    async def play(bench: Bench) -> None:
        bench.tell(users())
        await eventually(bench.ready, "ready")
        with closing(bench.client()) as sock:
            sock.send(
                wire.connect(5, "c")
                + wire.subscribe(5, 1, [wire.Filter("t"), wire.Filter("$share/g/t")])
                + wire.publish(5, "t", b"x", qos=1, packet_id=1, retain=True)
            )
            for kind in (wire.CONNACK, wire.SUBACK, wire.PUBLISH):
                found = await packet(sock)
                assert found is not None
                assert found.kind == kind
            status = bench.worker.reports.status()
            assert (status.connections, status.sessions, status.messages_received) == (1, 1, 1)
            assert status.messages_sent == 2
            store = bench.worker.store
            await eventually(
                lambda: store.commits > 0 and store.idle, "the retained message is kept"
            )
            samples = {
                (name, tuple(labels.items())): value
                for name, labels, value in bench.worker.reports.samples()
            }
            for name, labels, value in (
                ("fluxmq_connections", (("listener", "mqtt.tcp"),), 1),
                ("fluxmq_sessions", (("state", "connected"),), 1),
                ("fluxmq_messages_received_total", (("qos", "1"),), 1),
                ("fluxmq_retained_messages", (), 1),
                ("fluxmq_subscriptions", (), 2),
                ("fluxmq_shared_groups", (), 1),
                ("fluxmq_users_revision", (), 1),
                ("fluxmq_state_failed", (), 0),
                ("fluxmq_state_full", (), 0),
                ("fluxmq_state_commits_total", (), store.commits),
                ("fluxmq_state_rows_waiting", (), 0),
            ):
                assert samples[name, labels] == value, name
            store.failed = "the disk is broken"
            assert bench.worker.reports.status().state_failed == 1
            store.failed = ""

    run(play)


def test_clients_wait_for_a_topology_that_is_to_come() -> None:
    """Without it they would be told that their virtual host is not there."""
    assert not is_late(4.9, arriving=False, expected=False)
    assert is_late(5.1, arriving=False, expected=False)
    assert not is_late(119.0, arriving=False, expected=True)
    assert is_late(121.0, arriving=False, expected=True)
    assert not is_late(1000.0, arriving=True, expected=False)
