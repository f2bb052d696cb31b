"""Places of a queue: the node of its leader, and those of its replicas, as management tells them."""

from __future__ import annotations

from fluxmq.engine.service import QueueService
from fluxmq.ipc.group_choice import ClusterMap
from fluxmq.sessions.amqp10.management import QueuePlaces
from fluxmq.settings.plans import UnknownGroup


def places_of(
    group: str, node: str, cluster: ClusterMap | None, service: QueueService
) -> QueuePlaces:
    """Return the places of a replication group's queues. ``node``: this one; ``cluster``: None without
    one.

    A shard that has the group itself knows its present members, another one those that it began with.
    """
    _, elsewhere, home = group.partition("@")
    if cluster is None:
        return QueuePlaces(node, (node,))
    if elsewhere:
        return QueuePlaces(home if home in cluster.nodes() else "", (home,))
    if not cluster.plans.replicated(group):
        return QueuePlaces(node, (node,))
    try:
        plan = cluster.plans.of(group)
    except UnknownGroup:  # this node hears of it in a moment
        return QueuePlaces(cluster.leader_of(group), ())
    members = [member.number for member in plan.members]
    hosted = service.groups.get(group)
    if hosted is not None:
        membership = hosted.driver.node.status().membership
        members = sorted((*membership.voters, *membership.learners))
    names = {member.number: member.node for member in plan.nodes}
    return QueuePlaces(
        cluster.leader_of(group), tuple(names[each] for each in members if each in names)
    )
