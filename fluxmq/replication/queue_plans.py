"""Replication plans of single queues of the settings: their group's plan with the queue's own
values.
"""

from __future__ import annotations

from fluxmq.raft.commits import Wish
from fluxmq.settings.plans import GroupPlan, GroupPlans, UnknownGroup
from fluxmq.settings.schema import Settings


class QueuePlans:
    """The plans of queues. Those that clients declare have their group's plan."""

    def __init__(self, settings: Settings, plans: GroupPlans) -> None:
        self.groups = plans
        self._ack_timeout = settings.cluster.raft.ack_timeout
        self._timeouts: dict[str, float] = {}
        """Append timeouts of queues without a plan of their own, cached by group."""
        self._own: dict[tuple[str, str], GroupPlan] = {}
        for queue in settings.queues:
            group = queue.replication_group(settings.cluster.raft)
            if group is not None and plans.replicated(group):
                self._own[group, queue.name] = plans.of_queue(queue)

    def of(self, group: str, queue: str) -> GroupPlan:
        """Return a queue's plan. Raises UnknownGroup."""
        return self._own.get((group, queue)) or self.groups.of(group)

    def ack_timeout(self, group: str, queue: str) -> float:
        """Return the seconds after which an unanswered append is refused."""
        own = self._own.get((group, queue))
        if own is not None:
            return own.ack_timeout
        found = self._timeouts.get(group)
        if found is None:
            try:
                found = self.groups.of(group).ack_timeout
            except UnknownGroup:  # another node's own
                return self._ack_timeout
            self._timeouts[group] = found
        return found

    def reads_copies(self, group: str) -> bool:
        """Return whether consumers on other nodes depend on their copy's commit index, for any
        queue of the group.

        Raises UnknownGroup.
        """
        own = (plan for (of, _), plan in self._own.items() if of == group)
        return any(plan.distribution_mode == "replicate" for plan in (self.groups.of(group), *own))

    def wishes(self, group: str) -> dict[str, Wish]:
        """Return when the queues of a group want appends acknowledged, by name."""
        return {name: wish_of(plan) for (of, name), plan in self._own.items() if of == group}


def wish_of(plan: GroupPlan) -> Wish:
    """Return when a plan has appends acknowledged: by default once a majority has synced them."""
    if not plan.sync_mode:
        return Wish(early=True)
    majority = len(plan.members) // 2 + 1
    wanted = plan.min_in_sync_replicas
    return Wish(members=wanted if wanted > majority else 0)
