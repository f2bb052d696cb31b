"""Mirrors that come and go: on nodes that fail, that say nothing, that join the cluster and leave it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from fluxmq.cli.remote import PASSWORD_VARIABLE
from tests.cluster.nodes import NODES, Cluster, Node
from tests.cluster.sides import channel_of
from tests.cluster.test_joining import has_joined
from tests.cluster.test_members import Control
from tests.cluster.test_mirrors import records, row_of
from tests.conformance.client import eventually
from tests.management import ManagementSite

pytestmark = pytest.mark.once

SECONDS = 60.0
SILENCE = 4
"""Seconds after which the leader does without a mirror that says nothing."""
MESSAGES = 30
SETTINGS: dict[str, Any] = {
    "cluster": {"net_ticktime": f"{SILENCE}s", "mirroring_sync_max_throughput": "20kB"}
}
LARGE = 4 << 20
"""Bytes of a queue that are not copied before the test says so."""


@pytest.fixture
def control(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Control:
    monkeypatch.setenv(PASSWORD_VARIABLE, "guest")
    return Control(capsys)


def policy(node: Node, name: str, pattern: str, **keys: Any) -> None:
    """Have queues mirrored, and synchronised at once."""
    definition = {f"ha-{key}": value for key, value in keys.items()} | {"ha-sync-mode": "automatic"}
    node.broker.control("set_policy", name, pattern, json.dumps(definition))


def synchronised_on(node: Node, queue: str) -> set[str]:
    """The nodes that have everything of a queue, as one of them lists it."""
    row = row_of(node, queue)
    pids = [row["pid"], *(row["synchronised_mirror_pids"] or ())]
    return {pid[1:].split(".")[0] for pid in pids if pid}


def fill(node: Node, queue: str) -> None:
    """Declare a queue with messages, which are confirmed."""
    with channel_of(node) as channel:
        channel.queue_declare(queue, durable=True)
        for number in range(MESSAGES):
            channel.basic_publish("", queue, b"%d" % number)


def drain(node: Node, queue: str, count: int) -> list[int]:
    """Take messages from a queue."""
    with channel_of(node) as channel:
        taken: list[int] = []
        for method, _, body in channel.consume(queue, inactivity_timeout=SECONDS):
            assert method is not None, f"{len(taken)} of {count} messages came"
            taken.append(int(body))
            channel.basic_ack(method.delivery_tag)
            if len(taken) == count:
                break
        channel.cancel()
    return taken


def test_a_mirror_that_is_lost_is_replaced_on_another_node(cluster: Cluster) -> None:
    """S4-11, S4-12: there are exactly as many copies as before, with everything."""
    first, *others = cluster.nodes
    policy(first, "ha-two", r"^two\.", mode="exactly", params=2)
    fill(first, "two.replaced")
    (name,) = synchronised_on(first, "two.replaced") - {first.name}
    (lost,) = [node for node in others if node.name == name]
    (other,) = [node for node in others if node is not lost]
    lost.kill()
    wanted = {first.name, other.name}
    eventually(lambda: synchronised_on(first, "two.replaced") == wanted, "replaced", SECONDS)
    lost.start()
    lost.broker.wait_ready(SECONDS)
    first.kill()
    assert drain(other, "two.replaced", MESSAGES) == list(range(MESSAGES))


def test_publishers_wait_for_a_mirror_that_says_nothing_and_then_go_on_without_it(
    cluster: Cluster,
) -> None:
    """S3-03, S4-39, S4-48: nothing is confirmed before the record lacks the mirror."""
    first, second, third = cluster.nodes
    policy(first, "ha-pair", r"^pair\.", mode="nodes", params=[first.name, second.name])
    fill(first, "pair.silent")

    rows = json.loads(first.broker.control("list_queues", "--formatter", "json", "name", "group"))
    (group,) = [row["group"] for row in rows if row["name"] == "pair.silent"]

    def is_synchronised() -> bool:
        member = records(third)[group].member(second.name)
        return member is not None and member.synchronised

    eventually(is_synchronised, "it is mirrored", SECONDS)
    second.pause()
    try:
        with channel_of(first) as channel:
            channel.basic_publish("", "pair.silent", b"%d" % MESSAGES)
            assert not is_synchronised()
            channel.basic_publish("", "pair.silent", b"%d" % (MESSAGES + 1))
    finally:
        second.resume()
    eventually(is_synchronised, "the mirror is back, and has everything", SECONDS)
    assert drain(third, "pair.silent", MESSAGES + 2) == list(range(MESSAGES + 2))


def test_a_synchronisation_that_is_cancelled_leaves_the_queue_where_it_is(
    cluster: Cluster,
) -> None:
    """S4-56, S4-73: while it is going on, and it may be asked for again."""
    first, *_ = cluster.nodes
    control = first.broker.control
    with channel_of(first) as channel:
        channel.queue_declare("slow.cancelled", durable=True)
        for number in range(8):
            channel.basic_publish("", "slow.cancelled", b"%d" % number + b" " * (LARGE // 8))
    control("set_policy", "ha-slow", r"^slow\.", '{"ha-mode":"exactly","ha-params":2}')

    def row() -> dict[str, Any]:
        return row_of(first, "slow.cancelled")

    eventually(lambda: row()["mirror_pids"], "a mirror is to come", SECONDS)
    assert row()["synchronised_mirror_pids"] == []
    site = ManagementSite(first.http_port)
    for _ in range(2):
        asked = site.ask("POST", "queues/%2F/slow.cancelled/actions", {"action": "sync"})
        assert asked.status == 204
        assert row()["synchronised_mirror_pids"] == []
        assert "not_syncing" not in control("cancel_sync_queue", "slow.cancelled")
        assert "not_syncing" in control("cancel_sync_queue", "slow.cancelled")
    assert row()["pid"].startswith(f"<{first.name}.")
    assert drain(first, "slow.cancelled", 8) == list(range(8))


def test_a_node_that_joins_gets_mirrors_and_one_that_leaves_has_none(
    cluster: Cluster, control: Control
) -> None:
    """S4-14, S4-16: queues that all nodes mirror. The last test: there are other nodes afterwards."""
    first, *_ = cluster.nodes
    policy(first, "ha-all", r"^ha\.", mode="all")
    fill(first, "ha.everywhere")
    eventually(lambda: synchronised_on(first, "ha.everywhere") == {*NODES}, "mirrored", SECONDS)
    fourth = has_joined(control, cluster)
    every = {*NODES, fourth.name}
    eventually(lambda: synchronised_on(first, "ha.everywhere") == every, "on all", SECONDS)
    code, text = control(fourth, "leave", "--wait", f"{SECONDS:g}")
    assert code == 0, text
    cluster.nodes.remove(fourth)
    assert fourth.broker.process is not None
    assert fourth.broker.process.wait(SECONDS) == 0
    fourth.up = False

    def left() -> bool:
        return all(each.member(fourth.name) is None for each in records(first).values())

    eventually(left, "no record names it", SECONDS)
    eventually(partial(_is_on, first, "ha.everywhere", {*NODES}), "on the others", SECONDS)
    assert drain(first, "ha.everywhere", MESSAGES) == list(range(MESSAGES))


def _is_on(node: Node, queue: str, nodes: set[str]) -> bool:
    return synchronised_on(node, queue) == nodes
