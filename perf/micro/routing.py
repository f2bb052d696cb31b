"""The subscription tree: adding filters, and matching topics that the route cache does not know."""

from __future__ import annotations

from collections.abc import Iterator

from fluxmq.routing.subscriptions import SubscriptionTree
from perf.micro import Benchmark

BUILDINGS, ROOMS = 50, 20


def filters(scale: int) -> list[bytes]:
    """Filters of a building's sensors: three in five exact, the others with + or #."""
    found = []
    for number in range(scale):
        building = number % BUILDINGS
        room = number // BUILDINGS % ROOMS
        kinds = (
            f"b/{building}/r/{room}/s/{number}",
            f"b/{building}/r/{room}/s/{number}/t",
            f"b/{building}/x/{number}",
            f"b/{building}/r/+/s/{number}",
            f"b/{building}/r/{room}/#",
        )
        found.append(kinds[number % len(kinds)].encode())
    return found


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """Add ``scale`` filters to an empty tree, then match as many topics against it."""
    wanted = filters(scale)

    def add() -> int:
        tree: SubscriptionTree[int, int] = SubscriptionTree()
        for number, topic_filter in enumerate(wanted):
            tree.add(topic_filter, number, 0)
        return len(tree)

    topics = [
        f"b/{number % BUILDINGS}/r/{number // BUILDINGS % ROOMS}/s/{number}".encode()
        for number in range(scale)
    ]
    full: SubscriptionTree[int, int] = SubscriptionTree()
    for number, topic_filter in enumerate(wanted):
        full.add(topic_filter, number, 0)

    def match() -> int:
        matched = 0
        for topic in topics:
            matched += bool(full.match(topic))
        return scale if matched else 0

    yield Benchmark("subscriptions: add", scale, add)
    yield Benchmark("subscriptions: match", scale, match)
