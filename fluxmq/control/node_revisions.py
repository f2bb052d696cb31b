"""Progress of the other nodes of a cluster: the revision that all live shards of each have applied.

The author of a change asks the other nodes' control processes, which answer when their shards work
by it, so that clients may use what was changed on any node as soon as they are answered. A node
that cannot be reached is not waited for. A slow one is waited for once, and then not again until it
has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.node_messages import REVISION_WANTED, RevisionWanted
from fluxmq.ipc.user_messages import Confirmed

ANSWER_SECONDS: Final = 4.0
"""Time for a node's answer."""


class _NodeProgress:
    """Progress of one node. ``reached``: the revision that it has told; ``wanted``: the one it is
    asked for; ``failed``: the one for which it gave no answer."""

    def __init__(self) -> None:
        self.reached = -1
        self.wanted = -1
        self.failed = -1
        self.late = False
        self.asking: asyncio.Task[None] | None = None


class NodeRevisions:
    """Progress of the other nodes in one thing. ``what``: ``topology`` or ``users``."""

    def __init__(self, what: str, nodes: ControlOfNodes) -> None:
        self.news: Callable[[], None] = lambda: None
        """Called when a node has advanced, or is no longer waited for."""
        self._what = what
        self._nodes = nodes
        self._progress = {name: _NodeProgress() for name in nodes.nodes}

    def lagging(self, revision: int) -> tuple[str, ...]:
        """Return the nodes to wait for until they reach this revision, and have them asked."""
        found = []
        for name, node in self._progress.items():
            if node.reached >= revision or node.failed >= revision:
                continue
            node.wanted = max(node.wanted, revision)
            if node.asking is None:
                node.asking = asyncio.get_running_loop().create_task(self._ask(name, node))
            if not node.late:
                found.append(name)
        return tuple(found)

    def give_up(self, revision: int) -> None:
        """Stop waiting for nodes that have not reached this revision, now and next time."""
        for node in self._progress.values():
            node.late = node.reached < revision and node.failed < revision

    async def stop(self) -> None:
        """Stop asking."""
        asking = [node.asking for node in self._progress.values() if node.asking is not None]
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    async def _ask(self, name: str, node: _NodeProgress) -> None:
        """Ask a node until it has reached all that is wanted, or gives no answer."""
        try:
            while node.reached < node.wanted and node.failed < node.wanted:
                wanted = node.wanted
                body = RevisionWanted(self._what, wanted).to_body()
                try:
                    answer = await self._nodes.ask(name, REVISION_WANTED, body, ANSWER_SECONDS)
                    node.reached = max(node.reached, Confirmed.from_body(answer).revision)
                except (RequestError, MessageError):
                    node.failed = wanted
                else:
                    node.late = node.reached < wanted
                    node.failed = wanted if node.late else node.failed
                self.news()
        finally:
            node.asking = None
