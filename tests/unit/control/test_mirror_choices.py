"""Mirrored groups of queues: which are shared, and which are begun."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fluxmq.control.mirror_choices import MirrorChoices
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, SetPolicy
from fluxmq.routing.topology.mirror_records import MirrorRecord
from fluxmq.routing.topology.mirroring import MirrorPolicy
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.plans import derived_offset
from fluxmq.settings.schema import Settings

NODES = ("node1", "node2", "node3")
ALL = MirrorPolicy("all")


class Records:
    """Records that nobody else changes."""

    def __init__(self) -> None:
        self.lives = frozenset(NODES)
        self.known = True
        self.ended: frozenset[str] = frozenset()
        self.kept: dict[str, MirrorRecord] = {}

    @property
    def records(self) -> Mapping[str, MirrorRecord]:
        return self.kept

    async def begin(self, group: str, record: MirrorRecord) -> None:
        self.kept.setdefault(group, record)

    async def moment(self) -> int:
        return 7


class Cluster:
    """Three nodes, as the first one chooses."""

    def __init__(self, transport: int = 7200) -> None:
        self.records = Records()
        self.able = True
        self.topology = Topology()
        self.topology.apply(AddVhost(Vhost("/")))
        peers = {node: f"127.0.0.1:{transport + 100 * at}" for at, node in enumerate(NODES[1:])}
        raft = {node: f"127.0.0.1:{20_000 + 2000 * at}" for at, node in enumerate(NODES[1:])}
        self.settings = Settings.model_validate(
            {
                "cluster": {
                    "enabled": True,
                    "node_id": NODES[0],
                    "transport": {"bind_addr": "127.0.0.1:7000", "peers": peers},
                    "raft": {"enabled": True, "bind_addr": "127.0.0.1:30000", "peers": raft},
                    "etcd": {"endpoints": ("http://127.0.0.1:2379",)},
                }
            }
        )
        self.choices = MirrorChoices(
            self.records, lambda: self.topology, lambda: self.settings, lambda: self.able
        )

    def group(self, policy: MirrorPolicy, nodes: Sequence[str]) -> str:
        return asyncio.run(self.choices.group(policy, nodes))


def test_queues_with_equal_outcome_share_a_group() -> None:
    """S4-11: and others do not: another leader, other mirrors, other rules of promotion."""
    cluster = Cluster()
    group = cluster.group(ALL, NODES)
    assert is_mirrored(group)
    record = cluster.records.kept[group]
    assert (record.leader, record.first) == ("node1", NODES)
    assert cluster.group(ALL, ("node1", "node3", "node2")) == group
    careful = MirrorPolicy("all", promote_on_failure="when-synced")
    others = {
        cluster.group(ALL, ("node2", "node1", "node3")),
        cluster.group(ALL, NODES[:2]),
        cluster.group(careful, NODES),
    }
    assert len(others | {group}) == 4


def test_a_group_that_another_node_has_come_to_lead_is_not_for_new_queues_of_the_former_leader() -> (
    None
):
    cluster = Cluster()
    group = cluster.group(ALL, NODES)
    kept = cluster.records.kept
    kept[group] = replace(kept[group], epoch=2, leader="node2")
    another = cluster.group(ALL, NODES)
    assert another != group
    assert kept[another].leader == "node1"
    assert cluster.group(ALL, NODES) == another


def test_a_group_has_no_address_that_another_node_on_this_machine_has() -> None:
    group = Cluster().group(ALL, NODES)
    crowded = Cluster(transport=30_000 + derived_offset(group))
    assert crowded.group(ALL, NODES) != group


def test_the_name_of_a_group_that_has_ended_is_not_used_again() -> None:
    """S4-09."""
    cluster = Cluster()
    names = []
    for _ in range(20):
        group = cluster.group(ALL, NODES)
        assert group not in names
        assert cluster.group(ALL, NODES) == group
        names.append(group)
        del cluster.records.kept[group]
        cluster.records.ended |= {group}


def test_a_declared_queue_is_in_a_mirrored_group_if_a_policy_says_so() -> None:
    """S4-08, S4-29: exclusive queues and those in memory never are."""
    cluster = Cluster()
    cluster.topology.apply(SetPolicy(Policy("/", "ha", "^ha", definition={"ha-mode": "all"})))
    plain = QueueRecord("/", "ha.q", durable=True, group="local-0@node2")

    def group_of(queue: QueueRecord) -> str:
        (prepared,) = asyncio.run(cluster.choices.prepare([(DeclareQueue(queue),)]))
        assert isinstance(prepared, tuple)
        (change,) = prepared
        assert isinstance(change, DeclareQueue)
        return change.queue.group

    group = group_of(plain)
    assert cluster.records.kept[group].leader == "node2"
    cluster.records.lives = frozenset(NODES[:2])
    online = cluster.records.kept[group_of(plain)]
    assert set(online.first) == set(NODES[:2])
    transient = QueueRecord("/", "ha.t", group="ephemeral-0@node1")
    assert group_of(transient) == "ephemeral-0@node1"
    cluster.able = False  # a node of the release before would begin the group by votes
    assert group_of(plain) == plain.group
    cluster.able = True
    other = QueueRecord("/", "other", durable=True, group="local-0@node2")
    assert group_of(other) == "local-0@node2"
