"""Groups of classic queues that are to become quorum queues, as a node chooses them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fluxmq.control import mirror_moves
from fluxmq.control.management.declared_groups import DeclaringNode
from fluxmq.control.mirror_moves import MirrorMoves
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import Set
from fluxmq.control.type_changes import TypeChanges
from fluxmq.ipc.clusters import RaftListing
from fluxmq.ipc.row_messages import QueueExtent
from fluxmq.ipc.topology_messages import TopologyChanged
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, MigrateQueue, SetPolicy
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings import Settings
from tests.unit.control.test_mirror_choices import Cluster as MirroringCluster

NODES = ("node1", "node2", "node3")
QUEUE = QueueRecord("/", "q", durable=True, group="local-0@node1")
MIRRORED = "mirrors-0123456789abcdef"


def clustered(**raft: object) -> Settings:
    """Settings of the first of three nodes."""
    peers = {node: f"127.0.0.1:{7200 + 100 * at}" for at, node in enumerate(NODES[1:])}
    of_raft = {node: f"127.0.0.1:{20_000 + 2000 * at}" for at, node in enumerate(NODES[1:])}
    return Settings.model_validate(
        {
            "cluster": {
                "enabled": True,
                "node_id": NODES[0],
                "transport": {"bind_addr": "127.0.0.1:7000", "peers": peers},
                "raft": {"enabled": True, "bind_addr": "127.0.0.1:30000", "peers": of_raft, **raft},
                "etcd": {"endpoints": ("http://127.0.0.1:2379",)},
            }
        }
    )


def asked(
    queue: QueueRecord,
    wanted: str = "",
    kind: str = "quorum",
    settings: Settings | None = None,
    able: bool = True,
) -> str:
    """The group that a queue goes to."""
    topology = Topology()
    topology.apply(AddVhost(Vhost("/")))
    topology.apply(DeclareQueue(queue))
    in_force = settings or clustered()

    async def group() -> str:
        async def replicas() -> RaftListing:
            return RaftListing(())

        node = DeclaringNode(lambda: in_force, replicas)
        changes = TypeChanges(node, lambda: topology, lambda: able)
        return await changes.group(queue, kind, wanted)

    return asyncio.run(group())


def test_it_goes_to_the_group_of_a_new_quorum_queue_or_the_one_that_was_asked_for() -> None:
    assert asked(QUEUE) == "leader-node1"
    assert asked(QUEUE, "default") == "default"
    located = replace(QUEUE, arguments={"x-fluxmq-group": "default"})
    assert asked(located) == "default"
    assert asked(located, "leader-node2") == "leader-node2"


def test_one_that_is_on_its_way_stays_on_it() -> None:
    moving = replace(QUEUE, moving_to="leader-node3", migration="aa", becomes="quorum")
    assert asked(moving) == asked(moving, "leader-node3") == "leader-node3"
    assert asked(moving, "default") == "default"  # which is refused, as it moves elsewhere


@pytest.mark.parametrize(
    ("queue", "wanted", "kind", "why"),
    [
        (QUEUE, "", "classic", "no other change is possible"),
        (QUEUE, "", "stream", "no other change is possible"),
        (QUEUE, "nowhere!", "quorum", "replication group 'nowhere!'"),
        (QUEUE, "local-0", "quorum", "replication group 'local-0'"),
        (QUEUE, "local-0@node1", "quorum", "replication group 'local-0@node1'"),
        (QUEUE, MIRRORED, "quorum", f"group '{MIRRORED}'"),
        (replace(QUEUE, group="default"), "default", "quorum", "another group has to be named"),
        (replace(QUEUE, auto_delete=True), "", "quorum", "it is auto-delete"),
        (replace(QUEUE, type="quorum"), "", "quorum", "is of type quorum"),
    ],
)
def test_what_is_refused(queue: QueueRecord, wanted: str, kind: str, why: str) -> None:
    with pytest.raises(RequestError) as refusal:
        asked(queue, wanted, kind)
    assert why in str(refusal.value)


def test_nodes_that_cannot_read_the_row_have_to_be_replaced_first() -> None:
    with pytest.raises(RequestError, match="once all nodes of the cluster run this version"):
        asked(QUEUE, able=False)


def test_policies_leave_a_queue_alone_that_becomes_a_quorum_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not where its policy wants it, and does not go there."""
    monkeypatch.setattr(mirror_moves, "LOOK_SECONDS", 0.01)
    cluster = MirroringCluster()
    definition = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    for change in (
        DeclareQueue(QUEUE),
        MigrateQueue("/", "q", QUEUE.group, "leader-node1", "aa", "quorum"),
        DeclareQueue(replace(QUEUE, name="r")),
        SetPolicy(Policy("/", "ha", "", definition=definition)),
    ):
        cluster.topology.apply(change)
    changes: list[Set] = []

    async def until_the_other_moves() -> None:
        moves = asyncio.Event()

        async def change(sets: Sequence[Set]) -> TopologyChanged:
            changes.extend(sets)
            moves.set()
            return TopologyChanged(0, tuple(None for _ in sets))

        async def positions(
            _queues: Sequence[QueueRecord],
        ) -> dict[tuple[str, str], QueueExtent]:
            return {}

        looking = MirrorMoves(
            *(cluster.records, cluster.choices, lambda: cluster.topology, clustered),
            *(change, positions),
        )
        looking.start()
        await asyncio.wait_for(moves.wait(), 10)
        await looking.stop()

    asyncio.run(until_the_other_moves())
    ((moved,),) = [each for each in changes if isinstance(each, tuple)]
    assert isinstance(moved, MigrateQueue)
    assert moved.name == "r"


def test_a_single_node_replicates_nothing() -> None:
    with pytest.raises(RequestError, match="not part of a cluster, and nothing is replicated"):
        asked(replace(QUEUE, group="local-0"), settings=Settings())
