"""Hosts in namespaces: they reach each other until a partition, of either kind and on either side, is made."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.network import (
    CLIENTS,
    CLIENTS_HOST,
    BusyError,
    Network,
    address,
    inside,
    namespace_of,
    socket_in,
)
from tests.powercut.image import NotPermittedError

PORT = 7000


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        made = Network(2, aliases=(112,))
    except NotPermittedError as error:
        pytest.skip(f"no network namespaces here: {error}")
    with made:
        yield made


def reaches(namespace: str, host: int) -> bool:
    """Whether a connection to a listener at a host's address comes about, and brings a byte back."""
    listener = socket_in(CLIENTS if host == CLIENTS_HOST else namespace_of(host))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client = socket_in(namespace)
    with listener, client:
        listener.bind((address(host), PORT))
        listener.listen()
        listener.settimeout(0.3)
        client.settimeout(0.3)

        def answer() -> None:
            try:
                made, _ = listener.accept()
            except OSError:
                return
            with made:
                made.sendall(b"x")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            client.connect((address(host), PORT))
            return client.recv(1) == b"x"
        except OSError:
            return False
        finally:
            thread.join()


@pytest.mark.parametrize("silently", [False, True])
def test_a_partition_cuts_off_and_heals(network: Network, silently: bool) -> None:
    assert reaches(namespace_of(1), 2)
    network.block(1, 2, silently)
    assert not reaches(namespace_of(1), 2)
    assert not reaches(namespace_of(2), 1), "no answer arrives"
    assert reaches(CLIENTS, 1)
    assert reaches(namespace_of(1), CLIENTS_HOST)
    network.heal()
    assert reaches(namespace_of(1), 2)
    assert reaches(namespace_of(2), 1)


def test_sockets_are_where_they_were_made(network: Network) -> None:
    with inside(CLIENTS), socket.socket() as client:
        client.settimeout(1.0)
        with pytest.raises(ConnectionRefusedError):
            client.connect((address(1), PORT + 1))
        with inside(namespace_of(1)), socket.socket() as listener:
            listener.bind((address(1), PORT + 1))
            listener.listen()
            with socket.socket() as near:
                near.connect((address(1), PORT + 1))
                assert near.getpeername() == (address(1), PORT + 1)


def test_two_runs_do_not_meet(network: Network) -> None:
    with pytest.raises(BusyError):
        Network(1)
