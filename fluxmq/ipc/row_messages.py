"""Messages for fluxmqctl's lists and actions, and the shards' part in them.

    control -> shard      rows, close_connections, purge_queue, delete_queue, delete_retained
    fluxmqctl -> control  list, close_connections, purge_queue, delete_queue

A row is a map from column to value, with the requested columns. Long lists come in pages. Pure,
like `messages`; a shard's part is its `ShardQueries`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeVar

import msgpack  # type: ignore[import-untyped]
from msgspec import Meta

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import (
    Failure,
    MessageBody,
    Name,
    Natural,
    NaturalOrUnknown,
    ProcessNames,
    Word,
)

ROWS: Final = "rows"
LIST: Final = "list"
CLOSE_CONNECTIONS: Final = "close_connections"
CLOSE_SESSION: Final = "close_session"
PURGE_QUEUE: Final = "purge_queue"
DELETE_QUEUE: Final = "delete_queue"
DELETE_RETAINED: Final = "delete_retained"

QUEUES: Final = "queues"
CONNECTIONS: Final = "connections"
CHANNELS: Final = "channels"
CONSUMERS: Final = "consumers"
SESSIONS: Final = "sessions"
SUBSCRIPTIONS: Final = "subscriptions"
RETAINED: Final = "retained"
OUTBOXES: Final = "outboxes"
MQTT_LISTS: Final = (SESSIONS, SUBSCRIPTIONS, RETAINED, OUTBOXES)
SHARD_LISTS: Final = (QUEUES, CONNECTIONS, CHANNELS, CONSUMERS, *MQTT_LISTS)
"""Lists whose rows shards have. Every shard has all retained messages."""

COLUMNS_MAX: Final = 64
PAGE_ROWS_MAX: Final = 1000
PAGE_BYTES_MAX: Final = 1 << 20
"""Rows and bytes of a page; a larger row comes alone."""
REASON_CHARACTERS_MAX: Final = 255
CLIENT_ID_CHARACTERS_MAX: Final = 1024
"""Maximum length of client ids that a shard accepts."""
SUBJECT_CHARACTERS_MAX: Final = 65_535
"""Maximum length of a topic (MQTT 5.0 section 1.5.4)."""

TableRow = dict[str, Any]
"""Column to value: text, number, truth value, None, list or map."""
POSITION: Final = "position"
"""A column of queues that no list has: a `QueueExtent`."""
Rows = Annotated[tuple[TableRow, ...], Meta(max_length=PAGE_ROWS_MAX)]
Columns = Annotated[tuple[Name, ...], Meta(max_length=COLUMNS_MAX)]
Place = Annotated[tuple[Natural, ...], Meta(max_length=3)]
"""Position at which a list continues: a node's number, a shard, and a row's number there. Lists of
the topology have the last one alone."""


class QueueExtent(NamedTuple):
    """Position of a queue. ``identity``: a number of its own, which another queue of the same name does not have;
    ``oldest``: offset of its oldest message that is not settled, the next one's if it is empty; ``following``: offset of
    the next message."""

    identity: int
    oldest: int
    following: int


def plain(value: Any) -> Any:
    """Return a value of a queue's or exchange's arguments as JSON can express it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value)


class RowsRequest(MessageBody, frozen=True):
    """Control's request to a shard: rows of `what` from number `after` on.

    `names`, for queues: only those (virtual host and name) that this shard holds; the answer is one
    page and omits the others. For MQTT's lists: only the rows of those client ids, topics or
    queues.
    """

    what: Annotated[str, Meta(pattern=f"^({'|'.join(SHARD_LISTS)})$")]
    columns: Columns
    after: Natural = 0
    names: Annotated[tuple[tuple[str, str], ...], Meta(max_length=PAGE_ROWS_MAX)] = ()


class RowsPage(MessageBody, frozen=True):
    """Some rows; `following` is the number of the first row of the next page, -1 after the last."""

    rows: Rows
    following: NaturalOrUnknown = -1


def page_of(rows: Iterable[TableRow], after: int) -> RowsPage:
    """Return the page of `rows` that begins at number `after`; consumes no more of the iterable
    than needed."""
    taken: list[TableRow] = []
    size = 0
    for row in islice(rows, after, None):
        row_bytes = len(msgpack.packb(row))
        if len(taken) == PAGE_ROWS_MAX or (taken and size + row_bytes > PAGE_BYTES_MAX):
            return RowsPage(tuple(taken), after + len(taken))
        taken.append(row)
        size += row_bytes
    return RowsPage(tuple(taken))


class ListRequest(MessageBody, frozen=True):
    """A request of fluxmqctl: rows of `what` in a virtual host (None: in all, or it has none).

    `place` is where to continue: empty at first, then from the last answer. `subject` narrows some
    lists: a queue's name for explain_policy, a client id, a topic. ``here``: only the rows of this
    node.
    """

    what: Word
    columns: Columns
    vhost: Name | None = None
    place: Place = ()
    subject: Annotated[str, Meta(max_length=SUBJECT_CHARACTERS_MAX)] = ""
    here: bool = False


class Listed(MessageBody, frozen=True):
    """The answer: rows, where to continue (empty: complete), and the shards and nodes that did not
    answer."""

    rows: Rows
    place: Place = ()
    missing: ProcessNames = ()


class CloseConnections(MessageBody, frozen=True):
    """Close the connection with this `pid` (as listed), or all (None), of a virtual host (None: of
    any).

    Clients get the `reason`. `here`: on this node only. Answered with `AffectedCount`: the number
    of connections.
    """

    pid: Name | None
    vhost: Name | None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]
    here: bool = False


class CloseSession(MessageBody, frozen=True):
    """End the sessions of an MQTT client id, connected or not; `here`: on this node only. Answered
    with `AffectedCount`: the number of sessions."""

    client_id: Annotated[str, Meta(max_length=CLIENT_ID_CHARACTERS_MAX)]
    here: bool = False


class DeleteRetained(MessageBody, frozen=True):
    """Delete the retained message of a topic. Answered with `AffectedCount`."""

    topic: Annotated[str, Meta(max_length=SUBJECT_CHARACTERS_MAX)]


class QueueRequest(MessageBody, frozen=True):
    """Purge a queue, or delete it (only if it has no consumers, only if it is empty).

    Answered with `AffectedCount`: the messages that were ready.
    """

    vhost: Name
    name: Name
    if_unused: bool = False
    if_empty: bool = False


class AffectedCount(MessageBody, frozen=True):
    """Number of affected items, and the nodes that cannot be reached."""

    count: Natural
    missing: ProcessNames = ()


RequestBody = TypeVar("RequestBody", bound=MessageBody)
_Done = Callable[[RowsPage | AffectedCount | Failure], None]


class ShardQueries(Protocol):
    """A shard's handler of control's requests; `done` is called once, at once or later."""

    def rows(self, wanted: RowsRequest, done: Callable[[RowsPage | Failure], None]) -> None:
        """Return rows of this shard; `page_of` cuts them."""

    def close_connections(
        self, wanted: CloseConnections, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """Close connections of this shard."""

    def close_session(
        self, wanted: CloseSession, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """End a session of this shard."""

    def purge_queue(
        self, request: QueueRequest, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """Purge a queue, wherever it is."""

    def delete_queue(
        self, request: QueueRequest, done: Callable[[AffectedCount | Failure], None]
    ) -> None:
        """Delete a queue, wherever it is."""


def handlers_of(queries: ShardQueries) -> dict[str, RequestHandler]:
    """Return the `conversation.Handlers.orders` for an object with the queries."""

    def request(
        body: type[RequestBody], act: Callable[[RequestBody, _Done], None]
    ) -> RequestHandler:
        def answer_to(answered: Answered) -> _Done:
            return lambda it: answered(it if isinstance(it, Failure) else it.to_body())

        return lambda sent, answered: act(body.from_body(sent), answer_to(answered))

    return {
        ROWS: request(RowsRequest, queries.rows),
        CLOSE_CONNECTIONS: request(CloseConnections, queries.close_connections),
        CLOSE_SESSION: request(CloseSession, queries.close_session),
        PURGE_QUEUE: request(QueueRequest, queries.purge_queue),
        DELETE_QUEUE: request(QueueRequest, queries.delete_queue),
    }
