"""Every address that a node opens with these settings, and the sentence when two are the same.
Pure.

Used by the checks of a file, and by ``plans`` when it derives the address of a group that has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fluxmq.settings.schema import Settings
from fluxmq.settings.section import Section
from fluxmq.settings.values import addresses_clash, split_address

SHARD_PORTS: Final = 64
"""Ports reserved for the node's shards, one each, from that of cluster.transport.bind_addr upwards.
The command line sets the number of shards, so the file leaves room for as many as one machine
runs."""


class ListenAddress(NamedTuple):
    """An address that this node opens. ``path``: the key that names it; ``ports``: consecutive
    ports, the address's own first."""

    path: str
    address: str
    ports: int = 1


def shifted(address: str, ports: int) -> str:
    """Return the address with the port raised by ``ports``. Raises ValueError when that is not a
    port."""
    host, _, port = address.rpartition(":")
    moved = f"{host}:{int(port) + ports}"
    split_address(moved)
    return moved


def listen_addresses(settings: Settings) -> Iterator[ListenAddress]:
    """Yield every address that the file names for this node; of a disabled cluster only those
    given."""
    for path, endpoint in settings.endpoints():
        yield ListenAddress(f"{path}.addr", endpoint.addr)
    cluster = settings.cluster

    def given(section: Section, name: str, needed: bool) -> bool:
        return needed or name in section.model_fields_set

    etcd = cluster.etcd
    if etcd is not None and not etcd.endpoints:
        for name in ("bind_addr", "client_addr"):
            if given(etcd, name, cluster.enabled):
                yield ListenAddress(f"cluster.etcd.{name}", getattr(etcd, name))
    if given(cluster.transport, "bind_addr", cluster.enabled):
        ports = SHARD_PORTS if cluster.enabled else 1
        yield ListenAddress("cluster.transport.bind_addr", cluster.transport.bind_addr, ports)
    if given(cluster.raft, "bind_addr", cluster.enabled and cluster.raft.enabled):
        yield ListenAddress("cluster.raft.bind_addr", cluster.raft.bind_addr)
    for name, group in cluster.raft.groups.items():
        # cluster.raft is the default group, so repeating its address is not a second claim.
        same = name == "default" and group.bind_addr == cluster.raft.bind_addr
        if group.bind_addr is not None and not same:
            yield ListenAddress(f"cluster.raft.groups.{name}.bind_addr", group.bind_addr)


def listen_addresses_of_others(settings: Settings) -> Iterator[ListenAddress]:
    """Yield every address that the file names for the other nodes of its cluster."""
    cluster = settings.cluster
    for node, address in cluster.transport.peers.items():
        yield ListenAddress(f"cluster.transport.peers.{node}", address, SHARD_PORTS)
    for node, address in cluster.raft.peers.items():
        yield ListenAddress(f"cluster.raft.peers.{node}", address)
    for name, group in cluster.raft.groups.items():
        for node, address in group.peers.items():
            if name != "default" or cluster.raft.peers.get(node) != address:
                yield ListenAddress(f"cluster.raft.groups.{name}.peers.{node}", address)


def clash(listen_address: ListenAddress, taken: Iterable[ListenAddress]) -> str:
    """Describe which taken address the claim clashes with, as the end of a sentence; empty if
    none."""
    for other in taken:
        shared = _shared(listen_address, other)
        if shared is None:
            continue
        if other.ports > 1:
            return (
                f"{shared} clashes with {other.path}, which is {other.address}"
                f" and takes {other.ports} ports, one for each shard"
            )
        return f"{shared} clashes with {other.path}, which is {other.address}"
    return ""


def _shared(one: ListenAddress, other: ListenAddress) -> str | None:
    """Return the first address of one claim that the other takes too."""
    first, port = split_address(one.address)[1], split_address(other.address)[1]
    low, high = max(first, port), min(first + one.ports, port + other.ports)
    if low >= high:
        return None
    mine, theirs = shifted(one.address, low - first), shifted(other.address, low - port)
    return mine if addresses_clash(mine, theirs) else None
