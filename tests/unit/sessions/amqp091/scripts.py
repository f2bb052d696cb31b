"""Scripts as data: what a client sends on channel 1, and what it gets, in RabbitMQ 3.10's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.method_codec import ids
from fluxmq.protocols.amqp091.methods import BasicReturn, ChannelClose, ConnectionClose, Method
from tests.unit.sessions.amqp091.memory import MemoryBroker, Message, Peer


class Publish(NamedTuple):
    """One message, as ``Peer.publish`` takes it."""

    exchange: str
    routing_key: str
    body: bytes = b"x"
    mandatory: bool = False
    immediate: bool = False
    properties: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Raw(NamedTuple):
    """Bytes."""

    data: bytes


Step = Method | Publish | Raw
Answer = Method | Message


class Script(NamedTuple):
    """``sends`` on channel 1; ``gets`` on channel 1, but for connection.close, which is channel 0's."""

    name: str
    sends: Sequence[Step]
    gets: Sequence[Answer]
    user: str = "guest"
    capabilities: Sequence[str] = ()


def named(scripts: Sequence[Script]) -> dict[str, Any]:
    """Arguments for ``pytest.mark.parametrize``."""
    names = [script.name for script in scripts]
    assert len(set(names)) == len(names), "names are unique"
    return {"argnames": "script", "argvalues": scripts, "ids": names}


def play(peer: Peer, steps: Sequence[Step]) -> None:
    """Send each step in a reading of its own, with a tick behind it."""
    for step in steps:
        if isinstance(step, Publish):
            peer.publish(
                step.exchange,
                step.routing_key,
                step.body,
                mandatory=step.mandatory,
                immediate=step.immediate,
                **step.properties,
            )
        elif isinstance(step, Raw):
            peer.raw(step.data)
        else:
            peer.send(1, step)
        peer.tick()


def check(script: Script, broker: MemoryBroker | None = None) -> None:
    """Play it and compare."""
    peer = Peer(broker or MemoryBroker(), user=script.user, capabilities=script.capabilities)
    play(peer, script.sends)
    wanted = [(0 if isinstance(item, ConnectionClose) else 1, item) for item in script.gets]
    got = peer.receive()
    assert [(number, type(item), item) for number, item in got] == [
        (number, type(item), item) for number, item in wanted
    ]


def closed(code: int, text: str, method: type[Method] | None) -> ChannelClose:
    """The channel's end."""
    whole = f"{ReplyCode(code).name} - {text}"
    told = whole if len(whole) <= 255 else whole[:252] + "..."
    return ChannelClose(code, told, *(ids(method) if method else (0, 0)))


def ended(code: int, text: str, method: type[Method] | None) -> ConnectionClose:
    """The connection's end."""
    name = ReplyCode(code).name
    return ConnectionClose(code, f"{name} - {text}", *(ids(method) if method else (0, 0)))


def locked(queue: str, method: type[Method]) -> ChannelClose:
    """405."""
    return closed(
        405,
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration.",
        method,
    )


def returned(exchange: str, routing_key: str, body: bytes = b"x", **properties: Any) -> Message:
    """A message that went nowhere."""
    method = BasicReturn(312, "NO_ROUTE", exchange, routing_key)
    return Message(method, BasicProperties(**properties), body)
