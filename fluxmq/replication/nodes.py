"""A cluster's other nodes, as the groups of a shard see them; a single node has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from fluxmq.ipc.conversation import RequestHandler
from fluxmq.metrics.registry import Sample
from fluxmq.net.links import FrameLink
from fluxmq.replication.open_group import ALONE, AnyHosted, Member
from fluxmq.storage.errors import Corruption


class Traffic(Protocol):
    """Other traffic over the links to shards of other nodes."""

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""

    def received(self, link: FrameLink, frame: bytes) -> None:
        """Handle a frame that is not a control frame."""

    def add(self, peer: int, link: FrameLink) -> None:
        """Add a shard of another node."""

    def tell_everything(self, link: FrameLink) -> None:
        """Announce this shard's state to a shard that has connected."""

    def lose(self, peer: int) -> None:
        """Handle the loss of a shard."""


class Nodes(Protocol):
    """The part of a cluster's other nodes in the groups of this shard. The methods' own bodies are
    those of a single node."""

    states: tuple[str, ...] = ()
    """States that groups have here beside those that they have on a single node."""

    @property
    def clocks_apart(self) -> int:
        """Number of nodes whose wall clocks differ from this one's by too much."""
        return 0

    def is_timed(self) -> bool:
        """Return whether the time of day is known; no leader acts before."""
        return True

    # Groups

    def member_of(self, group: str) -> Member:
        """Return this node's member configuration in a group; by default its only member."""
        return ALONE

    def groups_here(self) -> Iterator[str]:
        """Yield groups that this shard may host, beside those of its queues."""
        return iter(())

    def is_member(self, group: str) -> bool:
        """Return whether this node is to have a group, as its own or as a member."""
        return True

    def left(self, group: str) -> bool:
        """Return whether this node was a member and was removed. Raises StorageError."""
        return False

    def leader_of(self, group: str) -> str | None:
        """Return the leader of a group here, empty if unknown; None for this node's own groups."""
        return None

    def opened(self, hosted: AnyHosted) -> None:
        """Connect a group that was opened."""
        return

    def closed(self, hosted: AnyHosted) -> None:
        """Disconnect a group that is no longer hosted here."""
        return

    def mend(self, group: str, damage: Corruption) -> bool:
        """Reset a damaged group that could not be opened; return whether to try again."""
        return False

    # Work

    def join(
        self,
        shard_links: Mapping[int, FrameLink],
        traffic: Traffic,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        """Use the links to this node's shards, and make those to other nodes; ``arrived`` is called
        before frames of those are handled."""
        return

    def commands(self) -> dict[str, RequestHandler]:
        """Return the handlers of control's questions and orders by kind."""
        return {}

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames of shards of this node and others, by name."""
        return {}

    def came(self, link: FrameLink) -> None:
        """Note a shard that has connected and learned which queues are here."""
        return

    def went(self, peer: int) -> None:
        """Note a shard that has died."""
        return

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        return

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of replicated groups and of streams to other nodes."""
        return iter(())

    async def start(self) -> None:
        """Connect to the other nodes. Raises ClusterError."""
        return

    async def hand_over(self, turn: Callable[[], None]) -> None:
        """Transfer the groups led here to other members, for a bounded time."""
        return

    async def stop(self) -> None:
        """End every stream."""
        return


class SingleNode(Nodes):
    """Stands in for the other nodes where there are none."""
