"""Connections from the acceptor: the order in which a shard publishes what it holds."""

from collections.abc import Callable

from tests.unit.shards.node import Node


def test_a_shard_is_taking_until_its_count_includes_what_it_received(
    make_node: Callable[..., Node],
) -> None:
    """Otherwise the acceptor sees an empty socket and the count from before, and lets one too many
    in."""
    node = make_node(1)
    node.connect(0, "a")
    assert list(node[0].published) == [True, 1, False]
