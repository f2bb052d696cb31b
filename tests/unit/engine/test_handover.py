"""Groups on their way from shard to shard: who has them at every step, and what becomes of what is asked meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxmq.engine.group_client import GroupClient
from fluxmq.ipc.messages import Body, Failure
from fluxmq.ipc.placements import (
    EXPECT,
    PLACEMENT,
    RECEIVE,
    RELEASE,
    Release,
    ReleasedGroup,
    placement_to_body,
)
from fluxmq.storage.directory import DataPaths, Placement, write_placement
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.wire import Filter
from tests.unit.engine.support import QueueNode, consume, drain, fill, offsets, user
from tests.unit.shards.node import Clock

WORK = {"name": "work"}
LOG = {"name": "log", "type": "stream"}
GROUPS = 4


class Placed(QueueNode):
    """A node with a placement that a test changes as the control process would."""

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        self.placement = Placement(fields["workers"], GROUPS, revision=1)
        super().__init__(*arguments, **fields)

    def order(self, shard: int, kind: str, body: Body) -> Body | Failure:
        """What a shard answers to an order."""
        answers: list[Body | Failure] = []

        async def give() -> None:
            self[shard].queues.commands()[kind](body, answers.append)
            while not answers:
                self.run()
                await asyncio.sleep(0)

        self.loop.run_until_complete(asyncio.wait_for(give(), 20))
        self.run()
        return answers[0]

    def let_go(self, group: str, shard: int) -> ReleasedGroup:
        """Have a shard let a group go."""
        answer = self.order(shard, RELEASE, Release(group).to_body())
        assert not isinstance(answer, Failure), answer
        return ReleasedGroup.from_body(answer)

    def receive(self, released: ReleasedGroup, shard: int) -> None:
        """Have a shard take it."""
        assert self.order(shard, EXPECT, Release(released.group).to_body()) == {}
        assert self.order(shard, RECEIVE, released.to_body()) == {}

    def decide(self, *shards: int, **changes: Any) -> None:
        """Write a placement and tell it to these shards."""
        self.placement = replace(self.placement, **changes, revision=self.placement.revision + 1)
        self.tell(*shards)

    def tell(self, *shards: int) -> None:
        """Tell some shards where groups are."""
        for shard in shards:
            assert self.order(shard, PLACEMENT, placement_to_body(self.placement)) == {}

    def move(self, queue: str, target: int) -> None:
        """Move a queue's group."""
        group, source = self.name(queue), self.place(queue)
        released = self.let_go(group, source)
        self.receive(released, target)
        others = [shard.index for shard in self if shard.index != target]
        self.decide(target, *others, pins={**self.placement.pins, group: target})

    def name(self, queue: str) -> str:
        """The group of a queue."""
        return self[0].queues.names.info(queue).group

    def place(self, queue: str) -> int:
        """The one shard that has a queue's group open."""
        (found,) = [each.index for each in self if self.name(queue) in each.queues.service.groups]
        return found


MakePlaced = Callable[..., Placed]


@pytest.fixture
def make_placed(
    clock: Clock, loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakePlaced]:
    """Make nodes whose shards start with the placement that holds then."""
    made: list[Placed] = []
    current = [Placement(1, GROUPS)]

    def make(*queues: dict[str, Any], workers: int = 2, **sections: Any) -> Placed:
        current[0] = Placement(workers, GROUPS, revision=1)
        settings = {"queues": queues, **sections}
        node = Placed(tmp_path / "data", clock, loop, settings, workers=workers)
        made.append(node)
        return node

    monkeypatch.setattr(
        "tests.unit.shards.node.Placement",
        lambda *_: made[-1].placement if made else current[0],
    )
    yield make
    for node in made:
        node.close()


def publisher(node: Placed, shard: int) -> Client:
    """A client that publishes from a shard."""
    return node.connect(shard, f"publisher-{shard}")


def send(client: Client, queue: str, *numbers: int) -> None:
    """Publish without waiting for the answers."""
    client.send(
        b"".join(
            wire.publish(wire.V5, f"$queue/{queue}", b"%d" % number, qos=1, packet_id=number + 1)
            for number in numbers
        )
    )


def answered(client: Client) -> list[int]:
    """Numbers whose publishes were answered with success since the last call."""
    packets = drain(client)
    assert all(packet.kind == wire.PUBACK and packet.reason == 0 for packet in packets), packets
    return [packet.packet_id - 1 for packet in packets]


def read(node: Placed, queue: str, shard: int = 0, name: str = "reader") -> list[bytes]:
    """Everything a queue gives a new group, from the first message on."""
    reader = node.connect(shard, name)
    reader.subscribe(f"$queue/{queue}", qos=1, props=user(("consumer-group", name)))
    found = consume(reader)
    assert offsets(found) == sorted(offsets(found))
    reader.disconnect()
    return [packet.payload for packet in found]


def texts(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_a_group_moves_with_everything(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    client = publisher(node, 0)
    fill(client, "work", 10)
    taker = node.connect(1, "taker")
    taker.subscribe("$queue/work", qos=1, props=user(("consumer-group", "g")))
    taken = drain(taker)
    for packet in taken[:4]:
        taker.acknowledge(packet)
    node.move("work", 1 - source)
    assert node.place("work") == 1 - source
    fill(client, "work", 2, first=10)
    node.advance(1)  # the taker is attached again
    assert [packet.payload for packet in consume(taker)] == texts(*range(4, 12))
    node.advance(1)
    machine = node.machine("work", 1 - source)
    assert machine.next_offset == 12
    assert machine.depth == 0
    node.move("work", source)
    fill(client, "work", 1, first=12)
    assert read(node, "work", 1, "again") == texts(12)


def test_what_is_asked_meanwhile_is_kept_and_answered_in_order(make_placed: MakePlaced) -> None:
    node = make_placed(LOG)
    source = node.place("log")
    target = 1 - source
    clients = [publisher(node, 0), publisher(node, 1)]
    released = node.let_go(node.name("log"), source)
    for client in clients:
        send(client, "log", 0, 1, 2)
        assert answered(client) == []
    node.receive(released, target)
    node.decide(target, pins={released.group: target})
    for client in clients:  # the source has not heard of it, and keeps what it has
        send(client, "log", 3)
    assert answered(clients[source]) == []
    node.tell(source)
    assert answered(clients[source]) == [0, 1, 2, 3]
    assert answered(clients[target]) == [0, 1, 2, 3]
    found = read(node, "log")
    assert sorted(found) == sorted(texts(0, 1, 2, 3) * 2)
    assert node.machine("log", target).next_offset == 8


def test_nothing_overtakes_what_goes_by_way_of_the_old_shard(make_placed: MakePlaced) -> None:
    node = make_placed(LOG, workers=3)
    source = node.place("log")
    target, third = (shard for shard in range(3) if shard != source)
    client = publisher(node, third)
    released = node.let_go(node.name("log"), source)
    send(client, "log", 0, 1)
    node.receive(released, target)
    node.decide(target, third, pins={released.group: target})
    send(client, "log", 2, 3)  # its shard knows the new place, the old one keeps 0 and 1
    node.run()
    assert node.machine("log", target).next_offset == 0
    node.tell(source)
    node.advance(0.2)
    assert answered(client) == [0, 1, 2, 3]
    assert read(node, "log", third) == texts(0, 1, 2, 3)
    assert not any(shard.queues.node_groups.leaving for shard in node)


def test_consumers_that_come_meanwhile_are_attached(make_placed: MakePlaced) -> None:
    node = make_placed(WORK, workers=3)
    source = node.place("work")
    fill(publisher(node, 0), "work", 3)
    released = node.let_go(node.name("work"), source)
    takers = [node.client(shard) for shard in range(3)]
    for shard, taker in enumerate(takers):
        taker.connect(f"taker-{shard}")
        group = user(("consumer-group", f"group-{shard}"))
        taker.send(wire.subscribe(wire.V5, 9, [Filter("$queue/work", 1)], group))
        assert drain(taker) == []
    target = (source + 1) % 3
    node.receive(released, target)
    node.decide(
        target, *(shard for shard in range(3) if shard != target), pins={released.group: target}
    )
    node.advance(1)
    for taker in takers:
        suback, *messages = drain(taker)
        assert suback.kind == wire.SUBACK
        assert suback.reasons == [1]
        assert [message.payload for message in messages] == texts(0, 1, 2)


def test_the_hard_state_goes_with_the_group(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    target = 1 - source
    for _ in range(3):  # each start is an election: the term grows
        node.restart(source)
    term = node[source].queues.service.groups[node.name("work")].driver.hard_state[0]
    assert term >= 4
    released = node.let_go(node.name("work"), source)
    assert (released.term, released.vote) == (term, 1)
    node.receive(released, target)
    log = node[target].queues.service.logs.of(released.group)
    assert log.wal.recovered(released.group).hard_state[:2] == (term, 1)
    node.decide(target, source, pins={released.group: target})
    moved = node[target].queues.service.groups[released.group]
    assert moved.driver.hard_state[0] == term + 1


def test_a_shard_that_starts_leaves_a_moving_group_alone(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    target = 1 - source
    group = node.name("work")
    client = publisher(node, target)
    fill(client, "work", 3)
    node.placement = replace(node.placement, moving={group: target}, revision=2)
    released = node.let_go(group, source)
    node.restart(source)
    node.receive(released, target)
    assert not any(group in shard.queues.service.groups for shard in node)
    send(client, "work", 3)
    assert answered(client) == []
    node.decide(target, source, moving={}, pins={group: target})
    node.advance(0.2)
    assert node.place("work") == target
    assert answered(client) == [3]
    assert group not in node[source].queues.service.logs.opened["wal"].wal.groups()


def test_a_move_that_is_given_up_leaves_the_group_where_it_was(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    client = publisher(node, 1 - source)
    fill(client, "work", 3)
    released = node.let_go(node.name("work"), source)
    send(client, "work", 3)
    node.receive(released, 1 - source)  # prepared there, and never decided
    assert answered(client) == []
    node.decide(source, 1 - source, moving={})
    assert node.place("work") == source
    assert answered(client) == [3]
    node.restart(1 - source)
    node.restart(source)
    assert read(node, "work") == texts(0, 1, 2, 3)


def test_nothing_overtakes_what_is_kept_when_the_group_is_back(make_placed: MakePlaced) -> None:
    """Between the group's return and the end of that tick another shard's requests may come."""
    node = make_placed(LOG)
    source = node.place("log")
    released = node.let_go(node.name("log"), source)
    client = publisher(node, 1 - source)
    send(client, "log", 0, 1)
    assert answered(client) == []
    queues = node[source].queues
    keeps = queues.arrived(released.group)
    assert isinstance(keeps, GroupClient)
    early: list[object] = []
    while released.group in queues.node_groups.leaving:
        queues.commands()[PLACEMENT](
            placement_to_body(replace(node.placement, moving={}, revision=2)), early.append
        )
        node.loop.run_until_complete(asyncio.sleep(0))
    group = queues.service.find(released.group)
    assert keeps.waits
    assert queues.arrived(released.group) is group
    assert not keeps.waits, "what it has kept was sent"
    node.run()
    assert answered(client) == [0, 1]


def test_a_group_whose_checkpoint_fails_stays(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    client = publisher(node, source)
    fill(client, "work", 3)
    node.failing[source].fail_always("rename", errno.EIO)
    answer = node.order(source, RELEASE, Release(node.name("work")).to_body())
    assert isinstance(answer, Failure)
    assert "no checkpoint of" in answer.text
    node.failing[source].work_again()
    assert node.place("work") == source
    fill(client, "work", 2, first=3)
    assert read(node, "work") == texts(0, 1, 2, 3, 4)


def test_what_cannot_leave_or_come(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    group = node.name("work")
    answer = node.order(1 - source, RELEASE, Release(group).to_body())
    assert isinstance(answer, Failure)
    assert answer.code == "not_found"
    here = ReleasedGroup(group, 1, 1, 1, 1, 1, 1, 0.0)
    answer = node.order(source, RECEIVE, here.to_body())
    assert isinstance(answer, Failure)
    assert answer.code == "exists"


def test_an_older_placement_is_not_believed(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    node.move("work", 1 - source)
    newest = node.placement
    node.placement = replace(newest, pins={}, revision=newest.revision - 1)
    node.tell(0, 1)
    assert node.place("work") == 1 - source
    assert node[0].queues.places.placement == newest


def test_two_shards_never_have_one_group(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    group = node.name("work")
    node.decide(source, pins={group: 1 - source})  # nobody asked this shard to let it go
    assert node[source].queues.service.groups[group].group.failed


def test_an_old_shard_forgets_what_left_it(make_placed: MakePlaced) -> None:
    node = make_placed(WORK, LOG)
    source = node.place("work")
    fill(publisher(node, 0), "work", 3)
    released = node.let_go(node.name("work"), source)
    node.receive(released, 1 - source)
    node.placement = replace(node.placement, pins={released.group: 1 - source}, revision=2)
    node.restart(source)  # it ends before it hears of the decision
    node.tell(1 - source)
    assert node.place("work") == 1 - source
    assert released.group not in node[source].queues.service.logs.of("local-0").wal.groups()
    assert read(node, "work") == texts(0, 1, 2)


def test_a_placement_that_would_lose_entries_is_refused(make_placed: MakePlaced) -> None:
    node = make_placed(WORK)
    source = node.place("work")
    group = node.name("work")
    fill(publisher(node, source), "work", 3)
    queues = node[source].queues
    queues.service.durable.release(group)  # as if it had never had a checkpoint
    queues.places.placement = replace(node.placement, pins={group: 1 - source})
    with pytest.raises(Corruption, match=f"{group}, which is placed on another"):
        queues.durable.forget_orphaned_groups(lambda name: name == group)
    assert group in queues.service.logs.of(group).wal.groups()


def test_the_placement_is_read_at_the_start(tmp_path: Path) -> None:
    from fluxmq.replication.placement import placement_of
    from fluxmq.settings.schema import Settings

    settings = Settings.model_validate(
        {
            "server": {"mqtt": {"tcp": {"addr": "127.0.0.1:1"}}},
            "storage": {"data_dir": str(tmp_path)},
            "queue_manager": {"local_groups": 5},
        }
    )
    assert placement_of(settings, 3) == Placement(3, 5)
    written = Placement(2, 7, {"a": 1}, revision=4)
    write_placement(Files(), DataPaths(str(tmp_path)), written)
    assert placement_of(settings, 3) == written


def test_who_comes_before_the_group_leads_is_served_when_it_does(make_placed: MakePlaced) -> None:
    node = make_placed(WORK, workers=1)
    fill(publisher(node, 0), "work", 3)
    node.kill(0)
    node.syncers.clear()
    node.held = True  # what elects the group does not become durable yet
    node.start(0)
    taker = node.connect(0, "taker")
    taker.send(wire.subscribe(wire.V5, 9, [Filter("$queue/work", 1)]))
    assert drain(taker) == []
    node.hold_syncs(False)
    suback, *messages = drain(taker)
    assert suback.reasons == [1]
    assert [message.payload for message in messages] == texts(0, 1, 2)
