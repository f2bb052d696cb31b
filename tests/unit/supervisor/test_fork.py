"""A child as a fork: what it lets go of, what it keeps, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.ipc.launch import Launch
from fluxmq.supervisor.fork import fork

NUMBERS = """
import json, os, random, secrets, ssl, uuid
def main(launch):
    import numpy
    found = [random.random(), secrets.token_hex(8), uuid.uuid4().hex, ssl.RAND_bytes(8).hex()]
    found += [random.Random().random(), float(numpy.random.default_rng().random())]
    os.write(launch.settings_fd, json.dumps(found).encode())
"""
LOOK = """
import json, os, signal, threading
def main(launch):
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
    handlers = [signal.getsignal(number) for number in numbers]
    report = {
        "descriptors": [int(fd) for fd in os.listdir("/proc/self/fd")],
        "input": os.readlink("/proc/self/fd/0"),
        "handlers": handlers
        == [signal.SIG_DFL, signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL],
        "wakeup": signal.set_wakeup_fd(-1),
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "leads its group": os.getpgrp() == os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)),
        "command": open("/proc/self/cmdline").read(),
        "name": open("/proc/self/comm").read(),
    }
    os.write(launch.settings_fd, json.dumps(report).encode())
"""
ENDINGS = {
    "returns": ("pass", 0),
    "exits": ("raise SystemExit(3)", 3),
    "exits without a code": ("raise SystemExit", 0),
    "says why": ("raise SystemExit('no')", 1),
    "fails": ("raise ValueError('a defect')", 1),
    "is killed": ("import os; os.kill(os.getpid(), 9)", -9),
    "is told": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
}
LATE = """
import os, time
from concurrent.futures import ThreadPoolExecutor
def main(launch):
    gate = os.pipe()
    def work():
        os.read(gate[0], 1)
        os.write(launch.settings_fd, b"done")
    pool = ThreadPoolExecutor(1)
    pool.submit(work)
    pool.shutdown(wait=False)
    os.write(gate[1], b"go")
"""
PARENT = """
import atexit, os, sys
from fluxmq.ipc.launch import Launch
from fluxmq.supervisor.fork import fork
atexit.register(os.write, 1, b"atexit ")
print("buffered", end=" ")
launch = Launch("shard", 0, 1, os.getpid(), 0, 1, 2, "", "")
try:
    pid = fork(launch, lambda launch: print("child", end=" "))
    os.waitpid(pid, 0)
finally:
    os.write(1, b"finally ")
"""


def description(fd: int, parent_pid: int | None = None) -> Launch:
    """A launch with one descriptor, to which the child writes."""
    return Launch(
        role="shard",
        index=7,
        workers=8,
        parent_pid=os.getpid() if parent_pid is None else parent_pid,
        slot=7,
        settings_fd=fd,
        table_fd=fd,
        run_dir="",
        data_dir="",
        cores=[max(os.sched_getaffinity(0))],
    )


def run(source: str, launch: Callable[[int], Launch] = description) -> tuple[int, str]:
    """Fork a child that runs ``main`` of the source; return its exit code and what it wrote."""
    names: dict[str, Any] = {}
    exec(source, names)
    ours, theirs = os.pipe()
    pid = fork(launch(theirs), names["main"])
    os.close(theirs)
    with open(ours, encoding="utf-8") as said:
        text = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def test_a_child_keeps_only_what_is_its_own() -> None:
    """Neither descriptors nor signal handlers of the supervisor reach a child."""
    others = os.pipe()
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    wakeup = signal.set_wakeup_fd(-1)
    try:
        os.set_blocking(others[1], False)
        signal.set_wakeup_fd(others[1])
        code, text = run(LOOK)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, handler)
        for fd in others:
            os.close(fd)
    assert code == 0
    report = json.loads(text)
    *standard, own, listing = report.pop("descriptors")
    assert standard == [0, 1, 2]
    assert listing != own
    assert report == {
        "input": os.devnull,
        "handlers": True,
        "wakeup": -1,
        "blocked": 0,
        "leads its group": True,
        "cores": [max(os.sched_getaffinity(0))],
        "command": "fluxmq-shard-7\0",
        "name": "fluxmq-shard-7\n",
    }
    assert not mask, "the parent's signals are no longer blocked"


@pytest.mark.parametrize("how", ENDINGS)
def test_exit_codes(how: str) -> None:
    statement, expected = ENDINGS[how]
    code, _ = run(f"def main(launch): {statement}\n")
    assert code == expected


def test_random_numbers_differ() -> None:
    """Generators that the supervisor has used before it forks do not repeat in its children."""
    lines = [run(NUMBERS)[1] for _ in range(3)]
    found = [json.loads(line) for line in lines]
    assert all(len(set(column)) == len(lines) for column in zip(*found, strict=True))


def test_a_child_waits_for_its_threads() -> None:
    assert run(LATE) == (0, "done")


def test_nothing_of_the_supervisors_end_runs_in_a_child() -> None:
    """Its buffers are written once, and its cleaning up happens once, in itself."""
    said = subprocess.run([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, check=True).stdout
    assert said == b"buffered child finally atexit "


def test_a_child_of_a_supervisor_that_is_gone_does_not_start() -> None:
    source = "import os\ndef main(launch): os.write(launch.settings_fd, b'ran')\n"
    assert run(source, lambda fd: description(fd, os.getpid() + 1)) == (1, "")
