"""Groups that other nodes have too, as clients here see them; a single node has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fluxmq.ipc.group_choice import ClusterMap
from fluxmq.metrics.registry import Sample

if TYPE_CHECKING:
    from fluxmq.engine.group import ReplicationGroup
    from fluxmq.engine.ports import GroupTarget
    from fluxmq.engine.remote_shards import RemoteShard, RemoteShards


class GroupObserver(Protocol):
    """Follows the durable groups that are open on a shard."""

    def opened(self, group: ReplicationGroup) -> None:
        """Note a group that was recovered, before it is started."""
        return

    def closed(self, group: ReplicationGroup) -> None:
        """Note a group that this shard no longer hosts."""
        return

    def leads(self, group: ReplicationGroup) -> None:
        """Note a group that leads here and whose configured queues are declared."""
        return


class WaitingRequests(NamedTuple):
    """Work that waits for groups that other nodes lead: batches in outboxes, and clients of groups with
    requests that are not answered."""

    batches: int
    clients: int


class ClusterGroups(GroupObserver, Protocol):
    """Finds the clients of groups that other nodes have too. The methods' own bodies are those of a
    single node."""

    @property
    def cluster(self) -> ClusterMap | None:
        """The nodes that can be reached, and which leads what; None on a single node."""
        return None

    def join(self, remote: RemoteShards) -> None:
        """Use the groups on other shards."""
        return

    def own_name(self, group: str) -> str:
        """Return a group's name on this node, without the node's name that others append to it."""
        return group

    def unreachable_home(self, group: str) -> str:
        """Return the node that alone has a group, if that node cannot be reached; otherwise an
        empty string."""
        return ""

    def client(self, group: str) -> GroupTarget | None:
        """Return the client of a group that this node does not have alone; None for its own."""
        return None

    def sender(self, group: str) -> GroupTarget | None:
        """Return the client for messages that queues themselves send, like `client`."""
        return None

    def copy_of(self, group: ReplicationGroup) -> GroupTarget | None:
        """Return a copy here that another node leads, for this node's other shards."""
        return None

    def mover(self, group: str) -> ReplicationGroup | RemoteShard | None:
        """Return the target for a moving queue's content; None while its group has no leader."""
        return None

    def moved(self, queue: str, before: str, after: str) -> None:
        """Move a queue's appends and consumers to its new group."""
        return

    def keeps_here(self, group: str) -> bool:
        """Return whether a group's appends are kept here while another node leads it."""
        return False

    def explain(self, reason: int) -> str:
        """Return the text that goes with a refusal; empty for none."""
        return ""

    @property
    def above_high_watermark(self) -> bool:
        """True while unacknowledged appends exceed the high watermark."""
        return False

    @property
    def waiting(self) -> WaitingRequests:
        """Work that waits for groups that other nodes lead."""
        return WaitingRequests(0, 0)

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        return

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of appends to groups that other nodes lead."""
        return iter(())


class OwnGroups(ClusterGroups):
    """Stands in for them on a single node, which has all groups to itself."""


OWN_GROUPS = OwnGroups()
