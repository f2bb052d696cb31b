"""The founding documents' two examples start as they stand, with the listeners of a node started without a file."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.broker import HOST, REPOSITORY
from tests.conformance.client import Client, eventually, tcp
from tests.etcd import program

CLONE_NEWNET = 0x40000000
PATIENCE = 60


def isolate() -> None:
    """Give this thread, and what it starts, a network of its own, in which every port is free."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        pytest.skip(f"unshare: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def is_ready() -> bool:
    url = f"http://{HOST}:15672/ready"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.02)  # nobody listens yet, so asking takes no time
        return False


def serve(config: Path) -> None:
    """Start a node with a settings file, use it, and stop it."""
    isolate()
    command = [sys.executable, "-m", "fluxmq.supervisor.main", "--workers", "1"]
    process = subprocess.Popen([*command, "--config", config], cwd=config.parent)
    try:
        eventually(is_ready, "the node is ready", PATIENCE)
        with Client(tcp(HOST, 1883), 5) as client:
            client.connect("somebody")
            client.publish("plant/state", b"on", qos=1, retain=1)
            client.subscribe("plant/#", qos=1)
            assert client.receive().payload == b"on"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["founding-cluster.yaml", "founding-raft-groups.yaml"])
def test_a_founding_example_starts(tmp_path: Path, name: str) -> None:
    """S1-01, S1-02, S1-03, S1-04, S1-07, S1-20: only the directory is another one."""
    if "cluster" in name:
        program()
    config = tmp_path / name
    text = (REPOSITORY / "config" / name).read_text()
    config.write_text(text.replace("/tmp/fluxmq", str(tmp_path / "elsewhere")))
    with ThreadPoolExecutor(1) as alone:
        alone.submit(serve, config).result()
