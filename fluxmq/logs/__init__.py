"""Logs: one line per event, for machines or people; a shard never waits for them.

Responsible for the format of a line (JSON or text), its destination (standard error, one write per
line) and the rate of repetitions. The place of an event decides whether to log it. Nothing here can
stall an event loop: a line that the terminal or pipe does not take at once is dropped and counted.
"""

from __future__ import annotations

from fluxmq.logs.configuration import LineHandler, configure, dropped_lines, get_logger
from fluxmq.logs.escapes import escape
from fluxmq.logs.rate import RateLimited, flush_all

__all__ = [
    "LineHandler",
    "RateLimited",
    "configure",
    "dropped_lines",
    "escape",
    "flush_all",
    "get_logger",
]
