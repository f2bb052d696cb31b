"""Messages as they arrive at the other end."""

from __future__ import annotations

from fluxmq.ipc.control_frames import FrameDecoder, encode_frame
from fluxmq.ipc.messages import Body, ControlMessage


def travelled(body: Body) -> Body:
    """A body as it arrives: through a frame."""
    (value,) = FrameDecoder().feed(encode_frame(ControlMessage("x", 1, body).to_wire()))
    return ControlMessage.from_wire(value).body
