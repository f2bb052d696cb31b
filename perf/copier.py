"""A program that copies memory and does nothing else: what a core that is busy costs whoever works on the others.

Caches, memory and, on a virtual machine, the host are shared by all cores. What a neighbour that never heard of a broker
does to a measured latency is the machine's share of what a neighbour does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from perf.run import RunError

COPIED_BYTES = 64 << 20
"""Copied at once: more than caches hold."""


@contextmanager
def copying(cores: Sequence[int]) -> Iterator[int]:
    """Have the program run meanwhile, on these cores if any are named; its process. Raises ``RunError`` when it did not."""
    process = subprocess.Popen([sys.executable, "-m", "perf.copier", *map(str, cores)])
    try:
        yield process.pid
        if process.poll() is not None:
            raise RunError("the program that copies memory ended before what it was beside")
    finally:
        process.kill()
        process.wait()


def main(cores: Sequence[int]) -> None:
    """Copy until whoever started it is gone."""
    if cores:
        os.sched_setaffinity(0, cores)
    parent = os.getppid()
    source, target = bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)
    while os.getppid() == parent:
        target[:] = source


if __name__ == "__main__":
    main([int(core) for core in sys.argv[1:]])
