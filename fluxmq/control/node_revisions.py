"""Progress of the other nodes of a cluster: the revision that all live shards of each have applied.

The author of a change asks the other nodes' control processes, which answer when their shards work
by it, so that clients may use what was changed on any node as soon as they are answered. A node
that cannot be reached is not waited for. A slow one is waited for once, and then not again until it
has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import RequestError
from fluxmq.control.revision_barrier import RevisionBarrier
from fluxmq.ipc.messages import MessageError
from fluxmq.ipc.node_messages import REVISION_WANTED, RevisionWanted
from fluxmq.ipc.user_messages import Confirmed

REPLY_SECONDS: Final = 2.0
"""Time for which a node waits for its shards before it answers another one."""
ANSWER_SECONDS: Final = 4.0
"""Time for a node's answer."""


class RevisedThing(Protocol):
    """What has revisions: the services of topology and of users."""

    revision_barrier: RevisionBarrier

    async def reached(self, revision: int) -> None:
        """Return when this node has a revision."""


async def confirmed(thing: RevisedThing, revision: int) -> int:
    """Return a revision once all live shards of this node have it; one before it if they do not
    within `REPLY_SECONDS`."""
    try:
        async with asyncio.timeout(REPLY_SECONDS):
            await thing.reached(revision)
            await thing.revision_barrier.here(revision)
    except TimeoutError:
        return max(revision - 1, 0)
    return revision


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

    def reached(self, live: Iterable[str], held: Mapping[str, int], revision: int) -> None:
        """Do nothing when this node advances: others ask."""

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
