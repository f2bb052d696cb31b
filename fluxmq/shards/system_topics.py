"""The ``$SYS/broker/...`` topics: the node's numbers as retained messages.

Each shard sends its numbers to the first one, which publishes the sums. Subscribers anywhere on the
node receive them; clients cannot publish there.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxmq import __version__
from fluxmq.protocols.mqtt.run import message_run
from fluxmq.sessions.mqtt.publishing import retain
from fluxmq.shards.broker import ShardBroker
from fluxmq.shards.peers import Peers

PUBLISHER = 0
"""The shard that publishes; after a restart it continues from its peers' reports."""

Numbers = dict[str, int]


class SystemTopics:
    """Publishes the sums of the shards' reports."""

    def __init__(
        self,
        shard: int,
        broker: ShardBroker,
        peers: Peers,
        connections: Callable[[], int],
    ) -> None:
        self._shard = shard
        self._broker = broker
        self._peers = peers
        self._connections = connections
        self._started = broker.now()

    def numbers(self) -> Numbers:
        """Return this shard's numbers."""
        broker = self._broker
        tally = broker.reactor.tally
        connected = self._connections()
        return {
            "clients/connected": connected,
            "clients/total": len(broker.sessions.by_id),
            "clients/disconnected": max(len(broker.sessions.by_id) - connected, 0),
            "messages/received": tally.received0 + tally.received1 + tally.received2,
            "messages/sent": tally.sent0 + tally.sent1 + tally.sent2,
            "messages/publish/received": tally.received0 + tally.received1 + tally.received2,
            "messages/publish/sent": tally.sent0 + tally.sent1 + tally.sent2,
            "bytes/received": tally.received_bytes0 + tally.received_bytes1 + tally.received_bytes2,
            "bytes/sent": tally.sent_bytes0 + tally.sent_bytes1 + tally.sent_bytes2,
            "subscriptions/count": broker.subscriptions.count,
            "errors/protocol": sum(broker.counts.errors.values()),
            "errors/authz": sum(broker.counts.drops.denied.values()),
        }

    def tick(self) -> None:
        """Send a report, or publish."""
        if self._shard != PUBLISHER:
            link = self._peers.links.get(PUBLISHER)
            if link is not None and link.up:
                link.send_control("numbers", self.numbers())
            return
        total: Numbers = {}
        for report in (self.numbers(), *self._peers.numbers.values()):
            for name, value in report.items():
                total[name] = total.get(name, 0) + value
        total["retained/count"] = len(self._broker.retained.store)
        total["uptime"] = int(self._broker.now() - self._started)
        self._publish("version", f"FluxMQ {__version__}")
        for name, value in total.items():
            self._publish(name, str(value))

    def _publish(self, name: str, text: str) -> None:
        run = message_run(f"$SYS/broker/{name}".encode(), text.encode(), 0, 1)
        retain(self._broker, run)
        route = self._broker.subscriptions.routes.build(run.topic)
        self._broker.reactor.forward(run, route)
