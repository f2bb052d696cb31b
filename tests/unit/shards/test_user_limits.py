"""Limits of users hold for all protocols, shards and nodes together."""

from __future__ import annotations

from fluxmq.routing.topology.changes import Change, ClearUserLimits, SetUserLimits
from fluxmq.routing.topology.topology import Delta
from fluxmq.shards.user_limits import UserLimitChecks
from tests.unit.shards.conftest import MakeNet
from tests.unit.shards.net_of_nodes import Net


def checks(net: Net) -> list[UserLimitChecks]:
    return [shard.broker.user_limits for node in net.nodes for shard in node]


def apply(net: Net, change: Change) -> None:
    """Change every shard's copy of the topology."""
    for each in checks(net):
        delta = each.topology.apply(change)
        each.changed(delta)
    net.advance(0.3)


def test_connections_of_all_nodes_count(make_net: MakeNet) -> None:
    net = make_net(2, 1)
    first, second, third = checks(net)
    apply(net, SetUserLimits("ann", {"max-connections": 2}))
    assert first.enter("a", "ann") is None
    net.advance(0.3)
    assert third.enter("b", "ann") is None
    net.advance(0.3)
    assert [each.enter("c", "ann") for each in checks(net)] == [2, 2, 2]
    assert second.refused["max-connections"] == 1
    assert second.enter("d", "bob") is None, "others have no limit"
    assert second.enter("e", "") is None, "nor have anonymous clients"
    first.leave("a")
    first.leave("a")
    net.advance(0.3)
    assert second.enter("c", "ann") is None


def test_a_limit_set_later_counts_what_is_there(make_net: MakeNet) -> None:
    net = make_net(2, 1)
    for number, each in enumerate(checks(net)):
        for connection in range(number + 1):
            assert each.enter(connection, "ann") is None
            assert each.open_channel("ann") is None
    apply(net, SetUserLimits("ann", {"max-connections": 6, "max-channels": 7}))
    assert [each.enter("more", "ann") for each in checks(net)] == [6, 6, 6]
    first, second, _ = checks(net)
    assert first.open_channel("ann") is None
    net.advance(0.3)
    assert second.open_channel("ann") == 7
    first.close_channel("ann")
    net.advance(0.3)
    assert second.open_channel("ann") is None
    apply(net, ClearUserLimits("ann", "max-connections"))
    assert second.enter("more", "ann") is None


def test_counts_of_users_without_limits_stay_on_their_shard(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    for link in net.ends(0, 1):
        link.held = True
    (first, _) = checks(net)
    first.enter("a", "ann")
    first.open_channel("ann")
    net.advance(1)
    assert all(not link.inbox for link in net.ends(0, 1))


def test_a_snapshot_shares_counts_too(make_net: MakeNet) -> None:
    net = make_net(2)
    first, second = checks(net)
    first.enter("a", "ann")
    for each in (first, second):
        each.topology.apply(SetUserLimits("ann", {"max-connections": 1}))
        each.changed(Delta(1, None, ()))
    net.advance(0.3)
    assert second.enter("b", "ann") == 1
