"""The supervisor and its tree as real processes: stand-ins where the course must be forced, else the real ones.

Longer than 500 lines because all of it looks at one tree through one `Node`.
"""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluxmq.ipc.launch import EXIT_BOOT_FAILURE
from fluxmq.ipc.table import ProcessRow, ProcessState, ProcessTable, ProcessTableError
from fluxmq.protocols.sniff import shard_of
from tests.broker import free_port

DEADLINE = 30.0
STAND_INS = Path(__file__).parent
SUPERVISOR = """
import sys
from fluxmq.supervisor import tree
from fluxmq.supervisor.main import main
from fluxmq.supervisor.programs import Program
tree.HEARTBEAT_SECONDS_MAX = 0.5
sys.path.insert(0, sys.argv[1])
import stand_in
stood_in = Program(lambda clustered: None, stand_in.main)
sys.exit(main(sys.argv[2:], dict.fromkeys(("shard", "acceptor", "control"), stood_in)))
"""
NAMES = ["shard-0", "shard-1", "acceptor", "control"]


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what}"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Node:
    """A supervisor and what can be seen of its tree from outside."""

    def __init__(self, directory: Path, real: bool, more: tuple[str, ...]) -> None:
        self.directory = directory
        self.port = free_port()
        self.config = directory / "fluxmq.yaml"
        self.write_config()
        arguments = ["--config", str(self.config), "--workers", "2", *more]
        if real:
            command = [sys.executable, "-m", "fluxmq.supervisor.main", *arguments]
        else:
            command = [sys.executable, "-c", SUPERVISOR, str(STAND_INS), *arguments]
        self.log = directory / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "STAND_IN_DIRECTORY": str(directory)},
            )
        self._table: ProcessTable | None = None

    def write_config(self, max_qos: object = 2, extra: str = "") -> None:
        self.config.write_text(
            f'server: {{mqtt: {{tcp: {{addr: "127.0.0.1:{self.port}"}}}}, shutdown_timeout: 1s}}\n'
            f"broker: {{max_qos: {max_qos}}}\n"
            f"storage: {{data_dir: {self.directory}/data}}\n{extra}"
        )

    @property
    def table(self) -> ProcessTable:
        """The supervisor's process table, borrowed from its descriptors."""
        wait_for(self._borrow_table, "process table")
        assert self._table is not None
        return self._table

    def _borrow_table(self) -> bool:
        """Open the table through the supervisor's descriptor; it may not be filled in yet."""
        folder = Path(f"/proc/{self.process.pid}/fd")
        for name in [] if self._table is not None else os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                if "fluxmq-processes" not in os.readlink(folder / name):
                    continue
                fd = os.open(folder / name, os.O_RDWR)
                try:
                    self._table = ProcessTable(fd)
                except ProcessTableError:
                    os.close(fd)
        return self._table is not None

    def row(self, name: str) -> ProcessRow:
        return self.table.row(NAMES.index(name))

    def ready(self) -> "Node":
        def complete() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return all(row.state is ProcessState.READY for row in self.table.rows())

        wait_for(complete, "all children ready")
        return self

    def pids(self) -> dict[str, int]:
        return {name: self.row(name).pid for name in NAMES}

    def children(self) -> list[int]:
        """Every child process."""
        pid = self.process.pid
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]

    def behave(self, name: str, behaviour: str) -> None:
        (self.directory / name).write_text(behaviour)

    def events(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "events").read_text().splitlines()
        return []

    def wait(self) -> int:
        return self.process.wait(DEADLINE)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._table is not None:
            self._table.close()
            os.close(self._table.fd)


Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes: list[Node] = []

    def launch(*more: str, real: bool = False, **behaviours: str) -> Node:
        for name, behaviour in behaviours.items():
            (tmp_path / name.replace("_", "-")).write_text(behaviour)
        nodes.append(Node(tmp_path, real, more))
        return nodes[-1]

    yield launch
    for node in nodes:
        node.stop()


def test_a_killed_child_is_back_within_a_second_and_the_others_go_on(start: Start) -> None:
    node = start().ready()
    for name in ("shard-1", "acceptor", "control"):
        before = node.pids()
        killed_at = time.monotonic()
        os.kill(before[name], signal.SIGKILL)
        wait_for(
            lambda: node.row(name).pid not in (0, before[name]) and node.row(name).ready,  # noqa: B023
            f"{name} back",
        )
        assert time.monotonic() - killed_at < 1.0
        after = node.pids()
        assert {other for other in NAMES if after[other] != before[other]} == {name}
        assert node.row(name).restarts == 1
        assert node.row(name).last_exit == -signal.SIGKILL
    node.ready()


def test_repeated_crashes_back_off_and_are_never_given_up(start: Start) -> None:
    node = start().ready()
    node.behave("shard-0", "crash")
    os.kill(node.row("shard-0").pid, signal.SIGKILL)
    wait_for(lambda: node.row("shard-0").restarts >= 4, "several restarts")
    assert node.row("shard-0").last_exit in (7, -signal.SIGKILL)
    wait_for(lambda: node.row("shard-0").state is ProcessState.BACKING_OFF, "waiting")
    node.behave("shard-0", "")
    node.ready()


def test_a_boot_failure_ends_the_start_with_its_reason(start: Start) -> None:
    node = start(shard_1="fail no room for its rings")
    assert node.wait() == EXIT_BOOT_FAILURE
    assert "shard-1 could not start: no room for its rings" in node.log.read_text()
    assert "acceptor ready" not in " ".join(node.events())


def test_a_boot_failure_of_the_real_acceptor_names_the_setting(start: Start) -> None:
    node = start(real=True)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", node.port))
        taken.listen()
        assert node.wait() == EXIT_BOOT_FAILURE
    sentence = f"server.mqtt.tcp.addr: 127.0.0.1:{node.port} is already in use"
    assert f"acceptor could not start: {sentence}" in node.log.read_text()


def test_a_later_boot_failure_is_tried_again(start: Start) -> None:
    node = start().ready()
    node.behave("control", "fail its address is taken")
    os.kill(node.row("control").pid, signal.SIGKILL)
    wait_for(lambda: node.row("control").last_exit == EXIT_BOOT_FAILURE, "the failure")
    wait_for(lambda: node.row("control").reason == "its address is taken", "its reason in the row")
    node.behave("control", "")
    node.ready()


def test_a_hung_child_is_killed_and_started_again(start: Start) -> None:
    node = start().ready()
    pid = node.row("shard-0").pid
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: node.row("shard-0").pid not in (0, pid), "another process")
    node.ready()
    assert not alive(pid)
    assert "shard-0 killed: no heartbeat" in node.log.read_text()


def test_sigterm_drains_in_order(start: Start) -> None:
    node = start().ready()
    pids = node.children()
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 0
    stopped = [event for event in node.events() if event.endswith("stopped")]
    assert stopped[0] == "acceptor stopped"
    assert sorted(stopped[1:3]) == ["shard-0 stopped", "shard-1 stopped"]
    assert stopped[3:] == ["control stopped"]
    assert not any(alive(pid) for pid in pids)


def test_who_does_not_stop_is_killed_at_the_second_signal(start: Start) -> None:
    node = start(shard_0="deaf").ready()
    node.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "shard-0 deaf" in node.events(), "SIGTERM arrived")
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 1
    assert "shard-0 stopped" not in node.events()


def test_a_second_supervisor_on_the_directory_is_refused(start: Start) -> None:
    node = start().ready()
    second = start()
    assert second.wait() == EXIT_BOOT_FAILURE
    sentence = f"data is in use by process {node.process.pid}; a directory belongs to one broker"
    assert sentence in second.log.read_text()
    assert node.process.poll() is None


def test_children_die_with_a_killed_supervisor(start: Start) -> None:
    node = start("--bind", "always").ready()
    pids = node.children()
    assert sorted(pids) == sorted(node.pids().values())
    node.process.kill()
    node.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids), "children gone")
    again = start().ready()  # and the directory is free again
    assert again.process.poll() is None


def test_restarts_leak_no_descriptors(start: Start) -> None:
    node = start().ready()

    def descriptors(pid: int) -> int:
        """Open descriptors once they stay the same; starting a process takes some for a moment."""
        counts: list[int] = []

        def steady() -> bool:
            counts.append(len(os.listdir(f"/proc/{pid}/fd")))
            return len(counts) > 10 and len(set(counts[-10:])) == 1

        wait_for(steady, "a steady count")
        return counts[-1]

    node.ready()
    supervisor = descriptors(node.process.pid)
    shard = descriptors(node.row("shard-1").pid)
    for _ in range(2):
        for name in NAMES:
            pid = node.row(name).pid
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: node.row(name).pid not in (0, pid), "restart")  # noqa: B023
        node.ready()
    assert descriptors(node.process.pid) == supervisor
    assert descriptors(node.row("shard-1").pid) == shard


def test_shards_are_bound_to_their_cores(start: Start) -> None:
    cores = sorted(os.sched_getaffinity(0))
    node = start().ready()
    for _ in range(2):
        for index in range(2):
            row = node.row(f"shard-{index}")
            assert row.core == cores[index % len(cores)]
            assert os.sched_getaffinity(row.pid) == {row.core}
        assert os.sched_getaffinity(node.row("acceptor").pid) == set(cores)
        pid = node.row("shard-1").pid
        os.kill(pid, signal.SIGKILL)  # its successor is bound as well
        wait_for(lambda: node.row("shard-1").pid not in (0, pid), "restart")  # noqa: B023
        node.ready()
    assert os.sched_getaffinity(node.process.pid) == set(cores)


def test_shards_are_left_to_the_kernel(start: Start) -> None:
    node = start("--bind", "never").ready()
    for index in range(2):
        row = node.row(f"shard-{index}")
        assert row.core == -1
        assert os.sched_getaffinity(row.pid) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("bind", "policy"), [("never", os.SCHED_BATCH), ("always", os.SCHED_OTHER)]
)
def test_what_wakes_up_does_not_interrupt_shards_that_share_cores(
    start: Start, bind: str, policy: int
) -> None:
    node = start("--bind", bind, real=True).ready()
    for index in range(2):
        assert os.sched_getscheduler(node.row(f"shard-{index}").pid) == policy
    assert os.sched_getscheduler(node.row("acceptor").pid) == os.SCHED_OTHER


def test_sighup_hands_out_what_may_change_live(start: Start) -> None:
    node = start().ready()
    node.write_config(max_qos=1)
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: sum("reloaded" in event for event in node.events()) == 4, "all reloaded")
    assert "broker.max_qos" in node.log.read_text()
    node.write_config(max_qos=17, extra="nonsense: 1\n")
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: node.log.read_text().count("settings not reloaded") == 2, "both problems")
    node.write_config(max_qos=0)
    node.port = free_port()
    node.write_config(max_qos=0)
    node.process.send_signal(signal.SIGHUP)
    wait_for(lambda: sum("reloaded" in event for event in node.events()) == 8, "reloaded again")
    assert "settings that need a restart" in node.log.read_text()


def test_pins_are_checked_and_kept(start: Start, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    start("--pin", f"orders={core}").ready()
    assert json.loads((tmp_path / "data" / "placement.json").read_text())["pins"] == {"orders": 0}
    refused = start("--pin", "orders=9999")
    assert refused.wait() == 2
    assert "no shard runs on core 9999" in refused.log.read_text()


def test_check_prints_and_starts_nothing(start: Start, tmp_path: Path) -> None:
    node = start("--check", real=True)
    assert node.wait() == 0
    assert f"addr: 127.0.0.1:{node.port}" in node.log.read_text()
    assert not (tmp_path / "data").exists()


def test_without_a_file_the_shipped_defaults_are_used() -> None:
    shipped = Path(__file__).parents[2] / "config" / "single-node.yaml"
    command = [sys.executable, "-m", "fluxmq.supervisor.main", "--workers", "auto", "--check"]
    bare, named = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in ([], ["--config", str(shipped)])
    )
    assert bare == named
    listeners = re.findall(r"^ +addr: (.+)$", bare, re.MULTILINE)
    assert len(listeners) >= 4
    assert all(address.startswith("127.0.0.1:") for address in listeners)


def test_wrong_settings_are_all_named(tmp_path: Path) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text("server: {mqtt: {tcp: {addr: nowhere, ports: 1}}}\nlog: {level: loud}\n")
    command = [sys.executable, "-m", "fluxmq.supervisor.main", "--config", str(config)]
    for more in ([], ["--check"]):
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stdout == ""
        for path in ("server.mqtt.tcp.addr", "server.mqtt.tcp.ports", "log.level"):
            assert f"fluxmq-supervisor: {config}: {path}: " in done.stderr


def test_a_terminal_gets_a_banner(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "fluxmq.yaml"
    config.write_text(
        f'server: {{mqtt: {{tcp: {{addr: "127.0.0.1:{port}"}}}}}}\n'
        f"storage: {{data_dir: {tmp_path}/data}}\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SUPERVISOR, str(STAND_INS), "--config", str(config)]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "STAND_IN_DIRECTORY": str(tmp_path)},
    )
    os.close(theirs)
    shown = b""
    try:
        while b"Server startup complete" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = shown.decode()
    assert text.startswith("FluxMQ ")
    assert f"127.0.0.1:{port}" in text
    assert str(process.pid) in text


def opened(port: int, client_id: bytes) -> socket.socket:
    """Open a connection and say CONNECT."""
    body = b"\x00\x04MQTT\x04\x02\x00\x3c" + struct.pack(">H", len(client_id)) + client_id
    client = socket.create_connection(("127.0.0.1", port), DEADLINE)
    client.settimeout(DEADLINE)
    client.sendall(b"\x10" + bytes([len(body)]) + body)
    return client


def connect(port: int, client_id: bytes) -> bytes:
    """Open a connection, say CONNECT, and return the CONNACK."""
    with opened(port, client_id) as client:
        return client.recv(4)


def served_end(client: socket.socket) -> str:
    """Name of the other end of a client's connection, as it stands among descriptors."""
    server, own = client.getpeername()[1], client.getsockname()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if (words[1][-4:], words[2][-4:]) == (f"{server:04X}", f"{own:04X}"):
            return f"socket:[{words[9]}]"
    raise AssertionError("there is no such connection")


def holders(node: Node, name: str) -> list[str]:
    """Processes of a node that have a descriptor of this name."""
    pids = {"supervisor": node.process.pid, **node.pids()}
    found = []
    for process, pid in pids.items():
        folder = Path(f"/proc/{pid}/fd")
        for fd in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(folder / fd) == name and process not in found:
                    found.append(process)
    return found


def test_no_process_holds_what_is_anothers(start: Start) -> None:
    """A fork has all of its parent's descriptors: a child closes those that are not its own."""
    node = start(real=True).ready()
    names = [f"client-{number}".encode() for number in range(8)]
    with contextlib.ExitStack() as stack:
        clients = {name: stack.enter_context(opened(node.port, name)) for name in names}
        for client in clients.values():
            assert client.recv(4) == b"\x20\x02\x00\x00"
        pid = node.row("shard-0").pid
        os.kill(pid, signal.SIGKILL)  # its successor is forked while the others are connected
        wait_for(lambda: node.row("shard-0").pid not in (0, pid), "restart")
        node.ready()
        for name, client in clients.items():
            if shard_of(name, 2) == 1:
                assert holders(node, served_end(client)) == ["shard-1"]
            else:
                assert client.recv(1) == b"", "nobody else held it open"
        assert holders(node, str(node.directory / "data" / "LOCK")) == ["supervisor"]
    titles = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in node.pids().values()]
    assert titles == [f"fluxmq-{name}\0".encode() for name in NAMES]


def test_the_supervisor_forks_without_threads(start: Start) -> None:
    """A fork of a process with threads copies their locks, held or not."""
    node = start(real=True).ready()
    assert len(os.listdir(f"/proc/{node.process.pid}/task")) == 1
    os.kill(node.row("shard-0").pid, signal.SIGKILL)
    node.ready()
    assert len(os.listdir(f"/proc/{node.process.pid}/task")) == 1


def test_a_real_node_serves_and_survives_the_loss_of_a_shard(start: Start) -> None:
    node = start(real=True).ready()
    names = [f"client-{number}".encode() for number in range(8)]  # on both shards
    for name in names:
        assert connect(node.port, name) == b"\x20\x02\x00\x00"
    before = node.pids()
    os.kill(before["shard-0"], signal.SIGKILL)
    for name in names:  # those of the dead shard wait for it in its socket
        assert connect(node.port, name) == b"\x20\x02\x00\x00"
    node.ready()
    after = node.pids()
    assert {other for other in NAMES if after[other] != before[other]} == {"shard-0"}
    node.process.send_signal(signal.SIGTERM)
    assert node.wait() == 0
