"""How a child learns what it is: the launch description, the settings frame, the parent's death."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from fluxmq.ipc import launch
from fluxmq.ipc.table import ProcessTable
from fluxmq.net.link_ends import LinkEnds


def example() -> launch.Launch:
    return launch.Launch(
        role="shard",
        index=1,
        workers=3,
        parent_pid=os.getpid(),
        slot=1,
        settings_fd=7,
        table_fd=8,
        run_dir="/tmp/run",
        data_dir="/tmp/data",
        handoff_fds=[9],
        links=[LinkEnds(0, 10, 11), LinkEnds(2, 12, 13)],
        link_kind="ring",
        ring_bytes=4096,
        wake_fds=[14, 15, 16],
        cores=[1],
        pins={"orders": 1},
    )


def test_launch_survives_the_environment() -> None:
    described = example()
    assert launch.from_environment({launch.ENVIRONMENT_KEY: described.to_json()}) == described
    assert described.descriptors() == [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert described.process_name == "shard-1"
    assert str(described.control_socket) == "/tmp/run/control.sock"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"links": [1]}', '{"links": [], "role": 1}'])
def test_malformed_launch_is_refused(text: str) -> None:
    with pytest.raises(launch.LaunchError, match="malformed"):
        launch.Launch.from_json(text)


def test_a_child_not_started_by_a_supervisor_says_so() -> None:
    with pytest.raises(launch.LaunchError, match="fluxmq-supervisor"):
        launch.from_environment({})


def test_a_standby_gets_description_and_descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipes = [os.pipe() for _ in range(140)]  # more descriptors than one message takes
    fds = [fd for pipe in pipes for fd in pipe]
    sent = replace(
        example(),
        settings_fd=fds[0],
        table_fd=fds[1],
        handoff_fds=[fds[2]],
        links=[LinkEnds(0, fds[3], fds[4]), LinkEnds(2, fds[5], fds[5])],
        wake_fds=fds[6:],
    )
    with ours:
        launch.send_launch(ours, sent)
        received = launch.from_environment({launch.STANDBY_KEY: str(theirs.detach())})
    assert len(received.descriptors()) == len(fds)
    assert not set(received.descriptors()) & set(fds)
    assert received.links[1].send_fd == received.links[1].receive_fd
    os.write(received.table_fd, b"through")
    assert os.read(fds[0], 10) == b"through"
    for theirs_fd, ours_fd in zip(
        sent.descriptors(), received_in_order(received, sent), strict=True
    ):
        assert os.fstat(theirs_fd).st_ino == os.fstat(ours_fd).st_ino
        assert not os.get_inheritable(ours_fd)
    for fd in {*fds, *received.descriptors()}:
        os.close(fd)


def received_in_order(received: launch.Launch, sent: launch.Launch) -> list[int]:
    """The received descriptors, in the order of the sent ones' numbers."""
    pairs = {
        sent.settings_fd: received.settings_fd,
        sent.table_fd: received.table_fd,
        sent.handoff_fds[0]: received.handoff_fds[0],
        **dict(zip(sent.wake_fds, received.wake_fds, strict=True)),
    }
    for theirs, ours in zip(sent.links, received.links, strict=True):
        pairs |= {theirs.send_fd: ours.send_fd, theirs.receive_fd: ours.receive_fd}
    return [pairs[fd] for fd in sent.descriptors()]


def test_a_standby_whose_supervisor_is_gone_ends() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with pytest.raises(SystemExit) as exit_info:
        launch.from_environment({launch.STANDBY_KEY: str(theirs.detach())})
    assert exit_info.value.code == 0


def test_settings_can_be_replaced_while_others_read() -> None:
    fd = os.memfd_create("settings")
    payloads = [bytes([letter]) * size for letter, size in ((65, 10), (66, 90_000), (67, 500))]
    launch.write_settings(fd, payloads[0])
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            for payload in payloads:
                launch.write_settings(fd, payload)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(200):
            assert launch.read_settings(fd) in payloads
    finally:
        stop.set()
        writer.join()
    os.close(fd)


def test_damaged_settings_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SETTINGS_READ_SECONDS", 0.01)
    fd = os.memfd_create("settings")
    with pytest.raises(launch.LaunchError):
        launch.read_settings(fd)
    launch.write_settings(fd, b"{}")
    os.pwrite(fd, b"!", 9)
    with pytest.raises(launch.LaunchError, match="damaged"):
        launch.read_settings(fd)
    os.close(fd)


def test_settings_are_bounded() -> None:
    fd = os.memfd_create("settings")
    with pytest.raises(launch.LaunchError, match="more than"):
        launch.write_settings(fd, bytes(launch.SETTINGS_BYTES_MAX + 1))
    os.close(fd)


def test_fail_boot_leaves_the_reason_in_both_places(capsys: pytest.CaptureFixture[str]) -> None:
    table = ProcessTable.create(2)
    with pytest.raises(SystemExit) as exit_info:
        launch.fail_boot("the address is taken", table, 1)
    assert exit_info.value.code == launch.EXIT_BOOT_FAILURE
    assert table.reason(1) == "the address is taken"
    assert "the address is taken" in capsys.readouterr().err
    table.close()
    os.close(table.fd)


PARENT = """
import os, subprocess, sys
from dataclasses import replace
from fluxmq.ipc import launch
child = "from fluxmq.ipc import launch; launch.bind_to_parent(); print('bound', flush=True); import time; time.sleep(60)"
described = launch.Launch.from_json(os.environ[launch.ENVIRONMENT_KEY])
described = replace(described, parent_pid=os.getpid() + int(sys.argv[1]))
os.environ[launch.ENVIRONMENT_KEY] = described.to_json()
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
print(process.pid, flush=True)
print((process.stdout.readline() or b"gone").decode().strip(), flush=True)
process.wait()
"""


def start_parent(offset: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(offset)],
        env={**os.environ, launch.ENVIRONMENT_KEY: example().to_json()},
        stdout=subprocess.PIPE,
        text=True,
    )


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_dies_with_its_parent() -> None:
    with start_parent(0) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.stdout.readline() == "bound\n"
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 10
        while alive(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_child_whose_parent_is_already_gone_does_not_start() -> None:
    with start_parent(1) as parent:  # the description names a parent that is not the real one
        assert parent.stdout is not None
        parent.stdout.readline()
        assert parent.stdout.readline() == "gone\n"
        assert parent.wait(10) == 0
