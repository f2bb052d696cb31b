"""Named failpoints at which the process can kill itself, for the power-cut campaign.

FLUXMQ_FAILPOINT="wal.write:3" kills the process with SIGKILL (no handlers, no flushing) when it
reaches "wal.write" for the third time. Several, separated by commas, are armed together. Unset, a
reach costs one test of an empty dict.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

VARIABLE = "FLUXMQ_FAILPOINT"


def parse(text: str) -> dict[str, int]:
    """Parse "name:count,name:count" into reaches left by name. Raises ValueError."""
    armed: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, count = item.partition(":")
        armed[name] = int(count or "1")
        if not name or armed[name] < 1:
            raise ValueError(f"{VARIABLE}: {item!r} is not name:count")
    return armed


class Failpoints:
    """The armed failpoints of one process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._armed = parse(environment.get(VARIABLE, ""))

    def reach(self, name: str) -> None:
        """Pass a failpoint; kill the process when its count is used up."""
        if not self._armed or name not in self._armed:
            return
        self._armed[name] -= 1
        if self._armed[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
