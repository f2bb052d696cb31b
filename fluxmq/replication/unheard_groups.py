"""Groups that queues name and that this node cannot resolve: no settings allow them, or they begin on
nodes of which it has not heard yet, or are mirrored and it has not heard of their records. It hears of those soon, since the cluster keeps its nodes where it
keeps its queues, and then opens its groups."""

from __future__ import annotations

import logging
from typing import Final

from fluxmq.logs import RateLimited, get_logger
from fluxmq.settings.group_names import group_of_set, is_mirrored
from fluxmq.settings.plans import GroupPlans, UnknownGroup

UNHEARD_MAX: Final = 1000
"""Groups that wait for this node to hear of their nodes: more than have addresses."""

_log = get_logger("fluxmq.cluster")


class UnheardGroups:
    """Those of one shard."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Groups on nodes of which this node has not heard."""
        self._unknown = RateLimited(_log, per_second=0.01, burst=1)

    def note(self, problem: UnknownGroup) -> None:
        """Remember a group that a queue names, and log it."""
        group = problem.group
        self._unknown.event(logging.WARNING, group, "unknown group: %s", problem)
        later = group_of_set(group) is not None or is_mirrored(group)
        if later and len(self.names) < UNHEARD_MAX:
            self.names.add(group)

    def heard(self, plans: GroupPlans) -> list[str]:
        """Return the groups of whose nodes this node has heard now, and forget them."""
        found = []
        for name in sorted(self.names):
            try:
                plans.of(name)
            except UnknownGroup:
                continue
            found.append(name)
        self.names.difference_update(found)
        return found
