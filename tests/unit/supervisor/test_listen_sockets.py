"""Opening listeners, and accepting when descriptors run out."""

import errno
import os
import resource
import socket
from typing import Any

import pytest

from fluxmq.net.accept import ASK, FAILED, NONE, Entrance
from fluxmq.settings.schema import Settings
from fluxmq.supervisor import listen_sockets
from fluxmq.supervisor.listen_sockets import ListenError, SpareDescriptor
from tests.broker import free_port


def settings(**mqtt: dict[str, Any]) -> Settings:
    return Settings.model_validate({"server": {"mqtt": mqtt}})


def test_every_client_listener_is_opened_and_no_other() -> None:
    ports = [free_port(), free_port(), free_port()]
    made = Settings.model_validate(
        {
            "server": {
                "mqtt": {
                    "tcp": {"addr": f"127.0.0.1:{ports[0]}", "max_connections": 7},
                    "websocket": {"addr": f"127.0.0.1:{ports[1]}", "connect_timeout": 3.0},
                },
                "http": {"addr": f"127.0.0.1:{ports[2]}"},
            }
        }
    )
    opened = listen_sockets.open_listeners(made)
    assert [(each.index, each.path) for each in opened] == [
        (0, "server.mqtt.tcp"),
        (2, "server.mqtt.websocket"),
    ]
    assert (opened[0].max_connections, opened[1].connect_timeout) == (7, 3.0)
    assert [each.sockets[0].getsockname()[1] for each in opened] == ports[:2]
    for each in opened:
        listen_sockets.close(each)


def test_an_address_in_use_is_named_and_nothing_stays_open() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port, other = taken.getsockname()[1], free_port()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ListenError) as error:
        listen_sockets.open_listeners(
            settings(tcp={"addr": f"127.0.0.1:{other}"}, websocket={"addr": f"127.0.0.1:{port}"})
        )
    assert str(error.value) == f"server.mqtt.websocket.addr: 127.0.0.1:{port} is already in use"
    assert len(os.listdir("/proc/self/fd")) == before
    taken.close()


def test_a_foreign_address_is_named() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:1883 is not an address of this machine"):
        listen_sockets.open_listeners(settings(tcp={"addr": "192.0.2.1:1883"}))


def test_a_name_stands_for_all_its_addresses() -> None:
    port = free_port()
    (opened,) = listen_sockets.open_listeners(settings(tcp={"addr": f"localhost:{port}"}))
    assert {sock.getsockname()[0] for sock in opened.sockets} <= {"127.0.0.1", "::1"}
    assert opened.sockets
    listen_sockets.close(opened)
    assert opened.sockets == []


def test_every_interface() -> None:
    port = free_port()
    (opened,) = listen_sockets.open_listeners(settings(tcp={"addr": f":{port}"}))
    with socket.create_connection(("127.0.0.1", port), 5):
        pass
    listen_sockets.close(opened)


def test_accepted_connections_are_ready_for_use() -> None:
    """What is set on a listening socket holds for its connections."""
    port = free_port()
    (opened,) = listen_sockets.open_listeners(settings(tcp={"addr": f"127.0.0.1:{port}"}))
    entrance = Entrance(100, [], 0)
    entrance.left = 2
    with socket.create_connection(("127.0.0.1", port), 5):
        assert entrance.take(opened.sockets[0], 0) == ASK
        with socket.socket(fileno=entrance.fd) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    listen_sockets.close(opened)


def test_without_descriptors_one_connection_is_shed_and_the_listener_told_to_rest() -> None:
    port = free_port()
    (opened,) = listen_sockets.open_listeners(settings(tcp={"addr": f"127.0.0.1:{port}"}))
    spare = SpareDescriptor()
    entrance = Entrance(100, [], 0)
    entrance.left = 10
    clients = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(2)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.dup(0)]
    while fillers[-1] <= highest:  # no holes below the limit
        fillers.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1, hard))
    try:
        for _ in range(2):  # the second time with a new spare
            assert entrance.take(opened.sockets[0], 0) == FAILED
            assert not listen_sockets.is_passing(entrance.error)
            spare.shed(opened.sockets[0], entrance.error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [client.recv(1) for client in clients] == [b"", b""]
    assert entrance.take(opened.sockets[0], 0) == NONE
    for client in clients:
        client.close()
    for filler in fillers:
        os.close(filler)
    spare.close()
    listen_sockets.close(opened)


def test_which_failures_of_accept_are_passing() -> None:
    assert listen_sockets.is_passing(errno.ECONNABORTED)
    assert not listen_sockets.is_passing(errno.EMFILE)
    assert not listen_sockets.is_passing(errno.EINVAL)
    spare = SpareDescriptor()
    with socket.socket() as sock, pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        spare.shed(sock, errno.EINVAL)
    spare.close()


def test_a_suspended_listener_refuses_connections_and_keeps_its_port() -> None:
    port = free_port()
    (listening,) = listen_sockets.open_listeners(
        settings(tcp={"addr": f"127.0.0.1:{port}", "backlog": 7})
    )
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
        listen_sockets.suspend(listening)
        assert listening.suspended
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))
        listen_sockets.resume(listening)
        assert (listening.suspended, listening.backlog) == (False, 7)
        socket.create_connection(("127.0.0.1", port), 5).close()
    finally:
        listen_sockets.close(listening)
