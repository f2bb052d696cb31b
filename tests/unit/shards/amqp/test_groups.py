"""Where a queue that a client declares lives."""

from collections import Counter

import pytest

from fluxmq.engine.names import QueueNames
from fluxmq.ipc.group_choice import choice_of
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, SetPolicy
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings import Settings
from fluxmq.settings.plans import GroupPlans, derived_offset

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


ALL = {"node1": 2, "node2": 2, "node3": 2}


class Map:
    """Nodes of a cluster; ``leaders``: groups that are led elsewhere than they should be."""

    def __init__(self, settings, nodes=ALL, leaders=()):
        self.plans = GroupPlans(settings)
        self.reachable = nodes
        self.leaders = dict(leaders)

    def nodes(self):
        return self.reachable

    def leader_of(self, group):
        return self.leaders.get(group, "")


class Declaring:
    """A node of a cluster, and queues that are declared on it one after another."""

    def __init__(self, *policies, queue_manager=None, nodes=ALL, leaders=()):
        settings = {"cluster": CLUSTER, "queue_manager": queue_manager or {}}
        self.settings = Settings.model_validate(settings)
        self.topology = Topology()
        self.topology.apply(AddVhost(Vhost("/")))
        for number, definition in enumerate(policies):
            policy = Policy("/", f"p{number}", "", "queues", number, definition)
            self.topology.apply(SetPolicy(policy))
        self.map = Map(self.settings, nodes, leaders)

    def declare(self, name, kind="quorum", durable=True, **arguments):
        choice = choice_of(self.settings, 1, 8, self.map)
        given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        queue = QueueRecord("/", name, kind, durable, arguments=given)
        group = choice.of(self.topology, queue)
        queue = QueueRecord("/", name, kind, durable, arguments=given, group=group)
        self.topology.apply(DeclareQueue(queue))
        return group

    def many(self, count, kind="quorum", durable=True, **arguments):
        """The nodes of so many queues, each with how many of them it has."""
        groups = [self.declare(f"{kind}{n}", kind, durable, **arguments) for n in range(count)]
        return Counter(each.partition("@")[2] or each.partition("leader-")[2] for each in groups)


def placed(kind="classic", durable=True, exclusive=False, alone=False, buffered=False, **arguments):
    storage = {"queue_ack_durability": "buffered" if buffered else "fsync"}
    more = {} if alone else {"cluster": CLUSTER}
    settings = Settings.model_validate({"storage": storage, **more})
    names = QueueNames(settings, 2, 8)
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    choice = choice_of(settings, 1, names.local_groups, None if alone else Map(settings))
    queue = QueueRecord("/", "q", kind, durable, exclusive, arguments=given)
    group = choice.of(Topology(), queue)
    return group, names.own_name(group)


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_queues_of_replicated_types_are_in_a_group_of_the_cluster(kind):
    assert placed(kind) == ("leader-node1", "leader-node1")
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
    assert placed(kind, **{key: 2})[0] == "copies-2-leader-node1"
    assert placed(kind, **{key: 3})[0] == "leader-node1"
    assert placed(kind, **{key: 5})[0] == "leader-node1"
    assert placed(kind, fluxmq_group="hot", **{key: 2}) == ("hot", "hot")
    assert placed(kind, alone=True, **{key: 2})[0].startswith("local-")


def test_a_classic_queue_is_replicated_when_it_names_a_group():
    assert placed(fluxmq_group="hot") == ("hot", "hot")


def test_a_replicated_queue_does_not_deliver_before_the_sync():
    assert placed(deliver_before_sync=True)[0].startswith("local-")
    assert placed(deliver_before_sync=False, fluxmq_group="hot") == ("hot", "hot")
    with pytest.raises(Refusal) as refused:
        placed(deliver_before_sync=True, fluxmq_group="hot")
    text = "invalid arg 'x-deliver-before-sync' for queue 'q' in vhost '/': it is replicated"
    assert (refused.value.code, refused.value.text) == (406, text)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"fluxmq_group": "cold"}, "replication group 'cold' is not in cluster.raft.groups"),
        ({"fluxmq_group": "leader-node9"}, "'leader-node9' is for a node node9, and there is none"),
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


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_the_leader_of_a_new_queue_is_on_its_clients_node_or_on_the_one_that_leads_fewest(kind):
    assert Declaring().many(7, kind) == {"node1": 7}
    assert Declaring().many(7, kind, queue_leader_locator="client-local") == {"node1": 7}
    for locator in ("balanced", "least-leaders"):
        spread = Declaring().many(7, kind, queue_leader_locator=locator)
        assert sorted(spread.values()) == [2, 2, 3]
    assert len(Declaring().many(50, kind, queue_leader_locator="random")) == 3


def test_a_classic_queue_is_at_home_where_its_locator_says():
    """S4-25."""
    assert Declaring().many(7, "classic") == {"node1": 7}
    assert Declaring().many(7, "classic", queue_master_locator="client-local") == {"node1": 7}
    for durable in (True, False):
        declaring = Declaring()
        declaring.many(5, "quorum")  # they are no masters
        spread = declaring.many(7, "classic", durable, queue_master_locator="min-masters")
        assert sorted(spread.values()) == [2, 2, 3]
    assert len(Declaring().many(50, "classic", queue_master_locator="random")) == 3
    group = Declaring(nodes={"node1": 1, "node2": 1}).declare(
        "memory", "classic", durable=False, queue_master_locator="random"
    )
    assert group in ("ephemeral-1@node1", "ephemeral-0@node2"), "a shard that there is"


def test_an_exclusive_queue_is_where_its_connection_is():
    declaring = Declaring(queue_manager={"queue_master_locator": "random"})
    choice = choice_of(declaring.settings, 1, 8, declaring.map)
    for number in range(20):
        queue = QueueRecord("/", f"q{number}", exclusive=True, owner="c")
        assert choice.of(declaring.topology, queue) == "ephemeral-1@node1"


def test_the_argument_goes_before_the_policy_and_the_policy_before_the_setting():
    balanced = {"queue-leader-locator": "balanced", "queue-master-locator": "min-masters"}
    assert len(Declaring(balanced).many(3)) == 3
    assert len(Declaring(balanced).many(3, "classic")) == 3
    assert len(Declaring(balanced).many(3, queue_leader_locator="client-local")) == 1
    local = {"queue-leader-locator": "client-local", "queue-master-locator": "client-local"}
    settings = {"queue_leader_locator": "balanced", "queue_master_locator": "min-masters"}
    for kind in ("quorum", "classic"):
        assert len(Declaring(queue_manager=settings).many(3, kind)) == 3
        assert len(Declaring(local, queue_manager=settings).many(3, kind)) == 1


def test_leaders_are_counted_where_they_are():
    """Also those of groups that any node may lead; and where they should be, if they are elsewhere."""
    declaring = Declaring(leaders={"default": "node2", "leader-node1": "node2"})
    for number in range(3):
        declaring.declare(f"d{number}", fluxmq_group="default")
    declaring.declare("mine")
    spread = declaring.many(5, queue_leader_locator="balanced")
    assert spread == {"node1": 2, "node3": 3}, "then each leads three"


def test_a_queue_is_counted_by_its_locator_until_there_are_a_thousand():
    declaring = Declaring()
    for number in range(999):
        declaring.declare(f"q{number}")
    assert declaring.declare("next", queue_leader_locator="balanced") != "leader-node1"
    assert declaring.many(50, queue_leader_locator="balanced")["node1"] > 5


def test_a_node_that_cannot_be_reached_leads_no_new_queue():
    declaring = Declaring(nodes={"node1": 2, "node3": 2})
    assert set(declaring.many(6, queue_leader_locator="balanced")) == {"node1", "node3"}
    assert set(declaring.many(6, "classic", queue_master_locator="min-masters")) == {
        "node1",
        "node3",
    }


def test_a_group_that_cannot_be_made_is_the_default_one():
    """A derived address is taken."""
    taken = f"127.0.0.1:{22100 + derived_offset('leader-node1')}"
    cluster = {**CLUSTER, "transport": {"bind_addr": taken, "peers": PEERS}}
    settings = Settings.model_validate({"cluster": cluster})
    cluster_map = Map(settings, {"node1": 1})
    choice = choice_of(settings, 0, 8, cluster_map)
    assert choice.of(Topology(), QueueRecord("/", "q", "quorum", True)) == "default"
    cluster_map.reachable = ALL
    assert choice.of(Topology(), QueueRecord("/", "q", "quorum", True)) != "leader-node1"
