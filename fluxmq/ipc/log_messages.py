"""Messages about a node's recent log lines. Pure, like `messages`.

::

    fluxmqctl -> control                recent_log: the lines of all processes
    control -> shard, control -> acceptor   recent_log: those of one
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body, MessageBody, Text, Word
from fluxmq.logs.recent import LINES_MAX, TEXT_CHARACTERS_MAX, recent_lines

RECENT_LOG: Final = "recent_log"
SHOWN_MAX: Final = 1000
"""Lines of a node in an answer: the most recent ones of all processes."""


class LogLine(MessageBody, frozen=True):
    """A line: when it was written (Unix time), by which process, its level, and what it says."""

    time: float
    level: Word
    text: Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
    process: Text = ""


class LogLines(MessageBody, frozen=True):
    """Lines, oldest first. ``missing``: processes that have not answered."""

    lines: Annotated[tuple[LogLine, ...], Meta(max_length=max(LINES_MAX, SHOWN_MAX))]
    missing: Annotated[tuple[Text, ...], Meta(max_length=1024)] = ()


def own_lines() -> LogLines:
    """Return the lines of this process."""
    return LogLines(tuple(LogLine(*line) for line in recent_lines()))


def on_recent_log(_body: Body, answered: Answered) -> None:
    """Answer control with the lines of this process."""
    answered(own_lines().to_body())
