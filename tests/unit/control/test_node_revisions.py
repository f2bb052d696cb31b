"""How far other nodes are: who is asked, who is waited for, and who is not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fluxmq.control.node_revisions import NodeRevisions
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import RequestError
from fluxmq.control.revision_barrier import RevisionBarrier, confirmed
from fluxmq.ipc.messages import ERROR_AWAY, Body
from fluxmq.ipc.node_messages import REVISION_WANTED, RevisionWanted
from fluxmq.ipc.user_messages import Confirmed


class Nodes(ControlOfNodes):
    """Two nodes, each of which answers when it is let, or is away."""

    def __init__(self) -> None:
        super().__init__(("node2", "node3"), list)
        self.asked: list[tuple[str, int]] = []
        self.answers: dict[str, asyncio.Queue[int | None]] = {
            name: asyncio.Queue() for name in self.nodes
        }

    async def ask(self, node: str, kind: str, body: Body, seconds: float) -> Body:
        wanted = RevisionWanted.from_body(body)
        assert (kind, wanted.what) == (REVISION_WANTED, "topology")
        self.asked.append((node, wanted.revision))
        answer = await self.answers[node].get()
        if answer is None:
            raise RequestError(ERROR_AWAY, "away")
        return Confirmed(answer).to_body()


def run(scenario: Callable[[Nodes, NodeRevisions], Awaitable[None]]) -> None:
    async def main() -> None:
        nodes = Nodes()
        revisions = NodeRevisions("topology", nodes)
        try:
            async with asyncio.timeout(10):
                await scenario(nodes, revisions)
        finally:
            await revisions.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - others' turns make it true
        await asyncio.sleep(0)


def test_nodes_are_waited_for_until_they_have_it_or_are_away() -> None:
    async def scenario(nodes: Nodes, revisions: NodeRevisions) -> None:
        news: list[int] = []
        revisions.news = lambda: news.append(1)
        assert revisions.lagging(5) == ("node2", "node3")
        await until(lambda: len(nodes.asked) == 2)
        assert revisions.lagging(6) == ("node2", "node3")
        nodes.answers["node2"].put_nowait(5)
        nodes.answers["node3"].put_nowait(None)
        await until(lambda: len(nodes.asked) == 4)  # for the revision that is wanted by now
        assert revisions.lagging(5) == ()
        assert revisions.lagging(6) == ("node2", "node3")
        nodes.answers["node2"].put_nowait(7)
        nodes.answers["node3"].put_nowait(None)
        await until(lambda: revisions.lagging(6) == ())
        assert len(news) == 4
        assert nodes.asked == [("node2", 5), ("node3", 5), ("node2", 6), ("node3", 6)]

    run(scenario)


def test_one_question_at_a_time_however_many_wait() -> None:
    async def scenario(nodes: Nodes, revisions: NodeRevisions) -> None:
        for revision in range(1, 100):
            assert len(revisions.lagging(revision)) == 2
            await asyncio.sleep(0)
        assert len(nodes.asked) == 2
        nodes.answers["node2"].put_nowait(1)
        await until(lambda: len(nodes.asked) == 3)
        assert nodes.asked[-1] == ("node2", 99)

    run(scenario)


def test_a_slow_node_is_waited_for_again_when_it_has_caught_up() -> None:
    async def scenario(nodes: Nodes, revisions: NodeRevisions) -> None:
        revisions.lagging(5)
        nodes.answers["node3"].put_nowait(5)
        await until(lambda: revisions.lagging(5) == ("node2",))
        revisions.give_up(5)
        nodes.answers["node3"].put_nowait(6)
        await until(lambda: revisions.lagging(6) == ())  # it is late, and still asked
        nodes.answers["node2"].put_nowait(5)
        nodes.answers["node2"].put_nowait(6)
        await until(lambda: ("node2", 6) in nodes.asked)
        nodes.answers["node3"].put_nowait(7)
        await until(lambda: revisions.lagging(7) == ("node2",))

    run(scenario)


class Thing:
    """What has a revision, and one shard that works by another."""

    def __init__(self) -> None:
        self.revision = 0
        self.held: Mapping[str, int] = {"shard-0": 0}
        self.revision_barrier = RevisionBarrier(lambda: ["shard-0"], lambda: self.held)

    async def reached(self, revision: int) -> None:
        await until(lambda: self.revision >= revision)


def test_a_node_answers_when_its_shards_have_it(monkeypatch: Any) -> None:
    async def main() -> None:
        thing = Thing()
        monkeypatch.setattr("fluxmq.control.revision_barrier.REPLY_SECONDS", 0.05)
        assert await confirmed(thing, 5) == 4
        thing.revision = 5
        assert await confirmed(thing, 5) == 4
        monkeypatch.setattr("fluxmq.control.revision_barrier.REPLY_SECONDS", 10.0)
        answer = asyncio.create_task(confirmed(thing, 5))
        await asyncio.sleep(0)
        thing.held = {"shard-0": 6}
        thing.revision_barrier.confirmed()
        assert await answer == 5

    asyncio.run(main())
