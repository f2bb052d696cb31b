"""Encoding of the frames on a link between two shards.

A frame is one record: a kind byte, then::

    RUN       u8 kind, u8 version, u8 first byte, u8 flags, u16 topic length, u32 properties length,
              u32 variable, u32 pid_at, u32 stride, u32 count, u32 largest, f64 deadline,
              topic, properties, wire bytes of the run
    SHARED    as RUN, after u8 kind, u16 group length, u16 filter length, group, filter
    RETAINED  as RUN, after u8 kind, i64 revision, i64 number, u32 origin, u16 length of the
              publisher's client id, client id; without wire bytes it deletes the topic
    KEPT      as RUN, after u8 kind, u64 number, u64 origin, u64 number of its first message there,
              and of a run that another node has sent: u64 link, u64 epoch, u64 number there
    DEALT     as SHARED, after u8 kind, u64 number
    CONTROL   u8 kind, msgpack array [name, arguments ...]
    PIECE     u8 kind, u8 place (1 first, 2 last), part of a frame longer than a record
    APPEND, DELIVER  batches for and from queues, see `fluxmq.engine`; REFER names the messages only
    APPEND_BY_ADDRESS  as APPEND, for an MQTT client's publish to a queue's address
    REPLY     a batch for an address of direct replies, see `fluxmq.shards.amqp.replies`
    NODE_RUN, NODE_SHARED, NODE_RETAINED  messages for another node, see
              `fluxmq.shards.node_peers`

Both ends are processes of one node and one version: fields are native little endian, and a frame
that does not parse is a bug, not an attack. Deadlines are on the node's monotonic clock.
"""

from __future__ import annotations

import struct

import msgpack  # type: ignore[import-untyped]

from fluxmq.protocols.mqtt.run import PublishRun

RUN = 1
SHARED = 2
RETAINED_0 = 3
"""As RETAINED without a revision; kept on disk by earlier versions, never sent."""
CONTROL = 4
PIECE = 5
APPEND = 6
DELIVER = 7
KEPT = 8
DEALT = 9
REPLY = 10
REFER = 11
APPEND_BY_ADDRESS = 12
NODE_RUN = 13
NODE_SHARED = 14
RETAINED = 15
NODE_RETAINED = 16
FIRST = 1
LAST = 2

RetainedStamp = tuple[int, int, int]
"""Revision, number and origin of a change of a retained message, see `fluxmq.shards.retained`."""
KeptSource = tuple[int, int, int]
"""Link, epoch and number of a run that another shard sends again until it is answered, see
`fluxmq.shards.run_numbers`."""
NO_SOURCE: KeptSource = (0, 0, 0)
"""A number of 0 is none."""

_RUN = struct.Struct("<BBBHIIIIIId")
_SHARED = struct.Struct("<BHH")
_RETAINED_0 = struct.Struct("<BqIH")
_RETAINED = struct.Struct("<BqqIH")
_KEPT = struct.Struct("<BQQQQQQ")
_DEALT = struct.Struct("<BQ")
_NODE = struct.Struct("<BQd")
_IDENTITY = struct.Struct("<QQ")
NODE_HEAD_BYTES = _NODE.size
_VERBATIM = 1


def run_head(run: PublishRun) -> bytes:
    """Encode everything of a run but its wire bytes."""
    return (
        _RUN.pack(
            run.version,
            0x30 | (run.qos << 1) | run.retain,
            _VERBATIM if run.verbatim else 0,
            len(run.topic),
            len(run.properties),
            run.variable,
            run.pid_at,
            run.stride,
            run.count,
            run.largest,
            run.deadline,
        )
        + run.topic
        + run.properties
    )


def encode_run(run: PublishRun) -> bytes:
    """Encode the head of a RUN frame; the run's wire bytes follow it."""
    return bytes((RUN,)) + run_head(run)


def identity_of(run: PublishRun) -> tuple[int, int]:
    """Return a run's identity as it is encoded: zeros if it has none."""
    return (0, 0) if run.identity is None else (run.identity[0], run.identity[1])


def encode_kept(number: int, run: PublishRun, source: KeptSource = NO_SOURCE) -> bytes:
    """Encode the head of a KEPT frame. ``source``: the run as another node has sent it."""
    return _KEPT.pack(KEPT, number, *identity_of(run), *source) + run_head(run)


def decode_kept(frame: bytes) -> tuple[int, KeptSource, PublishRun]:
    """Return number, source and run of a KEPT frame."""
    _, number, origin, first, *source = _KEPT.unpack_from(frame)
    run = decode_run(frame, _KEPT.size)
    run.identity = origin, first
    link, epoch, there = source
    return number, (link, epoch, there), run


def encode_dealt(number: int, group: bytes, topic_filter: bytes, run: PublishRun) -> bytes:
    """Encode the head of a DEALT frame."""
    return _DEALT.pack(DEALT, number) + encode_shared(group, topic_filter, run)


def decode_dealt(frame: bytes) -> tuple[int, bytes, bytes, PublishRun]:
    """Return number, group, filter and run of a DEALT frame."""
    _, number = _DEALT.unpack_from(frame)
    return number, *decode_shared(frame, _DEALT.size)


def encode_shared(group: bytes, topic_filter: bytes, run: PublishRun) -> bytes:
    """Encode the head of a SHARED frame."""
    return (
        _SHARED.pack(SHARED, len(group), len(topic_filter)) + group + topic_filter + run_head(run)
    )


def encode_retained(stamp: RetainedStamp, run: PublishRun) -> bytes:
    """Encode the head of a RETAINED frame. The run's publisher is a client id here, None for the
    broker."""
    publisher: bytes = run.publisher or b""
    return _RETAINED.pack(RETAINED, *stamp, len(publisher)) + publisher + run_head(run)


def encode_node_head(kind: int, number: int, left: float) -> bytes:
    """Encode what a frame for another node begins with; ``left``: seconds until the messages
    expire, 0 for never."""
    return _NODE.pack(kind, number, left)


def encode_node_run(number: int, left: float, run: PublishRun) -> bytes:
    """Encode the head of a NODE_RUN frame."""
    identity = _IDENTITY.pack(*identity_of(run))
    return encode_node_head(NODE_RUN, number, left) + identity + run_head(run)


def encode_node_shared(
    number: int, left: float, group: bytes, topic_filter: bytes, run: PublishRun
) -> bytes:
    """Encode the head of a NODE_SHARED frame."""
    return encode_node_head(NODE_SHARED, number, left) + encode_shared(group, topic_filter, run)


def decode_node_run(frame: bytes) -> PublishRun:
    """Return the run of a NODE_RUN frame."""
    run = decode_run(frame, _NODE.size + _IDENTITY.size)
    origin, first = _IDENTITY.unpack_from(frame, _NODE.size)
    run.identity = (origin, first) if first else None
    return run


def node_head(frame: bytes) -> tuple[int, int, float]:
    """Return kind, number and seconds to live of a frame from another node. Raises ValueError."""
    if len(frame) < _NODE.size or frame[0] not in (NODE_RUN, NODE_SHARED, NODE_RETAINED):
        raise ValueError(f"a frame of kind {frame[0]} does not come from another node")
    kind, number, left = _NODE.unpack_from(frame)
    return kind, number, left


def encode_control(name: str, *arguments: object) -> bytes:
    """Encode a whole CONTROL frame."""
    data: bytes = msgpack.packb([name, *arguments], use_bin_type=True)
    return bytes((CONTROL,)) + data


def decode_control(frame: bytes) -> list[object]:
    """Return name and arguments of a CONTROL frame."""
    found: list[object] = msgpack.unpackb(frame[1:], raw=False, strict_map_key=False, use_list=True)
    return found


def decode_run(frame: bytes, at: int = 1) -> PublishRun:
    """Decode the run whose head begins at ``at``; its bytes stay in the frame."""
    (
        version,
        first,
        flags,
        topic_length,
        properties_length,
        variable,
        pid_at,
        stride,
        count,
        largest,
        deadline,
    ) = _RUN.unpack_from(frame, at)
    at += _RUN.size
    topic = frame[at : at + topic_length]
    at += topic_length
    properties = frame[at : at + properties_length]
    at += properties_length
    run = PublishRun(
        frame, at, len(frame), count, stride, version, first, variable, pid_at, largest, topic
    )
    run.kept = True
    run.properties = properties
    run.verbatim = bool(flags & _VERBATIM)
    run.deadline = deadline
    return run


def decode_shared(frame: bytes, at: int = 0) -> tuple[bytes, bytes, PublishRun]:
    """Return group, filter and run of a SHARED frame that begins at ``at``."""
    _, group_length, filter_length = _SHARED.unpack_from(frame, at)
    at += _SHARED.size
    group = frame[at : at + group_length]
    at += group_length
    topic_filter = frame[at : at + filter_length]
    return group, topic_filter, decode_run(frame, at + filter_length)


def decode_retained(frame: bytes, at: int = 0) -> tuple[RetainedStamp, PublishRun]:
    """Return stamp and run of a RETAINED frame that begins at ``at``."""
    revision = 0
    if frame[at] == RETAINED_0:
        _, number, origin, length = _RETAINED_0.unpack_from(frame, at)
        at += _RETAINED_0.size
    else:
        _, revision, number, origin, length = _RETAINED.unpack_from(frame, at)
        at += _RETAINED.size
    run = decode_run(frame, at + length)
    run.publisher = frame[at : at + length] or None
    return (revision, number, origin), run
