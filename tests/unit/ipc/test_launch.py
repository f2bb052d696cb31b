"""How a child learns what it is: the launch description, the settings frame, the parent's death."""

import os
import signal
import subprocess
import sys
import threading
import time

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


def test_a_launch_description() -> None:
    described = example()
    assert described.descriptors() == [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert described.process_name == "shard-1"
    assert str(described.control_socket) == "/tmp/run/control.sock"


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
    assert table.row(1).reason == "the address is taken"
    assert "the address is taken" in capsys.readouterr().err
    table.close()
    os.close(table.fd)


PARENT = """
import os, subprocess, sys
from fluxmq.ipc import launch
child = "import sys, time; from fluxmq.ipc import launch; launch.die_with_parent(int(sys.argv[1])); print('bound', flush=True); time.sleep(60)"
command = [sys.executable, "-c", child, str(os.getpid() + int(sys.argv[1]))]
process = subprocess.Popen(command, stdout=subprocess.PIPE)
print(process.pid, flush=True)
print((process.stdout.readline() or b"gone").decode().strip(), flush=True)
process.wait()
"""


def start_parent(offset: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(offset)], stdout=subprocess.PIPE, text=True
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
    with start_parent(1) as parent:  # the child is given a parent that is not the real one
        assert parent.stdout is not None
        parent.stdout.readline()
        assert parent.stdout.readline() == "gone\n"
        assert parent.wait(10) == 0
