"""Messages about mirrored groups, whose leaders and members a cluster keeps in etcd.

::

    control -> shard        mirrors: all groups, at every change
    shard -> control        mirror_lead, before this node leads a group; mirror_change, from the leader;
                            mirror_ended, from a mirror

Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from fluxmq.ipc.messages import MessageBody, Name, Natural, Word

MIRRORS: Final = "mirrors"
MIRROR_LEAD: Final = "mirror_lead"
MIRROR_CHANGE: Final = "mirror_change"
MIRROR_ENDED: Final = "mirror_ended"

RETURNED: Final = "returned"
SYNCHRONISED: Final = "synchronised"
LOST: Final = "lost"
ALONE: Final = "alone"
"""Of the leader itself: it does without all others."""

MIRRORED_GROUPS_MAX: Final = 4096
"""Groups of a cluster: one for each set of nodes that policies have chosen, and few sets are in use."""
MIRRORS_MAX: Final = 1000
ENDED_MAX: Final = 1024
"""Groups that have ended that a shard is told of."""

Nodes = Annotated[tuple[Name, ...], Meta(max_length=MIRRORS_MAX)]


class GroupMirrors(Struct, frozen=True, array_like=True):
    """A mirrored group. ``epoch``: its latest; ``first``: the nodes that it began on; ``members``: those
    that have a copy; ``synchronised``: those of them that have everything, the leader included;
    ``running``: those in contact with the leader, and it; ``forced``: how often a copy that lacked something was declared the truth."""

    epoch: Natural
    leader: Name
    first: Nodes
    members: Nodes
    synchronised: Nodes
    running: Nodes = ()
    forced: Natural = 0


class Mirrors(MessageBody, frozen=True):
    """The mirrored groups by name. ``ended``: some that there have been, the latest; nodes that have
    something of these remove it."""

    groups: Annotated[dict[Name, GroupMirrors], Meta(max_length=MIRRORED_GROUPS_MAX)]
    ended: Annotated[tuple[Name, ...], Meta(max_length=ENDED_MAX)] = ()


class MirrorLead(MessageBody, frozen=True):
    """Request to lead a group. ``term``: the latest that this node's copy knows; ``empty``: it has
    nothing; ``alone``: it has what the others lack, and no other was the leader meanwhile if ``forced`` is
    still what the record says."""

    group: Name
    term: Natural
    empty: bool
    alone: bool = False
    forced: Natural = 0


class MirrorEpoch(MessageBody, frozen=True):
    """The answer: the term in which this node leads from now on; 0 if it does not."""

    epoch: Natural


class MirrorChange(MessageBody, frozen=True):
    """Request of the leader in ``epoch``: to have it known that a mirror is back, or has everything, or
    that the leader does without it; or, named itself, without all."""

    group: Name
    epoch: Natural
    node: Name
    state: Word


class MirrorEnded(MessageBody, frozen=True):
    """Request of a synchronised mirror: to have another node lead than the leader in ``epoch``, whose
    process has ended. ``reached``: nodes that the mirror has a stream to, and its own."""

    group: Name
    epoch: Natural
    leader: Name
    reached: Nodes
