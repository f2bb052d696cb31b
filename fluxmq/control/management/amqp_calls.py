"""AMQP methods that a shard executes for a user: what is declared, bound, published and got by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from fluxmq.control.management.access import LOGIN_OF_REQUEST
from fluxmq.control.management.requests import (
    ApiError,
    bad_request,
    error_of,
    not_authorised,
    not_found,
)
from fluxmq.control.peers import Peer, RequestError, forwarded
from fluxmq.ipc.amqp_calls import AMQP_CALL, AmqpAnswer, AmqpCall
from fluxmq.protocols.amqp091.constants import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    ReplyCode,
)
from fluxmq.protocols.amqp091.content import (
    BasicProperties,
    decode_properties,
    encode_properties,
    split_header,
)
from fluxmq.protocols.amqp091.method_codec import decode, encode, ids
from fluxmq.protocols.amqp091.methods import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReturn,
    ChannelClose,
    ConfirmSelect,
    ConnectionClose,
    Method,
)
from fluxmq.protocols.amqp091.run import FRAME_HEADER_BYTES

CALL_SECONDS: Final = 9.0
"""Time for a shard to answer, longer than it waits for its session."""
GET_MAX: Final = 1000
"""Messages got by one request."""
_HEADER: Final = struct.Struct(">HHQ")
_BASIC: Final = 60


@dataclass(frozen=True, slots=True)
class AmqpContent:
    """A method that a session has sent, with the properties and the payload that follow some."""

    method: Method
    properties: BasicProperties | None = None
    payload: bytes = b""


class AmqpCaller:
    """Has shards execute methods. Methods raise ApiError."""

    def __init__(self, shards: Callable[[], list[Peer]]) -> None:
        self._shards = shards

    async def execute(self, user: str, vhost: str, method: Method, answer: type[Method]) -> Method:
        """Execute a method; return its answer."""
        (found,) = await self._call(AmqpCall(user, vhost, (_frame(method),), (ids(answer),)))
        return found.method

    async def publish(
        self, user: str, vhost: str, publish: BasicPublish, properties: BasicProperties, body: bytes
    ) -> bool:
        """Publish a message; return whether it was routed, once it is safe."""
        try:
            encoded = encode_properties(properties)
        except (ValueError, TypeError, AttributeError) as problem:
            raise bad_request(f"properties: {problem}") from None
        header = FRAME_HEADER, _HEADER.pack(_BASIC, 0, len(body)) + encoded
        frames = [_frame(ConfirmSelect()), _frame(publish), header]
        frames += [(FRAME_BODY, body)] if body else []
        until = ids(BasicAck), ids(BasicNack)
        answers = await self._call(AmqpCall(user, vhost, tuple(frames), until))
        if any(isinstance(each.method, BasicNack) for each in answers):
            raise bad_request("a queue has refused the message")
        return not any(isinstance(each.method, BasicReturn) for each in answers)

    async def get(
        self, user: str, vhost: str, queue: str, count: int, *, keep: bool, reject: bool
    ) -> list[AmqpContent]:
        """Return up to ``count`` messages of a queue; with ``keep`` they go back to it, and with
        ``reject`` they are rejected instead of acknowledged."""
        get = BasicGet(queue, no_ack=not (keep or reject))
        after = () if keep or not reject else (_frame(BasicNack(0, multiple=True)),)
        until = ids(BasicGetOk), ids(BasicGetEmpty)
        count = min(count, GET_MAX)
        call = AmqpCall(user, vhost, (_frame(get),) * count, until, count, after)
        answers = await self._call(call)
        return [each for each in answers if isinstance(each.method, BasicGetOk)]

    async def _call(self, call: AmqpCall) -> list[AmqpContent]:
        shards = self._shards()
        if not shards:
            raise ApiError(503, "service_unavailable", "no shard is connected")
        shard = min(shards, key=lambda each: each.name)
        call = structs.replace(call, login=LOGIN_OF_REQUEST.get())
        try:
            body = await forwarded(shard, AMQP_CALL, call.to_body(), CALL_SECONDS)
            found = list(contents_of(AmqpAnswer.from_body(body).output))
        except RequestError as problem:
            raise error_of(problem) from problem
        for each in found:
            if isinstance(each.method, ChannelClose | ConnectionClose):
                raise _refused(each.method)
        return found


def contents_of(output: bytes) -> Iterator[AmqpContent]:
    """Yield the methods in AMQP frames, with their contents."""
    method: Method | None = None
    properties: BasicProperties | None = None
    payload = b""
    at = 0
    while at < len(output):
        kind = output[at]
        size = int.from_bytes(output[at + 3 : at + 7], "big")
        piece = output[at + FRAME_HEADER_BYTES : at + FRAME_HEADER_BYTES + size]
        at += FRAME_HEADER_BYTES + size + 1
        if kind == FRAME_METHOD:
            if method is not None:
                yield AmqpContent(method, properties, payload)
            method, properties, payload = decode(piece), None, b""
        elif kind == FRAME_HEADER:
            properties = decode_properties(split_header(piece)[1])
        elif kind == FRAME_BODY:
            payload += piece
    if method is not None:
        yield AmqpContent(method, properties, payload)


def _frame(method: Method) -> tuple[int, bytes]:
    """Return the frame of a method. Raises ApiError for values that its fields cannot hold."""
    try:
        return FRAME_METHOD, encode(method)
    except (ValueError, TypeError, AttributeError) as problem:
        raise bad_request(str(problem)) from None


def _refused(close: ChannelClose | ConnectionClose) -> ApiError:
    """Return the error for the reason that a session was closed for."""
    match close.reply_code:
        case ReplyCode.NOT_FOUND:
            return not_found(close.reply_text)
        case ReplyCode.ACCESS_REFUSED:
            return not_authorised(close.reply_text)
    return bad_request(f"{close.reply_code} {close.reply_text}")
