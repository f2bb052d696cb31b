# Types of ``run``, for the checker: the source's annotations are C types.

from typing import Any, Final

HIGH: Final[bytes]
LOW: Final[bytes]

class Run:
    buffer: bytes | bytearray
    start: int
    end: int
    count: int
    stride: int
    version: int
    qos: int
    retain: int
    variable: int
    pid_at: int
    largest: int
    body_length: int
    topic: bytes
    properties: bytes
    verbatim: bool
    kept: bool
    deadline: float
    publisher: Any
    fixed: bool
    control: bool
    options: Any

    def __init__(
        self,
        buffer: bytes | bytearray,
        start: int,
        end: int,
        count: int,
        stride: int,
        version: int,
        first: int,
        variable: int,
        pid_at: int,
        largest: int,
        topic: bytes,
    ) -> None: ...
    def detach(self) -> int: ...
    def part(self, offset: int, end: int, count: int) -> Run: ...
    def skip(self, offset: int, count: int) -> int: ...
    def body_at(self, offset: int) -> int: ...
    def payloads(self) -> list[bytes]: ...
    def packet_ids(self) -> list[int]: ...
    def buffer_topic(self, offset: int) -> bytes: ...
    def plain(self, version: int) -> bytes: ...

def message_run(
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: int,
    properties: bytes = b"",
    deadline: float = 0.0,
) -> Run: ...
def properties_field(
    version: int, forward: bytes, expiry: int, alias: int, subscription_ids: bytes
) -> bytes: ...
def encode_length(length: int) -> bytes: ...
def append_publishes(
    out: bytearray,
    run: Run,
    offset: int,
    count: int,
    first: int,
    topic: bytes,
    properties: bytes,
    pid: int,
) -> int: ...
def append_numbered(
    out: bytearray, run: Run, offset: int, count: int, first: int, pid: int
) -> int: ...
def append_acknowledgements(out: bytearray, run: Run, first: int) -> int: ...
