"""Seeing and changing a running cluster: leaders and members move, and no member is believed that has lost its promises."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from fluxmq.cli import main as cli
from fluxmq.routing.topology.arguments import GROUP_KEY
from tests.broker import HOST
from tests.cluster.nodes import Cluster, Node
from tests.cluster.sides import Amqp, side
from tests.conformance.client import eventually

GROUP = "default"
SETTINGS: dict[str, Any] = {
    "queues": [
        {"name": "kept", "replication": {"enabled": True, "group": GROUP}},
        {"name": "apart", "replication": {"enabled": True, "group": "other"}},
    ],
    "cluster": {"raft": {"auto_provision_groups": True}},
}
SECONDS = 30.0


class Control:
    """fluxmqctl, asked of one node after another."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, node: Node, *words: str) -> tuple[int, str]:
        return self.run("--data-dir", str(node.folder / "data"), *words)

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command that names its node by itself."""
        self._capsys.readouterr()
        code = cli.run(list(words))
        said = self._capsys.readouterr()
        return code, said.out + said.err

    def members(self, node: Node, group: str = GROUP) -> dict[str, dict[str, Any]]:
        """The members of a group as its leader has them, by node."""
        code, text = self(node, "members", group, "--json")
        assert code == 0, text
        rows = json.loads(text)["groups"]
        return {each["node"]: each for row in rows for each in row["members"]}

    def is_voter_with_all(self, asked: Node, node: Node, group: str = GROUP) -> bool:
        """Whether a node is a voter that lacks nothing."""
        found = self.members(asked, group).get(node.name)
        return (
            found is not None
            and (found["kind"], found["lag"], found["doubt"]) == ("voter", 0, "")
            and found["connected"]
        )

    def led_by(self, node: Node, group: str) -> str:
        """The node that leads a group, as a node knows; empty for nobody."""
        _, text = self(node, "raft", group, "--json")
        return next(str(row["leader"]) for row in json.loads(text)["groups"])


@pytest.fixture
def control(capsys: pytest.CaptureFixture[str]) -> Control:
    return Control(capsys)


def test_two_groups_are_led_on_two_nodes_without_being_told(
    cluster: Cluster, control: Control
) -> None:
    first, second, third = cluster.nodes
    eventually(
        lambda: len({control.led_by(first, group) for group in (GROUP, "other")} - {""}) == 2,
        "leaders are spread",
        SECONDS,
    )
    for node, group in ((second, GROUP), (third, "other")):
        code, text = control(node, "audit", group)
        assert code == 0, text
        assert [line.split()[-1] for line in text.splitlines()[1:4]] == ["equal"] * 3
    assert control(third, "audit", "nosuch")[0] == 1


def test_leaders_move_when_they_are_told_to(cluster: Cluster, control: Control) -> None:
    first, second, third = cluster.nodes
    for group in (GROUP, "other"):
        code, text = control(third, "transfer", group, "node1")
        assert (code, text) == (0, f"group {group!r} is led by node1\n")
    assert eventually(lambda: control.led_by(second, GROUP) == "node1", "all know", SECONDS)
    code, text = control(second, "rebalance")
    assert code == 0
    assert {control.led_by(first, group) for group in (GROUP, "other")} > {"node1"}
    assert control(second, "rebalance") == (0, "leaders are spread evenly\n")
    code, text = control(first, "can-stop")
    assert (code, text) == (0, "this node may stop: 2 groups keep their quorum without it\n")
    code, text = control(first, "upgrade-check")
    assert code == 0, text
    assert "ok: cluster: can-stop: 2 groups keep their quorum without node1\n" in text
    assert "note: cluster: versions of node2, node3: " in text
    assert control(first, "transfer", "nosuch")[0] == 1
    assert control(first, "transfer", GROUP, "node9")[1].endswith(
        "node9 is not one of its voters\n"
    )
    assert control(first, "grow", GROUP, "node9")[0] == 1


def test_a_drained_node_leads_nothing_and_refuses_clients(
    cluster: Cluster, control: Control
) -> None:
    drained = cluster.leader(GROUP)
    led = [each for each in (GROUP, "other") if control.led_by(drained, each) == drained.name]
    code, text = control(drained, "drain", "--wait", str(SECONDS))
    assert code == 0, text
    assert "and may stop" in text
    assert control.led_by(drained, GROUP) not in ("", drained.name)
    code, text = control(drained, "check_port_connectivity")
    assert code == 1
    assert "protocol: mqtt" in text
    code, text = control(drained, "cluster_status", "--formatter", "json")
    assert sorted(json.loads(text)["running_nodes"]) == sorted(each.name for each in cluster.nodes)
    assert control(drained, "resume_listeners")[0] == 0
    code, text = control(drained, "check_port_connectivity")
    assert code == 0, text
    for group in led:
        assert control(drained, "transfer", group, drained.name)[0] == 0


def test_a_member_goes_and_comes(cluster: Cluster, control: Control) -> None:
    first, second, third = cluster.nodes
    with ExitStack() as stack:
        publisher = side("mqtt", first, stack)
        for number in range(20):
            assert publisher.publish("kept", b"%d" % number)
        assert control(second, "shrink", GROUP, "node3")[0] == 0
        assert set(control.members(third)) == {"node1", "node2"}
        code, text = control(first, "can-stop")
        assert code == 1
        assert "1 of 2 voters would be left, and 2 are needed" in text
        code, text = control(first, "upgrade-check")
        assert code == 1
        assert f"stop: cluster: can-stop: group {GROUP!r}: 1 of 2 voters would be left" in text

        record = third.folder / "data" / "groups" / GROUP / "member"
        eventually(lambda: not json.loads(record.read_bytes())["hosted"], "it closes", SECONDS)
        for number in range(20, 40):
            assert publisher.publish("kept", b"%d" % number)
        code, text = control(second, "forget_node", "node3")
        assert code == 1
        assert "in contact as a member of other" in text
        code, text = control(second, "grow", GROUP, "node3")
        assert code == 0, text
        assert text.endswith("node3 is a voter of group 'default'\n")
        eventually(lambda: control.is_voter_with_all(first, third), "it has all", SECONDS)
        assert control(third, "transfer", GROUP, "node3")[0] == 0
        consumer = side("amqp", second, stack).consume("kept", limit=40)
        came = [consumer.next() for _ in range(40)]
        assert [int(got.body) for got in came] == list(range(40))
        assert [consumer.ack(got) for got in came] == [0] * 40


def test_a_group_that_is_named_first_by_a_client_is_made_on_every_node(
    cluster: Cluster, control: Control
) -> None:
    first, second, third = cluster.nodes
    group = "made"

    def whole(asked: Node) -> bool:
        found = control.members(asked, group)
        return len(found) == 3 and all(
            each["kind"] == "voter" and each["connected"] and each["lag"] in (0, -1)
            for each in found.values()
        )

    with ExitStack() as stack:
        amqp = Amqp(second, stack)
        amqp.declare("made", {GROUP_KEY: group})
        assert amqp.publish("made", b"0")
        for node in cluster.nodes:
            eventually(partial(whole, node), "all three are members", SECONDS)
        leader = cluster.leader(group)
        leader.kill()
        others = [node for node in cluster.nodes if node is not leader]
        publisher = side("mqtt", others[0], stack)
        assert publisher.publish("made", b"1")
        leader.start()
        cluster.wait_ready()
        eventually(lambda: whole(others[1]), "it is a member again", SECONDS)
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    cluster.wait_ready()
    with ExitStack() as stack:
        assert side("mqtt", first, stack).publish("made", b"2")
        consumer = side("amqp", third, stack).consume("made")
        came = [consumer.next() for _ in range(3)]
        assert [got.body for got in came] == [b"0", b"1", b"2"]
        assert [consumer.ack(got) for got in came] == [0] * 3
        eventually(lambda: whole(second), "all are members", SECONDS)
    # It is not forgotten when groups are no longer made: its copy is here, and the settings do not know what of.
    third.stop()
    settings = third.file.read_text()
    third.file.write_text(
        settings.replace("auto_provision_groups: true", "auto_provision_groups: false")
    )
    third.start()
    process = third.broker.process
    assert process is not None
    assert process.wait(SECONDS) != 0
    third.up = False
    assert f"cluster.raft: replication group {group} is not in cluster.raft.groups" in (
        third.broker.log()
    )
    third.file.write_text(settings)


def test_who_has_lost_its_directory_or_has_an_old_one_is_filled_anew(
    cluster: Cluster, control: Control
) -> None:
    node = cluster.followers(GROUP)[0]
    leader = cluster.leader(GROUP)
    groups = node.folder / "data"
    with ExitStack() as stack:
        publisher = side("mqtt", leader, stack)
        assert publisher.publish("kept", b"first")
        node.kill()
        copy = node.folder / "copy"
        shutil.copytree(groups, copy, symlinks=True, ignore=shutil.ignore_patterns("run"))
        for what in ("has an older data directory", "has lost its data directory"):
            if what == "has an older data directory":
                node.start()  # another life, of which the copy knows nothing
                cluster.wait_ready()
                assert publisher.publish("kept", b"second")
                eventually(lambda: control.is_voter_with_all(leader, node), "it has all", SECONDS)
                node.kill()
            shutil.rmtree(groups)
            if what == "has an older data directory":
                shutil.copytree(copy, groups, symlinks=True)
            before = leader.broker.log().count(what)
            node.start()

            def is_seen(what: str = what, before: int = before) -> bool:
                return leader.broker.log().count(what) > before

            eventually(
                is_seen,
                f"the leader sees that it {what}",
                SECONDS,
            )
            eventually(lambda: control.is_voter_with_all(leader, node), "it has all", SECONDS)
            node.kill()
        node.start()
        cluster.wait_ready()
        eventually(lambda: control.is_voter_with_all(leader, node), "it has all", SECONDS)


def test_a_node_without_a_leader_is_not_ready(cluster: Cluster, control: Control) -> None:
    alone, *others = cluster.nodes
    for other in others:
        other.kill()

    def refused() -> str:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{alone.http_port}/ready", timeout=5) as got:
                return "" if got.status == 200 else "?"
        except urllib.error.HTTPError as answer:
            return str(json.loads(answer.read())["processes"][0].get("problem", ""))

    none_is_led = re.compile(r"\b(\d+) of \1 groups have no leader")
    eventually(lambda: none_is_led.search(refused()), "it is not ready", SECONDS)
    code, text = control(alone, "can-stop")
    assert code == 1
    assert "group 'default': has no leader at the moment" in text
    assert none_is_led.search(control(alone, "status")[1])
