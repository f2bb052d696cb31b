"""Completion of a settings file: listeners for one that has no ``server`` section, and loopback for
the addresses of a cluster that is one node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fluxmq.settings.clustering import ClusterSettings, Etcd, Raft, address_of
from fluxmq.settings.decode import parse
from fluxmq.settings.values import split_address

DEFAULT_CONFIG: Final = Path(__file__).with_name("default.yaml")
"""Settings of a node started without a file: everything on loopback, data in ./data."""

_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})
"""Hosts that stand for every interface of a machine."""


def add_listeners(data: dict[str, Any]) -> None:
    """Give plain values without a ``server`` section the listeners of a node that is started without
    a file, in place. A section that names no listener is left as it is."""
    if "server" not in data:
        defaults, problems = parse(DEFAULT_CONFIG.read_text("utf-8"), {})
        assert not problems, "the package's own file is valid"
        data["server"] = defaults["server"]


def confined(cluster: ClusterSettings) -> ClusterSettings:
    """Return the settings with loopback in place of every interface where no other node could
    connect: in a cluster that names this node alone and has no TLS."""
    if not cluster.confined:
        return cluster
    transport, etcd, raft = cluster.transport, cluster.etcd, cluster.raft
    update: dict[str, Any] = {
        "transport": transport.model_copy(update={"bind_addr": _loopback(transport.bind_addr)}),
        "raft": _confined_raft(raft),
    }
    if etcd is not None:
        update["etcd"] = _confined_etcd(etcd)
    return cluster.model_copy(update=update)


def _confined_etcd(etcd: Etcd) -> Etcd:
    update = {"bind_addr": _loopback(etcd.bind_addr), "client_addr": _loopback(etcd.client_addr)}
    if etcd.initial_cluster is not None:
        name, _, url = etcd.initial_cluster.strip().partition("=")
        address = _loopback(address_of(url))
        update["initial_cluster"] = f"{name}={url.partition('://')[0]}://{address}"
    return etcd.model_copy(update=update)


def _confined_raft(raft: Raft) -> Raft:
    groups = {
        name: group
        if group.bind_addr is None
        else group.model_copy(update={"bind_addr": _loopback(group.bind_addr)})
        for name, group in raft.groups.items()
    }
    return raft.model_copy(update={"bind_addr": _loopback(raft.bind_addr), "groups": groups})


def _loopback(address: str) -> str:
    host, port = split_address(address)
    return f"127.0.0.1:{port}" if host in _WILDCARDS else address
