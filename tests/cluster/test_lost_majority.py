"""Two of three nodes are gone for good: the third is declared the truth, and nobody who was left behind takes part again."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from fluxmq.cli import main as cli
from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import side
from tests.conformance.client import eventually

GROUP = "default"
SETTINGS = {"queues": [{"name": "kept", "replication": {"enabled": True, "group": GROUP}}]}
SECONDS = 60.0
LEFT_BEHIND = "another node's copy of a group was declared authoritative"
TRUTH = "--this-copy-is-the-truth"


def force(node: Node, *words: str) -> int:
    """Run the command as an operator would on a stopped node."""
    return cli.run(["--config", str(node.file), "force-quorum", *words])


def copies_set_aside(node: Node) -> list[Path]:
    """What was put aside of the group."""
    return list((node.folder / "data" / "groups" / GROUP / "damaged").glob("*/queues"))


def says_it_was_left_behind(node: Node) -> bool:
    return LEFT_BEHIND in node.broker.log()


def succeeds(command: list[str]) -> bool:
    return cli.run(command) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_node_goes_on_alone_and_those_left_behind_are_filled_anew(
    module_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Review, gap "no way out of a lost majority"."""
    first, second, third = module_cluster.nodes
    bodies = [b"%d" % number for number in range(50)]
    with ExitStack() as stack:
        publisher = side("mqtt", first, stack)
        assert all(publisher.publish("kept", body) for body in bodies)
    assert force(first, GROUP, TRUTH) == 1
    assert "the broker is running" in capsys.readouterr().err
    second.kill()
    third.kill()
    first.kill()
    assert force(first, "nothing", TRUTH) == 1
    assert "no copy of a replicated group nothing" in capsys.readouterr().err
    assert force(first, "--all") == 2  # it only says what it would do
    said = capsys.readouterr().err
    assert "group default: would become authoritative" in said
    assert "node2, node3" in said
    assert force(first, "--all", TRUTH) == 0
    said = capsys.readouterr().out
    assert "group default: this copy is authoritative now" in said
    assert "etcd: users, topology, sessions and retained messages of this node are" in said
    assert "remove etcd in their data directories" in said
    first.start()
    first.broker.wait_ready(SECONDS)
    with ExitStack() as stack:
        consumer = side("amqp", first, stack).consume("kept")
        got = [consumer.next() for _ in bodies]
        assert [each.body for each in got] == bodies
        consumer.ack(got[0])
        publisher = side("mqtt", first, stack)
        assert publisher.publish("kept", b"afterwards")
        first.broker.control("add_user", "ann", "secret")  # etcd takes changes
    # The others come back with what they had, and would be a majority between them.
    for node in (second, third):
        shutil.rmtree(node.folder / "data" / "etcd")
    second.start()
    third.start()
    for node in (second, third):
        eventually(partial(copies_set_aside, node), "the copy is set aside", SECONDS)
        eventually(partial(says_it_was_left_behind, node), "it says so", SECONDS)
        assert not node.led(GROUP)
    control = ["--data-dir", str(first.folder / "data")]
    for node in (second, third):
        eventually(
            partial(succeeds, [*control, "grow", GROUP, node.name]),
            "it grows",
            SECONDS,
        )
        eventually(partial(is_voter, first, node, capsys), "it is a voter", SECONDS)
    module_cluster.wait_ready()
    first.kill()  # the others have it all now
    with ExitStack() as stack:
        consumer = side("amqp", second, stack).consume("kept")
        found = [consumer.next(SECONDS).body for _ in range(len(bodies))]
        assert sorted(found, key=lambda body: (body == b"afterwards", len(body), body)) == [
            *bodies[1:],
            b"afterwards",
        ]
        assert side("mqtt", third, stack).publish("kept", b"by two")
    assert second.broker.control("authenticate_user", "ann", "secret")


def is_voter(asked: Node, node: Node, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a node is a voter of the group, as the leader has it."""
    return "voter" in _member(asked, node, capsys)


def _member(asked: Node, node: Node, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of a node in the members of the group, as the leader has them."""
    capsys.readouterr()
    cli.run(["--data-dir", str(asked.folder / "data"), "members", GROUP])
    lines = capsys.readouterr().out.splitlines()
    return next((line for line in lines if node.name in line.split()), "")
