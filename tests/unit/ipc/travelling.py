"""Messages as they arrive at the other end."""

from __future__ import annotations

from fluxmq.ipc.framing import FrameDecoder, encode_frame
from fluxmq.ipc.messages import Body, Message


def travelled(body: Body) -> Body:
    """A body as it arrives: through a frame."""
    (value,) = FrameDecoder().feed(encode_frame(Message("x", 1, body).to_wire()))
    return Message.from_wire(value).body
