"""Mirrored queues in a partition of the network, between real nodes: what each side confirms, and what is left of that
when the network is whole again, by `cluster.cluster_partition_handling`."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pika  # type: ignore[import-untyped]
import pytest
from pika.adapters.blocking_connection import (  # type: ignore[import-untyped]
    BlockingChannel,
)
from pika.exceptions import AMQPError  # type: ignore[import-untyped]

from tests.chaos import mirrors
from tests.chaos.cluster import Cluster, Member
from tests.chaos.network import CLIENTS, Network, inside
from tests.chaos.settings import AMQP, KEPT
from tests.etcd import program
from tests.powercut.image import NotPermittedError

NODES = 3
BEFORE, LONE, OTHERS = 20, 15, 10
"""Messages: confirmed by all; by the side without etcd, or tried there; by the other side meanwhile."""
PATIENCE_S = 90.0
MINORITY_S = 45.0
"""Longer than a leader takes to go on alone, and than a publisher waits for another leader."""
POLL_S = 0.2
DISCARDED = re.compile(r"a divergent copy is (discarded|closed).* entries=(\d+) messages=(\d+)")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
]


@contextmanager
def divisible(handling: str) -> Iterator[tuple[Network, Cluster]]:
    """Three nodes with a mirrored queue that the first leads."""
    program()
    try:
        network = Network(NODES)
    except NotPermittedError as error:
        pytest.skip(f"no network namespaces here: {error}")
    with network, Cluster(NODES) as cluster:
        for member in cluster.members:
            settings = json.loads(member.config.read_text())
            settings["cluster"]["cluster_partition_handling"] = handling
            member.config.write_text(json.dumps(settings))
        try:
            cluster.start()
            first = cluster.members[0]
            mirrors.set_policy(first, mirrors.definition("when-synced", pair=False))
            with channel(first) as used:
                used.queue_declare(KEPT, durable=True)
            yield network, cluster
            cluster.stop()
        finally:
            print("".join(f"--- {each.name}\n{log_of(each)}" for each in cluster.members))


@contextmanager
def channel(member: Member) -> Iterator[BlockingChannel]:
    """A channel to a node, on which publishes are confirmed."""
    with inside(CLIENTS):
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(member.host, AMQP, heartbeat=0)
        )
    try:
        used = connection.channel()
        used.confirm_delivery()
        yield used
    finally:
        if connection.is_open:
            connection.close()


def log_of(member: Member) -> str:
    """The log lines of all lives of a node."""
    return member.log.read_text(errors="replace")


def until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(POLL_S)


class Publisher(threading.Thread):
    """Publishes a number of messages at a node, one after the other; notes those that are confirmed."""

    def __init__(self, member: Member, prefix: str, count: int) -> None:
        super().__init__(daemon=True)
        self.confirmed: list[str] = []
        self._member = member
        self._bodies = [f"{prefix}{number}" for number in range(count)]
        self.start()

    def run(self) -> None:
        """Publish."""
        with channel(self._member) as used:
            for body in self._bodies:
                try:
                    used.basic_publish("", KEPT, body.encode())
                except AMQPError:
                    return
                self.confirmed.append(body)


def divide(network: Network) -> None:
    """Have the first node reach no other, nor be reached."""
    for other in range(2, NODES + 1):
        network.block(1, other, silently=False)
        network.block(other, 1, silently=False)


def is_led(member: Member) -> bool:
    """Return whether a node leads the queue's group."""
    return any(group.startswith(mirrors.PREFIX) for group in member.leads())


def is_whole(member: Member) -> bool:
    """Return whether all copies are synchronised, as a node says."""
    queue = mirrors.queues_of(member).get(KEPT)
    return queue is not None and len(queue.synchronised) == NODES - 1


def taken(member: Member) -> list[str]:
    """Take all messages of the queue."""
    found: list[str] = []
    with channel(member) as used:
        for method, _properties, body in used.consume(KEPT, inactivity_timeout=5.0):
            if method is None:
                return found
            used.basic_ack(method.delivery_tag)
            found.append(body.decode())
    return found


def lost_by(member: Member) -> list[tuple[str, int]]:
    """Return what a node has logged about its divergent copies: what becomes of them, with their messages."""
    return [(verb, int(messages)) for verb, _, messages in DISCARDED.findall(log_of(member))]


def metric(member: Member, name: str) -> float:
    """The value of a metric without labels."""
    (found,) = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", member.metrics(), re.MULTILINE)
    return float(found)


def divided(network: Network, cluster: Cluster) -> tuple[list[str], list[str], list[str]]:
    """Confirm something, divide the network, and publish on both sides until the other side has another leader; return
    what was confirmed: by all, alone, and by the other side."""
    first, second, _ = cluster.members
    before = Publisher(first, "before-", BEFORE)
    before.join(PATIENCE_S)
    assert len(before.confirmed) == BEFORE
    until(lambda: is_whole(first), "all mirrors are synchronised")
    divide(network)
    alone = Publisher(first, "alone-", LONE)
    until(lambda: is_led(second) or is_led(cluster.members[2]), "the other side has a leader")
    others = Publisher(second, "others-", OTHERS)
    others.join(PATIENCE_S)
    assert len(others.confirmed) == OTHERS
    alone.join(MINORITY_S)
    return before.confirmed, alone.confirmed, others.confirmed


def check_equal(cluster: Cluster) -> None:
    """Stop all nodes, and compare their copies."""
    cluster.stop()
    found: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for each in cluster.replicas():
        found.setdefault((each.queue, each.segment), set()).add((each.common, each.digest))
    assert found
    assert all(len(digests) == 1 for digests in found.values()), found


def test_with_autoheal_both_sides_confirm_and_the_side_without_etcd_loses_its_part() -> None:
    """S3-07, S3-09: what it loses is counted, and its copy is the leader's afterwards."""
    with divisible("autoheal") as (network, cluster):
        first, second, _ = cluster.members
        before, alone, others = divided(network, cluster)
        assert len(alone) == LONE
        assert metric(first, "fluxmq_mirror_divergent_groups") == 1
        network.heal()
        until(lambda: bool(lost_by(first)), "the copy is discarded")
        until(lambda: is_whole(second), "all mirrors are synchronised")
        assert lost_by(first) == [("discarded", LONE)]
        assert metric(first, "fluxmq_mirror_divergent_messages_total") == LONE
        assert metric(first, "fluxmq_mirror_divergent_groups") == 0
        assert taken(first) == [*before, *others]
        check_equal(cluster)


def test_with_ignore_the_part_is_kept_until_its_node_is_started_again() -> None:
    """S3-07, S3-09: a crash and a restart do not make it forget which part that is."""
    with divisible("ignore") as (network, cluster):
        first, second, _ = cluster.members
        before, alone, others = divided(network, cluster)
        assert len(alone) == LONE
        network.heal()
        until(lambda: bool(lost_by(first)), "the copy is closed")
        assert lost_by(first) == [("closed", LONE)]
        after = Publisher(first, "after-", OTHERS)
        after.join(PATIENCE_S)
        assert len(after.confirmed) == OTHERS
        assert metric(first, "fluxmq_mirror_divergent_groups") == 1
        assert metric(first, "fluxmq_mirror_divergent_messages_total") == 0
        first.kill()
        first.launch()
        until(lambda: len(lost_by(first)) == 2, "the copy is discarded")
        assert lost_by(first)[1] == ("discarded", LONE)
        until(lambda: is_whole(second), "all mirrors are synchronised")
        assert taken(first) == [*before, *others, *after.confirmed]
        check_equal(cluster)


def test_a_leader_that_nobody_has_replaced_loses_nothing() -> None:
    """S3-09: the other nodes were away, and come back as mirrors."""
    with divisible("autoheal") as (_network, cluster):
        first, second, third = cluster.members
        before = Publisher(first, "before-", BEFORE)
        before.join(PATIENCE_S)
        until(lambda: is_whole(first), "all mirrors are synchronised")
        second.kill()
        third.kill()
        alone = Publisher(first, "alone-", LONE)
        alone.join(MINORITY_S)
        assert len(alone.confirmed) == LONE
        second.launch()
        third.launch()
        until(lambda: metric(first, "fluxmq_mirror_divergent_groups") == 0, "it reaches etcd")
        until(lambda: is_whole(first), "all mirrors are synchronised")
        assert is_led(first)
        assert lost_by(first) == []
        assert taken(second) == [*before.confirmed, *alone.confirmed]
        check_equal(cluster)


def test_with_pause_minority_the_side_without_etcd_confirms_nothing() -> None:
    """S3-08: so nothing that was confirmed is lost."""
    with divisible("pause_minority") as (network, cluster):
        first, second, _ = cluster.members
        before, alone, others = divided(network, cluster)
        assert alone == []
        network.heal()
        until(lambda: is_whole(second), "all mirrors are synchronised")
        assert lost_by(first) == []
        found = taken(first)
        assert {*before, *others} <= {*found}
        check_equal(cluster)
