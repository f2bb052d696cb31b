"""Freed memory that a process keeps."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from fluxmq.shards.heap import KEPT_BYTES

FAULTS = """
import resource
from fluxmq.shards.heap import keep_heap

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        bytes(bytearray(1 << 20))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_heap()
faults()
print(faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library")
def test_large_buffers_come_from_memory_that_was_freed() -> None:
    """Two megabytes each time: without it, every one of their pages is got from the kernel anew."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 50
    assert KEPT_BYTES > 2 << 20
