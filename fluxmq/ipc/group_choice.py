"""Choice of the group of a declared queue: in memory, one of the node's own, or one of the
cluster's.

A group that every node has of its own is written with the node's name behind it
(``local-3@node1``), since all nodes read the row: the queue is on the node where its declarer was
connected. `QueueNames.own_name` strips the name again on that node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fluxmq.ipc.placements import number_of
from fluxmq.routing.topology.arguments import CLASSIC, GROUP_KEY, QUORUM, STREAM
from fluxmq.routing.topology.refusals import precondition
from fluxmq.settings.clustering import BUFFERED, DEFAULT_GROUP, EPHEMERAL, LOCAL
from fluxmq.settings.plans import GroupPlans, UnknownGroup

SIZE_KEYS: Final = {QUORUM: "x-quorum-initial-group-size", STREAM: "x-initial-cluster-size"}
"""Arguments for the number of copies, by type."""


def group_for(
    own_name: Callable[[str], str],
    local_groups: int,
    shard: int,
    buffered: bool,
    plans: GroupPlans | None,
    queue: tuple[str, bool, bool, str],
    arguments: Mapping[str, Any],
) -> str:
    """Return the group of a new queue, given as name, durable, exclusive and type. `own_name` is the
    cluster-wide name of one of this node's own groups, of which there are `local_groups`; `plans` are
    those of a cluster.

    Durable queues of the types quorum and stream are replicated, and so are those that name a
    group. One that wants a number of copies is in the group that has so many, or as many as there
    are nodes; one that wants a single copy is not replicated. Raises `Refusal` 406 for an unknown
    group.
    """
    name, durable, exclusive, kind = queue
    wanted = arguments.get(GROUP_KEY, "")
    if not durable or exclusive:
        if wanted:
            raise precondition(f"{GROUP_KEY} is for durable queues that are not exclusive")
        return own_name(f"{EPHEMERAL}-{shard}")
    if plans is None:
        if wanted:
            raise precondition(f"{GROUP_KEY} is for nodes of a cluster")
    elif wanted:
        return _replicated(plans, wanted if isinstance(wanted, str) else "")
    elif kind != CLASSIC:
        copies = arguments.get(SIZE_KEYS[kind])
        group = plans.sized(copies) if isinstance(copies, int) else DEFAULT_GROUP
        if group:
            return _replicated(plans, group)
    prefix = BUFFERED if buffered else LOCAL
    return own_name(f"{prefix}-{number_of(name, local_groups)}")


def _replicated(plans: GroupPlans, wanted: str) -> str:
    group = wanted or DEFAULT_GROUP
    try:
        plans.of(group)
    except UnknownGroup as problem:
        raise precondition(f"replication group {problem.group!r} {problem.why}") from None
    return group
