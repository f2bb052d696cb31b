# Types of ``batch_format``, for the checker: the source's annotations are C types.

from typing import Final

MAGIC: Final[int]
VERSION: Final = 1
CODEC_NONE: Final = 0
HEADER_BYTES: Final = 64
MESSAGES_MAX: Final = 4096
PAYLOAD_BYTES_MAX: Final[int]
AREA_BYTES_MAX: Final[int]
TIME_MAX: Final[int]
TIMES: Final = 1
KEYS: Final = 2
PROPERTIES: Final = 4
EXPIRY: Final = 8
DELAY: Final = 16
PRODUCER: Final = 32
ATTRIBUTES: Final = 64
FLAGS: Final = 127
ATTRIBUTE_QOS: Final = 3
ATTRIBUTE_REDELIVERED: Final = 4
ATTRIBUTE_PROTOCOL: Final[int]
PROTOCOL_MQTT: Final[int]
PROTOCOL_AMQP_0_9_1: Final[int]
PROTOCOL_AMQP_1_0: Final[int]

class BatchError(ValueError): ...

class Batch:
    data: bytes
    start: int
    length: int
    count: int
    flags: int
    base_offset: int
    base_time: int
    payload_check: int
    key_bytes: int
    property_bytes: int
    payload_bytes: int
    term: int
    last_delta: int
    expiry_at: int
    delay_at: int
    producer_at: int
    attributes_at: int
    times_at: int
    key_ends_at: int
    property_ends_at: int
    payload_ends_at: int
    keys_at: int
    properties_at: int
    payloads_at: int

    def __init__(self, data: bytes, start: int) -> None: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def last_time(self) -> int: ...
    @property
    def uniform_key(self) -> bool: ...
    @property
    def uniform_properties(self) -> bool: ...
    def stamp(self, base_offset: int, base_time: int, term: int) -> int: ...
    def header(self) -> bytes: ...
    def body(self) -> memoryview: ...
    def key(self, index: int) -> bytes: ...
    def properties(self, index: int) -> bytes: ...
    def payload(self, index: int) -> bytes: ...
    def payload_length(self, index: int) -> int: ...
    def expiry(self, index: int) -> int: ...
    def delay(self, index: int) -> int: ...
    def producer(self, index: int) -> int: ...
    def sequence(self, index: int) -> int: ...
    def attributes(self, index: int) -> int: ...
    def time(self, index: int) -> int: ...

def parse(data: bytes, start: int = 0) -> Batch: ...
def verify(batch: Batch) -> int: ...
def encode_header(
    length: int,
    flags: int,
    base_offset: int,
    base_time: int,
    payload_check: int,
    count: int,
    key_bytes: int,
    property_bytes: int,
    payload_bytes: int,
    term: int,
    last_delta: int,
) -> bytes: ...
