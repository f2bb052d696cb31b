"""The greeting, frames that are not due, and how connections and channels end."""

from __future__ import annotations

import struct

import pytest

from fluxmq._hot.reactor import PAUSED_OUTPUT
from fluxmq.protocols.amqp091.constants import PROTOCOL_HEADER
from fluxmq.protocols.amqp091.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicCancelOk,
    BasicGet,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
    frame,
)
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091.client import Stage
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import Raw, Script, check, closed, ended, named

FAILURE = {"capabilities": {"authentication_failure_close": True}}
GUEST = b"\0guest\0guest"


def start_ok(
    mechanism: str = "PLAIN", response: bytes = GUEST, told: bool = False
) -> ConnectionStartOk:
    return ConnectionStartOk(FAILURE if told else {}, mechanism, response, "en_US")


def greeted(broker: MemoryBroker, certificate: str = "") -> Peer:
    """Up to connection.start."""
    peer = Peer(broker, opened=False)
    peer.client.certificate_name = certificate
    peer.raw(PROTOCOL_HEADER)
    start = peer.one(0)
    assert isinstance(start, ConnectionStart)
    return peer


def opened(broker: MemoryBroker, *methods: Method) -> list[object]:
    """What methods sent after connection.start are answered."""
    peer = greeted(broker)
    for method in methods:
        peer.send(0, method)
    return list(peer.got(0))


# --- the greeting ---


@pytest.mark.parametrize("header", [b"AMQP\0\x01\0\0", b"AMQP\0\0\x09\0", b"HTTP/1.1"])
def test_another_protocol_is_told_which_one_there_is(header: bytes) -> None:
    broker = MemoryBroker()
    peer = Peer(broker, opened=False)
    peer.raw(header)
    assert bytes(peer.connection.out or b"") == PROTOCOL_HEADER
    assert peer.connection.closing


def test_the_start_says_what_is_offered() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, opened=False)
    peer.raw(PROTOCOL_HEADER)
    start = peer.one(0)
    assert isinstance(start, ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    assert start.locales == b"en_US"
    assert start.server_properties["product"] == "FluxMQ"
    assert start.server_properties["cluster_name"] == broker.limits.node_name
    assert start.server_properties["capabilities"]["basic.nack"] is True


AMQPLAIN = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest"


@pytest.mark.parametrize(
    "method", [start_ok(), start_ok("AMQPLAIN", AMQPLAIN)], ids=["PLAIN", "AMQPLAIN"]
)
def test_a_connection_is_tuned_and_opened(method: ConnectionStartOk) -> None:
    broker = MemoryBroker()
    assert opened(broker, method, ConnectionTuneOk(10, 8192, 7), ConnectionOpen("/")) == [
        ConnectionTune(2047, 131_072, 60),
        ConnectionOpenOk(),
    ]
    assert [client.user for client in broker.entered] == ["guest"]
    client = broker.entered[0]
    assert (client.channel_max, client.frame_max, client.heartbeat) == (10, 8192, 7)
    assert client.connection.frame_max == 8192
    assert client.stage is Stage.RUNNING


def test_external_is_offered_with_a_certificate_and_names_its_user() -> None:
    broker = MemoryBroker()
    broker.users["carol"] = b""
    peer = Peer(broker, opened=False)
    peer.client.certificate_name = "carol"
    peer.raw(PROTOCOL_HEADER)
    start = peer.one(0)
    assert isinstance(start, ConnectionStart)
    assert start.mechanisms == b"PLAIN AMQPLAIN EXTERNAL"
    peer.send(0, start_ok("EXTERNAL", b""))
    assert isinstance(peer.one(0), ConnectionTune)
    assert peer.client.user == "carol"


@pytest.mark.parametrize(
    "method",
    [
        start_ok("FOO"),
        start_ok("EXTERNAL", b""),
        start_ok(response=b"garbage"),
        start_ok(response=b"garbage", told=True),
        start_ok("AMQPLAIN", b"garbage"),
        start_ok(response=b"\0guest\0wrong"),
        ConnectionTuneOk(1, 4096, 0),
        ConnectionOpen("/"),
    ],
)
def test_who_breaks_the_greeting_is_disconnected_without_a_word(method: Method) -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    peer.send(0, method)
    assert peer.receive() == []
    assert peer.connection.closing
    assert broker.errors


@pytest.mark.parametrize("response", [b"\0guest\0wrong", b"\0nobody\0guest", b"\0\xff\0guest"])
def test_a_client_that_wants_to_know_is_told_that_its_credentials_do_not_hold(
    response: bytes,
) -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    peer.send(0, start_ok(response=response, told=True))
    text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    assert peer.one(0) == ended(403, text, None)
    assert not peer.connection.closing
    peer.send(0, ConnectionCloseOk())
    assert peer.connection.closing


@pytest.mark.parametrize(
    "tune",
    [
        ConnectionTuneOk(0, 131_072, 0),
        ConnectionTuneOk(2048, 131_072, 0),
        ConnectionTuneOk(2047, 0, 0),
        ConnectionTuneOk(2047, 131_073, 0),
        ConnectionTuneOk(2047, 4095, 0),
    ],
)
def test_limits_that_are_not_within_ours_end_the_connection(tune: ConnectionTuneOk) -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    peer.send(0, start_ok(), tune)
    assert peer.got(0) == [ConnectionTune(2047, 131_072, 60)]
    assert peer.connection.closing
    assert "negotiated" in broker.errors[0][1]


@pytest.mark.parametrize(
    ("user", "vhost", "limit", "text"),
    [
        ("guest", "nope", None, "vhost nope not found"),
        ("eve", "/", None, "access to vhost '/' refused for user 'eve'"),
        (
            "guest",
            "/",
            0,
            "access to vhost '/' refused for user 'guest': connection limit (0) is reached",
        ),
    ],
)
def test_a_vhost_that_may_not_be_entered(
    user: str, vhost: str, limit: int | None, text: str
) -> None:
    broker = MemoryBroker()
    broker.connection_limit = limit
    answers = opened(
        broker,
        start_ok(response=f"\0{user}\0{user}".encode()),
        ConnectionTuneOk(2047, 131_072, 0),
        ConnectionOpen(vhost),
    )
    assert answers[1:] == [ended(530, text, ConnectionOpen)]
    assert broker.entered == []


def test_a_connection_is_not_read_while_credentials_are_checked() -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    broker.slow = True
    peer.send(0, start_ok())
    assert broker.paused == [peer.connection]
    assert peer.receive() == []
    broker.release()
    assert broker.paused == []
    assert peer.one(0) == ConnectionTune(2047, 131_072, 60)


def test_a_greeting_may_not_take_long() -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    broker.pass_time(broker.limits.handshake_timeout - 0.1)
    assert not peer.connection.closing
    broker.pass_time(0.2)
    assert peer.connection.closing
    assert broker.closed == [(peer.client.peer, "handshake_timeout")]


def test_a_client_may_close_before_it_has_opened() -> None:
    broker = MemoryBroker()
    close = ConnectionClose(200, "", 0, 0)
    answers = opened(broker, start_ok(), ConnectionTuneOk(2047, 131_072, 0), close)
    assert answers[1:] == [ConnectionCloseOk()]


# --- frames of an open connection ---


def header(class_id: int, size: int, weight: int = 0, flags: bytes = b"\0\0") -> bytes:
    payload = struct.pack(">HHQ", class_id, weight, size) + flags
    return b"\x02\0\x01" + struct.pack(">I", len(payload)) + payload + b"\xce"


def body(payload: bytes, kind: int = 3, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


PUBLISH = BasicPublish("", "q")
UNEXPECTED_HEADER = "expected content header for class 60, got non content header frame instead"
UNEXPECTED_BODY = "expected content body, got non content body frame instead"
UNEXPECTED_METHOD = "expected method frame, got non method frame instead"

FRAMES = [
    Script("body first", [Raw(body(b"a"))], [ended(505, UNEXPECTED_METHOD, None)]),
    Script("header first", [Raw(header(60, 1))], [ended(505, UNEXPECTED_METHOD, None)]),
    Script(
        "a method where a header is due",
        [PUBLISH, BasicQos(0, 0)],
        [ended(505, UNEXPECTED_HEADER, BasicPublish)],
    ),
    Script(
        "a publish where a header is due",
        [PUBLISH, Raw(frame(1, PUBLISH) + header(60, 1) + body(b"x"))],
        [ended(505, UNEXPECTED_HEADER, BasicPublish)],
    ),
    Script(
        "a body where a header is due",
        [PUBLISH, Raw(body(b"a"))],
        [ended(505, UNEXPECTED_HEADER, BasicPublish)],
    ),
    Script(
        "a header of another class",
        [PUBLISH, Raw(header(50, 1))],
        [
            ended(
                505,
                "expected content header for class 60, got one for class 50 instead",
                BasicPublish,
            )
        ],
    ),
    Script(
        "a method where a body is due",
        [PUBLISH, Raw(header(60, 1)), BasicQos(0, 0)],
        [ended(505, UNEXPECTED_BODY, BasicPublish)],
    ),
    Script(
        "a body longer than announced",
        [PUBLISH, Raw(header(60, 3)), Raw(body(b"ab")), Raw(body(b"ab"))],
        [ended(501, "content body of more than 3 bytes announced", BasicPublish)],
    ),
    Script(
        "a message that is too large",
        [PUBLISH, Raw(header(60, 134_217_729)), Raw(body(b"ab")), BasicQos(0, 0)],
        [
            closed(
                406,
                "message size 134217729 is larger than configured max size 134217728",
                BasicPublish,
            )
        ],
    ),
    Script(
        "properties that are none",
        [PUBLISH, Raw(header(60, 0, flags=b"\x80\x01"))],
        [
            ended(
                502,
                "malformed content properties: flags that stand for no property",
                BasicPublish,
            )
        ],
    ),
    Script(
        "a server's method",
        [BasicCancelOk("t")],
        [ended(503, "unimplemented method", BasicCancelOk)],
    ),
    Script(
        "a connection's method",
        [ConnectionBlocked("x")],
        [ended(503, "unimplemented method", ConnectionBlocked)],
    ),
    Script("flow-ok", [ChannelFlowOk(True)], [ended(503, "unimplemented method", ChannelFlowOk)]),
    Script("flow", [ChannelFlow(True)], [ChannelFlowOk(True)]),
    Script("no flow", [ChannelFlow(False)], [ended(540, "active=false", ChannelFlow)]),
    Script("access ticket", [AccessRequest("/data")], [AccessRequestOk(1)]),
    Script("open twice", [ChannelOpen()], [ended(504, "second 'channel.open' seen", ChannelOpen)]),
    Script(
        "close and open again",
        [ChannelClose(200, "", 0, 0), ChannelOpen(), BasicQos(0, 1)],
        [ChannelCloseOk(), ChannelOpenOk(), BasicQosOk()],
    ),
    Script(
        "what comes behind a mistake is ignored",
        [BasicGet("nope"), BasicGet("nope"), Raw(body(b"a")), BasicQos(0, 1)],
        [closed(404, "no queue 'nope' in vhost '/'", BasicGet)],
    ),
    Script(
        "open again after a mistake",
        [BasicGet("nope"), ChannelCloseOk(), ChannelOpen(), BasicQos(0, 1)],
        [closed(404, "no queue 'nope' in vhost '/'", BasicGet), ChannelOpenOk(), BasicQosOk()],
    ),
    Script(
        "both close",
        [BasicGet("nope"), ChannelClose(200, "", 0, 0), ChannelCloseOk(), ChannelOpen()],
        [closed(404, "no queue 'nope' in vhost '/'", BasicGet), ChannelCloseOk(), ChannelOpenOk()],
    ),
    Script(
        "both close, and the client takes that for enough",
        [BasicGet("nope"), ChannelClose(200, "", 0, 0), ChannelOpen(), BasicQos(0, 1)],
        [
            closed(404, "no queue 'nope' in vhost '/'", BasicGet),
            ChannelCloseOk(),
            ChannelOpenOk(),
            BasicQosOk(),
        ],
    ),
]


@pytest.mark.parametrize(**named(FRAMES))
def test_frames(script: Script) -> None:
    check(script)


STATE = "unexpected method in connection state running"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (ConnectionOpen("/"), ended(504, STATE, ConnectionOpen)),
        (ChannelOpen(), ended(504, STATE, ChannelOpen)),
        (start_ok(), ended(504, STATE, ConnectionStartOk)),
        (ConnectionCloseOk(), ended(504, STATE, ConnectionCloseOk)),
        (ConnectionBlocked("x"), ended(504, STATE, ConnectionBlocked)),
        (ConnectionClose(200, "bye", 0, 0), ConnectionCloseOk()),
        (ConnectionUpdateSecret(b"guest"), ConnectionUpdateSecretOk()),
        (
            ConnectionUpdateSecret(b"wrong"),
            ended(530, "New secret was refused by one of the backends", ConnectionUpdateSecret),
        ),
    ],
)
def test_methods_on_channel_0(method: Method, answer: Method) -> None:
    peer = Peer(MemoryBroker())
    peer.send(0, method)
    assert peer.one(0) == answer


def test_a_body_on_channel_0() -> None:
    peer = Peer(MemoryBroker())
    peer.raw(body(b"a", channel=0))
    assert peer.one(0) == ended(505, "type 3, all octets = <<97>>", None)


@pytest.mark.parametrize(
    "method", [BasicQos(0, 1), ChannelCloseOk(), ChannelClose(200, "", 0, 0), ConnectionOpen("/")]
)
def test_a_channel_that_is_not_open(method: Method) -> None:
    peer = Peer(MemoryBroker())
    peer.send(2, method)
    assert peer.one(0) == ended(504, "expected 'channel.open'", type(method))


def test_bytes_that_are_no_frame() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.raw(b"\x01\0\x01\0\0\0\x04\0\x14\0\x0a\xcf")
    answer = peer.one(0)
    assert isinstance(answer, ConnectionClose)
    assert answer.reply_code == 501
    assert peer.connection.closing
    assert broker.closed == [(peer.client.peer, "protocol_error")]


def test_as_many_channels_as_agreed() -> None:
    peer = Peer(MemoryBroker(), channel_max=3)
    for number in (2, 9, 4):
        peer.send(number, ChannelOpen())
    text = "number of channels opened (3) has reached the negotiated channel_max (3)"
    assert peer.receive() == [
        (2, ChannelOpenOk()),
        (9, ChannelOpenOk()),
        (0, ended(530, text, ChannelOpen)),
    ]


def test_a_mistake_on_one_channel_leaves_the_others() -> None:
    peer = Peer(MemoryBroker())
    peer.send(2, ChannelOpen())
    peer.send(1, BasicGet("nope"))
    peer.send(2, QueueDeclare("q"))
    assert peer.receive() == [
        (2, ChannelOpenOk()),
        (1, closed(404, "no queue 'nope' in vhost '/'", BasicGet)),
        (2, QueueDeclareOk("q", 0, 0)),
    ]


# --- contents frame by frame ---


def test_contents_of_channels_may_come_between_each_other() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(2, ChannelOpen())
    peer.send(1, QueueDeclare("q"))
    one = [frame(1, PUBLISH), header(60, 4), body(b"ab"), body(b""), body(b"cd")]
    two = [
        part[:1] + b"\0\x02" + part[3:] for part in (frame(2, PUBLISH), header(60, 2), body(b"ef"))
    ]
    peer.raw(b"".join([one[0], two[0], one[1], one[2], two[1], one[3], two[2], one[4]]))
    peer.receive()
    queue = broker.queues["/", "q"]
    assert [batch.payload(index) for batch, index in queue.messages.values()] == [b"ef", b"abcd"]


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 20_000])
def test_a_message_of_any_size_in_small_frames(size: int) -> None:
    broker = MemoryBroker()
    peer = Peer(broker, frame_max=4096)
    peer.send(1, QueueDeclare("q"))
    content = bytes(index % 251 for index in range(size))
    peer.publish("", "q", content, frame_max=4096)
    peer.send(1, BasicGet("q", True))
    message = peer.got()[1]
    assert message.body == content  # type: ignore[union-attr]


# --- ends ---


def test_after_our_close_only_its_answer_counts() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(0, ChannelOpen())
    peer.receive()
    peer.send(1, QueueDeclare("q"))
    peer.raw(body(b"x"))
    peer.raw(frame(0, ConnectionCloseOk())[:-1] + b"\xce")
    assert peer.receive() == []
    assert broker.closed == [(peer.client.peer, "error")]
    assert not list(broker.topology.queues())


def test_both_ends_close() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(0, ChannelOpen())
    peer.receive()
    peer.send(0, ConnectionClose(200, "", 0, 0))
    assert peer.one(0) == ConnectionCloseOk()
    assert broker.closed == [(peer.client.peer, "error")]


def test_a_client_that_does_not_answer_our_close() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(0, ChannelOpen())
    broker.pass_time(broker.limits.close_timeout - 0.1)
    assert not peer.connection.closing
    broker.pass_time(0.2)
    assert broker.closed == [(peer.client.peer, "close_timeout")]


def test_an_operator_closes() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.handler.disconnect(peer.client, "closed by an operator")
    assert peer.one(0) == ended(320, "closed by an operator", None)
    peer.send(0, ConnectionCloseOk())
    assert peer.connection.closing


def test_a_connection_that_ends_leaves_nothing_behind() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(1, QueueDeclare("q", exclusive=True))
    broker.handler.lost(peer.connection)
    broker.handler.lost(peer.connection)
    assert broker.closed == [(peer.client.peer, "lost")]
    assert (broker.handler.clients, broker.entered, broker.queues) == ({}, [], {})
    assert (peer.client.channels, peer.connection.ledgers) == ({}, None)
    peer.send(1, QueueDeclare("q"))
    assert not broker.queues


# --- heartbeats ---


def test_heartbeats_are_sent_and_missed() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=10)
    broker.pass_time(12)
    assert bytes(peer.connection.out or b"") == b"\x08\0\0\0\0\0\0\xce" * 2
    peer.raw(b"\x08\0\0\0\0\0\0\xce")
    broker.pass_time(20)
    assert not peer.connection.closing
    broker.pass_time(6)
    assert broker.closed == [(peer.client.peer, "heartbeat")]


def test_a_connection_that_is_not_read_is_not_taken_for_gone() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=10)
    broker.pause(peer.connection)
    broker.pass_time(100)
    assert not peer.connection.closing
    broker.resume(peer.connection)
    broker.pass_time(30)
    assert peer.connection.closing


def test_without_heartbeats_silence_is_fine() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=0)
    broker.pass_time(10_000)
    assert not peer.connection.closing
    assert peer.receive() == []


# --- order ---


def test_methods_of_a_channel_keep_their_order_while_one_waits() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    peer.send(2, ChannelOpen())
    broker.slow = True
    peer.send(1, QueueDeclare("a"), BasicQos(0, 1))
    peer.publish("", "a", b"one")
    peer.raw(frame(1, PUBLISH._replace(routing_key="a")) + header(60, 3))
    peer.send(2, BasicQos(0, 1))
    peer.raw(body(b"two"))
    assert peer.receive() == [(2, ChannelOpenOk()), (2, BasicQosOk())]
    broker.slow = False
    broker.release()
    assert peer.receive() == [(1, QueueDeclareOk("a", 0, 0)), (1, BasicQosOk())]
    queue = broker.queues["/", "a"]
    assert [batch.payload(index) for batch, index in queue.messages.values()] == [b"one", b"two"]


def test_a_channel_that_waits_too_long_stops_its_connection() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"))
    peer.raw(frame(1, BasicQos(0, 1)) * 1023)
    assert broker.paused == []
    peer.raw(frame(1, BasicQos(0, 1)))
    assert broker.paused == [peer.connection]
    broker.slow = False
    broker.release()
    assert broker.paused == []
    assert peer.got() == [QueueDeclareOk("a", 0, 0), *[BasicQosOk()] * 1024]


def test_a_channel_that_waits_with_much_stops_its_connection() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"))
    peer.publish("", "a", bytes(1 << 20), frame_max=1 << 17)
    assert broker.paused == [peer.connection]
    broker.handler.lost(peer.connection)
    assert broker.paused == []


def test_an_answer_for_a_channel_that_has_gone() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"))
    broker.handler.lost(peer.connection)
    broker.release()
    assert peer.receive() == []


# --- blocked publishers ---


def test_publishers_are_told_that_they_are_blocked_and_when_no_longer() -> None:
    broker = MemoryBroker()
    knows = Peer(broker, capabilities=["connection.blocked"])
    idle = Peer(broker, capabilities=["connection.blocked"])
    simple = Peer(broker)
    for peer in (knows, simple):
        peer.publish("", "nowhere")
    broker.handler.block("low on disk")
    assert knows.one(0) == ConnectionBlocked("low on disk")
    assert (simple.receive(), idle.receive()) == ([], [])
    idle.publish("", "nowhere")
    idle.publish("", "nowhere")
    assert idle.one(0) == ConnectionBlocked("low on disk")
    broker.handler.unblock()
    for peer in (knows, idle):
        answer = peer.one(0)
        assert type(answer).__name__ == "ConnectionUnblocked"
    assert simple.receive() == []


def test_a_client_that_does_not_take_its_output_is_taken_for_gone() -> None:
    broker = MemoryBroker()
    peer = Peer(broker, heartbeat=10)
    peer.connection.paused |= PAUSED_OUTPUT
    broker.pass_time(30)
    assert broker.closed == [(peer.client.peer, "heartbeat")]


def test_exclusive_queues_go_as_soon_as_something_can_be_changed() -> None:
    broker = MemoryBroker()
    change = broker.change
    one, two = Peer(broker), Peer(broker)
    one.send(1, QueueDeclare("a", exclusive=True))
    two.send(1, QueueDeclare("b", exclusive=True))
    broker.change = lambda _, done: done(Refusal(404, "control is away"))  # type: ignore[method-assign]
    broker.handler.lost(one.connection)
    assert len(broker.queues) == 2
    broker.change = change  # type: ignore[method-assign]
    broker.handler.lost(two.connection)
    assert (broker.queues, broker.handler.orphans) == ({}, set())


def test_what_came_behind_a_pause_is_handled_in_order() -> None:
    broker = MemoryBroker()
    peer = greeted(broker)
    broker.slow = True
    peer.send(0, start_ok(), ConnectionTuneOk(2047, 131_072, 0), ConnectionOpen("/"))
    peer.send(1, ChannelOpen(), BasicQos(0, 1))
    assert peer.receive() == []
    broker.slow = False
    broker.release()
    assert [item for _, item in peer.receive()] == [
        ConnectionTune(2047, 131_072, 60),
        ConnectionOpenOk(),
        ChannelOpenOk(),
        BasicQosOk(),
    ]


def test_a_channel_closed_while_its_connection_is_not_read() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    broker.slow = True
    peer.send(1, QueueDeclare("a"), BasicGet("nope"))
    peer.raw(frame(1, BasicQos(0, 1)) * 1023)
    assert broker.paused == [peer.connection]
    peer.send(1, ChannelCloseOk(), ChannelOpen(), BasicQos(0, 1))
    broker.slow = False
    broker.release()
    assert broker.paused == []
    assert peer.got() == [
        QueueDeclareOk("a", 0, 0),
        closed(404, "no queue 'nope' in vhost '/'", BasicGet),
        ChannelOpenOk(),
        BasicQosOk(),
    ]
