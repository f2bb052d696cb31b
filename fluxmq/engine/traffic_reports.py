"""A shard's report of the traffic of its queues: only of those in which something has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.names import OUTBOX_PREFIX
from fluxmq.engine.wiring import Queues
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body
from fluxmq.ipc.traffic_messages import (
    REPORTED_EXCHANGES_MAX,
    REPORTED_QUEUES_MAX,
    TRAFFIC,
    ChurnNumbers,
    QueueNumbers,
    ShardNumbers,
    TrafficReport,
    TrafficRequest,
)
from fluxmq.protocols.connection import Tally
from fluxmq.queues.migration import is_arriving
from fluxmq.queues.states import QueueState
from fluxmq.queues.traffic import QueueTraffic
from fluxmq.routing.topology.names import public_name

_NOTHING = tuple(QueueNumbers())
_UNCOUNTED = QueueTraffic()


class TrafficReports:
    """Answers for one shard. Keeps, for each group that it has reported, what is in its queues.

    ``exchanges``: messages in and out by virtual host and name. ``churn`` returns the shard's numbers.
    """

    def __init__(
        self,
        queues: Queues,
        tally: Tally,
        exchanges: dict[tuple[str, str], list[int]],
        churn: Callable[[], ChurnNumbers] = ChurnNumbers,
    ) -> None:
        self._queues = queues
        self._tally = tally
        self._exchanges = exchanges
        self._churn = churn
        self._told: dict[tuple[str, str], tuple[int, int]] = {}
        """Numbers of exchanges that were last reported."""
        self._groups: dict[ReplicationGroup, tuple[int, int]] = {}
        """Messages that are ready and unacknowledged in groups led here."""

    def commands(self) -> dict[str, RequestHandler]:
        """Return the commands of the control process."""
        return {TRAFFIC: self._on_traffic}

    def _on_traffic(self, body: Body, answered: Answered) -> None:
        answered(self.report(anew=TrafficRequest.from_body(body).anew).to_body())

    def report(self, *, anew: bool = False) -> TrafficReport:
        """Return what has changed since the last report; ``anew``, everything."""
        if anew:
            for group in self._groups:
                _forget(group)
            self._groups.clear()
            self._told.clear()
        ended: list[tuple[str, str]] = []
        rows: list[tuple[str, str, tuple[int, ...]]] = []
        groups = [each for each in self._queues.service.all_groups() if _leads(each)]
        for group in self._groups.keys() - set(groups):
            ended += _forget(group)
        self._groups = {each: self._groups.get(each, (0, 0)) for each in groups}
        left = REPORTED_QUEUES_MAX
        for group in groups:
            moved = group.machine.traffic.moved
            while moved and left:
                left -= 1
                self._look_at(group, moved.pop(), rows, ended)
        waiting = sum(len(each.machine.traffic.moved) for each in groups)
        exchanges = tuple(self._of_exchanges())
        totals = self._totals()
        return TrafficReport(totals, tuple(rows), tuple(ended), waiting, exchanges, self._churn())

    def _of_exchanges(self) -> Iterator[tuple[str, str, tuple[int, int]]]:
        """Yield the exchanges that were published to since they were last reported."""
        left = REPORTED_EXCHANGES_MAX
        if len(self._told) > len(self._exchanges):
            self._told.clear()  # their counts have begun anew
        for key, (arrived, routed) in self._exchanges.items():
            if left and self._told.get(key) != (arrived, routed):
                left -= 1
                self._told[key] = arrived, routed
                yield *key, (arrived, routed)

    def _look_at(
        self,
        group: ReplicationGroup,
        queue_id: int,
        rows: list[tuple[str, str, tuple[int, ...]]],
        ended: list[tuple[str, str]],
    ) -> None:
        """Add a queue's row, if it differs from the last one."""
        reported = group.machine.traffic.reported
        name, before = reported.get(queue_id, ("", _NOTHING))
        queue = group.machine.queues.get(queue_id)
        if queue is not None and queue.name.startswith(OUTBOX_PREFIX):
            return
        if queue is None or is_arriving(queue):
            reported.pop(queue_id, None)
            if name and group.machine.queue(name) is None:
                ended.append(public_name(name))
            numbers = _NOTHING
        else:
            numbers = tuple(_numbers(group, queue))
            if numbers != before:
                reported[queue_id] = queue.name, numbers
                rows.append((*public_name(queue.name), numbers))
        ready, unacknowledged = self._groups[group]
        ready += numbers[-2] - before[-2]
        self._groups[group] = ready, unacknowledged + numbers[-1] - before[-1]

    def _totals(self) -> ShardNumbers:
        tally = self._tally
        return ShardNumbers(
            publish=tally.amqp_published + tally.received0 + tally.received1 + tally.received2,
            confirm=tally.amqp_confirmed,
            return_unroutable=tally.amqp_returned,
            deliver_get=tally.amqp_delivered + tally.sent0 + tally.sent1 + tally.sent2,
            get_empty=tally.amqp_got_empty,
            redeliver=tally.amqp_redelivered,
            ack=tally.amqp_acknowledged,
            messages_ready=sum(ready for ready, _ in self._groups.values()),
            messages_unacknowledged=sum(unacked for _, unacked in self._groups.values()),
        )


def _leads(group: ReplicationGroup) -> bool:
    return not group.failed and group.driver.leading


def _forget(group: ReplicationGroup) -> list[tuple[str, str]]:
    """Have a group reported anew; return the queues that were reported."""
    traffic = group.machine.traffic
    names = [name for name, _ in traffic.reported.values()]
    traffic.moved.update(traffic.reported)
    traffic.reported.clear()
    return [public_name(name) for name in names]


def _numbers(group: ReplicationGroup, queue: QueueState) -> QueueNumbers:
    traffic = group.machine.traffic.queues.get(queue.id, _UNCOUNTED)
    ready, unacknowledged, _ = group.dispatch.consumers.counts(queue.id)
    return QueueNumbers(
        publish=traffic.published,
        deliver=traffic.delivered,
        deliver_no_ack=traffic.delivered_no_ack,
        get=traffic.got,
        get_no_ack=traffic.got_no_ack,
        redeliver=traffic.redelivered,
        ack=traffic.acked,
        messages_ready=ready,
        messages_unacknowledged=unacknowledged,
    )
