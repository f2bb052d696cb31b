"""The other nodes of a cluster, whose control processes answer this one's questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from fluxmq.control.peers import AnsweredError, Peer, PeerError, RequestError
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_FAILED, Body
from fluxmq.ipc.node_messages import OF_NODE, NodeQuestion


class ControlOfNodes:
    """Asks the control processes of other nodes, through this node's shards.

    ``nodes``: the names of the others, which may change; ``shards`` returns the connected shards.
    """

    def __init__(self, nodes: Collection[str], shards: Callable[[], list[Peer]]) -> None:
        self._nodes = nodes
        self._shards = shards

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the other nodes that there are now."""
        return sorted(self._nodes)

    async def ask(self, node: str, kind: str, body: Body, seconds: float) -> Body:
        """Have a node answer. Raises RequestError."""
        question = NodeQuestion(node, kind, body).to_body()
        problem = "no shard is connected"
        code = ERROR_AWAY
        for shard in sorted(self._shards(), key=lambda each: each.name):
            try:
                return await shard.ask(OF_NODE, question, seconds)
            except AnsweredError as refusal:
                code, problem = refusal.failure.code, refusal.failure.text
            except PeerError as error:
                code, problem = ERROR_AWAY, str(error)
            except TimeoutError:
                code, problem = ERROR_FAILED, "no answer in time"
            if code != ERROR_AWAY:
                break
        raise RequestError(code, f"{node}: {problem}")

    async def ask_all(self, kind: str, body: Body, seconds: float) -> list[Body | RequestError]:
        """Have all nodes answer; return, for each, its answer or why there is none."""

        async def one(node: str) -> Body | RequestError:
            try:
                return await self.ask(node, kind, body, seconds)
            except RequestError as problem:
                return problem

        return await asyncio.gather(*map(one, self.nodes))
