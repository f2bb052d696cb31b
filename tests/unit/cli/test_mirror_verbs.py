"""Verbs about mirrored queues over a control socket, and warnings about policies that mirror."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxmq.cli import data_directory, main, rabbitmq
from fluxmq.cli.mirror_verbs import warnings_of
from fluxmq.control.listings import Listings
from fluxmq.control.mirror_requests import KINDS, MirrorRequests
from fluxmq.control.mirrors import MirrorState
from fluxmq.control.peers import ControlListener, Service
from fluxmq.ipc import unix_socket
from fluxmq.ipc.messages import Body, ControlMessage
from fluxmq.ipc.mirror_messages import SyncState
from fluxmq.ipc.node_messages import DESCRIBE_NODE, NodeDescription
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, SetPolicy
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Topology

DEADLINE = 10.0
STATE = MirrorState("n1", ("n2", "n3"), ("n2",))


def topology() -> Topology:
    found = Topology()
    found.apply_all([AddVhost(Vhost(each)) for each in ("/", "team")])
    found.apply_all(
        [
            SetPolicy(Policy("/", "short", "^q", definition={"max-length": 5})),
            SetPolicy(Policy("team", "ha-all", r"^ha\.", definition={"ha-mode": "all"})),
            *(DeclareQueue(QueueRecord("/", each, durable=True)) for each in ("two.q", "plain")),
        ]
    )
    return found


class MirrorNode(threading.Thread):
    """The control socket of a node on which the queue ``two.q`` is mirrored, on a loop of its own. A
    synchronisation goes on until it was asked about twice."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        place = data_directory.control_socket(path)
        place.parent.mkdir()
        self.socket = unix_socket.bind(place)
        self.topology = topology()
        self.asked: list[tuple[str, bool]] = []
        self.nodes: tuple[str, ...] = ("n1", "n2")
        self.state = STATE
        self.syncing = 0
        self.loop = asyncio.new_event_loop()
        self.serving = threading.Event()
        self.requests = MirrorRequests(lambda: self.topology, self._state, self)
        self.listings = Listings(lambda: self.topology, list, mirrors=self._state)

    def _state(self, queue: QueueRecord) -> MirrorState | None:
        return self.state if queue.name == "two.q" else None

    async def synchronise(self, queue: QueueRecord, *, begin: bool) -> SyncState:
        """Begin, or tell how far it is."""
        self.asked.append((queue.name, begin))
        self.syncing = 2 if begin else self.syncing - 1
        return SyncState(self.syncing > 0)

    async def cancel(self, queue: QueueRecord) -> SyncState:
        """Stop."""
        self.asked.append((queue.name, False))
        return SyncState(self.syncing > 0)

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request."""
        if message.kind == DESCRIBE_NODE:
            names = ("3.13.7", "3.13.7", 1, "/data")
            return NodeDescription(
                *("n1", *names, self.nodes, self.nodes, (), (), (), True, 2, 2, 1, 1)
            ).to_body()
        part = self.requests if message.kind in KINDS else self.listings
        return await part.answer(message)

    def run(self) -> None:
        """Serve until stopped."""
        asyncio.set_event_loop(self.loop)
        service = Service(self.answer, lambda _: None, lambda _: None)
        listener = ControlListener(service, os.geteuid())
        self.loop.run_until_complete(listener.start(self.socket))
        self.serving.set()
        self.loop.run_forever()
        self.loop.run_until_complete(listener.stop())
        self.loop.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MirrorNode]:
    made = MirrorNode(tmp_path)
    made.start()
    assert made.serving.wait(DEADLINE)
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)
    made.join(DEADLINE)


Ran = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fluxmqctl(node: MirrorNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ran:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run(["--data-dir", str(tmp_path), *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def diagnostics(node: MirrorNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ran:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = rabbitmq.run("rabbitmq-diagnostics", ["--data-dir", str(tmp_path), *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_queue_is_synchronised_before_the_command_ends(
    fluxmqctl: Ran, diagnostics: Ran, node: MirrorNode
) -> None:
    """S4-55: with RabbitMQ's words."""
    said = "Synchronising queue 'two.q' in vhost '/' ...\n"
    assert fluxmqctl("sync_queue", "two.q") == (0, said, "")
    assert node.asked == [("two.q", True), ("two.q", False), ("two.q", False)]
    assert diagnostics("sync_queue", "-p", "/", "two.q") == (0, said, "")
    assert diagnostics("sync_queue", "-q", "two.q") == (0, "", "")


def test_a_synchronisation_is_cancelled(fluxmqctl: Ran, node: MirrorNode) -> None:
    """S4-56: with RabbitMQ's words."""
    title = "Stopping synchronising queue 'two.q' in vhost '/' ...\n"
    assert fluxmqctl("cancel_sync_queue", "two.q") == (0, title + "not_syncing\n", "")
    node.syncing = 1
    assert fluxmqctl("cancel_sync_queue", "two.q") == (0, title, "")
    assert node.asked == [("two.q", False)] * 2


@pytest.mark.parametrize(
    ("command", "queue", "code", "out", "err"),
    [
        ("sync_queue", "plain", 69, "", "Error:\nnot_mirrored\n"),
        ("sync_queue", "nothing", 69, "", "Error:\nnot_found\n"),
        ("cancel_sync_queue", "plain", 0, "not_syncing\n", ""),
        ("cancel_sync_queue", "nothing", 69, "", "Error:\nnot_found\n"),
    ],
)
def test_queues_that_are_not_mirrored(
    diagnostics: Ran, command: str, queue: str, code: int, out: str, err: str
) -> None:
    """S4-55, S4-56: as RabbitMQ 3.10 answers."""
    word = "Synchronising" if command == "sync_queue" else "Stopping synchronising"
    title = f"{word} queue '{queue}' in vhost '/' ...\n"
    assert diagnostics(command, queue) == (code, title + out, err)


def test_fluxmqctl_says_which_queue_is_not_mirrored(fluxmqctl: Ran) -> None:
    code, _, err = fluxmqctl("sync_queue", "plain")
    assert (code, err) == (1, "fluxmqctl: queue 'plain' in vhost '/' is not mirrored\n")


def test_mirrors_are_listed(diagnostics: Ran) -> None:
    """S4-20, S4-54."""
    command = "list_queues name policy pid mirror_pids synchronised_mirror_pids -s"
    code, out, _ = diagnostics(*command.split())
    assert code == 0
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in out.splitlines()}
    number = rows["two.q"][1].split(".")[2]
    mirrors = [f"<n{node}.1.{number}.0>" for node in (1, 2, 3)]
    listed = f"[{mirrors[1]}, {mirrors[2]}]"
    assert rows["two.q"] == ["", mirrors[0], listed, f"[{mirrors[1]}]"]
    assert rows["plain"][2:] == ["", ""]
    assert diagnostics("list_queues", "slave_pids", "synchronised_slave_pids", "-s")[0] == 0


CHECK = "check_if_cluster_has_classic_queue_mirroring_policy"
LIST = "list_policies_with_classic_queue_mirroring"


def test_a_check_fails_if_a_policy_mirrors(diagnostics: Ran, node: MirrorNode) -> None:
    """S4-22: in whichever virtual host."""
    found = "Policy ha-all enables classic queue mirroring\n"
    assert diagnostics(CHECK) == (69, "", found)
    code, _, err = diagnostics(CHECK, "--formatter", "json")
    told = json.loads(err)
    assert code == 69
    assert (told["result"], [each["name"] for each in told["policies"]]) == ("error", ["ha-all"])
    assert told["message"] == "Cluster reported policies enabling classic queue mirroring"
    node.topology = Topology()
    node.topology.apply(AddVhost(Vhost("/")))
    passed = "Cluster reported no policies that enable classic queue mirroring\n"
    title = "Checking if cluster has any classic queue mirroring policy ...\n"
    assert diagnostics(CHECK) == (0, title + passed, "")
    assert diagnostics(CHECK, "-s") == (0, "", "")
    assert diagnostics(CHECK, "--formatter", "json")[1] == '{"result":"ok"}\n'


def test_policies_that_mirror_are_listed(diagnostics: Ran) -> None:
    """S4-23."""
    code, out, _ = diagnostics(LIST)
    assert code == 0
    assert out.splitlines() == [
        "Listing policies with classic queue mirroring ...",
        "vhost\tname\tpattern\tapply-to\tdefinition\tpriority",
        'team\tha-all\t^ha\\.\tall\t{"ha-mode":"all"}\t0',
    ]
    code, out, _ = diagnostics(LIST, "-s", "--formatter=pretty_table")
    assert code == 0
    assert out.startswith("┌")
    assert "ha-all" in out
    assert "short" not in out


def test_a_check_fails_if_a_mirrored_queue_has_no_synchronised_mirror(
    diagnostics: Ran, node: MirrorNode
) -> None:
    """S3-06: and the node leads it, and is not alone; with the words of RabbitMQ 3.10."""
    check = "check_if_node_is_mirror_sync_critical"
    title = "Checking if node n1 is critical for data safety of any classic mirrored queues ...\n"
    safe = "Node n1 reported no classic mirrored queues without online synchronised mirrors\n"
    assert diagnostics(check) == (0, title + safe, "")
    node.state = MirrorState("n1", ("n2",))
    lost = (
        "queue 'two.q' in vhost '/' would lose its only synchronised replica (master) if node n1"
        " is stopped\n"
    )
    assert diagnostics(check) == (69, "", lost)
    code, _, err = diagnostics(check, "--formatter", "json")
    assert (code, json.loads(err)["queues"][0]["name"]) == (69, "two.q")
    node.state = MirrorState("n2", ("n1",))
    assert diagnostics(check, "-s") == (0, "", "")
    assert diagnostics(check, "--formatter", "json")[1] == '{"result":"ok"}\n'
    node.state, node.nodes = MirrorState("n1"), ("n1",)
    assert "does not apply" in diagnostics(check)[1]


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"max-length": 1}, []),
        ({"ha-mode": "all", "ha-promote-on-shutdown": "always"}, ["quorum queues"]),
        ({"ha-mode": "exactly", "ha-params": 2}, ["quorum queues"]),
        (
            {"ha-mode": "exactly", "ha-params": 2, "ha-promote-on-shutdown": "always"},
            ["quorum queues", "dangerous"],
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 9},
            ["quorum queues", "less than cluster.net_ticktime"],
        ),
    ],
)
def test_what_there_is_to_know_about_a_policy(definition: dict[str, Any], words: list[str]) -> None:
    """S4-13, S4-72, S4-77."""
    found = list(warnings_of(definition))
    assert len(found) == len(words)
    for line, word in zip(found, words, strict=True):
        assert line.startswith("warning: ")
        assert word in line
