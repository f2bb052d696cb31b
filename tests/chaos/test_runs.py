"""What runs are made of: their configurations, the nodes' settings, how publishers publish again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from fluxmq.settings.load import load
from tests.chaos.__main__ import main
from tests.chaos.board import Board, Host, until
from tests.chaos.configurations import BY_NAME, CONFIGURATIONS, MIRRORS, SHORT
from tests.chaos.mirrors import definition
from tests.chaos.operators import Asked
from tests.chaos.publishers import NACK_PAUSE_S, Publisher, Route
from tests.chaos.records import OK, UNKNOWN, History, Publish, read
from tests.chaos.run import are_level
from tests.chaos.settings import (
    AMQP_GROUP,
    PEER_PORTS,
    WORKERS,
    aliases,
    mirrored_queues,
    node_settings,
)


def test_the_campaign_has_24_configurations_of_every_kind_of_fault() -> None:
    assert len(CONFIGURATIONS) == 24
    assert len(BY_NAME) == len(CONFIGURATIONS) + len(MIRRORS) + len(SHORT)
    kinds = {step.fault.kind.split()[0] for each in CONFIGURATIONS for step in each.steps}
    outside = {"F14"}
    assert kinds == {f"F{number}" for number in range(1, 21)} - outside
    for each in CONFIGURATIONS:
        assert all(step.lasting and min(step.lasting) > 0 for step in each.steps)
        assert all(step.fault.commands for step in each.steps if issubclass(step.fault, Asked))
    assert [each.workers for each in CONFIGURATIONS].count(2) == len(CONFIGURATIONS) // 2
    assert sum(each.dead_letters for each in CONFIGURATIONS) == 2, "as many as RabbitMQ has"


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == list(BY_NAME)
    assert "F5 majorities ring (5 nodes,2 shards)" in said


@pytest.mark.parametrize("nodes", [1, 3, 5])
@pytest.mark.parametrize("proxied", [False, True])
def test_the_nodes_settings_load(tmp_path: Path, nodes: int, proxied: bool) -> None:
    for node in range(1, nodes + 1):
        settings = node_settings(
            node,
            nodes,
            tmp_path,
            mode="replicate",
            proxied=proxied,
            certificates=None,
            dead_letters=True,
            checkpoint_interval="200ms",
        )
        path = tmp_path / "node.json"
        path.write_text(json.dumps(settings))
        loaded = load(path, {})
        assert loaded.cluster.enabled == (nodes > 1)
        assert len(loaded.cluster.raft.peers) == nodes - 1
        hosts = {address.rpartition(":")[0] for address in loaded.cluster.raft.peers.values()}
        assert {int(host.rpartition(".")[2]) in aliases(nodes) for host in hosts} <= {proxied}
    assert len(set(PEER_PORTS)) == 3


def test_members_are_level_when_those_that_have_a_group_have_applied_the_same_of_it() -> None:
    one = {"default": 8.0, "mirrors-1": 5.0}
    assert are_level([one, one, {"default": 8.0}]), "a mirrored group is not everywhere"
    assert not are_level([one, {**one, "mirrors-1": 4.0}])
    assert not are_level([one, {"mirrors-1": 5.0}]), "the other is"
    assert not are_level([one, {}])
    assert not are_level([{}, {}])


def test_mirrored_queues_are_read_by_a_group_that_is_told_offsets_unless_these_may_change() -> None:
    names = {each.name: each for each in MIRRORS}
    assert {each.mirrors for each in MIRRORS} == {"when-synced", "always"}
    always, waits = names["mirrors-always"], names["mirrors-waits"]
    assert always.mirrors == "always"
    assert waits.steps == always.steps, "what the policy decides"
    assert json.loads(definition("when-synced", pair=False)) == {
        "ha-mode": "all",
        "ha-sync-mode": "automatic",
        "ha-promote-on-failure": "when-synced",
        "ha-promote-on-shutdown": "when-synced",
    }
    assert [group.name for group in mirrored_queues(True)[0].groups] == [WORKERS, AMQP_GROUP]
    assert [group.name for group in mirrored_queues(False)[0].groups] == [AMQP_GROUP]


class Told(Publisher):
    """A publisher whose node is the test."""

    protocol = "told"

    def __init__(self, board: Board, window: int) -> None:
        super().__init__(board, "told", 0, Route(1, ("q",), window, 10_000.0))
        self.sent: list[int] = []
        self.closed: asyncio.Future[None]

    async def connect(self) -> asyncio.Future[None]:
        self.closed = asyncio.get_running_loop().create_future()
        return self.closed

    def send(self, body: bytes) -> int:
        self.sent.append(int.from_bytes(body[12:16], "big"))
        return len(self.sent)

    def abandon(self) -> None:
        pass


def published(path: Path) -> list[tuple[int, str]]:
    with path.open("rb") as lines:
        return [(r.sequence, r.outcome) for r in read(lines) if isinstance(r, Publish)]


async def until_sent(publisher: Told, count: int) -> None:
    assert await until(lambda: len(publisher.sent) >= count, 10.0, 0.001)


def test_what_was_refused_goes_out_again_in_order_and_alone(tmp_path: Path) -> None:
    async def run(board: Board) -> None:
        publisher = Told(board, 4)
        publisher.start()
        await until_sent(publisher, 4)
        publisher.answered(2, UNKNOWN, "refused")
        refused = board.now()
        publisher.answered(1, OK, "")
        publisher.answered(4, UNKNOWN, "refused")
        assert publisher.sent == [0, 1, 2, 3], "the third is not answered yet"
        publisher.answered(3, OK, "")
        for number, sequence in ((5, 1), (6, 3)):
            await until_sent(publisher, number)
            assert board.now() - refused >= NACK_PAUSE_S
            assert len(publisher.sent) == number, "one after the other"
            assert publisher.sent[-1] == sequence
            publisher.answered(number, OK, "")
        board.stopping = True
        await publisher.stop()

    with History(tmp_path / "history") as history:
        asyncio.run(run(Board(history, [Host("node1", "nowhere", 0, 0)], Random(1), 1)))
    ended = published(tmp_path / "history")
    assert ended[:6] == [(1, UNKNOWN), (0, OK), (3, UNKNOWN), (2, OK), (1, OK), (3, OK)]


def test_what_was_under_way_on_a_lost_connection_goes_out_again_first(tmp_path: Path) -> None:
    async def run(board: Board) -> None:
        publisher = Told(board, 3)
        publisher.start()
        await until_sent(publisher, 3)
        publisher.answered(2, OK, "")
        publisher.closed.set_result(None)
        await until_sent(publisher, 6)
        assert publisher.sent[3:][:2] == [0, 2]
        assert publisher.host.name == "node2"
        await publisher.stop()

    hosts = [Host(f"node{n}", "nowhere", 0, 0) for n in (1, 2)]
    with History(tmp_path / "history") as history:
        asyncio.run(run(Board(history, hosts, Random(1), 1)))
    assert published(tmp_path / "history")[:3] == [(1, OK), (0, UNKNOWN), (2, UNKNOWN)]
