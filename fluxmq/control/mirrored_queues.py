"""The part of the control process for mirrored queues in a cluster: records in etcd, choices and moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from fluxmq.control.mirrors import MirrorState
from fluxmq.control.peers import Peer
from fluxmq.ipc import mirror_messages
from fluxmq.ipc.messages import Body, ControlMessage
from fluxmq.ipc.mirrored_groups import MIRROR_CHANGE, MIRROR_ENDED, MIRROR_LEAD
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.settings.schema import Settings

if TYPE_CHECKING:
    from fluxmq.control.etcd.mirrors import MirrorKeys
    from fluxmq.control.etcd.shared_metadata import SharedMetadata
    from fluxmq.control.listings import Listings
    from fluxmq.control.mirror_endings import MirrorEndings
    from fluxmq.control.mirror_moves import MirrorMoves
    from fluxmq.control.topology_service import TopologyService


class MirroredQueues:
    """Starts and stops the parts, once there is etcd; before, no queue is mirrored."""

    def __init__(self) -> None:
        self._keys: MirrorKeys | None = None
        self._moves: MirrorMoves | None = None
        self._endings: MirrorEndings | None = None

    def start(
        self,
        keys: MirrorKeys,
        shared: SharedMetadata,
        topology: TopologyService,
        settings: Callable[[], Settings],
        able: Callable[[], bool],
        ending: Callable[[], bool],
        listing: Listings,
    ) -> dict[str, Callable[[ControlMessage], Awaitable[Body]]]:
        """Follow the records, and see to the queues until ``stop``; return the handlers of requests.
        ``able`` returns whether all nodes know mirrored groups, ``ending`` whether all know that these end."""
        from fluxmq.control.mirror_choices import MirrorChoices
        from fluxmq.control.mirror_endings import MirrorEndings
        from fluxmq.control.mirror_moves import MirrorMoves
        from fluxmq.control.mirror_requests import MirrorRequests

        choices = MirrorChoices(keys, lambda: topology.topology, settings, able)
        shared.prepare = choices.prepare
        moves = MirrorMoves(
            *(keys, choices, lambda: topology.topology, settings),
            *(topology.change, listing.positions),
        )
        endings = MirrorEndings(keys, lambda: topology.topology, shared.while_unchanged, ending)
        self._keys, self._moves, self._endings = keys, moves, endings
        asked = MirrorRequests(lambda: topology.topology, moves.state, moves)
        keys.start()
        moves.start()
        endings.start()
        return {
            **dict.fromkeys((MIRROR_LEAD, MIRROR_CHANGE, MIRROR_ENDED), keys.answer),
            **dict.fromkeys(mirror_messages.KINDS, asked.answer),
        }

    def _parts(self) -> Sequence[MirrorKeys | MirrorMoves | MirrorEndings]:
        parts = (self._endings, self._moves, self._keys)
        return [each for each in parts if each is not None]

    async def stop(self) -> None:
        """End; others lead the groups that this node leads."""
        for part in self._parts():
            await part.stop()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        return chain.from_iterable(part.samples() for part in self._parts())

    def greeted(self, peer: Peer) -> None:
        """Tell a shard that has connected."""
        if self._keys is not None:
            self._keys.greeted(peer)

    def gone(self, _peer: Peer) -> None:
        """Do nothing: a shard that connects again is told again."""

    def state(self, queue: QueueRecord) -> MirrorState | None:
        """Return the state of a queue's mirrors; None if it is not mirrored."""
        return None if self._moves is None else self._moves.state(queue)

    async def forget(self, node: str) -> None:
        """Do without the copies of a node that is gone for good. Raises RequestError."""
        if self._keys is not None:
            await self._keys.forget(node)
