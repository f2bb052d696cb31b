"""Mirrored classic queues: the settings of a queue, and the nodes that should have a copy of it. Pure.

The keys are those of RabbitMQ 3.10, in a policy or in the arguments of the queue, of which the
arguments count. Nodes are chosen by its rules: mirrors that fit remain, the one that has run longest
before others, and a leader that the policy no longer lists remains until a listed mirror is
synchronised. Unlike there, a mirror whose node is down remains one unless another node can replace
it, and of several nodes that could become one those with the least load do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fluxmq.routing.topology.arguments import CLASSIC, GROUP_KEY
from fluxmq.routing.topology.effective import policy_of
from fluxmq.routing.topology.mirror_keys import (
    ALL,
    ALWAYS,
    BATCH_KEY,
    EXACTLY,
    MANUAL,
    MIRROR_KEYS,
    MODE_KEY,
    MODES,
    NODES,
    ON_FAILURE_KEY,
    ON_SHUTDOWN_KEY,
    PARAMS_KEY,
    SYNC_MODE_KEY,
    WHEN_SYNCED,
)
from fluxmq.routing.topology.records import ORIGIN_SETTINGS, QueueRecord
from fluxmq.routing.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class MirrorPolicy:
    """Mirroring that a policy wants for a queue. ``mode``: one of `MODES`, empty for not at all; ``count``: copies of
    mode ``exactly``, the leader among them; ``nodes``: those of mode ``nodes``; ``sync_batch_size``: in
    messages, 0 for what the node's settings say."""

    mode: str = ""
    count: int = 0
    nodes: tuple[str, ...] = ()
    sync_mode: str = MANUAL
    sync_batch_size: int = 0
    promote_on_failure: str = ALWAYS
    promote_on_shutdown: str = WHEN_SYNCED


def mirror_policy(topology: Topology, queue: QueueRecord) -> MirrorPolicy | None:
    """Return how a queue is mirrored; None if it is not.

    Only durable classic queues are, and no exclusive ones, none of the settings file, and none whose
    arguments name a replication group.
    """
    if queue.type != CLASSIC or not queue.durable or queue.exclusive:
        return None
    if queue.origin == ORIGIN_SETTINGS or queue.arguments.get(GROUP_KEY):
        return None
    policy = policy_of(topology, queue)
    return mirror_policy_of(queue.arguments, {} if policy is None else policy.definition)


def mirror_policy_of(
    arguments: Mapping[str, Any], definition: Mapping[str, Any]
) -> MirrorPolicy | None:
    """Return what valid arguments of a queue and the definition of its policy say; None for nothing."""
    said = {key: definition[key] for key in MIRROR_KEYS if key in definition}
    if MODE_KEY in arguments:
        said.pop(PARAMS_KEY, None)
    said |= {key: arguments[key] for key in MIRROR_KEYS if key in arguments}
    mode, params = said.get(MODE_KEY, ""), said.get(PARAMS_KEY)
    if mode not in MODES:
        return None
    batch = said.get(BATCH_KEY, 0)
    return MirrorPolicy(
        mode,
        params if mode == EXACTLY and isinstance(params, int) else 0,
        tuple(dict.fromkeys(params)) if mode == NODES and isinstance(params, list | tuple) else (),
        said.get(SYNC_MODE_KEY, MANUAL),
        batch if batch > 1 else 0,  # a single one is RabbitMQ's word for the default
        said.get(ON_FAILURE_KEY, ALWAYS),
        said.get(ON_SHUTDOWN_KEY, WHEN_SYNCED),
    )


def first_nodes(
    policy: MirrorPolicy,
    node: str,
    online: Collection[str],
    everything: Collection[str],
    load: Callable[[str], int],
) -> tuple[str, ...]:
    """Return the nodes of a queue that is being declared, the leader first; ``node``: the declarer's,
    or the one that the queue's locator chose. Arguments as of `wanted`.

    Mode ``nodes`` puts the leader on a listed node if one is online, else on ``node``.
    """
    leader = node
    if policy.mode == NODES and node not in policy.nodes:
        listed = [each for each in policy.nodes if each in online and each in everything]
        leader = min(listed, key=load, default=node)
    return wanted(policy, leader, (), online, everything, load)


def wanted(
    policy: MirrorPolicy,
    leader: str,
    mirrors: tuple[str, ...],
    online: Collection[str],
    everything: Collection[str],
    load: Callable[[str], int],
    synchronised: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Return the nodes that should have a queue, the leader first.

    ``mirrors``: those it has without the leader, the one that has run longest first; ``online``: nodes
    that are up; ``everything``: nodes of the cluster; ``load``: what a node has to do already;
    ``synchronised``: mirrors that have everything, None for all.
    """
    present = tuple(each for each in mirrors if each in everything and each != leader)
    synced = present if synchronised is None else [x for x in present if x in synchronised]
    up = [each for each in online if each in everything]
    if policy.mode == ALL:
        return _distinct(leader, present, sorted(up))
    if policy.mode == EXACTLY:
        return (leader, *_exactly(policy.count - 1, leader, present, synced, up, load))
    if policy.mode == NODES:
        return _listed(policy.nodes, leader, present, synced, up)
    return (leader,)


def _exactly(
    count: int,
    leader: str,
    present: tuple[str, ...],
    synced: Collection[str],
    online: Collection[str],
    load: Callable[[str], int],
) -> tuple[str, ...]:
    """Return ``count`` mirrors or as many as there can be: those that are up, then new ones, and
    before there are too few those that are down."""
    up = [each for each in present if each in online]
    kept = sorted(up, key=lambda each: each not in synced)[:count]
    free = sorted(each for each in online if each != leader and each not in present)
    added = sorted(free, key=load)[: max(count - len(kept), 0)]
    down = [each for each in present if each not in online]
    return (*kept, *added, *down[: max(count - len(kept) - len(added), 0)])


def _listed(
    nodes: tuple[str, ...],
    leader: str,
    present: tuple[str, ...],
    synced: Collection[str],
    online: Collection[str],
) -> tuple[str, ...]:
    kept = [each for each in present if each in nodes]
    fitting = _distinct(*kept, *(each for each in nodes if each in online))
    ready = [each for each in kept if each in synced and each in online]
    if leader in nodes or not ready:
        return _distinct(leader, fitting)
    return _distinct(ready[0], fitting)


def _distinct(*groups: str | Iterable[str]) -> tuple[str, ...]:
    """Return the nodes in order, each once."""
    found: dict[str, None] = {}
    for each in groups:
        found.update(dict.fromkeys((each,) if isinstance(each, str) else each))
    return tuple(found)
