"""Logs: one line per event, fit for a machine or for a person, and never at a shard's expense.

Responsible for how a line looks (JSON or text), where it goes (standard error, one write per line)
and how often it may be repeated. Refuses to know what is worth logging: that is decided where the
event happens. Nothing here can stall an event loop: a line that the terminal or pipe will not take
at once is dropped and counted.
"""

from __future__ import annotations

from fluxmq.logs.configuration import LineHandler, configure, dropped_lines, get_logger
from fluxmq.logs.escaping import escape
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
