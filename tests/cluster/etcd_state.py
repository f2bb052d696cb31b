"""Which node of a cluster with etcd coordinates it."""

from __future__ import annotations

import urllib.request

from tests.broker import HOST
from tests.cluster.nodes import Cluster, Node
from tests.conformance.client import eventually

PATIENCE = 60


def metrics(node: Node, prefix: str) -> dict[str, float]:
    """Values of a node's metrics without labels."""
    with urllib.request.urlopen(f"http://{HOST}:{node.http_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    found = (line.split() for line in lines if line.startswith(prefix))
    return {name: float(value) for name, value in found}


def coordinator(cluster: Cluster) -> Node:
    """The one node that coordinates, once all that are up know of it."""

    def found() -> Node | None:
        up = [node for node in cluster.nodes if node.up]
        told = [metrics(node, "fluxmq_etcd_") for node in up]
        if not all(each.get("fluxmq_etcd_reachable") for each in told):
            return None
        leading = [node for node, each in zip(up, told, strict=True) if each["fluxmq_etcd_leader"]]
        return leading[0] if len(leading) == 1 else None

    node: Node = eventually(found, "one node coordinates", PATIENCE)
    return node
