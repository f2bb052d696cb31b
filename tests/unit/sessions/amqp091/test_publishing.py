"""Publishing: checks, returns, confirms, what is stored."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fluxmq.auth.users import VhostPermission
from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.content import NO_PROPERTIES, BasicProperties, frames_of_content
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.method_codec import frame
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    ChannelOpen,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    TxSelect,
    TxSelectOk,
)
from fluxmq.protocols.amqp091.tables import decode_table, encode_table
from fluxmq.sessions.amqp091 import publishing
from fluxmq.sessions.amqp091.headers import KEYS_MAX, Headers
from fluxmq.sessions.amqp091.ports import AmqpLimits
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer
from tests.unit.sessions.amqp091.scripts import (
    Publish,
    Script,
    check,
    closed,
    ended,
    named,
    play,
    returned,
)


def expiration(text: str, why: str) -> Script:
    return Script(
        f"expiration {text!r}",
        [Publish("", "q", properties={"expiration": text})],
        [closed(406, f"invalid expiration '{text}': {why}", BasicPublish)],
    )


REFUSED = [
    Script(
        "no such exchange",
        [Publish("nope", "k")],
        [closed(404, "no exchange 'nope' in vhost '/'", BasicPublish)],
    ),
    Script(
        "no such exchange, with confirms",
        [ConfirmSelect(), Publish("nope", "k"), Publish("nope", "k")],
        [ConfirmSelectOk(), closed(404, "no exchange 'nope' in vhost '/'", BasicPublish)],
    ),
    Script(
        "internal",
        [ExchangeDeclare("e", "fanout", internal=True), Publish("e", "k")],
        [
            ExchangeDeclareOk(),
            closed(403, "cannot publish to internal exchange 'e' in vhost '/'", BasicPublish),
        ],
    ),
    Script(
        "immediate",
        [Publish("", "q", immediate=True)],
        [ended(540, "immediate=true", BasicPublish)],
    ),
    Script(
        "somebody else's user_id",
        [Publish("", "q", properties={"user_id": "bob"})],
        [
            closed(
                406,
                "user_id property set to 'bob' but authenticated user was 'guest'",
                BasicPublish,
            )
        ],
    ),
    expiration("abc", "no_integer"),
    expiration("", "no_integer"),
    expiration(" 5", "no_integer"),
    expiration("-1", "{value_negative,-1}"),
    expiration("-007", "{value_negative,-7}"),
    expiration("10x", '{leftover_string,"x"}'),
    expiration("1.5", '{leftover_string,".5"}'),
    Script(
        "CC that is no array",
        [Publish("", "q", properties={"headers": {"CC": "abc"}})],
        [closed(406, 'invalid message: {unacceptable_type_in_header,"CC",longstr}', BasicPublish)],
    ),
    Script(
        "BCC that is no array",
        [Publish("", "q", properties={"headers": {"BCC": 5}})],
        [
            closed(
                406, 'invalid message: {unacceptable_type_in_header,"BCC",signedint}', BasicPublish
            )
        ],
    ),
    Script(
        "an unknown delivery mode",
        [Publish("", "q", properties={"delivery_mode": 7})],
        [closed(406, "invalid message: {delivery_mode_unknown,7}", BasicPublish)],
    ),
    Script(
        "too many keys",
        [Publish("", "q", properties={"headers": {"CC": ["k"] * KEYS_MAX}})],
        [closed(406, "more than 1024 routing keys of one message", BasicPublish)],
    ),
    Script(
        "direct replies without their consumer",
        [Publish("", "q", properties={"reply_to": "amq.rabbitmq.reply-to"})],
        [closed(406, "fast reply consumer does not exist", BasicPublish)],
    ),
    Script(
        "checked in a transaction as well",
        [TxSelect(), Publish("nope", "k")],
        [TxSelectOk(), closed(404, "no exchange 'nope' in vhost '/'", BasicPublish)],
    ),
]

ACCESS = [
    Script(
        "exchange",
        [Publish("amq.direct", "b")],
        [
            closed(
                403,
                "access to exchange 'amq.direct' in vhost '/' refused for user 'bob'",
                BasicPublish,
            )
        ],
    ),
    Script(
        "default exchange",
        [Publish("", "b")],
        [
            closed(
                403,
                "access to exchange 'amq.default' in vhost '/' refused for user 'bob'",
                BasicPublish,
            )
        ],
    ),
    Script(
        "an exchange there is none of",
        [Publish("zz", "b")],
        [closed(403, "access to exchange 'zz' in vhost '/' refused for user 'bob'", BasicPublish)],
    ),
    Script(
        "topic",
        [ExchangeDeclare("bt", "topic"), Publish("bt", "ok", mandatory=True), Publish("bt", "no")],
        [
            ExchangeDeclareOk(),
            returned("bt", "ok"),
            closed(
                403,
                "access to topic 'no' in exchange 'bt' in vhost '/' refused for user 'bob'",
                BasicPublish,
            ),
        ],
    ),
]

RETURNED = [
    Script("not mandatory", [Publish("", "q")], []),
    Script("mandatory", [Publish("", "q", mandatory=True)], [returned("", "q")]),
    Script(
        "before the confirm",
        [ConfirmSelect(), Publish("", "q", mandatory=True)],
        [ConfirmSelectOk(), returned("", "q"), BasicAck(1)],
    ),
    Script(
        "with its properties, but for BCC",
        [
            Publish(
                "",
                "q",
                b"",
                mandatory=True,
                properties={"headers": {"CC": ["a", 1], "BCC": ["c"]}, "user_id": "guest"},
            )
        ],
        [returned("", "q", b"", headers={"CC": ["a", 1]}, user_id="guest")],
    ),
    Script(
        "an expiration with a sign is a number",
        [Publish("", "q", mandatory=True, properties={"expiration": "+5"})],
        [returned("", "q", expiration="+5")],
    ),
]

CONFIRMED = [
    Script(
        "what goes nowhere is confirmed",
        [ConfirmSelect(), Publish("amq.fanout", "q"), Publish("amq.fanout", "q")],
        [ConfirmSelectOk(), BasicAck(1), BasicAck(2)],
    ),
    Script(
        "refused",
        [
            ConfirmSelect(),
            QueueDeclare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}),
            Publish("", "q"),
            Publish("", "q"),
        ],
        [ConfirmSelectOk(), QueueDeclareOk("q", 0, 0), BasicAck(1), BasicNack(2)],
    ),
    Script(
        "selected twice",
        [ConfirmSelect(), ConfirmSelect(no_wait=True), ConfirmSelect(), Publish("", "q")],
        [ConfirmSelectOk(), ConfirmSelectOk(), BasicAck(1)],
    ),
    Script(
        "not in a transaction",
        [TxSelect(), ConfirmSelect()],
        [TxSelectOk(), closed(406, "cannot switch from tx to confirm mode", ConfirmSelect)],
    ),
]


@pytest.mark.parametrize(**named(REFUSED))
def test_refused(script: Script) -> None:
    check(script)


@pytest.mark.parametrize(**named(ACCESS))
def test_access(script: Script) -> None:
    check(script._replace(user="bob"))


@pytest.mark.parametrize(**named(RETURNED))
def test_returned(script: Script) -> None:
    check(script)


@pytest.mark.parametrize(**named(CONFIRMED))
def test_confirmed(script: Script) -> None:
    check(script)


def whole(routing_key: str, *bodies: bytes, exchange: str = "") -> bytes:
    """Publishes as bytes."""
    return b"".join(
        frame(1, BasicPublish(exchange, routing_key))
        + b"".join(frames_of_content(1, NO_PROPERTIES, body, 131_072))
        for body in bodies
    )


def test_a_run_is_confirmed_as_one() -> None:
    peer = Peer(MemoryBroker())
    peer.send(1, QueueDeclare("q"), ConfirmSelect())
    peer.receive()
    peer.raw(whole("q", *[b"%d" % number for number in range(100)]))
    assert peer.one() == BasicAck(100, True)


def test_messages_above_the_size_are_refused_in_a_run_too() -> None:
    broker = MemoryBroker(AmqpLimits(max_message=10))
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q"))
    peer.receive()
    peer.raw(whole("q", bytes(10), bytes(11)))
    text = "message size 11 is larger than configured max size 10"
    assert peer.one() == closed(406, text, BasicPublish)
    assert not broker.queues["/", "q"].messages


def test_a_message_is_stored_as_it_was_published() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    given = BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"a": 1, "b": [True, None, "x"], "c": {"d": Timestamp(5)}},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=Timestamp(1_700_000_000),
        type="t",
        user_id="guest",
        app_id="app",
    )
    peer.send(1, QueueDeclare("q"), QueueBind("q", "amq.topic", "a.*"))
    peer.receive()
    peer.publish("amq.topic", "a.b", b"body", **given._asdict())
    peer.send(1, BasicGet("q"))
    assert peer.one() == Message(BasicGetOk(1, False, "amq.topic", "a.b", 0), given, b"body")


def test_carbon_copies_reach_queues_and_blind_ones_are_not_told() -> None:
    peer = Peer(MemoryBroker())
    peer.send(1, *[QueueDeclare(name) for name in ("a", "b", "c")])
    peer.receive()
    headers = {"CC": ["a", "b"], "BCC": ["c", "a"]}
    peer.publish("", "none", headers=headers)
    for name in ("a", "b", "c"):
        peer.send(1, BasicGet(name, True))
    got = peer.got()
    assert len(got) == 3
    for item in got:
        assert isinstance(item, Message)
        assert item.properties.headers == {"CC": ["a", "b"]}
        assert item.method.routing_key == "none"  # type: ignore[attr-defined]
        assert item.method.message_count == 0  # type: ignore[attr-defined]


def test_what_was_found_out_is_forgotten_when_the_topology_changes() -> None:
    peer = Peer(MemoryBroker())
    play(
        peer,
        [ExchangeDeclare("e", "fanout"), Publish("e", "k"), ExchangeDelete("e"), Publish("e", "k")],
    )
    assert peer.got() == [
        ExchangeDeclareOk(),
        ExchangeDeleteOk(),
        closed(404, "no exchange 'e' in vhost '/'", BasicPublish),
    ]


def test_what_was_found_out_is_forgotten_when_permissions_change() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.publish("", "k")
    broker.grant("guest", VhostPermission("/", ".*", "^$", ".*"))
    peer.publish("", "k")
    text = "access to exchange 'amq.default' in vhost '/' refused for user 'guest'"
    assert peer.one() == closed(403, text, BasicPublish)


def test_who_may_no_longer_enter_the_vhost_may_not_publish() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    del broker.grants["guest", "/"]
    peer.publish("", "k")
    text = "access to exchange 'amq.default' in vhost '/' refused for user 'guest'"
    assert peer.one() == closed(403, text, BasicPublish)


@pytest.mark.parametrize(
    "differs",
    [
        {"routing_key": "b"},
        {"exchange": "amq.direct"},
        {"headers": {"CC": ["b"]}},
    ],
)
def test_what_was_found_out_holds_for_what_is_alike(differs: dict[str, object]) -> None:
    peer = Peer(MemoryBroker())
    peer.send(1, QueueDeclare("a"), QueueDeclare("b"), QueueBind("b", "amq.direct", "a"))
    peer.receive()
    for properties in ({}, differs, {}):
        values = {"exchange": "", "routing_key": "a", **properties}
        peer.publish(**values)  # type: ignore[arg-type]
    peer.send(1, BasicGet("b", True), BasicGet("a", True))
    got = peer.got()
    assert all(isinstance(item, Message) for item in got), "every publish went where it was sent"


@pytest.mark.parametrize("place", ["exchange", "routing_key"])
def test_names_that_are_not_utf8(place: str) -> None:
    peer = Peer(MemoryBroker())
    data = whole("k", b"x", exchange="k")
    before = b"\x01k" if place == "exchange" else b"\x01k\0"
    at = data.index(before) if place == "exchange" else data.rindex(before)
    peer.raw(data[: at + 1] + b"\xff" + data[at + 2 :])
    answer = peer.one(0)
    assert answer.reply_code == 501  # type: ignore[attr-defined]


@pytest.mark.uncompiled
def test_a_publisher_far_ahead_of_its_confirms_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "UNANSWERED_MAX", 10)
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q"), ConfirmSelect())
    peer.receive()
    peer.raw(whole("q", *[b""] * 10))
    assert broker.paused == []
    peer.raw(whole("q", b""))
    assert broker.paused == [peer.connection]
    assert peer.one() == BasicAck(11, True)
    assert broker.paused == []


def test_channels_number_their_confirms_by_themselves() -> None:
    peer = Peer(MemoryBroker())
    peer.send(2, ChannelOpen(), ConfirmSelect())
    peer.send(1, ConfirmSelect())
    peer.receive()
    peer.publish("", "q", channel=2)
    peer.publish("", "q", channel=1)
    peer.publish("", "q", channel=2)
    assert sorted(peer.receive()) == [(1, BasicAck(1)), (2, BasicAck(2, True))]


def test_what_goes_nowhere_is_counted() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.publish("", "q")
    assert broker.drops == [("unroutable", 1)]


def test_headers_are_read_when_they_are_looked_at() -> None:
    table = encode_table({"a": 1, "BCC": ["x"], "d": Decimal("1.5")})[4:]
    headers = Headers(table)
    assert headers
    assert (len(headers), sorted(headers), headers["a"]) == (3, ["BCC", "a", "d"], 1)
    assert (headers.may_have("CC"), headers.may_have("BCC"), headers.get("z")) == (
        False,
        True,
        None,
    )
    assert decode_table(
        len(headers.without("BCC")).to_bytes(4, "big") + headers.without("BCC")
    ) == {
        "a": 1,
        "d": Decimal("1.5"),
    }
    assert not Headers(b"")
    broken = Headers(b"\x01aZ")
    assert broken
    with pytest.raises(HardError, match="headers"):
        broken.get("a")


def test_a_name_that_only_looks_like_carbon_copies() -> None:
    peer = Peer(MemoryBroker())
    play(peer, [Publish("", "q", mandatory=True, properties={"headers": {"x": "\x02CC"}})])
    assert peer.one() == returned("", "q", headers={"x": "\x02CC"})
