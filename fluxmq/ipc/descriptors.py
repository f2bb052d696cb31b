"""What the limit of open files allows: how a shard's descriptors are shared out.

A connection is a descriptor, and so is an open file. When connections have taken all, nothing can be written any more; so they
get what is left when storage has its places and the process what it needs itself. The acceptor admits no more than that.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from fluxmq.settings.schema import Settings

STORAGE_PART: Final = 4
"""Files of queues may take a quarter of the limit: connections are more, and a closed file is opened again in microseconds."""
STORAGE_MIN: Final = 32
"""Files of a dozen queues: with fewer every write would wait for a sync."""
STORAGE_MAX: Final = 16_384
"""Files of 6,000 queues that are written to all the time. An open file costs the kernel about 2 KiB, and a checkpoint a sync."""
RESERVE: Final = 80
"""What a shard needs besides: libraries and logs, the loop, the write-ahead logs, the state of sessions, snapshots being
written and sent, administration, spare descriptors."""
RESERVE_PER_SHARD: Final = 4
"""Rings and wake-ups between two shards, both ways."""
RESERVE_PER_NODE: Final = 4
"""Sockets between a shard and one of another node, both ways, and what replaces one while it is given up."""
LIMIT_MIN: Final = 256
"""With fewer descriptors than this there is little left for connections."""


@dataclass(slots=True, frozen=True)
class Shares:
    """Descriptors of one shard, by what they are for: together `limit`, unless that is very low."""

    limit: int
    connections: int
    storage: int
    reserve: int


def shares(limit: int, workers: int, nodes: int = 1) -> Shares:
    """Share out the descriptors of each of `workers` shards, of a cluster of so many nodes.

    Something of each is left however low the limit is.
    """
    storage = min(max(limit // STORAGE_PART, STORAGE_MIN), STORAGE_MAX)
    reserve = RESERVE + RESERVE_PER_SHARD * (workers - 1)
    reserve += RESERVE_PER_NODE * workers * (nodes - 1)
    return Shares(limit, max(limit - storage - reserve, 8), storage, reserve)


def shares_here(settings: Settings, workers: int) -> Shares:
    """Share out what this process may open, which is what shards may; `raise_file_limit` has been called."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    cluster = settings.cluster
    others = len(cluster.raft.peers) if cluster.enabled else 0
    return shares(limit, workers, 1 + others)


def spell(found: Shares, workers: int) -> str:
    """What the limit allows, in a few words."""
    return (
        f"{found.limit} for each shard: connections {found.connections}, storage {found.storage},"
        f" reserve {found.reserve}; {found.connections * workers} connections altogether"
    )


def notes(settings: Settings, found: Shares, workers: int) -> list[str]:
    """Sentences on what the settings promise and the limit does not allow."""
    said = []
    allowed = found.connections * workers
    wanting = [
        f"{path}.max_connections is {listener.max_connections}"
        for path, listener in settings.listeners()
        if listener.max_connections > allowed
    ]
    if wanting:
        said.append(
            f"{'; '.join(wanting)}: the limit of open files ({found.limit}) allows {allowed} connections over all"
            f" listeners ({found.connections} on each of {workers} shards; storage has {found.storage} descriptors there,"
            f" and {found.reserve} are kept back). More are closed at once: raise the limit (ulimit -n, LimitNOFILE=)."
        )
    if found.limit < LIMIT_MIN:
        said.append(
            f"the limit of open files is {found.limit}: with fewer than {LIMIT_MIN} queues and connections get in each"
            " other's way. Raise it (ulimit -n, LimitNOFILE=)."
        )
    return said
