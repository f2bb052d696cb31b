"""Messages of the supervisor to systemd."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.supervisor.service_manager import ServiceManager


class Listener:
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        """The messages that have come."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """A socket with a path."""
    made = Listener(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def test_it_is_told_of_every_change(listener: Listener) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": listener.socket.getsockname()}, 1)
    manager.serving()
    manager.reloading(5_000_000)
    manager.stopping()
    manager.close()
    assert listener.heard() == [
        "READY=1\nSTATUS=Serving",
        "RELOADING=1\nMONOTONIC_USEC=5000",
        "STOPPING=1\nSTATUS=Stopping",
    ]


def test_signs_of_life_come_twice_as_often_as_is_asked_for(listener: Listener) -> None:
    address = listener.socket.getsockname()
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "7"}
    manager = ServiceManager(environment, 7)
    manager.serving()
    listener.heard()
    for now in (10.0, 10.5, 10.9, 11.0, 11.25):
        manager.alive(now)
    assert manager.due == 12.0, "the supervisor wakes for it"
    manager.close()
    assert listener.heard() == ["WATCHDOG=1"] * 2
    other = ServiceManager(environment, 8)
    other.serving()
    listener.heard()
    other.alive(10.0)
    assert other.due is None
    other.close()
    assert listener.heard() == [], "they are asked of another process"


def test_more_time_is_asked_for_while_the_node_starts_and_stops(listener: Listener) -> None:
    """Recovery takes as long as it needs, and a stop as long as settings allow: both may exceed the unit's time-outs."""
    manager = ServiceManager({"NOTIFY_SOCKET": listener.socket.getsockname()}, 1)
    for now in (100.0, 100.25, 109.75, 110.0):
        manager.alive(now)
    assert manager.due == 120.0, "the supervisor wakes for it"
    assert listener.heard() == ["EXTEND_TIMEOUT_USEC=30000000"] * 2
    manager.serving()
    listener.heard()
    assert manager.due is None
    manager.alive(120.0)
    assert listener.heard() == []
    manager.stopping()
    listener.heard()
    for now in (120.25, 120.5, 130.25):
        manager.alive(now)
    manager.close()
    assert listener.heard() == ["EXTEND_TIMEOUT_USEC=30000000"] * 2


def test_an_address_may_have_no_path() -> None:
    listener = Listener("\0fluxmq-test-notify")
    manager = ServiceManager({"NOTIFY_SOCKET": "@fluxmq-test-notify"}, 1)
    manager.serving()
    manager.close()
    assert len(listener.heard()) == 1
    listener.socket.close()


def test_a_manager_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "absent")}, 1)
    manager.serving()
    manager.close()
    nobody = ServiceManager({}, 1)
    nobody.serving()
    nobody.close()
