"""Etcd as simulated nodes know it: with leases that end by its own clock, and answers that are lost."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.unit.shards.net_of_nodes import Net
from tests.unit.shards.plane import LEASE_SECONDS, Connection, Plane


class LeasedPlane(Plane):
    """A store whose keys end with the lease of the node's life that put them.

    A node counts nine seconds from its request by its own clock, etcd ten from the answer by another one."""

    def __init__(
        self, net: Net, random: Random, drift: float, ended: Callable[[str], None]
    ) -> None:
        """``drift``: seconds of etcd's clock in one of the nodes'; ``ended`` is called with each id
        whose key a lease has taken along."""
        self._leases: dict[tuple[str, str], float] = {}
        """Moment, on the nodes' clock, at which the lease of a node's life ends."""
        self._seconds = LEASE_SECONDS / drift
        self._ended = ended
        super().__init__(net, rules_ids=True)
        self.choose = lambda count: random.randrange(count) if count > 1 else 0

    def term_of(self, connection: Connection) -> float:
        """Prolong a node's lease, if the node reaches etcd."""
        until = super().term_of(connection)
        if until:
            node = self.name_of(connection)
            self._leases[node, self.lives[node]] = self.net.clock.now + self._seconds
        return until

    def end_leases(self) -> None:
        """Delete the keys of leases that have ended."""
        now = self.net.clock.now
        for (node, life), until in list(self._leases.items()):
            if until <= now:
                del self._leases[node, life]
                for client, owner in list(self.owners.items()):
                    if (owner.node, owner.life) == (node, life):
                        del self.owners[client]
                        self._ended(client)
