"""Allotment of the open file limit: how a shard divides its descriptors.

A connection takes a descriptor, and so does an open file. If connections took all, nothing could be
written any more; so they get the rest after storage and the process itself. The acceptor admits no
more than that.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

from fluxmq.settings.schema import Settings

STORAGE_PART: Final = 4
"""Part of the limit for queue files, a quarter: connections are more, and reopening a file takes
microseconds."""
STORAGE_MIN: Final = 32
"""Files of a dozen queues: with fewer, every write would wait for a sync."""
STORAGE_MAX: Final = 16_384
"""Files of 6,000 continuously written queues. An open file costs the kernel about 2 KiB, and a
checkpoint a sync."""
RESERVE: Final = 80
"""Descriptors a shard needs besides: libraries and logs, the loop, the write-ahead logs, session
state, snapshots being written and sent, administration, spare descriptors."""
RESERVE_PER_SHARD: Final = 4
"""Rings and wake-ups between two shards, both ways."""
RESERVE_PER_NODE: Final = 4
"""Sockets between a shard and one of another node, for queues and for publishing, and their
replacements during a switch."""
LIMIT_MIN: Final = 256
"""Lower limits leave little for connections."""


@dataclass(slots=True, frozen=True)
class Shares:
    """Descriptors of one shard, by purpose: together `limit`, unless that is very low."""

    limit: int
    connections: int
    storage: int
    reserve: int


def shares(limit: int, workers: int, nodes: int = 1) -> Shares:
    """Divide the descriptors of each of `workers` shards in a cluster of so many nodes.

    Each purpose gets some however low the limit is.
    """
    storage = min(max(limit // STORAGE_PART, STORAGE_MIN), STORAGE_MAX)
    reserve = RESERVE + RESERVE_PER_SHARD * (workers - 1)
    reserve += RESERVE_PER_NODE * workers * (nodes - 1)
    return Shares(limit, max(limit - storage - reserve, 8), storage, reserve)


def shares_here(settings: Settings, workers: int) -> Shares:
    """Divide this process's limit, which equals that of shards; `raise_file_limit` has been
    called."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    cluster = settings.cluster
    others = len(cluster.raft.peers) if cluster.enabled else 0
    return shares(limit, workers, 1 + others)


def spell(found: Shares, workers: int) -> str:
    """Return the allotment in a few words."""
    return (
        f"{found.limit} for each shard: connections {found.connections}, storage {found.storage},"
        f" reserve {found.reserve}; {found.connections * workers} connections altogether"
    )


def notes(settings: Settings, found: Shares, workers: int) -> list[str]:
    """Return sentences about settings that exceed the limit."""
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
