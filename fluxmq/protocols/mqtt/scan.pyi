# Types of ``scan``, for the checker: the source's annotations are C types.

from typing import Final

COMPILED: Final[bool]
INCOMPLETE: Final = 0
PUBLISH: Final = 1
PUBACK: Final = 2
PACKET: Final = 3
ERROR: Final = 4
MALFORMED: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
PACKET_TOO_LARGE: Final = 0x95
UNIFORM_RUN_MIN: Final = 8

class Scanner:
    max_packet: int
    version: int
    start: int
    end: int
    count: int
    stride: int
    first: int
    header: int
    variable: int
    topic_at: int
    topic_length: int
    properties_at: int
    properties_length: int
    pid_at: int
    largest: int
    needed: int
    reason: int
    frame_header: int

    def __init__(self, max_packet: int, version: int = 4) -> None: ...
    def next(self, buffer: bytearray, at: int, end: int) -> int: ...
