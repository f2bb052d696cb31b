from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Greeting(_message.Message):
    __slots__ = ("version", "node", "shard", "workers", "epoch", "purpose", "tells_time", "combines")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    TELLS_TIME_FIELD_NUMBER: _ClassVar[int]
    COMBINES_FIELD_NUMBER: _ClassVar[int]
    version: int
    node: str
    shard: int
    workers: int
    epoch: int
    purpose: str
    tells_time: bool
    combines: bool
    def __init__(self, version: _Optional[int] = ..., node: _Optional[str] = ..., shard: _Optional[int] = ..., workers: _Optional[int] = ..., epoch: _Optional[int] = ..., purpose: _Optional[str] = ..., tells_time: _Optional[bool] = ..., combines: _Optional[bool] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("frames", "piece", "last")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    piece: bytes
    last: bool
    def __init__(self, frames: _Optional[_Iterable[bytes]] = ..., piece: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("name", "body")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    name: str
    body: bytes
    def __init__(self, name: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("body",)
    BODY_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    def __init__(self, body: _Optional[bytes] = ...) -> None: ...
