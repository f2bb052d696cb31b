"""The recent log lines of this node: of the shards, the acceptor and this process, put together.

The supervisor, which speaks to nobody, writes its lines to standard error only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from fluxmq.control.peers import Peer, answers_of
from fluxmq.ipc.log_messages import RECENT_LOG, SHOWN_MAX, LogLine, LogLines, own_lines
from fluxmq.ipc.messages import Body, ControlMessage

LINES_SECONDS: Final = 1.0
"""Time for the processes to answer."""
OWN_NAME: Final = "control"


class RecentLog:
    """Serves the request on control's loop. ``processes``: those that are connected."""

    def __init__(self, processes: Callable[[], Sequence[Peer]]) -> None:
        self._processes = processes

    async def answer(self, _message: ControlMessage) -> Body:
        """Answer a request."""
        peers = self._processes()
        answers = await answers_of(peers, RECENT_LOG, {}, LINES_SECONDS, LogLines)
        lines: list[LogLine] = [replace(each, process=OWN_NAME) for each in own_lines().lines]
        missing = []
        for peer, found in zip(peers, answers, strict=True):
            if found is None:
                missing.append(peer.name)
            else:
                lines += [replace(each, process=peer.name) for each in found.lines]
        lines.sort(key=lambda each: each.time)
        return LogLines(tuple(lines[-SHOWN_MAX:]), tuple(missing)).to_body()
