"""Messages to systemd: the node serves, reloads, stops, is alive, and needs more time.

Without ``NOTIFY_SOCKET`` in the environment there is nobody to tell. The protocol is one datagram of
lines for each message; systemd's library does nothing else.

Source: sd_notify(3), sd_watchdog_enabled(3), systemd.service(5).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from fluxmq import logs

EXTENSION_SECONDS = 30
"""Time that the service manager is asked for, again and again, while the node starts or stops: recovery
takes as long as the data need, and the tree itself kills children that show no sign of life."""

EXTENSIONS_EVERY_SECONDS = 10.0
"""Seconds between these requests: two may be late before the time is over."""

_log = logs.get_logger("fluxmq.supervisor")


class ServiceManager:
    """The service manager that has started this process, if any."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        """``environment``: with ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        wanted = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        self._interval = int(wanted) / 2e6 if mine and wanted.isdigit() else 0.0
        """Seconds between signs of life: half of what is asked for; 0 for none."""
        self._alive_at = 0.0
        self._in_transition = True
        """True while the node starts or stops, which has a time-out in the unit."""
        self._extend_at = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def serving(self) -> None:
        """Tell that the node serves, or has reloaded its settings."""
        self._in_transition = False
        self._tell("READY=1", "STATUS=Serving")

    def reloading(self, clock_ns: int) -> None:
        """Tell that settings are read again; ``clock_ns``: monotonic clock."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={clock_ns // 1000}")

    def stopping(self) -> None:
        """Tell that the node stops."""
        self._in_transition = True
        self._extend_at = 0.0
        self._tell("STOPPING=1", "STATUS=Stopping")

    @property
    def due(self) -> float | None:
        """Moment to call ``alive`` again, in monotonic seconds; None: never."""
        dues = [self._extend_at] if self._in_transition and self._address else []
        if self._interval:
            dues.append(self._alive_at)
        return min(dues, default=None)

    def alive(self, now: float) -> None:
        """Tell that the supervisor is alive, and ask for more time to start or stop, if either is
        due."""
        if self._in_transition and now >= self._extend_at:
            self._extend_at = now + EXTENSIONS_EVERY_SECONDS
            self._tell(f"EXTEND_TIMEOUT_USEC={EXTENSION_SECONDS * 1_000_000}")
        if self._interval and now >= self._alive_at:
            self._alive_at = now + self._interval
            self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            self._socket.sendto("\n".join(lines).encode(), address)
        except OSError as problem:
            _log.debug("the service manager cannot be told: %s", os.strerror(problem.errno or 0))
