"""What the kernel tells of a socket."""

from __future__ import annotations

import os
import socket

from fluxmq.net.socket_figures import NOTHING, figures_of_socket


def test_bytes_of_a_connection_are_those_of_the_kernel() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as client:
        server, _ = listening.accept()
        with server:
            assert figures_of_socket(server.fileno())[2:] == (0, 0)
            client.sendall(b"x" * 100)
            server.sendall(b"y" * 70_000)
            assert server.recv(100, socket.MSG_WAITALL) == b"x" * 100
            assert len(client.recv(70_000, socket.MSG_WAITALL)) == 70_000
            assert figures_of_socket(server.fileno()) == (*listening.getsockname(), 100, 70_000)
            server.sendall(b"still open")


def test_nothing_is_told_of_what_is_no_tcp_socket() -> None:
    one, other = socket.socketpair()
    reading, writing = os.pipe()
    with one, other:
        assert figures_of_socket(one.fileno()) == NOTHING
        one.sendall(b"still open")
    assert figures_of_socket(reading) == NOTHING
    for each in (reading, writing):
        os.close(each)
    assert figures_of_socket(reading) == NOTHING, "closed"
    assert figures_of_socket(-1) == NOTHING
