"""The cluster and its nodes as recorded on disk here; and background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fluxmq.control.meta.tables import CLUSTER, NODE, NodeRecord
from fluxmq.control.ports import LostError, NotLeadingError
from fluxmq.control.topology_rows import unpack
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MetaStatus:
    """Overview of the group, for people. `members` by node name: role, and seconds since last
    contact."""

    term: int
    role: str
    leader: str
    commit: int
    applied: int
    standing: str
    problem: str | None
    members: Mapping[str, tuple[str, float | None]]

    def samples(self, own: str, elections: int) -> Iterator[Sample]:
        """Yield the same as metrics of node `own`, which became leader ``elections`` times."""
        yield "fluxmq_meta_term", {}, self.term
        yield "fluxmq_meta_leader", {}, float(self.leader == own)
        yield "fluxmq_meta_leader_known", {}, float(bool(self.leader))
        yield "fluxmq_meta_commit_index", {}, self.commit
        yield "fluxmq_meta_applied_index", {}, self.applied
        yield "fluxmq_meta_elections_total", {}, elections
        for node, (role, age) in self.members.items():
            yield "fluxmq_meta_voter", {"member": node}, float(role == "voter")
            if age is not None:
                yield "fluxmq_meta_last_contact_seconds", {"member": node}, age


class ClusterView:
    """The table ``shared``, decoded."""

    def __init__(self) -> None:
        self.known = False
        """True when this node's disk holds the cluster's metadata."""
        self.cluster = 0
        """Identity of the cluster: a random number; 0 while unknown."""
        self.records: dict[str, NodeRecord] = {}
        """Record of each node, by name."""

    def take(self, shared: Mapping[str, bytes]) -> None:
        """Replace the content by that of the table. Raises ValueError for malformed values."""
        cluster = shared.get(CLUSTER)
        self.known = cluster is not None
        self.cluster = 0 if cluster is None else int(unpack(cluster)[0])
        self.records = {
            key.removeprefix(NODE): NodeRecord.unpack(value)
            for key, value in shared.items()
            if key.startswith(NODE)
        }

    def leave(self) -> None:
        """Belong to no cluster until the others say which one: this directory starts afresh."""
        self.cluster = 0
        self.records = {}


class Work:
    """Background tasks, cancelled only by `stop`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. One that only the leader may do ends when another node leads."""

        async def guarded() -> None:
            try:
                await work
            except (NotLeadingError, LostError):
                _log.debug("another node now leads _meta")
            except Exception:  # noqa: BLE001 - a task's outermost frame
                _log.exception("work for _meta failed")

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # The task may be cancelled before it starts.
        task.add_done_callback(lambda _task: work.close())
        return task

    async def stop(self) -> None:
        """Cancel all tasks and wait for them."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
