"""The acceptor as a process: real sockets in front, the test in the place of the shards behind."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxmq.ipc import handoff
from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.handoff import Handoff
from fluxmq.ipc.launch import (
    EXIT_BOOT_FAILURE,
    Launch,
    write_settings,
)
from fluxmq.ipc.messages import HELLO, ControlMessage, reply
from fluxmq.ipc.table import ProcessTable
from fluxmq.protocols.sniff import shard_of
from tests import launching
from tests.broker import free_port

DEADLINE = 20.0
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))
"""
WORKERS = 2


def connect_packet(client_id: bytes) -> bytes:
    body = b"\x00\x04MQTT\x04\x02\x00\x3c" + struct.pack(">H", len(client_id)) + client_id
    return b"\x10" + bytes([len(body)]) + body


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what}"
        time.sleep(0.005)


class Running:
    """A started acceptor and everything it was given."""

    def __init__(
        self, run_dir: Path, mqtt: dict[str, Any], more: dict[str, Any], before: str
    ) -> None:
        self.table = ProcessTable.create(WORKERS + 1)
        for index in range(WORKERS):
            self.table.assign(index, "shard", index)
            self.table.set_ready(index)
        self.table.assign(WORKERS, "acceptor", 0)
        self.settings_fd = os.memfd_create("settings")
        self.document = {"server": {"mqtt": mqtt}, **more}
        write_settings(self.settings_fd, json.dumps(self.document).encode())
        pairs = [handoff.pair() for _ in range(WORKERS)]
        self.shards = [receiver for _, receiver in pairs]
        self.run_dir = run_dir
        launch = Launch(
            role="acceptor",
            index=0,
            workers=WORKERS,
            parent_pid=os.getpid(),
            slot=WORKERS,
            settings_fd=self.settings_fd,
            table_fd=self.table.fd,
            run_dir=str(run_dir),
            data_dir=str(run_dir),
            handoff_fds=[sender.fileno() for sender, _ in pairs],
        )
        self.process = subprocess.Popen(
            launching.command("fluxmq.supervisor.acceptor", launch, before),
            pass_fds=launch.descriptors(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for sender, _ in pairs:
            sender.close()
        self.waiting: list[Handoff] = []

    def ready(self) -> "Running":
        wait_for(
            lambda: self.table.ready(WORKERS) or self.process.poll() is not None, "acceptor ready"
        )
        assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
        return self

    def receive(self, shard: int) -> Handoff:
        """The next connection handed to ``shard``."""
        found: list[Handoff] = []

        def arrived() -> bool:
            found.extend(handoff.receive(self.shards[shard]))
            return bool(found)

        wait_for(arrived, f"connection for shard {shard}")
        (connection,) = found
        return connection

    def receive_any(self, count: int) -> list[Handoff]:
        """The next ``count`` connections, whoever gets them."""
        found: list[Handoff] = []

        def arrived() -> bool:
            for shard in self.shards:
                found.extend(handoff.receive(shard))
            return len(found) >= count

        wait_for(arrived, f"{count} connections")
        assert len(found) == count
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        for shard in self.shards:
            with contextlib.suppress(handoff.HandoffClosedError):
                while batch := handoff.receive(shard):
                    for each in batch:
                        os.close(each.fd)
            shard.close()
        self.table.close()
        os.close(self.table.fd)
        os.close(self.settings_fd)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def launch(mqtt: dict[str, Any], before: str = "", **more: Any) -> Running:
        started.append(Running(tmp_path, mqtt, more, before))
        return started[-1]

    yield launch
    for running in started:
        running.stop()


def dial(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 10)
    sock.settimeout(DEADLINE)
    return sock


def ended(sock: socket.socket) -> bool:
    """Whether the acceptor closed the connection."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_reach_the_shard_of_their_session(start: Start) -> None:
    port = free_port()
    running = start({"tcp": {"addr": f"127.0.0.1:{port}"}}).ready()
    for number in range(6):
        name = f"client-{number}".encode()
        packet = connect_packet(name)
        with dial(port) as client:
            if number % 2:  # in two parts
                client.sendall(packet[:5])
                time.sleep(0)
                client.sendall(packet[5:] + b"\xc0\x00")
            else:
                client.sendall(packet)
            shard = shard_of(name, WORKERS)
            assert shard is not None
            received = running.receive(shard)
            assert received.listener == 0
            assert received.peer == f"127.0.0.1:{client.getsockname()[1]}"
            assert received.data.startswith(packet)
            assert not os.get_blocking(received.fd)
            os.write(received.fd, b"\x20\x02\x00\x00")
            assert client.recv(4) == b"\x20\x02\x00\x00"
            os.close(received.fd)
            assert client.recv(1) == b""  # the acceptor holds no descriptor of it any more


def test_every_listener_takes_its_own_protocol(start: Start) -> None:
    ports = [free_port() for _ in range(3)]
    certificates = Path(__file__).parents[1] / "data" / "tls"
    running = start(
        {
            "tcp": {"addr": f"127.0.0.1:{ports[0]}"},
            "tls": {
                "addr": f"127.0.0.1:{ports[1]}",
                "cert_file": str(certificates / "server.pem"),
                "key_file": str(certificates / "server.key"),
            },
            "websocket": {"addr": f"127.0.0.1:{ports[2]}"},
        }
    ).ready()
    beginnings = [
        connect_packet(b""),
        b"\x16\x03\x01\x00\x20\x01\x00\x00",
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
    ]
    for listener, port in enumerate(ports):
        for wire, beginning in enumerate(beginnings):
            with dial(port) as client:
                client.sendall(beginning)
                if wire == listener:
                    (received,) = running.receive_any(1)
                    assert (received.listener, received.data) == (listener, beginning)
                    os.close(received.fd)
                else:
                    assert ended(client)
    shards = []
    for _ in range(4):  # no client id: the shards take turns
        with dial(ports[0]) as client:
            client.sendall(beginnings[0])
            wait_for(lambda: any(select_ready(shard) for shard in running.shards), "hand-over")
            shards.append([select_ready(shard) for shard in running.shards].index(True))
            os.close(running.receive(shards[-1]).fd)
    assert sorted(shards) == [0, 0, 1, 1]


def select_ready(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def test_who_says_nothing_or_nonsense_is_closed(start: Start) -> None:
    port = free_port()
    start({"tcp": {"addr": f"127.0.0.1:{port}", "connect_timeout": 0.3}}).ready()
    with dial(port) as silent, dial(port) as slow, dial(port) as stranger, dial(port) as leaver:
        leaver.close()
        stranger.sendall(b"HELO mail.example.test\r\n")
        assert ended(stranger)
        slow.sendall(connect_packet(b"slow")[:-1])
        started = time.monotonic()
        assert ended(silent)
        assert ended(slow)
        assert time.monotonic() - started < 5


def test_an_oversized_connect_is_handed_over_for_the_shard_to_answer(start: Start) -> None:
    port = free_port()
    running = start(
        {"tcp": {"addr": f"127.0.0.1:{port}"}}, broker={"max_connect_size": 100}
    ).ready()
    body = b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x03big" + bytes(500)
    with dial(port) as client:
        client.sendall(b"\x10" + bytes([len(body) % 128 | 128, len(body) // 128]) + body)
        (received,) = running.receive_any(1)
        assert 17 <= len(received.data) <= 100
        os.close(received.fd)


def test_max_connections(start: Start) -> None:
    port = free_port()
    running = start({"tcp": {"addr": f"127.0.0.1:{port}", "max_connections": 3}}).ready()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dial(port)) for _ in range(4)]
        for number, client in enumerate(clients[:3]):
            client.sendall(connect_packet(b"x%d" % number))
        held = running.receive_any(3)
        running.table.set_connections(0, 0, 3)
        clients[3].sendall(connect_packet(b"x3"))
        assert ended(clients[3])
        running.table.set_connections(0, 0, 2)
        os.close(held.pop().fd)

        def let_in() -> bool:
            with dial(port) as client:
                client.sendall(connect_packet(b"again"))
                deadline = time.monotonic() + 1
                while time.monotonic() < deadline:
                    for shard in running.shards:
                        if batch := handoff.receive(shard):
                            held.extend(batch)
                            return True
                    time.sleep(0.005)
            return False

        wait_for(let_in, "a place is free again")
        for connection in held:
            os.close(connection.fd)


def test_connection_rate_per_address(start: Start) -> None:
    port = free_port()
    limits = {"connection": {"rate": 0.001, "burst": 3, "exempt_loopback": False}}
    running = start({"tcp": {"addr": f"127.0.0.1:{port}"}}, ratelimit=limits).ready()
    for number in range(5):
        with dial(port) as client:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(connect_packet(b"x"))
            if number < 3:
                os.close(running.receive_any(1)[0].fd)
            else:
                assert ended(client)
    # SIGHUP takes over new limits.
    running.document["ratelimit"] = {"connection": {"enabled": False}}
    write_settings(running.settings_fd, json.dumps(running.document).encode())
    running.process.send_signal(signal.SIGHUP)

    def let_in() -> bool:
        with dial(port) as client:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                client.sendall(connect_packet(b"x"))
            client.settimeout(0.2)
            try:
                return client.recv(1) != b""
            except TimeoutError:
                return True
            except ConnectionResetError:
                return False

    wait_for(let_in, "the new limits hold")


@pytest.mark.parametrize("exempt", [True, False], ids=["exempt from rates", "counted"])
def test_a_crowd_is_served_whole(start: Start, exempt: bool) -> None:
    """Who comes together with others is handed over with its own bytes, or closed when its time is over."""
    port = free_port()
    limits = {"connection": {"rate": 10_000.0, "burst": 10_000, "exempt_loopback": exempt}}
    running = start(
        {"tcp": {"addr": f"127.0.0.1:{port}", "connect_timeout": 1.0}}, ratelimit=limits
    ).ready()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dial(port)) for _ in range(150)]
        packets = [connect_packet(b"crowd-%d" % number) for number in range(len(clients))]
        silent = clients[::10]
        expected = {}
        for number, client in enumerate(clients):
            if client not in silent:
                expected[f"127.0.0.1:{client.getsockname()[1]}"] = packets[number]
                client.sendall(packets[number][: 5 if number % 3 else None])
        for number, client in enumerate(clients):
            if client not in silent and number % 3:
                client.sendall(packets[number][5:])
        received = running.receive_any(len(expected))
        assert {each.peer: each.data for each in received} == expected
        for each in received:
            os.close(each.fd)
        for client in silent:
            assert ended(client)


@pytest.mark.slow
def test_5000_half_open_connections_do_not_stop_a_new_client(start: Start) -> None:
    port = free_port()
    running = start({"tcp": {"addr": f"127.0.0.1:{port}", "connect_timeout": 60.0}}).ready()
    crowd: list[socket.socket] = []
    try:
        for number in range(5000):
            crowd.append(dial(port))
            if number % 2:
                crowd[-1].send(b"\x10")
        for number in range(20):
            started = time.monotonic()
            with dial(port) as client:
                client.sendall(connect_packet(b"real-%d" % number))
                os.close(running.receive_any(1)[0].fd)
            assert time.monotonic() - started < 1.0
    finally:
        for sock in crowd:
            sock.close()


def test_a_full_table_of_awaited_connections_makes_room(start: Start) -> None:
    """With few descriptors the table is small: the oldest silent connection goes, the new one is served."""
    port = free_port()
    running = start(
        {"tcp": {"addr": f"127.0.0.1:{port}", "connect_timeout": 60.0}}, LIMITED
    ).ready()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(dial(port)) for _ in range(60)]
        client = stack.enter_context(dial(port))
        client.sendall(connect_packet(b"real"))
        os.close(running.receive_any(1)[0].fd)
        assert ended(crowd[0])
        assert ended(crowd[1])
        crowd[-1].sendall(connect_packet(b"late but real"))
        os.close(running.receive_any(1)[0].fd)


def test_boot_failure_says_why(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        running = start({"tcp": {"addr": f"127.0.0.1:{port}"}})
        _, errors = running.process.communicate(timeout=DEADLINE)
    sentence = f"server.mqtt.tcp.addr: 127.0.0.1:{port} is already in use"
    assert running.process.returncode == EXIT_BOOT_FAILURE
    assert errors == sentence + "\n"
    assert running.table.row(WORKERS).reason == sentence


def test_sigterm_stops_listening_and_delivers_what_was_decided(start: Start) -> None:
    port = free_port()
    running = start({"tcp": {"addr": f"127.0.0.1:{port}"}}).ready()
    with dial(port) as client, dial(port) as silent:
        client.sendall(connect_packet(b"last"))
        connection = running.receive_any(1)[0]
        running.process.send_signal(signal.SIGTERM)
        running.process.communicate(timeout=DEADLINE)
        assert running.process.returncode == 0
        assert ended(silent)
        with pytest.raises(ConnectionRefusedError):
            dial(port)
        os.write(connection.fd, b"!")
        assert client.recv(1) == b"!"
        os.close(connection.fd)
    assert not running.table.ready(WORKERS)


def test_the_heartbeat_comes_from_the_loop(start: Start) -> None:
    running = start({"tcp": {"addr": f"127.0.0.1:{free_port()}"}}).ready()
    first = running.table.row(WORKERS).heartbeat
    assert first > 0
    wait_for(lambda: running.table.row(WORKERS).heartbeat > first, "another beat")
    running.process.send_signal(signal.SIGSTOP)
    stopped = running.table.row(WORKERS).heartbeat
    running.process.send_signal(signal.SIGCONT)
    wait_for(lambda: running.table.row(WORKERS).heartbeat > stopped, "a beat after the pause")


def test_counters_are_given_to_control(start: Start, tmp_path: Path) -> None:
    port = free_port()
    running = start({"tcp": {"addr": f"127.0.0.1:{port}"}}).ready()
    with dial(port) as stranger, dial(port) as client:
        stranger.sendall(b"nonsense")
        assert ended(stranger)
        client.sendall(connect_packet(b"x"))
        os.close(running.receive_any(1)[0].fd)
    for _ in range(2):  # control may restart
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            server.bind(str(tmp_path / "control.sock"))
            server.listen()
            server.settimeout(DEADLINE)
            control, _ = server.accept()
            with control:
                control.settimeout(DEADLINE)
                decoder = FrameDecoder()
                hello = next_message(control, decoder)
                assert hello.kind == HELLO
                assert hello.body == {"role": "acceptor", "index": 0, "pid": running.process.pid}
                control.sendall(encode_frame(reply(hello, {}).to_wire()))
                control.sendall(encode_frame(ControlMessage("collect", 7, {}).to_wire()))
                answer = next_message(control, decoder)
                assert (answer.kind, answer.id) == ("reply", 7)
                metrics = answer.body["samples"]
                assert isinstance(metrics, list)
                assert ["fluxmq_acceptor_accepted_total", {"listener": "mqtt.tcp"}, 2] in metrics
                assert ["fluxmq_acceptor_handed_total", {"listener": "mqtt.tcp"}, 1] in metrics
                assert [
                    "fluxmq_acceptor_refused_total",
                    {"reason": "unknown_protocol"},
                    1,
                ] in metrics
        (tmp_path / "control.sock").unlink()


def next_message(control: socket.socket, decoder: FrameDecoder) -> ControlMessage:
    while True:
        values = decoder.feed(control.recv(65536))
        if values:
            (value,) = values
            return ControlMessage.from_wire(value)
