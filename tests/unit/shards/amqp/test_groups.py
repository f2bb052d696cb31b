"""Where a queue that a client declares lives."""

import pytest

from fluxmq.engine.names import QueueNames
from fluxmq.ipc.group_choice import group_for
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.settings import Settings
from fluxmq.settings.plans import GroupPlans

PEERS = {"node2": "127.0.0.1:22200", "node3": "127.0.0.1:22300"}
CLUSTER = {
    "enabled": True,
    "node_id": "node1",
    "transport": {"bind_addr": "127.0.0.1:22010", "peers": PEERS},
    "raft": {
        "enabled": True,
        "bind_addr": "127.0.0.1:22100",
        "peers": PEERS,
        "groups": {"hot": {"bind_addr": "127.0.0.1:22900", "peers": PEERS}},
    },
}


def placed(kind="classic", durable=True, exclusive=False, alone=False, buffered=False, **arguments):
    settings = Settings.model_validate({} if alone else {"cluster": CLUSTER})
    names = QueueNames(settings, 2, 8)
    plans = None if alone else GroupPlans(settings)
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    group = group_for(
        names.shared_name,
        names.local_groups,
        1,
        buffered,
        plans,
        ("q", durable, exclusive, kind),
        given,
    )
    return group, names.own_name(group)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_queues_of_replicated_types_are_in_a_group_of_the_cluster(kind):
    assert placed(kind) == ("default", "default")
    assert placed(kind, fluxmq_group="hot") == ("hot", "hot")
    assert placed(kind, alone=True)[0].startswith("local-")


def test_other_queues_are_where_their_declarer_is():
    """S1-14."""
    shared, own = placed()
    assert shared == f"{own}@node1"
    assert own.startswith("local-")
    assert placed(buffered=True)[0].startswith("buffered-")
    assert placed(durable=False) == ("ephemeral-1@node1", "ephemeral-1")
    assert placed(exclusive=True) == ("ephemeral-1@node1", "ephemeral-1")
    assert placed(alone=True, durable=False) == ("ephemeral-1", "ephemeral-1")


@pytest.mark.parametrize(
    ("kind", "key"),
    [("quorum", "quorum_initial_group_size"), ("stream", "initial_cluster_size")],
)
def test_a_queue_has_as_many_copies_as_it_wants(kind, key):
    """S3-24: at most one on each node; a single one is on the declarer's."""
    assert placed(kind, **{key: 1})[0].startswith("local-")
    assert placed(kind, **{key: 2}) == ("copies-2", "copies-2")
    assert placed(kind, **{key: 3}) == ("default", "default")
    assert placed(kind, **{key: 5}) == ("default", "default")
    assert placed(kind, fluxmq_group="hot", **{key: 2}) == ("hot", "hot")
    assert placed(kind, alone=True, **{key: 2})[0].startswith("local-")


def test_a_classic_queue_is_replicated_when_it_names_a_group():
    assert placed(fluxmq_group="hot") == ("hot", "hot")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"fluxmq_group": "cold"}, "replication group 'cold' is not in cluster.raft.groups"),
        ({"fluxmq_group": "local-0"}, "replication group 'local-0' is not a valid name"),
        ({"fluxmq_group": "local-1"}, "replication group 'local-1' is not a valid name"),
        ({"fluxmq_group": "hot", "durable": False}, "x-fluxmq-group is for durable queues"),
        ({"fluxmq_group": "hot", "alone": True}, "x-fluxmq-group is for nodes of a cluster"),
    ],
)
def test_a_group_there_is_none_of_is_refused(values, why):
    with pytest.raises(Refusal, match=why) as refused:
        placed(**values)
    assert refused.value.code == 406
