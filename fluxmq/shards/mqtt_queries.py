"""A shard's MQTT sessions, subscriptions, retained messages and outboxes, row by row, and the
deletion of retained messages for an administrator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fluxmq.engine.names import OUTBOX_PREFIX
from fluxmq.engine.wiring import Queues
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_NOT_FOUND, Body, Failure
from fluxmq.ipc.row_messages import (
    DELETE_RETAINED,
    OUTBOXES,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    AffectedCount,
    DeleteRetained,
    TableRow,
)
from fluxmq.protocols.mqtt.run import PublishRun, message_run
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.broker import ShardBroker

EVERYTHING = b"#"
PAYLOAD_SHOWN_MAX = 4096
"""Bytes of a retained message's payload that are shown, if it is asked for alone."""


class MqttQueries:
    """Answers for one shard. Lists are about all, or only those of the names that are given: client
    ids, topics or queues."""

    def __init__(self, broker: ShardBroker, queues: Queues) -> None:
        self._broker = broker
        self._queues = queues
        self._lists: dict[str, Callable[[frozenset[str]], Iterator[TableRow]]] = {
            SESSIONS: lambda names: map(self._session, self._sessions(names)),
            SUBSCRIPTIONS: self._subscriptions,
            RETAINED: self._retained,
            OUTBOXES: self._outboxes,
        }

    def rows(self, what: str, names: Iterable[str]) -> Iterator[TableRow]:
        """Return the rows of a list."""
        return self._lists[what](frozenset(names))

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """The handlers of control's requests by kind."""
        return {DELETE_RETAINED: self._delete_retained}

    def _sessions(self, names: frozenset[str]) -> list[Session]:
        by_id = self._broker.sessions.by_id
        return [by_id[each] for each in names if each in by_id] if names else list(by_id.values())

    def _session(self, session: Session) -> TableRow:
        client, delivery = session.client, session.delivery
        return {
            "name": session.client_id,
            "vhost": "/",
            "connected": client is not None,
            "user": session.principal if client is None else client.username,
            "peer": "" if client is None else client.peer,
            "protocol": client.connection.version if client is not None else 0,
            "keep_alive": client.keep_alive if client is not None else 0,
            "expiry": session.expiry,
            "subscriptions": len(session.subscriptions),
            "inflight": delivery.inflight,
            "pending": delivery.pending_count,
            "pending_bytes": delivery.pending_bytes,
            "will": session.will is not None,
            "shard": self._queues.service.shard,
        }

    def _subscriptions(self, names: frozenset[str]) -> Iterator[TableRow]:
        for session in self._sessions(names):
            for written, grant in list(session.subscriptions.items()):
                yield {
                    "name": written.decode("utf-8", "replace"),
                    "vhost": "/",
                    "client_id": session.client_id,
                    "connected": session.client is not None,
                    "qos": grant.qos,
                    "no_local": grant.no_local,
                    "retain_as_published": grant.retain_as_published,
                    "subscription_id": grant.subscription_id,
                    "share": grant.shared.decode("utf-8", "replace"),
                    "queue": grant.queue is not None,
                }

    def _retained(self, names: frozenset[str]) -> Iterator[TableRow]:
        retained = self._broker.retained
        topics = (each.encode() for each in names) if names else retained.topics(EVERYTHING)
        for topic in topics:
            message = retained.message(topic)
            if message is not None:
                yield self._message(message, shown=bool(names))

    def _message(self, message: PublishRun, *, shown: bool) -> TableRow:
        place = message.body_at(message.start)
        size = message.body_length
        row: TableRow = {
            "name": message.topic.decode("utf-8", "replace"),
            "vhost": "/",
            "qos": message.qos,
            "payload_bytes": size,
            "expires_in": None,
        }
        if message.deadline:
            left = message.deadline - self._broker.reactor.tally.now
            row["expires_in"] = max(round(left), 0)
        if shown:
            end = place + min(size, PAYLOAD_SHOWN_MAX)
            payload = bytes(memoryview(message.buffer)[place:end])
            row["payload"] = payload.decode("utf-8", "backslashreplace")
        return row

    def _outboxes(self, names: frozenset[str]) -> Iterator[TableRow]:
        for group in self._queues.service.all_groups():
            beginning = f"{OUTBOX_PREFIX}{group.name}/"
            for state in list(group.machine.queues.values()):
                name = state.name.removeprefix(beginning)
                if name != state.name and (not names or name in names):
                    yield {
                        "name": name,
                        "vhost": "/",
                        "group": group.name,
                        "batches": state.next_offset - state.start,
                        "bytes": state.size,
                        "shard": self._queues.service.shard,
                    }

    def _delete_retained(self, body: Body, answered: Answered) -> None:
        wanted = DeleteRetained.from_body(body).topic
        topic = wanted.encode()
        retained = self._broker.retained
        if retained.message(topic) is None:
            answered(Failure(ERROR_NOT_FOUND, f"no retained message of topic {body['topic']!r}"))
        elif not retained.retain(message_run(topic, b"", 0, 1)):
            answered(Failure(ERROR_FAILED, "the disk or the cluster takes no changes now"))
        else:
            answered(AffectedCount(1).to_body())
