# Types of ``amqp_run``, for the checker: the source's annotations are C types.

from typing import Final

FRAME_HEADER_BYTES: Final = 7
BODY_SIZE_AT: Final = 11

class PublishRun:
    buffer: bytes | bytearray
    start: int
    end: int
    count: int
    stride: int
    method_size: int
    header_size: int
    payload_bytes: int
    largest: int
    body_length: int
    channel: int
    exchange: bytes
    routing_key: bytes
    mandatory: bool
    immediate: bool
    properties: bytes
    kept: bool

    def __init__(
        self,
        buffer: bytes | bytearray,
        start: int,
        end: int,
        channel: int,
        exchange: bytes,
        routing_key: bytes,
        bits: int,
        properties: bytes,
    ) -> None: ...
    @staticmethod
    def of(
        channel: int,
        exchange: bytes,
        routing_key: bytes,
        mandatory: bool,
        immediate: bool,
        properties: bytes,
        payload: bytes,
    ) -> PublishRun: ...
    def detach(self) -> int: ...
    def body_at(self, offset: int) -> int: ...
    def following(self, offset: int) -> int: ...
    def payload(self, index: int) -> bytes: ...
    def payloads(self) -> list[bytes]: ...

def build_amqp_batches(
    run: PublishRun,
    key: bytes,
    block: bytes,
    now_us: int,
    expiry_us: int = 0,
    delay_us: int = 0,
    producer: int = 0,
    sequence: int = 0,
    attributes: int = 0,
) -> list[bytes]: ...
