# Types of ``amqp_delivery``, for the checker: the source's annotations are C types.

from typing import Final

from fluxmq.model.batch_format import Batch

SHORT_MAX: Final = 255
FRAME_BYTES: Final = 8

def encode_deliveries(
    batch: Batch,
    first: int,
    count: int,
    channel: int,
    consumer_tag: bytes,
    first_tag: int,
    redelivered: bool,
    exchange: bytes,
    routing_key: bytes,
    properties: bytes,
    frame_max: int,
    offset_at: int = -1,
) -> bytes: ...
def encode_get_ok(
    batch: Batch,
    index: int,
    channel: int,
    tag: int,
    redelivered: bool,
    exchange: bytes,
    routing_key: bytes,
    message_count: int,
    properties: bytes,
    frame_max: int,
    offset_at: int = -1,
) -> bytes: ...
def encode_return(
    channel: int,
    reply_code: int,
    reply_text: bytes,
    exchange: bytes,
    routing_key: bytes,
    properties: bytes,
    payload: bytes,
    frame_max: int,
) -> bytes: ...
def encode_delivery(
    channel: int,
    consumer_tag: bytes,
    tag: int,
    redelivered: bool,
    exchange: bytes,
    routing_key: bytes,
    properties: bytes,
    payload: bytes,
    frame_max: int,
) -> bytes: ...
