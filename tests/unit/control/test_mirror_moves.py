"""Moves of queues that policies want on other nodes: which begin at once, and which wait for older messages to go."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from fluxmq.control import mirror_choices, mirror_moves, mirror_waits
from fluxmq.control.mirror_moves import MirrorMoves
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import Set
from fluxmq.ipc.messages import ERROR_AWAY
from fluxmq.ipc.row_messages import QueueExtent
from fluxmq.ipc.topology_messages import TopologyChanged
from fluxmq.routing.topology.changes import AbortMigration, DeclareQueue, FinishMigration, SetPolicy
from fluxmq.routing.topology.mirror_records import MirrorRecord, removed
from fluxmq.routing.topology.mirroring import MirrorPolicy
from fluxmq.routing.topology.records import Policy, QueueRecord
from fluxmq.routing.topology.refusals import Refusal
from tests.unit.control.test_mirror_choices import NODES, Cluster

HOME = "local-0@node1"
SECONDS = 10.0


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that the moves do."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class Mover:
    """The moves of node1's queues; ``positions``: of queues by name."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.topology = self.cluster.topology
        self.positions: dict[str, QueueExtent] = {}
        self.looks: list[list[str]] = []
        """The queues that were looked at, each time."""
        self.moves = MirrorMoves(
            *(self.cluster.records, self.cluster.choices, lambda: self.topology),
            *(lambda: self.cluster.settings, self._change, self._look),
        )

    async def _change(self, sets: Sequence[Set]) -> TopologyChanged:
        results: list[Refusal | None] = []
        for each in sets:
            assert isinstance(each, tuple)
            try:
                self.topology.apply_all(each)
                results.append(None)
            except Refusal as refusal:
                results.append(refusal)
        return TopologyChanged(self.topology.revision, tuple(results))

    async def _look(self, queues: Sequence[QueueRecord]) -> dict[tuple[str, str], QueueExtent]:
        self.looks.append([each.name for each in queues])
        found = ((each, self.positions.get(each.name)) for each in queues)
        return {(each.vhost, each.name): position for each, position in found if position}

    def declare(self, name: str, group: str = HOME) -> None:
        """Declare a queue that is in a group."""
        self.topology.apply(DeclareQueue(QueueRecord("/", name, durable=True, group=group)))

    def mirror(self, mode: str, *nodes: str, **more: str) -> None:
        """Set the policy of all queues."""
        params = {"ha-params": list(nodes)} if nodes else {}
        definition = {"ha-mode": mode, **params, **{f"ha-{key}": more[key] for key in more}}
        self.topology.apply(SetPolicy(Policy("/", "ha", "", definition=definition)))

    async def group(self, *nodes: str) -> str:
        """The group of these nodes."""
        return await self.cluster.choices.group(MirrorPolicy("nodes"), nodes)

    def queue(self, name: str = "q") -> QueueRecord:
        """A queue."""
        found = self.topology.queue("/", name)
        assert found is not None
        return found

    def target(self, name: str = "q") -> MirrorRecord | None:
        """The group that a queue moves to; None for none."""
        return self.cluster.records.kept.get(self.queue(name).moving_to)

    def arrive(self, name: str = "q") -> None:
        """Complete the queue's move."""
        self.topology.apply(FinishMigration("/", name, self.queue(name).migration))

    async def looked(self) -> None:
        """Wait until the queues that wait have been looked at twice more: what the first told has had its effect."""
        before = len(self.looks)
        await until(lambda: len(self.looks) > before + 2)


def run(
    monkeypatch: pytest.MonkeyPatch,
    scenario: Callable[[Mover], Awaitable[None]],
    look: float = 0.002,
) -> None:
    """Carry out a scenario while the moves look all the time, every ``look`` seconds."""
    monkeypatch.setattr(mirror_moves, "LOOK_SECONDS", look)
    monkeypatch.setattr(mirror_waits, "GONE_SECONDS", 0.0)

    async def whole() -> None:
        mover = Mover()
        mover.moves.start()
        try:
            await scenario(mover)
        finally:
            await mover.moves.stop()

    asyncio.run(whole())


def waiting(mover: Mover) -> float:
    """The number of queues that wait, as the metric says."""
    ((_, _, value),) = mover.moves.samples()
    return value


def test_a_queue_gets_its_mirrors_once_older_messages_are_gone_though_newer_ones_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-51, S4-75: the queue is never empty."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(7, 10, 100)
        mover.declare("q")
        mover.mirror("all")
        await mover.looked()
        assert waiting(mover) == 1
        for oldest in (50, 99):
            mover.positions["q"] = QueueExtent(7, oldest, oldest + 90)
            await mover.looked()
            assert mover.target() is None
        mover.positions["q"] = QueueExtent(7, 100, 190)
        await until(mover.target)
        assert waiting(mover) == 0
        mover.arrive()
        state = mover.moves.state(mover.queue())
        assert state is not None
        assert set(state.synchronised) == {"node2", "node3"}

    run(monkeypatch, scenario)


def test_an_empty_queue_gets_its_mirrors_at_once_and_an_unknown_one_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-51."""

    async def scenario(mover: Mover) -> None:
        mover.positions["empty"] = QueueExtent(1, 5, 5)
        for name in ("empty", "unknown"):
            mover.declare(name)
        mover.mirror("all")
        await until(lambda: mover.target("empty"))
        await mover.looked()
        assert mover.target("unknown") is None

    run(monkeypatch, scenario)


def test_a_mirror_is_listed_once_newer_messages_are_newer_than_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-51: messages that come after it is listed are newer than the mirror."""

    async def scenario(mover: Mover) -> None:
        mover.declare("q")
        mover.mirror("nodes", "node1", "node2")

        def mirrors() -> tuple[tuple[str, ...], tuple[str, ...]]:
            state = mover.moves.state(mover.queue())
            assert state is not None
            return state.mirrors, state.recoverable

        assert mirrors() == ((), ("node2",))
        await until(lambda: mover.looks)
        assert mirrors() == ((), ("node2",)), "the queue is not known yet"
        mover.positions["q"] = QueueExtent(1, 0, 10)
        await until(lambda: mirrors() == (("node2",), ("node2",)))
        mover.positions["q"] = QueueExtent(1, 10, 20)
        await until(mover.target)

    run(monkeypatch, scenario)


def test_a_changed_policy_counts_though_queues_are_declared_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-09."""
    monkeypatch.setattr(mirror_moves, "CALM_SECONDS_MAX", 1000.0)

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q")
        mover.mirror("nodes", "node1", "node2")
        await mover.looked()
        mover.mirror("nodes", "node1", "node3")
        numbers = itertools.count()

        def begun() -> bool:
            mover.declare(f"more-{next(numbers)}")
            state = mover.moves.state(mover.queue())
            assert state is not None
            return state.mirrors == ("node3",)

        await until(begun)

    run(monkeypatch, scenario, look=0.05)


def test_a_queue_that_was_declared_anew_waits_for_its_own_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-75: what a queue of the same name had is not what this one has."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q")
        mover.mirror("all")
        await mover.looked()
        mover.positions["q"] = QueueExtent(2, 20, 1000)
        await mover.looked()
        assert mover.target() is None
        mover.positions["q"] = QueueExtent(2, 1000, 1001)
        await until(mover.target)

    run(monkeypatch, scenario)


def test_a_new_mirror_more_has_the_queue_wait_anew_and_one_less_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-51: each mirror lacks what is older than it is."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q")
        mover.mirror("nodes", "node1", "node2")
        await mover.looked()
        mover.mirror("nodes", "node1", "node2", "node3")
        mover.positions["q"] = QueueExtent(1, 5, 20)
        await mover.looked()
        mover.positions["q"] = QueueExtent(1, 15, 30)
        await mover.looked()
        assert mover.target() is None
        mover.mirror("nodes", "node1", "node3")
        await mover.looked()
        mover.positions["q"] = QueueExtent(1, 20, 40)
        await until(mover.target)
        record = mover.target()
        assert record is not None
        assert {each.node for each in record.members} == {"node1", "node3"}

    run(monkeypatch, scenario)


def test_a_queue_goes_on_to_wait_for_the_same_node_whatever_that_has_to_do_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-11, S4-51."""
    monkeypatch.setattr(mirror_choices, "LOAD_SECONDS", 0.0)

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q")
        definition = {"ha-mode": "exactly", "ha-params": 2}
        mover.topology.apply(SetPolicy(Policy("/", "ha", "^q$", definition=definition)))
        await mover.looked()
        for number in range(3):
            mover.declare(f"busy-{number}", "local-0@node2")
        mover.positions["q"] = QueueExtent(1, 5, 20)
        await mover.looked()
        state = mover.moves.state(mover.queue())
        assert state is not None
        assert state.mirrors == ("node2",)
        mover.positions["q"] = QueueExtent(1, 10, 30)
        await until(mover.target)
        record = mover.target()
        assert record is not None
        assert record.mirrors == ("node2",)

    run(monkeypatch, scenario)


def test_an_automatic_policy_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-76."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q")
        mover.mirror("all", **{"sync-mode": "automatic"})
        await until(mover.target)
        assert mover.looks == []

    run(monkeypatch, scenario)


def test_a_listed_mirror_leads_at_once_and_the_former_leader_stays_until_new_ones_are_synchronised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-16, S4-26: from [node1 node2] to [node3 node2]."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q", await mover.group("node1", "node2"))
        mover.positions["other"] = QueueExtent(2, 0, 10)
        mover.declare("other")
        mover.mirror("nodes", "node3", "node2")
        await until(mover.target)
        record = mover.target()
        assert record is not None
        assert (record.leader, record.mirrors) == ("node2", ("node1",))
        with pytest.raises(RequestError) as refused:
            await mover.moves.synchronise(mover.queue(), begin=True)
        assert refused.value.code == ERROR_AWAY
        await mover.looked()
        assert mover.queue().moving_to, "it is not aborted"
        mover.arrive()
        state = mover.moves.state(mover.queue())
        assert state is not None
        assert (state.leader, state.synchronised) == ("node2", ("node1",))
        assert set(state.mirrors) == {"node1", "node3"}
        assert (await mover.moves.synchronise(mover.queue(), begin=True)).syncing
        record = mover.target()
        assert record is not None
        assert (record.leader, record.mirrors) == ("node2", ("node3",))

    run(monkeypatch, scenario)


def test_an_unsynchronised_listed_mirror_does_not_lead_and_nobody_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-26: the queue stays as it is until somebody has what it has."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        group = await mover.group("node1", "node2")
        kept = mover.cluster.records.kept
        kept[group] = removed(kept[group], "node2")
        mover.declare("q", group)
        mover.mirror("nodes", "node3", "node2")
        await mover.looked()
        assert mover.target() is None
        assert waiting(mover) == 1

    run(monkeypatch, scenario)


def test_with_automatic_synchronisation_the_leader_stays_until_all_listed_nodes_have_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-26, S4-76: one move is enough."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q", await mover.group("node1", "node2"))
        mover.mirror("nodes", "node3", "node2", **{"sync-mode": "automatic"})
        await until(mover.target)
        record = mover.target()
        assert record is not None
        assert (record.leader, record.mirrors) == ("node2", ("node3",))

    run(monkeypatch, scenario)


def test_other_rules_count_at_once_though_a_new_mirror_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-58, S4-75: nothing has to be synchronised for them."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.declare("q", await mover.group("node1", "node2"))
        mover.mirror("all", **{"promote-on-failure": "when-synced"})
        await until(mover.target)
        record = mover.target()
        assert record is not None
        assert record.promote_on_failure == "when-synced"
        assert {each.node for each in record.members} == {"node1", "node2"}
        mover.arrive()
        await mover.looked()
        assert mover.target() is None
        mover.positions["q"] = QueueExtent(1, 10, 11)
        await until(mover.target)
        record = mover.target()
        assert record is not None
        assert {each.node for each in record.members} == set(NODES)

    run(monkeypatch, scenario)


def test_a_move_to_where_the_policy_does_not_want_the_queue_any_more_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4-09, S4-56."""

    async def scenario(mover: Mover) -> None:
        mover.positions["q"] = QueueExtent(1, 0, 0)
        mover.declare("q")
        mover.mirror("nodes", "node1", "node2")
        await until(mover.target)
        first = mover.queue().moving_to
        mover.positions["q"] = QueueExtent(1, 0, 10)
        mover.mirror("nodes", "node1", "node3")
        await until(lambda: mover.queue().moving_to != first)
        await mover.looked()
        assert mover.target() is None
        assert (await mover.moves.synchronise(mover.queue(), begin=True)).syncing
        assert (await mover.moves.cancel(mover.queue())).syncing
        assert mover.target() is None
        with pytest.raises(Refusal):
            mover.topology.apply(AbortMigration("/", "q"))

    run(monkeypatch, scenario)
