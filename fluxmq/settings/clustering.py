"""The ``cluster`` section: other nodes, and the replication groups that hold replicated queues.

The keys are fixed by the founding documents and load as they stand there. What of them this version cannot do is said
by ``checks.refusals``, which stops a start, and ``checks.notes``, which does not. What they come to for one group is
settled in ``plans``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from fluxmq.settings.section import Section
from fluxmq.settings.values import Address, Duration, FilePath, Size, split_address

Timeout = Annotated[Duration, Field(ge=0.001, le=3600)]
Replicas = Annotated[int, Field(ge=1, le=10)]


def check_name(text: str) -> str:
    """The name itself. Names stand in file names, keys of the metadata store and topics, so they stay simple.

    Raises ValueError with a sentence for the user.
    """
    allowed = text.isascii() and text.replace("-", "").replace("_", "").replace(".", "").isalnum()
    if not allowed or len(text) > 128 or text.startswith("."):
        raise ValueError("is not a name; use up to 128 letters, digits, - _ and .")
    return text


def _members(text: str) -> str:
    """``name=http://host:port`` for each member, separated by commas, as etcd writes it."""
    for member in text.split(","):
        name, equals, url = member.strip().partition("=")
        scheme, found, address = url.partition("://")
        if not (name and equals and found and scheme in ("http", "https")):
            raise ValueError(
                "is not a member list; write name=http://host:port, with commas between"
            )
        split_address(address.rstrip("/"))
    return text


OWN_GROUP_PREFIXES = ("local-", "buffered-", "ephemeral-")
"""Names of the groups that hold this node's own queues begin so; no other group's may."""

DEFAULT_GROUP: Final = "default"
"""The group of queues that name none; cluster.raft itself is its section."""

META_GROUP: Final = "_meta"
"""The group in which the nodes of a cluster agree on exchanges, queues, bindings, policies, vhosts and users."""

Name = Annotated[str, AfterValidator(check_name)]


class Etcd(Section):
    """The embedded etcd member: the cluster's metadata."""

    data_dir: str | None = None
    """Directory of the member; without it, etcd below storage.data_dir."""
    bind_addr: Address = "127.0.0.1:2380"
    """Address for the other members."""
    client_addr: Address = "127.0.0.1:2379"
    """Address for the brokers."""
    initial_cluster: Annotated[str, AfterValidator(_members)] | None = None
    """The members at the first start, as name=http://host:port, with commas between."""
    bootstrap: bool = True
    """true forms a new cluster, false joins an existing one."""
    hybrid_retained_size_threshold: Annotated[Size, Field(ge=0, le=1 << 20)] = 1024
    """Retained messages and wills below this size are kept in etcd whole; of larger ones only the metadata."""


class Transport(Section):
    """gRPC between nodes: routed messages, queue deliveries, session takeover."""

    bind_addr: Address = "127.0.0.1:7948"
    """Address for the other nodes: of shard 0; that of shard N has a port N higher."""
    peers: dict[Name, Address] = Field(default_factory=dict)
    """The other nodes, all of them: node_id to "host:port"."""
    allow_plaintext: bool = False
    """Whether nodes on other machines may be spoken to without TLS: anyone on the network between can read and forge."""
    route_batch_max_size: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Messages routed together at most."""
    route_batch_max_delay: Annotated[Duration, Field(ge=0, le=1)] = 0.005
    """Longest wait for more messages to route together."""
    route_batch_flush_workers: Annotated[int, Field(ge=1, le=64)] = 4
    """Batches under way to one node at once."""
    route_publish_timeout: Timeout = 15.0
    """Time for another node to accept a routed message."""
    tls_enabled: bool = False
    """Whether nodes speak TLS to each other and check each other's certificates."""
    tls_cert_file: FilePath | None = None
    """PEM file with this node's certificate; required with tls_enabled."""
    tls_key_file: FilePath | None = None
    """PEM file with its private key; required with tls_enabled."""
    tls_ca_file: FilePath | None = None
    """PEM file with the cluster's authority; required with tls_enabled."""


class RaftGroup(Section):
    """One replication group. What it leaves out it takes from cluster.raft. ``_meta`` is the group of the topology."""

    enabled: bool = True
    """Whether this node may have a copy; if not, peers names those that may. The default group cannot be disabled."""
    bind_addr: Address | None = None
    """Address of the group's endpoint on this node; unique. Required, but for default and _meta."""
    data_dir: str | None = None
    """Directory of the group on this node; unique. While cluster.enabled is false, groups are below storage.data_dir."""
    peers: dict[Name, Address] = Field(default_factory=dict)
    """The group on the other nodes: node_id to "host:port"; without it, as far from cluster.raft.peers as bind_addr from its."""
    replication_factor: Replicas | None = None
    """Copies of the group's data, on as many of the nodes, or on all if there are fewer."""
    sync_mode: bool | None = None
    """true answers a publisher after commit and apply, false after the leader's own write."""
    min_in_sync_replicas: Replicas | None = None
    """Copies that must hold a write before it is answered, if above the majority."""
    ack_timeout: Timeout | None = None
    """Longest wait for that."""
    heartbeat_timeout: Timeout | None = None
    """Time without word from the leader before a follower doubts it."""
    election_timeout: Timeout | None = None
    """Time of one election round; above heartbeat_timeout."""
    snapshot_interval: Annotated[Duration, Field(ge=1, le=604_800)] | None = None
    """Time between two looks at whether a snapshot is due."""
    snapshot_threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Entries since the last snapshot that make one due."""


class Raft(Section):
    """Replication of durable queues. What stands here is the default group, and the base of the others. While
    cluster.enabled is false, every group is this node alone."""

    enabled: bool = False
    """Whether queues may be replicated."""
    auto_provision_groups: bool = False
    """Whether a queue may name a group that groups does not list; it is then made on first use."""
    write_policy: Literal["forward", "reject", "local"] = "forward"
    """A publish that reaches a node without the leader: forward it, reject it, or (local) acknowledge it when this node alone
    has it on disk, and take it to the leader then."""
    distribution_mode: Literal["forward", "replicate"] = "forward"
    """Delivery on other nodes: forward messages from the leader, or deliver from the local copy of the log."""
    bind_addr: Address = "127.0.0.1:7100"
    """Address of the default group's endpoint on this node."""
    data_dir: str | None = None
    """Directory of the default group, and of the others below it. While cluster.enabled is false, all are below storage.data_dir."""
    peers: dict[Name, Address] = Field(default_factory=dict)
    """The default group on the other nodes: node_id to "host:port"."""
    replication_factor: Replicas = 3
    """Copies of a group's data, on as many of the nodes, or on all if there are fewer."""
    sync_mode: bool = True
    """true answers a publisher after commit and apply, false after the leader's own write."""
    min_in_sync_replicas: Replicas = 2
    """Copies that must hold a write before it is answered, if above the majority."""
    ack_timeout: Timeout = 5.0
    """Longest wait for that."""
    heartbeat_timeout: Timeout = 1.0
    """Time without word from the leader before a follower doubts it."""
    election_timeout: Timeout = 3.0
    """Time of one election round; above heartbeat_timeout."""
    snapshot_interval: Annotated[Duration, Field(ge=1, le=604_800)] = 300.0
    """Time between two looks at whether a snapshot is due."""
    snapshot_threshold: Annotated[int, Field(ge=1, le=100_000_000)] = 8192
    """Entries since the last snapshot that make one due."""
    snapshot_rate: Annotated[Size, Field(ge=0, le=1 << 40)] = 16 << 20
    """Bytes per second of other nodes' snapshots that a shard fetches, so that who gives them has room for clients; 0: no limit."""
    local_max_bytes: Annotated[Size, Field(ge=1 << 20, le=1 << 50)] = 1 << 30
    """With write_policy local, bytes kept for one queue by each shard until its leader has them; beyond it publishes are refused."""
    groups: dict[Name, RaftGroup] = Field(default_factory=dict)
    """Replication groups by id; default is the group of queues that name none."""


class Cluster(Section):
    """Other nodes. Queues are replicated and reached between them with raft.enabled; etcd is not there yet."""

    enabled: bool = False
    """Whether this node is part of a cluster."""
    node_id: Name = "broker-1"
    """Name of this node, unique in the cluster and for ever its own."""
    etcd: Etcd = Etcd()
    """Metadata: who owns, subscribes, consumes."""
    transport: Transport = Transport()
    """Data between nodes."""
    raft: Raft = Raft()
    """Replication of durable queues."""
