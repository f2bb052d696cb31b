"""Messages about rows and what is done with queues and connections: there and back, pages, a shard's dispatcher."""

from decimal import Decimal

import pytest

from fluxmq.ipc import row_messages
from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.conversation import Conversation, Handlers
from fluxmq.ipc.messages import (
    ERROR,
    ERROR_MALFORMED,
    ERROR_NOT_FOUND,
    REPLY,
    ControlMessage,
    Failure,
    MessageError,
    ProcessHello,
    ProcessNumbers,
)
from fluxmq.ipc.row_messages import (
    CLOSE_CONNECTIONS,
    CLOSE_SESSION,
    DELETE_QUEUE,
    PURGE_QUEUE,
    ROWS,
    AffectedCount,
    CloseConnections,
    CloseSession,
    Listed,
    ListRequest,
    QueueRequest,
    RowsPage,
    RowsRequest,
    handlers_of,
    page_of,
    plain,
)
from fluxmq.model.properties import Timestamp
from tests.unit.ipc.travelling import travelled


@pytest.mark.parametrize(
    "value",
    [
        RowsRequest("queues", ("name", "messages"), 3, (("/", "a"), ("b", "c"))),
        RowsRequest("connections", ()),
        RowsPage(({"a": 1, "b": [None, {"c": True}]}, {}), 7),
        RowsPage(()),
        ListRequest("queues", ("name",), "/", (1, 2), "q"),
        ListRequest("vhosts", ()),
        Listed(({"name": "q"},), (0, 5), ("shard-1",)),
        Listed(()),
        CloseConnections("<1.2>", None, "why"),
        CloseConnections(None, "/", ""),
        CloseSession("c" * 1024),
        QueueRequest("/", "q", if_empty=True),
        AffectedCount(9),
    ],
)
def test_there_and_back(value):
    assert type(value).from_body(travelled(value.to_body())) == value


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (RowsRequest, RowsRequest("users", ()).to_body()),
        (RowsRequest, {**RowsRequest("queues", ()).to_body(), "names": [["/"]]}),
        (RowsRequest, {**RowsRequest("queues", ()).to_body(), "names": [["/", 1]]}),
        (RowsRequest, {**RowsRequest("queues", ()).to_body(), "after": -1}),
        (RowsRequest, {**RowsRequest("queues", ()).to_body(), "columns": ["a"] * 65}),
        (RowsPage, {"rows": [1], "next": -1}),
        (RowsPage, {"rows": [{}] * 1001, "next": -1}),
        (ListRequest, {**ListRequest("queues", ()).to_body(), "place": [-1]}),
        (ListRequest, {**ListRequest("queues", ()).to_body(), "place": [1, 2, 3, 4]}),
        (ListRequest, {**ListRequest("queues", ()).to_body(), "vhost": 3}),
        (CloseConnections, {"pid": None, "vhost": None, "reason": "x" * 256}),
        (CloseSession, {"client_id": "c" * 1025}),
        (QueueRequest, {"vhost": "/", "if_empty": True}),
        (AffectedCount, {"count": -1}),
    ],
)
def test_other_bodies_are_refused(kind, body):
    with pytest.raises(MessageError):
        kind.from_body(body)


def test_pages_are_bounded_by_rows_and_bytes(monkeypatch):
    monkeypatch.setattr(row_messages, "PAGE_ROWS_MAX", 3)
    monkeypatch.setattr(row_messages, "PAGE_BYTES_MAX", 100)
    rows = [{"n": number, "text": "x" * (200 if number == 4 else 1)} for number in range(8)]
    pages, after = [], 0
    while after >= 0:
        page = page_of(iter(rows), after)
        pages.append([row["n"] for row in page.rows])
        after = page.following
    assert pages == [[0, 1, 2], [3], [4], [5, 6, 7]]
    assert page_of([], 0) == RowsPage(())
    assert page_of(rows, 100) == RowsPage(())


def test_arguments_become_what_json_knows():
    value = {"a": Timestamp(5), "b": Decimal("1.5"), "c": b"\xff", "d": [None, True, 1.5, "x", {}]}
    assert plain(value) == {"a": 5, "b": 1.5, "c": "\\xff", "d": [None, True, 1.5, "x", {}]}
    assert type(plain(value)["a"]) is int


class Desk:
    """A dispatcher that knows one queue, and answers when it is told to."""

    def __init__(self):
        self.wanted = []
        self.waiting = []

    def rows(self, wanted, done):
        self.wanted.append(wanted)
        done(RowsPage(({"name": "q"},)))

    def close_connections(self, wanted, done):
        self.wanted.append(wanted)
        done(AffectedCount(2))

    def close_session(self, wanted, done):
        self.wanted.append(wanted)
        done(AffectedCount(1))

    def purge_queue(self, order, done):
        self.wanted.append(order)
        self.waiting.append(done)

    def delete_queue(self, order, done):
        self.wanted.append(order)
        done(Failure(ERROR_NOT_FOUND, "no queue"))


Order = RowsRequest | CloseConnections | CloseSession | QueueRequest


def test_a_desk_gets_orders_and_its_answers_go_back():
    queries = Desk()
    sent: list[bytes] = []
    conversation = Conversation(
        ProcessHello("shard", 0, 1),
        Handlers(lambda: (), ProcessNumbers, commands=handlers_of(queries)),
    )
    conversation.send = sent.append
    conversation.connected()
    requests: list[tuple[str, Order]] = [
        (ROWS, RowsRequest("queues", ("name",))),
        (CLOSE_CONNECTIONS, CloseConnections(None, None, "x")),
        (CLOSE_SESSION, CloseSession("c")),
        (PURGE_QUEUE, QueueRequest("/", "q")),
        (DELETE_QUEUE, QueueRequest("/", "q", if_unused=True)),
    ]
    for number, (kind, wanted) in enumerate(requests, 10):
        frame = encode_frame(ControlMessage(kind, number, wanted.to_body()).to_wire())
        assert conversation.receive(frame) == b""
    queries.waiting[0](AffectedCount(7))
    assert queries.wanted == [wanted for _, wanted in requests]
    answers = [ControlMessage.from_wire(value) for value in FrameDecoder().feed(b"".join(sent))]
    assert [(each.kind, each.id) for each in answers] == [
        (REPLY, 10),
        (REPLY, 11),
        (REPLY, 12),
        (ERROR, 14),
        (REPLY, 13),
    ]
    assert RowsPage.from_body(answers[0].body).rows == ({"name": "q"},)
    assert Failure.from_body(answers[3].body).code == ERROR_NOT_FOUND
    assert AffectedCount.from_body(answers[4].body) == AffectedCount(7)


def test_orders_that_are_not_understood_never_reach_the_desk():
    queries = Desk()
    conversation = Conversation(
        ProcessHello("shard", 0, 1),
        Handlers(lambda: (), ProcessNumbers, commands=handlers_of(queries)),
    )
    for kind in (ROWS, CLOSE_CONNECTIONS, PURGE_QUEUE, DELETE_QUEUE):
        (value,) = FrameDecoder().feed(
            conversation.receive(encode_frame(ControlMessage(kind, 1, {}).to_wire()))
        )
        answer = ControlMessage.from_wire(value)
        assert answer.kind == ERROR
        assert Failure.from_body(answer.body).code == ERROR_MALFORMED
    assert queries.wanted == []
