"""What is done to the network: partitions of every shape, and links that are slow or broken (F5 to F8)."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence

from tests.chaos.faults import Fault
from tests.chaos.proxy import Manner
from tests.chaos.settings import TRANSPORT, peer_host


class Partition(Fault):
    """F5: nodes that do not reach each other, both ways. Subclasses say which."""

    one_way = False

    @abstractmethod
    def cuts(self) -> Sequence[tuple[int, int]]:
        """Pairs of nodes; the first does not reach the second, nor the other way round unless ``one_way``."""

    def begin(self) -> None:
        silently = self.place.random.random() < 0.5
        pairs = self.cuts()
        for one, other in pairs:
            self.cut(one, other, silently)
            if not self.one_way:
                self.cut(other, one, silently)
        how = "nobody notices" if silently else "no route"
        self.note = f"{how}: {', '.join(f'{one}-{other}' for one, other in pairs)}"

    def cut(self, one: int, other: int, silently: bool) -> None:
        """One node's packets do not reach the other any more."""
        host = peer_host(one, other, self.place.proxied)
        self.place.network.block(one, host, silently)

    def end(self) -> None:
        self.place.network.heal()

    def numbers(self) -> list[int]:
        """The nodes in an order by chance."""
        found = [member.number for member in self.place.cluster.members]
        self.place.random.shuffle(found)
        return found

    def name(self, numbers: Sequence[int]) -> None:
        """Say which nodes are the fewer."""
        self.members = [m for m in self.place.cluster.members if m.number in numbers]


class RandomNode(Partition):
    """F5: one node alone."""

    kind = "F5 one node cut off"

    def cuts(self) -> Sequence[tuple[int, int]]:
        first, *rest = self.numbers()
        self.name([first])
        return [(first, other) for other in rest]


class LeaderNode(Partition):
    """F5: the one that leads, alone."""

    kind = "F5 leader cut off"

    def cuts(self) -> Sequence[tuple[int, int]]:
        leader, _ = self.place.leader()
        self.name([leader.number])
        return [(leader.number, other) for other in self.numbers() if other != leader.number]


class Halves(Partition):
    """F5: two halves, as nearly as the number allows."""

    kind = "F5 halves"

    def cuts(self) -> Sequence[tuple[int, int]]:
        numbers = self.numbers()
        fewer = numbers[: len(numbers) // 2]
        self.name(fewer)
        return [(one, other) for one in fewer for other in numbers if other not in fewer]


class Ring(Partition):
    """F5: majorities ring: each node reaches its two neighbours in a ring only, so that all see a different majority."""

    kind = "F5 majorities ring"

    def cuts(self) -> Sequence[tuple[int, int]]:
        ring = self.numbers()
        count = len(ring)
        apart = [
            (ring[a], ring[b])
            for a, b in itertools.combinations(range(count), 2)
            if min(b - a, count - (b - a)) > 1
        ]
        self.name(ring)
        return apart


class Bridge(Partition):
    """F5: two halves, and one node that reaches both."""

    kind = "F5 bridge"

    def cuts(self) -> Sequence[tuple[int, int]]:
        _, *rest = self.numbers()
        half = len(rest) // 2
        self.name(rest)
        return [(one, other) for one in rest[:half] for other in rest[half:]]


class OneWay(RandomNode):
    """F6: one node's packets do not reach the others; theirs reach it."""

    kind = "F6 asymmetric"
    one_way = True


class PortsSplit(Fault):
    """F7, as far as it applies without etcd: between two nodes the groups' connections work and the shards' do not, or
    the other way round."""

    kind = "F7 ports split"

    def begin(self) -> None:
        cut_transport = self.place.random.random() < 0.5
        one = self.place.some()
        self.members = [one]
        self.note = "between shards" if cut_transport else "between groups"
        for (node, other, port), link in self.place.links.items():
            if one.number in (node, other) and (port == TRANSPORT) == cut_transport:
                link.behave(Manner(stalled=True))

    def end(self) -> None:
        for link in self.place.links.values():
            link.behave(Manner())


class Slow(Fault):
    """F8: all links are late and jitter; none is so slow that a leader should be doubted."""

    kind = "F8 slow links"

    def begin(self) -> None:
        delay = self.place.random.choice((0.05, 0.1, 0.2))
        self.note = f"{delay * 1e3:.0f} ms and up to a quarter more"
        for link in self.place.links.values():
            link.behave(Manner(delay=delay, jitter=delay / 4))

    def end(self) -> None:
        for link in self.place.links.values():
            link.behave(Manner())


class Broken(Slow):
    """F8: the links of one node are slow beyond use, stall, are reset, or are open on one side only."""

    kind = "F8 broken links"

    def begin(self) -> None:
        how = self.place.random.choice(("1 Mbit/s", "500 ms", "stalled", "reset", "half-open"))
        one, self.note = self.place.some(), how
        self.members = [one]
        for (node, other, _), link in self.place.links.items():
            if one.number not in (node, other):
                continue
            if how == "1 Mbit/s":
                link.behave(Manner(bandwidth=125_000))
            elif how == "500 ms":
                link.behave(Manner(delay=0.5, jitter=0.2))
            elif how == "half-open":
                link.behave(Manner(), Manner(stalled=True))
            else:
                link.behave(Manner(stalled=how == "stalled"))
                if how == "reset":
                    link.reset_soon()
