"""A child process for tests of the supervisor: starts, beats, stops, and misbehaves as a file tells it to.

``<directory>/<name>`` holds the behaviour of the next start: ``fail REASON``, ``crash``, ``deaf`` (no SIGTERM),
``numb`` (no heartbeat after a while).  What happens is appended to ``<directory>/events``.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

from fluxmq.ipc import launch as launching
from fluxmq.ipc.table import ProcessTable


def main(launch: launching.Launch) -> None:
    directory = Path(os.environ["STAND_IN_DIRECTORY"])
    name = launch.process_name
    table = ProcessTable(launch.table_fd)
    behaviour = ""
    if (directory / name).exists():
        behaviour = (directory / name).read_text()
    events = os.open(directory / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(event: str) -> None:
        os.write(events, f"{name} {event}\n".encode())

    stop: list[int] = []
    if behaviour == "crash":
        sys.exit(7)
    if behaviour.startswith("fail "):
        launching.fail_boot(behaviour.removeprefix("fail "), table, launch.slot)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, lambda *_: tell("deaf"))
    else:
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    signal.signal(
        signal.SIGHUP,
        lambda *_: tell(f"reloaded {len(launching.read_settings(launch.settings_fd))}"),
    )
    table.beat(launch.slot, time.monotonic_ns())
    table.set_ready(launch.slot)
    tell(f"ready {os.getpid()}")
    while not stop:
        if behaviour != "numb":
            table.beat(launch.slot, time.monotonic_ns())
        select.select([], [], [], 0.02)
    tell("stopped")
