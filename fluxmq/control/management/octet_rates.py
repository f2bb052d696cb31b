"""Rates of bytes of connections, between two looks at the list.

Shards tell how many bytes each connection has received and sent. Nobody samples that: a rate is that
since an earlier look, at least `STEP_SECONDS` ago, so that it costs nothing while nobody looks, and
is 0 at the first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.series import STEP_SECONDS

CONNECTIONS_MAX: Final = 10_000
"""Connections that are remembered; those that were looked at longest ago are forgotten first."""
FIELDS: Final = ("recv_oct", "send_oct")


class OctetLook(NamedTuple):
    """A look at a connection: when, and the bytes received and sent."""

    at: float
    octets: tuple[int, ...]


class OctetRates:
    """Remembers two looks at each connection. ``now``: monotonic seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: OrderedDict[tuple[object, ...], tuple[OctetLook, OctetLook]] = OrderedDict()

    def add_to(self, rows: Iterable[JsonRow]) -> None:
        """Add ``recv_oct_details`` and ``send_oct_details`` to the rows of connections that have bytes."""
        now = self._now()
        for row in rows:
            if not all(isinstance(row.get(field), int) for field in FIELDS):
                continue
            look = OctetLook(now, tuple(row[field] for field in FIELDS))
            key = tuple(row.get(each) for each in ("node", "pid", "name", "connected_at"))
            earlier, later = self._seen.pop(key, (look, look))
            if now - later.at >= STEP_SECONDS:
                earlier, later = later, look
            self._seen[key] = earlier, later
            seconds = now - earlier.at
            for field, before, bytes_now in zip(FIELDS, earlier.octets, look.octets, strict=True):
                rate = max(bytes_now - before, 0) / seconds if seconds > 0 else 0.0
                row[f"{field}_details"] = {"rate": round(rate, 1)}
        while len(self._seen) > CONNECTIONS_MAX:
            self._seen.popitem(last=False)
