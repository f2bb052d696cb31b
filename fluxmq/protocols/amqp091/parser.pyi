# Types of ``amqp_parser``, for the checker: the source's annotations are C types.

from typing import Final

from fluxmq.protocols.amqp091.run import PublishRun
from fluxmq.protocols.connection import Connection

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_BYTES: Final = 8
PROTOCOL_HEADER_BYTES: Final = 8
FRAME_ERROR: Final = 501
UNEXPECTED_FRAME: Final = 505
UNIFORM_RUN_MIN: Final = 8
SNIPPET_BYTES: Final = 16

class AmqpParser:
    capacity: int
    needed: int
    following: int
    run: PublishRun | None

    def __init__(self, capacity: int) -> None: ...
    def process(self, connection: Connection, buffer: bytearray, end: int) -> int: ...

def refusal(frame: bytes, reason: str, limit: int) -> tuple[int, str]: ...
