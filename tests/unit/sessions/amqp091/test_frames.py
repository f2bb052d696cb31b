"""Frames of an open connection: which are not due, and contents that come in pieces."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.method_codec import frame
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
    ConnectionStartOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.unit.sessions.amqp091.by_hand import PUBLISH, body, header, start_ok
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import Raw, Script, check, closed, ended, named

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
        # Row F4: a client that renews a token goes on, whatever the token is.
        (ConnectionUpdateSecret(b"guest"), ConnectionUpdateSecretOk()),
        (ConnectionUpdateSecret(b"another", "renewed"), ConnectionUpdateSecretOk()),
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
    assert broker.closed == [(peer.client.info.peer, "protocol_error")]


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
