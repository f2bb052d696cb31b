"""Messages for fluxmqctl's lists and actions, and the shards' part in them.

    control -> shard      rows, close_connections, purge_queue, delete_queue
    fluxmqctl -> control  list, close_connections, purge_queue, delete_queue

A row is a map from column to value, with the requested columns. Long lists come in pages. Pure,
like `messages`; a shard's part is its `Desk`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, Self

import msgpack  # type: ignore[import-untyped]

from fluxmq.ipc.conversation import Answered, Order
from fluxmq.ipc.messages import Body, Failure, Fields, MessageError

ROWS: Final = "rows"
LIST: Final = "list"
CLOSE_CONNECTIONS: Final = "close_connections"
CLOSE_SESSION: Final = "close_session"
PURGE_QUEUE: Final = "purge_queue"
DELETE_QUEUE: Final = "delete_queue"

QUEUES: Final = "queues"
CONNECTIONS: Final = "connections"
CHANNELS: Final = "channels"
CONSUMERS: Final = "consumers"
SHARD_LISTS: Final = (QUEUES, CONNECTIONS, CHANNELS, CONSUMERS)
"""Lists whose rows shards have."""

NAME_CHARACTERS_MAX: Final = 255
COLUMNS_MAX: Final = 64
PAGE_ROWS_MAX: Final = 1000
PAGE_BYTES_MAX: Final = 1 << 20
"""Rows and bytes of a page; a larger row comes alone."""
REASON_CHARACTERS_MAX: Final = 255
CLIENT_ID_CHARACTERS_MAX: Final = 1024
"""Maximum length of client ids that a shard accepts."""

TableRow = dict[str, Any]
"""Column to value: text, number, truth value, None, list or map."""


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


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """Control's request to a shard: rows of `what` from number `after` on.

    `names`, for queues: only those (virtual host and name) that this shard holds; the answer is one
    page and omits the others.
    """

    what: str
    columns: tuple[str, ...]
    after: int = 0
    names: tuple[tuple[str, str], ...] = ()

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "what": self.what,
            "columns": list(self.columns),
            "after": self.after,
            "names": [list(name) for name in self.names],
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, ROWS)
        what = fields.text("what", 32)
        if what not in SHARD_LISTS:
            raise MessageError(f"rows.what {what!r} is not supported here")
        columns = fields.texts("columns", COLUMNS_MAX, NAME_CHARACTERS_MAX)
        names = tuple(_name(item) for item in fields.items("names", PAGE_ROWS_MAX))
        return cls(what, columns, fields.integer("after"), names)


def _name(item: object) -> tuple[str, str]:
    if isinstance(item, list | tuple) and len(item) == 2:
        vhost, name = item
        if isinstance(vhost, str) and isinstance(name, str):
            return vhost, name
    raise MessageError("rows.names holds something that is not [virtual host, name]")


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows; `following` is the number of the first row of the next page, -1 after the last."""

    rows: tuple[TableRow, ...]
    following: int = -1

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"rows": list(self.rows), "next": self.following}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, ROWS)
        return cls(_rows(fields), fields.integer("next", -1))


def _rows(fields: Fields) -> tuple[TableRow, ...]:
    rows: list[TableRow] = []
    for item in fields.items("rows", PAGE_ROWS_MAX):
        if not isinstance(item, dict):
            raise MessageError("a row is not a map")
        rows.append(item)
    return tuple(rows)


def page_of(rows: Iterable[TableRow], after: int) -> Page:
    """Return the page of `rows` that begins at number `after`; consumes no more of the iterable
    than needed."""
    taken: list[TableRow] = []
    size = 0
    for row in islice(rows, after, None):
        row_bytes = len(msgpack.packb(row))
        if len(taken) == PAGE_ROWS_MAX or (taken and size + row_bytes > PAGE_BYTES_MAX):
            return Page(tuple(taken), after + len(taken))
        taken.append(row)
        size += row_bytes
    return Page(tuple(taken))


@dataclass(frozen=True, slots=True)
class ListWanted:
    """A request of fluxmqctl: rows of `what` in a virtual host (None: in all, or it has none).

    `place` is where to continue: empty at first, then from the last answer. `subject` narrows some
    lists: a queue's name for explain_policy.
    """

    what: str
    columns: tuple[str, ...]
    vhost: str | None = None
    place: tuple[int, ...] = ()
    subject: str = ""

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "what": self.what,
            "columns": list(self.columns),
            "vhost": self.vhost,
            "place": list(self.place),
            "subject": self.subject,
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, LIST)
        vhost = fields.optional("vhost")
        return cls(
            fields.text("what", 32),
            fields.texts("columns", COLUMNS_MAX, NAME_CHARACTERS_MAX),
            None if vhost is None else fields.text("vhost", NAME_CHARACTERS_MAX),
            _place(fields),
            fields.text("subject", NAME_CHARACTERS_MAX),
        )


def _place(fields: Fields) -> tuple[int, ...]:
    place = fields.items("place", 2)
    numbers = tuple(each for each in place if type(each) is int and each >= 0)
    if len(numbers) != len(place):
        raise MessageError("place is not a list of numbers")
    return numbers


@dataclass(frozen=True, slots=True)
class Listed:
    """The answer: rows, where to continue (empty: complete), and the shards that did not answer."""

    rows: tuple[TableRow, ...]
    place: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "rows": list(self.rows),
            "place": list(self.place),
            "missing": list(self.missing),
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, LIST)
        return cls(_rows(fields), _place(fields), fields.texts("missing", 1024))


@dataclass(frozen=True, slots=True)
class CloseConnections:
    """Close the connection with this `pid` (as listed), or all (None), of a virtual host (None: of
    any).

    Clients get the `reason`. Answered with `Count`: the number of connections.
    """

    pid: str | None
    vhost: str | None
    reason: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"pid": self.pid, "vhost": self.vhost, "reason": self.reason}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, CLOSE_CONNECTIONS)
        pid, vhost = fields.optional("pid"), fields.optional("vhost")
        return cls(
            None if pid is None else fields.text("pid", NAME_CHARACTERS_MAX),
            None if vhost is None else fields.text("vhost", NAME_CHARACTERS_MAX),
            fields.text("reason", REASON_CHARACTERS_MAX),
        )


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End the session of an MQTT client id, connected or not. Answered with `Count`: 1 if it
    existed, else 0."""

    client_id: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"client_id": self.client_id}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(Fields(body, CLOSE_SESSION).text("client_id", CLIENT_ID_CHARACTERS_MAX))


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """Purge a queue, or delete it (only if it has no consumers, only if it is empty).

    Answered with `Count`: the messages that were ready.
    """

    vhost: str
    name: str
    if_unused: bool = False
    if_empty: bool = False

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, "queue order")
        return cls(
            fields.text("vhost", NAME_CHARACTERS_MAX),
            fields.text("name", NAME_CHARACTERS_MAX),
            fields.boolean("if_unused"),
            fields.boolean("if_empty"),
        )


@dataclass(frozen=True, slots=True)
class Count:
    """Number of affected items."""

    count: int

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"count": self.count}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(Fields(body, "count").integer("count"))


class Desk(Protocol):
    """A shard's handler of control's requests; `done` is called once, at once or later."""

    def rows(self, wanted: RowsWanted, done: Callable[[Page | Failure], None]) -> None:
        """Return rows of this shard; `page_of` cuts them."""

    def close_connections(
        self, wanted: CloseConnections, done: Callable[[Count | Failure], None]
    ) -> None:
        """Close connections of this shard."""

    def close_session(self, wanted: CloseSession, done: Callable[[Count | Failure], None]) -> None:
        """End a session of this shard."""

    def purge_queue(self, order: QueueOrder, done: Callable[[Count | Failure], None]) -> None:
        """Purge a queue, wherever it is."""

    def delete_queue(self, order: QueueOrder, done: Callable[[Count | Failure], None]) -> None:
        """Delete a queue, wherever it is."""


def orders_of(desk: Desk) -> dict[str, Order]:
    """Return the `conversation.Handlers.orders` for a desk."""

    def telling(answered: Answered) -> Callable[[Page | Count | Failure], None]:
        return lambda answer: answered(answer if isinstance(answer, Failure) else answer.to_body())

    return {
        ROWS: lambda body, answered: desk.rows(RowsWanted.from_body(body), telling(answered)),
        CLOSE_CONNECTIONS: lambda body, answered: desk.close_connections(
            CloseConnections.from_body(body), telling(answered)
        ),
        CLOSE_SESSION: lambda body, answered: desk.close_session(
            CloseSession.from_body(body), telling(answered)
        ),
        PURGE_QUEUE: lambda body, answered: desk.purge_queue(
            QueueOrder.from_body(body), telling(answered)
        ),
        DELETE_QUEUE: lambda body, answered: desk.delete_queue(
            QueueOrder.from_body(body), telling(answered)
        ),
    }
