"""Choice of the node that is to lead a new queue, or to be the home of one that is not replicated.

Source: RabbitMQ's "Replica placement" of quorum queues and "Queue leader location" of classic ones:
the queue's argument, else its policy, else the settings say how. Pure: instead of drawing a number,
``random`` depends on the queue's name, which spreads names as evenly, and so does the choice between
nodes that have equally many queues.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from fluxmq.routing.topology.arguments import CLASSIC
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology

CLIENT_LOCAL: Final = "client-local"
RANDOM: Final = "random"
LEADER_KEY: Final = "queue-leader-locator"
"""Key of replicated types; without ``x-`` as in policies."""
MASTER_KEY: Final = "queue-master-locator"
"""Key of classic queues."""
COUNTED_MAX: Final = 1000
"""Queues from which on they are no longer counted, but spread by their names, as in RabbitMQ: counting
more takes longer than a declaration should."""


class DefaultLocators(NamedTuple):
    """The settings, for queues whose arguments and policies name no locator."""

    leader: str = CLIENT_LOCAL
    master: str = CLIENT_LOCAL


def locator_of(topology: Topology, queue: QueueRecord, default: DefaultLocators) -> str:
    """Return the locator of a new queue; an exclusive one is always with its client."""
    if queue.exclusive:
        return CLIENT_LOCAL
    of_classic = queue.type == CLASSIC
    given = effective(topology, queue).get(MASTER_KEY if of_classic else LEADER_KEY)
    return str(given or (default.master if of_classic else default.leader))


def loads(
    topology: Topology,
    also: Iterable[QueueRecord],
    kind: str,
    node_of: Callable[[QueueRecord], str],
) -> Mapping[str, int]:
    """Return how many queues each node leads, of classic ones or of the others as ``kind`` says.
    ``also``: queues that the topology does not have yet. Empty if there are too many."""
    counted: Counter[str] = Counter()
    queues = list(islice(chain(topology.queues(), also), COUNTED_MAX))
    for queue in queues:
        if (queue.type == CLASSIC) == (kind == CLASSIC):
            counted[node_of(queue)] += 1
    return counted if len(queues) < COUNTED_MAX else {}


def located(
    locator: str,
    queue: str,
    own: str,
    nodes: Collection[str],
    leads: Callable[[], Mapping[str, int]],
) -> str:
    """Return one of ``nodes``, which are not empty, by a locator: ``own``, if it is one of them, for
    ``client-local``; any for ``random``; for all others one with the fewest queues. ``queue``: its
    name; ``leads`` counts the queues of each node."""
    if locator == CLIENT_LOCAL and own in nodes:
        return own
    counted = {} if locator == RANDOM else leads()
    return min(nodes, key=lambda node: (counted.get(node, 0), _weight(queue, node)))


def _weight(queue: str, node: str) -> bytes:
    return hashlib.sha256(f"{queue}\0{node}".encode()).digest()
