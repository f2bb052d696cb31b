"""Messages by which control has a shard execute AMQP methods for a user of the management interface.

    control -> shard   amqp_call

The shard opens a session without a network connection, with the permissions of the user, executes
the frames on its only channel, and answers with everything that the session has sent. So the rules,
the checks and the errors are those of AMQP clients. Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.auth.users import UserName, VhostName
from fluxmq.ipc.control_frames import FRAME_BYTES_MAX
from fluxmq.ipc.login_messages import LoginAnswer
from fluxmq.ipc.messages import MessageBody

AMQP_CALL: Final = "amqp_call"

CHANNEL: Final = 1
"""Number of the session's channel."""
OUTPUT_BYTES_MAX: Final = FRAME_BYTES_MAX // 2
"""Bytes of an answer; of more messages than fit, the client gets a refusal."""
FRAMES_MAX: Final = 4096
ANSWERS_MAX: Final = 65_535
CALL_SECONDS: Final = 8.0
"""Time for the answers, shorter than control waits."""

AmqpFrames = Annotated[
    tuple[tuple[int, Annotated[bytes, Meta(max_length=OUTPUT_BYTES_MAX)]], ...],
    Meta(max_length=FRAMES_MAX),
]
"""Frames: type and payload."""
MethodId = tuple[int, int]


class AmqpCall(MessageBody, frozen=True):
    """Execute ``frames``, then wait for so many ``answers`` of the methods ``until`` (class and method
    number); then execute the frames ``after`` and end. A close of the channel or connection ends it
    as well. ``login``: of a user of another backend than the internal one."""

    user: UserName
    vhost: VhostName
    frames: AmqpFrames
    until: Annotated[tuple[MethodId, ...], Meta(max_length=8)]
    answers: Annotated[int, Meta(ge=1, le=ANSWERS_MAX)] = 1
    after: AmqpFrames = ()
    login: LoginAnswer | None = None


class AmqpAnswer(MessageBody, frozen=True):
    """Everything that the session has sent: AMQP frames."""

    output: Annotated[bytes, Meta(max_length=OUTPUT_BYTES_MAX)]
