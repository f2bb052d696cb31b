"""Memory and CPU time as the kernel counts them."""

import os

import psutil

from fluxmq.admin import vitals


def test_our_own_vitals_agree_with_another_reader():
    mine = vitals.read(os.getpid())
    process = psutil.Process()
    assert abs(mine.resident_bytes - process.memory_info().rss) < 8 << 20
    times = process.cpu_times()
    assert abs(mine.cpu_seconds - (times.user + times.system)) < 1.0


def test_a_process_that_is_gone_has_none():
    assert vitals.read(2**22 + 1) is None
