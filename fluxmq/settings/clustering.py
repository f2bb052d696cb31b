"""The ``cluster`` section: other nodes, and the replication groups that hold replicated queues.

The founding documents fix the keys, and all of them load. ``checks.refusals`` names those that stop
a start because this version lacks them, ``checks.notes`` those without effect. ``plans`` resolves
what they mean for one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from fluxmq.settings.node_sets import NodeHistory
from fluxmq.settings.section import Section
from fluxmq.settings.values import (
    Address,
    Duration,
    FilePath,
    ScalarKind,
    Size,
    Throughput,
    split_address,
)

Timeout = Annotated[Duration, Field(ge=0.001, le=3600)]
Replicas = Annotated[int, Field(ge=1, le=10)]


def check_name(text: str) -> str:
    """Return the name if it is valid. Names become file names, metadata keys and topics, so they
    stay simple.

    Raises ValueError with a sentence for the user.
    """
    allowed = text.isascii() and text.replace("-", "").replace("_", "").replace(".", "").isalnum()
    if not allowed or len(text) > 128 or text.startswith("."):
        raise ValueError("is not a name; use up to 128 letters, digits, - _ and .")
    return text


def _members(text: str) -> str:
    """Check ``name=http://host:port`` for each member, separated by commas, as etcd writes it."""
    for member in text.split(","):
        name, equals, url = member.strip().partition("=")
        scheme, found, address = url.partition("://")
        if not (name and equals and found and scheme in ("http", "https")):
            raise ValueError(
                "is not a member list; write name=http://host:port, with commas between"
            )
        split_address(address.rstrip("/"))
    return text


def _endpoint(text: str) -> str:
    """Check ``http://host:port`` or ``https://host:port``."""
    scheme, found, address = text.partition("://")
    if not found or scheme not in ("http", "https"):
        raise ValueError("is not an endpoint; write http://host:port or https://host:port")
    split_address(address.rstrip("/"))
    return text


EPHEMERAL = "ephemeral"
"""Prefix of the in-memory groups; the shard's number follows."""
BUFFERED = "buffered"
"""Prefix of the local groups that confirm publishes before the disk has synced."""
LOCAL = "local"
"""Prefix of the local groups, for queues that are not replicated; numbers follow."""
OWN_GROUP_PREFIXES = (f"{LOCAL}-", f"{BUFFERED}-", f"{EPHEMERAL}-")
"""Prefixes of the names of this node's own groups; no other group's name may begin with one."""

DEFAULT_GROUP: Final = "default"
"""The group of queues that name none; cluster.raft itself is its section."""

Name = Annotated[str, AfterValidator(check_name)]
Endpoint = Annotated[str, AfterValidator(_endpoint), ScalarKind("URL")]


class Etcd(Section):
    """An etcd for the cluster: a member of it that the supervisor runs, or endpoints of one that
    is run otherwise. The nodes elect one of them through it, which coordinates the cluster."""

    data_dir: str | None = None
    """Directory of the member; by default, etcd below storage.data_dir."""
    bind_addr: Address = "127.0.0.1:2380"
    """Address for the other members."""
    client_addr: Address = "127.0.0.1:2379"
    """Address for the brokers."""
    initial_cluster: Annotated[str, AfterValidator(_members)] | None = None
    """Members at the first start, as name=http://host:port, separated by commas."""
    bootstrap: bool = True
    """true forms a new cluster, false joins an existing one."""
    endpoints: tuple[Endpoint, ...] = ()
    """Addresses of an etcd that is run otherwise, as http://host:port; this node then runs no
    member."""
    records: bool = True
    """Keep a record of all MQTT subscriptions and queue consumers in etcd, for tools that read it.
    Nothing is routed by it; each change is written."""
    binary: FilePath | None = None
    """Program of the member; by default, etcd on PATH, or the one that make etcd has built."""
    hybrid_retained_size_threshold: Annotated[Size, Field(ge=0, le=1 << 20)] = 1024
    """Size of a payload below which a retained message is in etcd whole. Of a larger one etcd has the
    metadata, and the nodes fetch it from each other."""

    def directory(self, data_dir: str) -> str:
        """Return the member's directory; ``data_dir``: that of the node."""
        return self.data_dir or f"{data_dir.rstrip('/')}/etcd"


def address_of(url: str) -> str:
    """Return the "host:port" of a member or an endpoint."""
    return url.partition("://")[2].rstrip("/")


def reachable(address: str) -> str:
    """Return an address at which this node reaches what listens on ``address``."""
    host, _, port = address.rpartition(":")
    if host in ("", "0.0.0.0"):
        return f"127.0.0.1:{port}"
    return f"[::1]:{port}" if host == "[::]" else address


def bindable(address: str) -> str:
    """Return an address with the host that stands for all of them, if it has none."""
    return f"0.0.0.0{address}" if address.startswith(":") else address


class TransportSettings(Section):
    """gRPC between nodes: routed messages, queue deliveries, session takeover."""

    bind_addr: Address = "127.0.0.1:7948"
    """Address of shard 0 for the other nodes; shard N listens N ports higher."""
    peers: dict[Name, Address] = Field(default_factory=dict)
    """All other nodes: node_id to "host:port"."""
    allow_plaintext: bool = False
    """Allow connections to nodes on other machines without TLS, which anyone on the network can
    read and forge."""
    route_batch_max_size: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Maximum number of messages routed to another node together."""
    route_batch_max_delay: Annotated[Duration, Field(ge=0, le=1)] = 0.005
    """Longest wait for more messages to route together. Not used: a shard never waits, but routes
    what one turn of its loop has received."""
    route_batch_flush_workers: Annotated[int, Field(ge=1, le=64)] = 4
    """Batches in flight to one node at once. Not used: a shard routes over one stream, without
    waiting for answers."""
    route_publish_timeout: Timeout = 15.0
    """Time for which a node that cannot be reached is waited for: until then QoS 1 and 2 messages
    for its subscribers are kept, and publishers whose messages its persistent sessions want wait."""
    tls_enabled: bool = False
    """Use TLS between nodes, each verifying the other's certificate."""
    tls_cert_file: FilePath | None = None
    """PEM file with this node's certificate; required with tls_enabled."""
    tls_key_file: FilePath | None = None
    """PEM file with its private key; required with tls_enabled."""
    tls_ca_file: FilePath | None = None
    """PEM file with the cluster's CA certificate; required with tls_enabled."""


class RaftGroup(Section):
    """One replication group. Keys left out are inherited from cluster.raft."""

    enabled: bool = True
    """Allow a replica on this node; if false, peers names the nodes that may. The default group
    cannot be disabled."""
    bind_addr: Address | None = None
    """Address of the group's endpoint on this node; unique. Required, except for
    default."""
    data_dir: str | None = None
    """Directory of the group on this node; unique. While cluster.enabled is false, groups are below
    storage.data_dir."""
    peers: dict[Name, Address] = Field(default_factory=dict)
    """The group on the other nodes: node_id to "host:port"; by default, the addresses of
    cluster.raft.peers, with ports shifted as bind_addr's is from cluster.raft.bind_addr."""
    replication_factor: Replicas | None = None
    """Replicas of the group's data, one per node; on all nodes if there are fewer."""
    sync_mode: bool | None = None
    """true confirms a publish after commit and apply, false after the leader's own write."""
    min_in_sync_replicas: Replicas | None = None
    """Replicas that must hold a write before it is confirmed, if more than a majority."""
    ack_timeout: Timeout | None = None
    """Longest wait for that confirmation."""
    heartbeat_timeout: Timeout | None = None
    """Time between two heartbeats of the leader."""
    election_timeout: Timeout | None = None
    """Time without a heartbeat, randomised up to twice as long, after which a follower starts an
    election; above heartbeat_timeout."""
    snapshot_interval: Annotated[Duration, Field(ge=1, le=604_800)] | None = None
    """Time between two checks whether a snapshot is due."""
    snapshot_threshold: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Entries since the last snapshot that make the next one due."""


class Raft(Section):
    """Replication of durable queues. These keys are the default group's, and the defaults of the
    others. While cluster.enabled is false, this node is the only member of every group."""

    enabled: bool = False
    """Allow replicated queues."""
    auto_provision_groups: bool = False
    """Let queues name groups that groups does not list; these are created on first use."""
    write_policy: Literal["forward", "reject", "local"] = "forward"
    """Handling of a publish on a node that is not the leader: forward it, reject it, or (local)
    acknowledge it once this node alone has it on disk, and forward it to the leader later."""
    distribution_mode: Literal["forward", "replicate"] = "forward"
    """Delivery on other nodes: forward messages from the leader, or (replicate) deliver from the
    local copy of the log."""
    bind_addr: Address = "127.0.0.1:7100"
    """Address of the default group's endpoint on this node."""
    data_dir: str | None = None
    """Directory of the default group, and of the others below it. While cluster.enabled is false,
    all are below storage.data_dir."""
    peers: dict[Name, Address] = Field(default_factory=dict)
    """The default group on the other nodes: node_id to "host:port"."""
    replication_factor: Replicas = 5
    """Replicas of a group's data, one per node; on all nodes if there are fewer."""
    sync_mode: bool = True
    """true confirms a publish after commit and apply, false after the leader's own write."""
    min_in_sync_replicas: Replicas = 2
    """Replicas that must hold a write before it is confirmed, if more than a majority."""
    ack_timeout: Timeout = 5.0
    """Longest wait for that confirmation."""
    heartbeat_timeout: Timeout = 0.25
    """Time between two heartbeats of the leader."""
    election_timeout: Timeout = 1.0
    """Time without a heartbeat, randomised up to twice as long, after which a follower starts an
    election; above heartbeat_timeout."""
    snapshot_interval: Annotated[Duration, Field(ge=1, le=604_800)] = 300.0
    """Time between two checks whether a snapshot is due."""
    snapshot_threshold: Annotated[int, Field(ge=1, le=100_000_000)] = 8192
    """Entries since the last snapshot that make the next one due."""
    snapshot_rate: Annotated[Size, Field(ge=0, le=1 << 40)] = 16 << 20
    """Bytes per second at which a shard fetches snapshots from other nodes, so that their clients
    keep enough bandwidth; 0: no limit."""
    local_max_bytes: Annotated[Size, Field(ge=1 << 20, le=1 << 50)] = 1 << 30
    """With write_policy local, bytes that each shard buffers for one queue until its leader has
    them; beyond it publishes are refused."""
    groups: dict[Name, RaftGroup] = Field(default_factory=dict)
    """Replication groups by id; default is the group of queues that name none."""


class ClusterSettings(Section):
    """Other nodes. With raft.enabled, queues are replicated and reachable between nodes."""

    enabled: bool = False
    """Make this node part of a cluster."""
    name: Name = "fluxmq"
    """Name of the cluster; a node joins only the cluster that has the name in its own settings."""
    node_id: Name = "broker-1"
    """Name of this node; unique in the cluster and permanent."""
    join: bool = False
    """Wait, while storage.data_dir is empty, until fluxmqctl join has made this node part of a
    cluster that runs; its nodes are then not named in this file."""
    initial_nodes: tuple[Name, ...] = ()
    """Nodes that the cluster began with, on which the groups of this file begin; by default, this node
    and cluster.transport.peers. Equal on all nodes whose files name each other."""
    cluster_partition_handling: Literal["pause_minority", "autoheal", "ignore"] = "pause_minority"
    """Behaviour of mirrored queues when nodes lose contact with each other. With pause_minority, those whose
    leader reaches neither its mirrors nor etcd wait. With autoheal and ignore it goes on alone; if the other
    side has another leader meanwhile, what was confirmed alone is lost: with autoheal once nodes are in
    contact again, with ignore when the node that has it is started again. Equal on all nodes. Quorum queues
    do not follow it."""
    net_ticktime: Annotated[Duration, Field(ge=1, le=86_400)] = 60.0
    """Longest time for which a mirrored queue's publishers wait for a mirror that is connected and does
    not answer; then the queue goes on without it."""
    mirroring_sync_batch_size: Annotated[int, Field(ge=1, le=1 << 31)] = 4096
    """Messages that are sent to a queue's new mirrors before their answer is awaited, unless
    ha-sync-batch-size says otherwise; about 256KiB of them at most."""
    mirroring_sync_max_throughput: Annotated[Throughput, Field(ge=0, le=1 << 40)] = 0
    """Bytes per second at which a node copies queues to new mirrors, as a number or with one of
    RabbitMQ's units such as 10MB; each of its shards has its share. 0: no limit."""
    lease_loss: Literal["drop", "keep"] = "drop"
    """Whether MQTT clients are disconnected when this node has not reached etcd for so long that
    another node may have their sessions: keep lets them go on until it is known that one has."""
    etcd: Etcd | None = None
    """An etcd for the cluster; absent unless given."""
    transport: TransportSettings = TransportSettings()
    """Data between nodes."""
    raft: Raft = Raft()
    """Replication of durable queues."""

    _history: NodeHistory = PrivateAttr(default_factory=NodeHistory)

    @property
    def history(self) -> NodeHistory:
        """The node sets; a file has none, see ``settings.membership``."""
        return self._history

    def with_history(self, history: NodeHistory, update: Mapping[str, Any]) -> ClusterSettings:
        """Return these settings with node sets, and with other values."""
        changed = self.model_copy(update=update)
        changed._history = history
        return changed

    @property
    def url_scheme(self) -> str:
        """Scheme of the URLs of etcd."""
        return "https" if self.transport.tls_enabled else "http"

    def members(self, etcd: Etcd) -> dict[str, str]:
        """Return the first members of etcd, name to URL; this node alone if the settings name
        none."""
        if etcd.initial_cluster is None:
            return {self.node_id: f"{self.url_scheme}://{bindable(etcd.bind_addr)}"}
        found = {}
        for member in etcd.initial_cluster.split(","):
            name, _, url = member.strip().partition("=")
            found[name] = url
        return found

    @property
    def confined(self) -> bool:
        """Whether the cluster's addresses are opened on loopback only: it has no TLS, and names no
        other node to connect to them."""
        etcd, transport = self.etcd, self.transport
        secured = transport.tls_enabled or transport.allow_plaintext
        elsewhere = any(
            (transport.peers, self.raft.peers, *(g.peers for g in self.raft.groups.values()))
        )
        outside = etcd is not None and (etcd.endpoints or set(self.members(etcd)) != {self.node_id})
        return self.enabled and not (secured or elsewhere or outside or self.join)

    @property
    def member(self) -> Etcd | None:
        """Settings of the member of etcd that this node runs; None if it runs none."""
        etcd = self.etcd
        return etcd if self.enabled and etcd is not None and not etcd.endpoints else None
