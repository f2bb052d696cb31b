"""Several hosts on one machine: a network namespace per node, one for the clients, and a bridge in one of its own.

A partition is made inside the namespaces: by a blackhole route, which the sender notices, or by a neighbour that is not
there, which nobody notices. Either on one side alone, too. Names begin with ``fx-``; what an earlier run that was killed
left behind is removed first, and a lock keeps two runs from meeting.

Sources: ip-netns(8), ip-route(8), ip-neighbour(8), setns(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from tests.powercut.image import NotPermittedError, tool

PREFIX = "fx-"
BRIDGE, CLIENTS = f"{PREFIX}bridge", f"{PREFIX}clients"
SUBNET = "10.77.0"
CLIENTS_HOST, BRIDGE_HOST = 200, 254
NOBODY = "02:00:00:00:00:01"
"""A hardware address that nobody has."""
LOCK = Path("/run/lock/fx-chaos.lock")
RUN = Path("/run/netns")
CLONE_NEWNET = 0x40000000
COMMAND_TIMEOUT_S = 30.0


class BusyError(NotPermittedError):
    """Another run has the namespaces."""


def _ip(*words: str) -> str:
    """``ip`` with these words. Raises ``NotPermittedError``."""
    command = [tool("ip"), *words]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if result.returncode:
        raise NotPermittedError(f"ip {' '.join(words)}: {result.stderr.strip()}")
    return result.stdout


def _enter(handle: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, CLONE_NEWNET):
        raise NotPermittedError(f"setns: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread is in that namespace meanwhile: sockets made now stay there. Nothing may be awaited in it."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(RUN / namespace, os.O_RDONLY)
    try:
        _enter(there)
        try:
            yield
        finally:
            _enter(before)
    finally:
        os.close(before)
        os.close(there)


def socket_in(namespace: str) -> socket.socket:
    """A TCP socket that is in that namespace for ever."""
    with inside(namespace):
        return socket.socket()


def address(host: int) -> str:
    """The address of a host by its number."""
    return f"{SUBNET}.{host}"


def namespace_of(node: int) -> str:
    """The namespace of a node, which are counted from 1."""
    return f"{PREFIX}n{node}"


def prefix_of(node: int) -> tuple[str, ...]:
    """What stands before a command to run it at a node: it becomes the command, in this mount namespace."""
    return (tool("nsenter"), f"--net={RUN / namespace_of(node)}", "--")


class Network:
    """``nodes`` hosts with the addresses .1, .2, ... and the clients' host, all on one bridge. A context manager.

    ``aliases``: further numbers of hosts whose addresses are the bridge's own, for proxies.
    """

    def __init__(self, nodes: int, aliases: Sequence[int] = ()) -> None:
        """Make it. Raises ``NotPermittedError`` where that is not allowed, ``BusyError`` where another has it."""
        if os.geteuid() != 0:
            raise NotPermittedError("network namespaces need root")
        self.nodes = range(1, nodes + 1)
        self._lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        self._blocked: set[tuple[int, int, bool]] = set()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise BusyError("another chaos run has the network namespaces") from None
        try:
            remove_all()
            self._make(aliases)
        except BaseException:
            self.close()
            raise

    def _make(self, aliases: Sequence[int]) -> None:
        _ip("netns", "add", BRIDGE)
        _ip("-n", BRIDGE, "link", "set", "lo", "up")
        _ip("-n", BRIDGE, "link", "add", "br0", "type", "bridge")
        for host in (BRIDGE_HOST, *aliases):
            _ip("-n", BRIDGE, "address", "add", f"{address(host)}/24", "dev", "br0")
        _ip("-n", BRIDGE, "link", "set", "br0", "up")
        self._host(CLIENTS, CLIENTS_HOST)
        for node in self.nodes:
            self._host(namespace_of(node), node)

    def _host(self, name: str, host: int) -> None:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        other = f"v{host}"
        pair = ("link", "add", "eth0", "type", "veth", "peer", "name", other, "netns", BRIDGE)
        _ip("-n", name, *pair)
        _ip("-n", name, "address", "add", f"{address(host)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", BRIDGE, "link", "set", other, "master", "br0", "up")

    # --- partitions --------------------------------------------------------------------------------------------

    def block(self, node: int, host: int, silently: bool) -> None:
        """Let nothing of a node's reach a host. ``silently``: it is sent, and arrives nowhere."""
        if (node, host, silently) in self._blocked:
            return
        self._blocked.add((node, host, silently))
        name = namespace_of(node)
        if silently:
            words = ("neighbour", "replace", address(host), "lladdr", NOBODY, "dev", "eth0")
            _ip("-n", name, *words, "nud", "permanent")
        else:
            _ip("-n", name, "route", "replace", "blackhole", f"{address(host)}/32")

    def unblock(self, node: int, host: int) -> None:
        """Let a node's packets reach a host again."""
        for silently in (False, True):
            if (node, host, silently) not in self._blocked:
                continue
            self._blocked.discard((node, host, silently))
            name = namespace_of(node)
            if silently:
                _ip("-n", name, "neighbour", "delete", address(host), "dev", "eth0")
            else:
                _ip("-n", name, "route", "delete", "blackhole", f"{address(host)}/32")

    def heal(self) -> None:
        """Let everything pass again."""
        for node, host, _ in list(self._blocked):
            self.unblock(node, host)

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove the namespaces, and with them every link."""
        try:
            remove_all()
        finally:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_all() -> None:
    """Remove every namespace of ours and end what still runs in them. Only who holds the lock may."""
    names = [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]
    for name in names:
        if not name.startswith(PREFIX):
            continue
        for pid in _ip("netns", "pids", name).split():
            if int(pid) != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "delete", name)
