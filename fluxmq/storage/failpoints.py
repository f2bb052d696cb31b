"""Named places at which the process can be made to kill itself, for the power-cut campaign.

FLUXMQ_FAILPOINT="wal.write:3" makes the third reach of "wal.write" the last thing this process does: SIGKILL, no
handlers, no flushing. Several, separated by commas, are armed together. Unset, a reach costs one test of an empty dict.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

VARIABLE = "FLUXMQ_FAILPOINT"


def parse(text: str) -> dict[str, int]:
    """Name to how many reaches are left, of "name:count,name:count". Raises ValueError."""
    armed: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, count = item.partition(":")
        armed[name] = int(count or "1")
        if not name or armed[name] < 1:
            raise ValueError(f"{VARIABLE}: {item!r} is not name:count")
    return armed


class Failpoints:
    """The armed places of one process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._armed = parse(environment.get(VARIABLE, ""))

    def reach(self, name: str) -> None:
        """Pass a place; kill the process when its count has come."""
        if not self._armed or name not in self._armed:
            return
        self._armed[name] -= 1
        if self._armed[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
