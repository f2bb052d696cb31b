"""The control process as a process: health, metrics, users and fluxmqctl, with the test as the rest of the node.

The test plays supervisor (launch description, settings, process table) and shards (real control
clients); everything else is real: process, sockets, database.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.control_frames import encode_frame
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.launch import (
    EXIT_BOOT_FAILURE,
    Launch,
    write_settings,
)
from fluxmq.ipc.messages import (
    HELLO,
    STATUS,
    ControlMessage,
    NodeStatus,
    ProcessHello,
    ProcessNumbers,
)
from fluxmq.ipc.polling_client import CallError, ControlCaller
from fluxmq.ipc.table import ProcessState, ProcessTable
from fluxmq.ipc.user_messages import Users
from fluxmq.settings import Settings
from tests import launching
from tests.broker import free_port

CONTROL, SHARD, ACCEPTOR = range(3)
DEADLINE = 20.0


def until(condition, what):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.01)


class Shard(threading.Thread):
    """A shard's control connection and heartbeat, on a loop of its own thread."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.node = node
        self.snapshots: list[Users] = []
        self.samples = [("fluxmq_messages_received_total", {"qos": "1"}, 41)]
        self.numbers = ProcessNumbers(sessions=5, messages_received=41)
        self._hang, self._hanging = threading.Event(), threading.Event()
        self._resume = threading.Event()
        self._stopping = threading.Event()
        handlers = Handlers(lambda: self.samples, lambda: self.numbers, self.snapshots.append)
        self.client = ControlClient(node.socket, ProcessHello("shard", 0, os.getpid()), handlers)

    def run(self):
        asyncio.run(self._main())

    async def _main(self):
        task = asyncio.create_task(self.client.run())
        while not self._stopping.is_set():
            if self._hang.is_set():
                self._wait_stuck()
            self.node.beat(SHARD)
            self.node.beat(ACCEPTOR)
            await asyncio.sleep(0.02)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _wait_stuck(self):
        """Keep the loop from coming round, as in a shard that is stuck."""
        self._hanging.set()
        self._resume.wait(DEADLINE)
        self._hang.clear()
        self._hanging.clear()

    def hang(self):
        self._resume.clear()
        self._hang.set()
        assert self._hanging.wait(DEADLINE)

    def resume(self):
        self._resume.set()

    def stop(self):
        self.resume()
        self._stopping.set()
        self.join(DEADLINE)


class Node:
    """Everything around the control process."""

    def __init__(self, path):
        self.path = path / "data"
        (self.path / "run").mkdir(parents=True)
        self.socket = self.path / "run" / "control.sock"
        self.port = free_port()
        self.settings = Settings.model_validate(
            {
                "server": {"http": {"addr": f"127.0.0.1:{self.port}", "request_timeout": 5.0}},
                "storage": {"data_dir": str(self.path)},
                "auth": {"argon2": {"time_cost": 1, "memory_cost": 65536}},
                "log": {"level": "debug", "format": "json"},
            }
        )
        self.table = ProcessTable.create(3)
        for slot, role in ((CONTROL, "control"), (SHARD, "shard"), (ACCEPTOR, "acceptor")):
            self.table.assign(slot, role, 0)
        for slot in (SHARD, ACCEPTOR):
            self.table.set_started(slot, os.getpid(), time.time_ns(), 0)
            self.table.set_state(slot, ProcessState.READY)
            self.table.set_ready(slot)
        self.settings_fd = os.memfd_create("settings")
        self.log = path / "control.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, settings=None):
        write_settings(self.settings_fd, (settings or self.settings).model_dump_json().encode())
        launch = Launch(
            role="control",
            index=0,
            workers=1,
            parent_pid=os.getpid(),
            slot=CONTROL,
            settings_fd=self.settings_fd,
            table_fd=self.table.fd,
            run_dir=str(self.path / "run"),
            data_dir=str(self.path),
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                launching.command("fluxmq.control.process", launch),
                pass_fds=launch.descriptors(),
                stderr=log,
                start_new_session=True,
            )
        self.table.set_started(CONTROL, self.process.pid, time.time_ns(), 0)
        self.table.set_state(CONTROL, ProcessState.READY)

    def wait_ready(self):
        process = self.process
        assert process is not None
        until(
            lambda: self.table.ready(CONTROL) or process.poll() is not None,
            "the control process is ready",
        )
        assert process.poll() is None, self.log.read_text()

    def beat(self, slot):
        self.table.beat(slot, time.monotonic_ns())

    def stop(self):
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.table.clear_readings(CONTROL)
        return self.process.wait(DEADLINE)

    def kill(self):
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE)
        self.table.clear_readings(CONTROL)

    def close(self):
        self.stop()
        self.table.close()
        os.close(self.table.fd)
        os.close(self.settings_fd)

    def get(self, path):
        """Return status and body of a GET."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self):
        status, body = self.get("/ready")
        return status, json.loads(body)

    def metrics(self):
        _, text = self.get("/metrics")
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def ctl(self, *arguments, stdin=None):
        return subprocess.run(
            [sys.executable, "-m", "fluxmq.cli.main", "--data-dir", str(self.path), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def messages(self):
        return [json.loads(line)["message"] for line in self.log.read_text().splitlines()]


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.close()


@pytest.fixture
def running(node):
    node.start()
    node.wait_ready()
    return node


@pytest.fixture
def shard(running):
    made = Shard(running)
    made.start()
    until(lambda: made.client.users_revision >= 0, "the shard has the users")
    yield made
    made.stop()


def test_health_and_readiness_follow_the_processes(running):
    assert running.get("/health") == (200, '{"status": "ok"}')
    status, body = running.ready()
    assert status == 503
    assert {each["process"]: each.get("problem") for each in body["processes"]} == {
        "control": None,
        "shard-0": "no heartbeat yet",
        "acceptor": "no heartbeat yet",
    }
    shard = Shard(running)
    shard.start()
    until(lambda: running.ready()[0] == 200, "the node is ready")
    assert running.ready()[1]["control_socket"] == "ok"
    running.table.set_ready(SHARD, False)
    assert running.ready()[0] == 503
    running.table.set_ready(SHARD, True)
    assert running.ready()[0] == 200
    shard.stop()
    until(lambda: running.ready()[0] == 503, "the heartbeat is too old or the connection gone")
    assert running.get("/nothing")[0] == 404


def test_metrics_come_from_the_shard_and_stay_when_it_hangs(running, shard):
    series = ("fluxmq_messages_received_total", ("qos", "1"), ("shard", "0"))
    stale = ("fluxmq_scrape_stale", ("shard", "0"))
    found = running.metrics()
    assert (found[series], found[stale]) == (41, 0)
    assert found["fluxmq_process_up", ("process", "control")] == 1
    assert found["fluxmq_process_cpu_seconds_total", ("process", "control")] > 0
    shard.hang()
    began = time.monotonic()
    found = running.metrics()
    assert 0.9 < time.monotonic() - began < 4.0
    assert (found[series], found[stale]) == (41, 1)


def test_users_are_kept_by_fluxmqctl_while_the_broker_runs(running, shard):
    added = running.ctl(
        "user", "add", "ann", "--publish", "a/#", "--password-stdin", stdin="geheim\n"
    )
    assert (added.returncode, added.stderr) == (0, "")
    # Answered only when the shard has it.
    user, guest = shard.snapshots[-1].users
    assert (user.name, user.publish, user.enabled) == ("ann", ("a/#",), True)
    assert (guest.name, guest.tags) == ("guest", ("administrator",))
    # Hashed with the broker's parameters, though fluxmqctl was given no settings file.
    assert user.hash.startswith("$argon2id$v=19$m=64,t=1,p=1$")
    assert running.ctl("user", "disable", "ann").returncode == 0
    assert not shard.snapshots[-1].users[0].enabled
    again = running.ctl("user", "add", "ann", "--password-stdin", stdin="x")
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert "ann" in running.ctl("user", "list").stdout
    assert running.metrics()["fluxmq_users",] == 2


def test_a_change_not_confirmed_is_reported(running, shard):
    shard.hang()
    added = running.ctl("user", "add", "ann", "--password-stdin", stdin="geheim")
    assert added.returncode == 0
    assert "not confirmed in time by shard-0" in added.stderr
    shard.resume()
    until(lambda: shard.client.users_revision == 2, "the shard catches up")


def test_status_shows_the_node(running, shard):
    running.table.set_connections(SHARD, 0, 12)
    shown = running.ctl("status")
    assert shown.returncode == 0
    line = next(line for line in shown.stdout.splitlines() if line.startswith("shard-0"))
    assert "12" in line.split()
    assert "41" in line.split()
    body = json.loads(running.ctl("status", "--json").stdout)
    assert body["totals"]["connections"] == 12
    assert body["processes"][SHARD]["numbers"]["sessions"] == 5
    watched = subprocess.Popen(
        [
            # As from a terminal: what starts a test in the background may have it ignore the signal.
            "env",
            "--default-signal=INT",
            sys.executable,
            "-m",
            "fluxmq.cli.main",
            "--data-dir",
            str(running.path),
            "status",
            "--json",
            "--watch",
            "0.1",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with watched:
        assert watched.stdout is not None
        lines = [watched.stdout.readline() for _ in range(3)]
        watched.send_signal(signal.SIGINT)
        assert watched.wait(DEADLINE) == 0
    assert all(json.loads(line)["totals"]["sessions"] == 5 for line in lines)


def test_users_survive_sigkill_and_reach_shards_again(running, shard):
    running.ctl("user", "add", "ann", "--password-stdin", stdin="geheim")
    running.kill()
    until(lambda: not shard.client.established, "the shard notices")
    running.start()
    running.wait_ready()
    until(lambda: shard.client.established, "the shard is back")
    with ControlCaller(running.socket, DEADLINE) as caller:
        status = NodeStatus.from_body(caller.call(STATUS, {}))
    # The first user of a new node is revision 1.
    assert status.users_revision == 2
    assert "ann" in running.ctl("user", "list").stdout


def test_the_socket_is_private_and_refuses_other_versions(running):
    assert running.socket.stat().st_mode & 0o777 == 0o600
    with ControlCaller(running.socket, DEADLINE) as caller:
        caller._socket.sendall(encode_frame([2, HELLO, 1, {}]))
        with pytest.raises(CallError, match="version 2 is not 1"):
            caller.call(STATUS, {})
    with ControlCaller(running.socket, DEADLINE) as caller:
        with pytest.raises(CallError) as caught:
            caller.call("dance", {})
        assert caught.value.code == "unknown_kind"


def test_a_restarted_process_replaces_its_old_connection(running, shard):
    with ControlCaller(running.socket, DEADLINE) as caller:
        hello = ControlMessage(HELLO, 1, ProcessHello("shard", 0, os.getpid()).to_body())
        caller._socket.sendall(encode_frame(hello.to_wire()))
        until(lambda: not shard.client.established, "the older connection was ended")


def test_sigterm_ends_it_in_order(running):
    assert running.stop() == 0
    assert not running.table.ready(CONTROL)
    assert "control process stopped" in running.messages()
    # The database was closed, its log merged.
    assert not Path(f"{running.path / 'meta.db'}-wal").exists()
    shown = running.ctl("status")
    assert shown.returncode == 3
    added = running.ctl("user", "add", "bob", "--password-stdin", stdin="geheim")
    assert added.returncode == 0


def test_sighup_takes_over_the_log_level(running):
    log = running.settings.log
    quiet = replace_section(running.settings, "log", log.model_copy(update={"level": "error"}))
    write_settings(running.settings_fd, quiet.model_dump_json().encode())
    running.process.send_signal(signal.SIGHUP)
    until(lambda: quiet_now(running), "debug lines stop")
    assert running.process.poll() is None


def replace_section(settings, name, section):
    return settings.model_copy(update={name: section})


def quiet_now(node):
    """Cause a line at debug level and say whether it stayed away."""
    before = len(node.messages())
    with ControlCaller(node.socket, DEADLINE) as caller:
        hello = ControlMessage(HELLO, 1, ProcessHello("acceptor", 0, os.getpid()).to_body())
        caller._socket.sendall(encode_frame(hello.to_wire()))
        caller.call("ping", {})
    return len(node.messages()) == before


def test_without_http_everything_else_works(node):
    bare = replace_section(
        node.settings, "server", node.settings.server.model_copy(update={"http": None})
    )
    node.start(bare)
    node.wait_ready()
    with pytest.raises(urllib.error.URLError):
        node.get("/health")
    assert node.ctl("status").returncode == 0


def test_an_address_in_use_is_a_boot_failure_that_names_the_setting(node):
    with socket.socket() as other:
        other.bind(("127.0.0.1", node.port))
        other.listen()
        node.start()
        assert node.process.wait(DEADLINE) == EXIT_BOOT_FAILURE
    reason = f"server.http.addr: cannot listen on 127.0.0.1:{node.port}: Address already in use"
    assert reason in node.log.read_text()
    assert node.table.row(CONTROL).reason == reason


def test_a_database_that_cannot_be_used_is_a_boot_failure(node):
    (node.path / "meta.db").write_bytes(b"nonsense" * 100)
    node.start()
    assert node.process.wait(DEADLINE) == EXIT_BOOT_FAILURE
    assert "meta.db" in node.table.row(CONTROL).reason


def test_half_requests_do_not_keep_others_out(running):
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            half.sendall(b"GET /health HTTP/1.1\r\n")
        assert running.get("/health")[0] == 200
