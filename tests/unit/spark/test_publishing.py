"""Options of writing, rows that become messages, and the names of chunks: without Spark and without a broker."""

from __future__ import annotations

import socket
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from fluxmq_spark import outgoing
from fluxmq_spark.errors import OptionError, SparkSourceError
from fluxmq_spark.outgoing import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    CHUNK_ROWS_SPREAD,
    TIMEOUT_DEFAULT,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Message,
    chunks,
    digest,
    messages_of,
    target_of,
)
from fluxmq_spark.publishing import Address, Publisher, PublishError
from fluxmq_spark.stream_writer import stream_writer_of
from fluxmq_spark.writer import writer_of

URL = "amqp://anna:s%40cret@broker:5673/sales"
TEXTS = MapType(StringType(), StringType())
ARROW_TEXTS = pa.map_(pa.string(), pa.string())


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


PAYLOAD = schema(payload=BinaryType())
KEYED = schema(payload=StringType(), routing_key=StringType())


# --- addresses ---


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (URL, Address("broker", 5673, "sales", "anna", "s@cret", False)),
        ("amqp://broker", Address("broker", 5672, "/", "guest", "guest", False)),
        ("amqp://broker/", Address("broker", 5672, "/", "guest", "guest", False)),
        ("amqps://a:b@[::1]/%2Fv", Address("::1", 5671, "/v", "a", "b", True)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.of(url) == address


@pytest.mark.parametrize(
    "url",
    ["", "broker:5672", "http://s@cret", "amqp://", "amqp://h:port", "amqp://h/v?heartbeat=5"],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"^it ") as raised:
        Address.of(url)
    assert not url or url not in str(raised.value)


def test_an_address_does_not_show_its_password() -> None:
    address = Address.of(URL)
    assert str(address) == "amqp://broker:5673, vhost 'sales'"
    assert "cret" not in repr(address)


# --- options ---


def test_what_options_say() -> None:
    target = target_of({"URL": URL, "Queue": "orders"}, PAYLOAD, False)
    assert (target.exchange, target.routing_key) == ("", "orders")
    assert (target.window, target.timeout) == (WINDOW_DEFAULT, TIMEOUT_DEFAULT)
    assert (target.chunk_rows, target.producer) == (CHUNK_ROWS, "")
    options = {"url": URL, "exchange": "e", "window": "5", "timeout": "0.5", "producerId": "p"}
    target = target_of({**options, "routingKey": ""}, PAYLOAD, False)
    assert (target.exchange, target.routing_key, target.chunk_rows) == ("e", "", CHUNK_ROWS_SPREAD)
    assert (target.window, target.timeout, target.producer) == (5, 0.5, "p")
    assert target_of(options, KEYED, False).routing_key is None


@pytest.mark.parametrize(
    ("options", "columns", "mistake"),
    [
        ({"queue": ""}, PAYLOAD, "option queue is empty"),
        ({"queue": "ü" * 128}, PAYLOAD, "option queue has at most 255 bytes"),
        ({}, PAYLOAD, "option queue or exchange is missing"),
        ({"queue": "q", "exchange": "e"}, PAYLOAD, "queue cannot be combined with exchange or"),
        ({"queue": "q"}, KEYED, "option queue cannot be combined with a column routing_key"),
        ({"exchange": "e"}, PAYLOAD, "needs either option routingKey or a column"),
        ({"exchange": "e", "routingKey": "k"}, KEYED, "needs either option routingKey or a col"),
        ({"queue": "q", "window": "0"}, PAYLOAD, "option window is a number above 0"),
        ({"queue": "q", "window": str(WINDOW_MAX + 1)}, PAYLOAD, "at most 50000"),
        ({"queue": "q", "window": "1.5"}, PAYLOAD, "option window"),
        ({"queue": "q", "timeout": "nan"}, PAYLOAD, "option timeout"),
        ({"queue": "q", "timeout": "-1"}, PAYLOAD, "option timeout"),
        ({"queue": "q", "producerId": ""}, PAYLOAD, "option producerId has 1 to 512 bytes"),
        ({"queue": "q", "caFile": "x"}, PAYLOAD, "caFile is for amqps:// only"),
        ({"queue": "q", "stagingPath": "x"}, PAYLOAD, "there is no option stagingpath"),
        ({"queue": "q"}, schema(payload=IntegerType()), "column payload is int and has to be bin"),
        ({"queue": "q"}, schema(body=BinaryType()), "column body is none of payload, routing_key"),
        ({"queue": "q"}, schema(headers=TEXTS), "column payload is missing"),
        (
            {"queue": "q"},
            schema(payload=BinaryType(), headers=MapType(StringType(), LongType())),
            "column headers is map<string,bigint> and has to be map<string,string>",
        ),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], columns: StructType, mistake: str) -> None:
    with pytest.raises(OptionError) as raised:
        writer_of({"url": URL, **options}, columns, False)
    assert mistake in str(raised.value)
    assert "cret" not in str(raised.value)


def test_all_mistakes_are_named_at_once() -> None:
    columns = schema(payload=IntegerType(), foo=StringType())
    with pytest.raises(OptionError) as raised:
        writer_of({"uri": "x", "window": "x"}, columns, True)
    text = str(raised.value)
    for mistake in ("no option uri", "overwrite", "payload", "foo", "queue", "url is", "window"):
        assert mistake in text


def test_a_stream_needs_a_place_for_what_is_staged() -> None:
    options = {"url": URL, "queue": "q"}
    with pytest.raises(OptionError, match="stagingPath is missing"):
        stream_writer_of(options, PAYLOAD, False)
    with pytest.raises(OptionError, match="storageOptions is not a JSON object"):
        stream_writer_of({**options, "stagingPath": "s", "storageOptions": "[]"}, PAYLOAD, False)
    with pytest.raises(OptionError, match="output mode complete"):
        stream_writer_of({**options, "stagingPath": "s"}, PAYLOAD, True)


# --- rows ---


def batch(**columns: Any) -> pa.RecordBatch:
    kinds = {"payload": pa.binary(), "routing_key": pa.string()}
    return pa.record_batch(
        {name: pa.array(values, kinds.get(name, ARROW_TEXTS)) for name, values in columns.items()}
    )


def test_rows_become_messages() -> None:
    properties = [
        *(("content_type", "text/plain"), ("content_encoding", "gzip"), ("correlation", "c")),
        *(("reply_to", "r"), ("message_id", "m"), ("type", "t"), ("app_id", "a")),
        *(("expiration", "60000"), ("priority", "255"), ("timestamp", "1790000000")),
        ("delivery_mode", "1"),
    ]
    rows = batch(
        payload=[b"\xff", b""],
        headers=[[("a", "1"), ("b", None), ("x-deduplication-id", "p:1")], None],
        properties=[properties, [("correlation_id", "c"), ("type", None)]],
    )
    assert list(messages_of([rows], "orders")) == [
        Message(
            "orders",
            b"\xff",
            {"a": "1", "b": None},
            {
                "content_type": "text/plain",
                "content_encoding": "gzip",
                "correlation_id": "c",
                "reply_to": "r",
                "message_id": "m",
                "type": "t",
                "app_id": "a",
                "expiration": "60000",
                "priority": 255,
                "timestamp": 1_790_000_000,
                "delivery_mode": 1,
            },
        ),
        Message("orders", b"", {}, {"delivery_mode": 2, "correlation_id": "c"}),
    ]


def test_text_is_utf_8_and_rows_have_their_own_keys() -> None:
    rows = pa.record_batch({"routing_key": ["a", "b"], "payload": ["ü", ""]})
    assert [each[:2] for each in messages_of([rows, rows], None)] == [
        *(("a", "ü".encode()), ("b", b"")),
        *(("a", "ü".encode()), ("b", b"")),
    ]


GOOD = batch(payload=[b"x"] * 5)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"payload": [None]}, "payload is null"),
        ({"routing_key": [None]}, "routing_key is null"),
        ({"routing_key": ["k" * 256]}, "routing_key has more than 255 bytes"),
        ({"headers": [[("h" * 256, "")]]}, "a header's name has more than 255 bytes"),
        ({"properties": [[("user_id", "x")]]}, "property 'user_id' is none of content_type"),
        ({"properties": [[("type", "t" * 256)]]}, "property 'type': it has more than 255 bytes"),
        (
            {"properties": [[("priority", "256")]]},
            "property 'priority': it is not a whole number up",
        ),
        ({"properties": [[("priority", "٣")]]}, "property 'priority'"),
        ({"properties": [[("timestamp", str(1 << 64))]]}, "property 'timestamp'"),
        ({"properties": [[("expiration", "1s")]]}, "property 'expiration': it is not a number of"),
        ({"properties": [[("delivery_mode", "3")]]}, "property 'delivery_mode': it is 1"),
    ],
)
def test_rows_that_are_no_messages(columns: dict[str, Any], what: str) -> None:
    wrong = batch(**{"payload": [b"x"], **columns})
    key = None if "routing_key" in columns else "q"
    good = batch(payload=[b"x"] * 5, routing_key=["k"] * 5)
    with pytest.raises(SparkSourceError) as raised:
        list(messages_of([good, wrong], key))
    assert str(raised.value).startswith("row 5 of the task: ")
    assert what in str(raised.value)


# --- chunks ---


def message(number: int, size: int = 0) -> Message:
    return Message("q", b"%06d" % number + bytes(size), {}, {"delivery_mode": 2})


def test_chunks_depend_on_the_rows_only() -> None:
    found = list(chunks(map(message, range(25)), 10))
    assert [len(each) for each in found] == [10, 10, 5]
    assert [each for chunk in found for each in chunk] == [message(each) for each in range(25)]
    assert list(chunks([], 10)) == []
    large = [message(number, CHUNK_BYTES // 4) for number in range(10)]
    assert [len(each) for each in chunks(large, 100)] == [4, 4, 2]


def test_a_digest_is_of_everything_and_of_the_order() -> None:
    rows = [message(number) for number in range(3)]
    others = [
        rows,
        [rows[1], rows[0], rows[2]],
        rows[:2],
        [rows[0], rows[1], message(3)],
        [rows[0], rows[1], rows[2]._replace(routing_key="r")],
        [rows[0], rows[1], rows[2]._replace(headers={"a": "1"})],
        [rows[0], rows[1], rows[2]._replace(headers={"a": None})],
        [rows[0], rows[1], rows[2]._replace(properties={"delivery_mode": 1})],
        # The same bytes, otherwise divided.
        [Message("q", b"0000000", {}, rows[0].properties), Message("q", b"00001", {}, {}), rows[2]],
    ]
    assert len({digest(each) for each in others}) == len(others)
    assert digest(rows) == digest(list(rows))
    headers = (
        Message("q", b"", {"a": "1", "b": "2"}, {}),
        Message("q", b"", {"b": "2", "a": "1"}, {}),
    )
    assert digest(headers[:1]) == digest(headers[1:]), "maps have no order"


def test_no_rows_need_no_broker() -> None:
    target = target_of({"url": "amqp://127.0.0.1:1", "queue": "q"}, PAYLOAD, False)
    assert outgoing.publish_batches(target, "job/0", [GOOD.slice(0, 0)]) == 0


# --- brokers that are none ---


def test_a_broker_that_is_not_there() -> None:
    target = target_of({"url": "amqp://a:s3cret@127.0.0.1:1/v", "queue": "q"}, PAYLOAD, False)
    with pytest.raises(PublishError, match="Connection refused") as raised:
        outgoing.publish_batches(target, "job/0", [GOOD])
    assert "127.0.0.1:1, vhost 'v'" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_broker_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address.of(f"amqp://127.0.0.1:{server.getsockname()[1]}")
        publisher = Publisher(address, window=1, timeout=0.05)
        with pytest.raises(PublishError, match="the connection was not opened"), publisher:
            pass


def test_a_ca_file_that_is_none() -> None:
    address = Address.of("amqps://127.0.0.1:1", "nothing.pem")
    with pytest.raises(PublishError, match=r"caFile nothing\.pem cannot be used"):
        Publisher(address, window=1, timeout=1)
