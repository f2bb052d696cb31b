"""What the nodes of a run are configured with, and what their queues are."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.chaos.network import address
from tests.chaos.records import Group, Queue
from tests.powercut.image import tool
from tests.powercut.node import busy_storage

MQTT, AMQP, HTTP = 1883, 5672, 8080
TRANSPORT, DEFAULT, HOT = 17_948, 17_100, 17_200
ETCD_MEMBERS, ETCD_CLIENTS = 2380, 2379
"""Ports, the same on every node."""

RAFT_PORTS = (DEFAULT, HOT)
PEER_PORTS = (TRANSPORT, *RAFT_PORTS)
HEARTBEAT_S, ELECTION_S, ACK_TIMEOUT_S = 0.15, 1.0, 5.0
TICK_S = 3.0
"""After which the leader of a mirrored queue does without a mirror that is connected and silent."""
PROMOTION_S = 15.0
"""In which another mirror leads after a node has ended: its lease in etcd ends after ten seconds. Publishers wait for that, and
`TICK_S` more."""
VISIBILITY_S = 20.0
"""After which a message whose consumer is silent goes to another."""

WORK, QUORUM, STREAM, DECLARED = "chaos-work", "chaos-hot", "chaos-stream", "chaos-declared"
MIRRORED, KEPT = "chaos-mirrored", "chaos-kept"
"""Mirrored queues: one that is consumed all the time, and one that keeps everything until nothing more is published."""
BOTH = "chaos/both"
"""What is published to this topic goes to two queues, in two groups."""
AMQP_GROUP = "(amqp)"
"""Stands for the consumers of AMQP, whose group has no name."""
WORKERS, TAIL, UNDERTAKERS = "workers", "tail", "undertakers"


def queues(declared: bool, dead_letters: bool) -> tuple[Queue, ...]:
    """The queues of a run. ``declared``: one more, which AMQP clients declare."""
    amqp = Group(AMQP_GROUP, False)
    found = [
        Queue(
            *(WORK, "classic", "default", (Group(WORKERS, False), amqp)),
            f"$dlq/{WORK}" if dead_letters else "",
        ),
        Queue(QUORUM, "quorum", "hot", (Group(WORKERS, True), amqp), ""),
        Queue(STREAM, "stream", "default", (Group(TAIL, True),), ""),
    ]
    if declared:
        found.append(Queue(DECLARED, "quorum", "default", (amqp,), ""))
    return tuple(found)


def mirrored_queues(offsets: bool) -> tuple[Queue, ...]:
    """The queues of a run with mirrored queues. ``offsets``: an MQTT group, which is told them, is one of the readers."""
    amqp = Group(AMQP_GROUP, False)
    groups = (Group(WORKERS, True), amqp) if offsets else (amqp,)
    return (
        Queue(MIRRORED, "classic", "mirrored", groups, ""),
        Queue(KEPT, "classic", "mirrored", (amqp,), ""),
    )


def peer_host(node: int, other: int, proxied: bool) -> int:
    """The number of the host at which a node finds another: itself, or the proxy between the two."""
    return 100 + 10 * node + other if proxied else other


def aliases(nodes: int) -> list[int]:
    """The numbers of all proxies' hosts."""
    numbers = range(1, nodes + 1)
    return [peer_host(one, two, True) for one in numbers for two in numbers if one != two]


def node_settings(
    node: int,
    nodes: int,
    data: Path,
    *,
    mode: str,
    proxied: bool,
    certificates: Path | None,
    dead_letters: bool,
    checkpoint_interval: str,
) -> dict[str, Any]:
    """The configuration of one node; of a node alone where there is one."""
    own = address(node)
    settings: dict[str, Any] = {
        "server": {
            "mqtt": {"tcp": {"addr": f"{own}:{MQTT}"}},
            "amqp": {"tcp": {"addr": f"{own}:{AMQP}"}},
            "http": {"addr": f"127.0.0.1:{HTTP}"},
        },
        "auth": {
            "anonymous": {"allow": "always"},
            "loopback_users": [],
            # After a fault all clients log in at once: what hashing costs is not what is looked at.
            "argon2": {"time_cost": 1, "memory_cost": "8KiB"},
        },
        "ratelimit": {"connection": {"enabled": False}},
        "broker": {"max_packet_size": 1 << 15},
        "session": {"max_inflight_messages": 65_535},
        "queue_manager": {
            "uncommitted_bytes": 1 << 18,
            "cache_bytes": 1 << 16,
            "auto_commit_interval": "1s",
        },
        "storage": {
            **busy_storage(data),
            "checkpoint_interval": checkpoint_interval,
            "queue_sync_interval": "1s",
        },
        "log": {"level": "info", "format": "text"},
        "queues": [_queue(queue) for queue in queues(False, dead_letters)],
        "cluster": {
            "raft": {"enabled": True, "groups": {"hot": {"bind_addr": f"127.0.0.1:{HOT}"}}}
        },
    }
    if nodes > 1:
        others = {f"node{n}": address(peer_host(node, n, proxied)) for n in range(1, nodes + 1)}
        del others[f"node{node}"]
        settings["cluster"] = _cluster(node, own, others, nodes, mode, certificates)
    return settings


def _cluster(
    node: int, own: str, others: dict[str, str], nodes: int, mode: str, certificates: Path | None
) -> dict[str, Any]:
    def at(port: int) -> dict[str, Any]:
        peers = {name: f"{host}:{port}" for name, host in others.items()}
        return {"bind_addr": f"{own}:{port}", "peers": peers}

    transport: dict[str, Any] = at(TRANSPORT)
    if certificates is None:
        transport["allow_plaintext"] = True
    else:
        transport["tls_enabled"] = True
        transport["tls_cert_file"] = str(certificates / f"node{node}.pem")
        transport["tls_key_file"] = str(certificates / f"node{node}.key")
        transport["tls_ca_file"] = str(certificates / "ca.pem")
    raft = {
        **at(DEFAULT),
        "enabled": True,
        "replication_factor": nodes,
        "min_in_sync_replicas": 2,
        "distribution_mode": mode,
        "ack_timeout": f"{ACK_TIMEOUT_S:g}s",
        "heartbeat_timeout": f"{HEARTBEAT_S * 1e3:g}ms",
        "election_timeout": f"{ELECTION_S:g}s",
        "snapshot_interval": "5s",
        "snapshot_threshold": 500,
        "groups": {"hot": at(HOT)},
    }
    scheme = "http" if certificates is None else "https"
    members = {f"node{n}": f"{scheme}://{address(n)}:{ETCD_MEMBERS}" for n in range(1, nodes + 1)}
    etcd = {
        # Not by way of the proxies: all members have to name the same addresses.
        "bind_addr": f"{own}:{ETCD_MEMBERS}",
        "client_addr": f"127.0.0.1:{ETCD_CLIENTS}",
        "initial_cluster": ",".join(f"{name}={url}" for name, url in members.items()),
    }
    return {
        "enabled": True,
        "net_ticktime": f"{TICK_S:g}s",
        "node_id": f"node{node}",
        "transport": transport,
        "raft": raft,
        "etcd": etcd,
    }


def _queue(queue: Queue) -> dict[str, Any]:
    consumer = {
        "visibility_timeout": f"{VISIBILITY_S:g}s",
        "delivery_limit": -1,
        "max_unsettled": 20_000,
    }
    found: dict[str, Any] = {
        "name": queue.name,
        "type": queue.kind,
        "topics": [] if queue.kind == "stream" else [BOTH],
        "limits": {"max_depth": 0 if queue.kind == "stream" else 10_000_000},
        "replication": {"enabled": True, "group": queue.group},
    }
    if queue.kind != "stream":
        found["consumer"] = consumer
    if queue.dead_letters:
        found["dlq"] = {"enabled": True}
    return found


def make_certificates(folder: Path, nodes: int) -> None:
    """An authority and a certificate for each node, which names it. Raises ``NotPermittedError``."""
    openssl = tool("openssl")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def run(*words: str) -> None:
        command = [openssl, *words]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)

    authority = ("-subj", "/CN=fluxmq chaos", "-keyout", "ca.key", "-out", "ca.pem", "-days", "30")
    run(*new, "-x509", *authority)
    for node in range(1, nodes + 1):
        name = f"node{node}"
        files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        run(*new, "-subj", f"/CN={name}", *files)
        # Members of etcd know each other by addresses.
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{name},IP:{address(node)}\n")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30")
        out = ("-in", f"{name}.csr", "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        run("x509", "-req", *signing, *out)
