"""Memory and CPU time as the kernel counts them."""

import os

import psutil

from fluxmq.control import procfs


def test_our_own_vitals_agree_with_another_reader():
    mine = procfs.read(os.getpid())
    assert mine is not None
    process = psutil.Process()
    assert abs(mine.resident_bytes - process.memory_info().rss) < 8 << 20
    times = process.cpu_times()
    assert abs(mine.cpu_seconds - (times.user + times.system)) < 1.0


def test_a_process_that_is_gone_has_none():
    assert procfs.read(2**22 + 1) is None


def test_a_process_has_one_identity_that_no_other_has():
    mine, parents = procfs.identity(os.getpid()), procfs.identity(os.getppid())
    assert mine == procfs.identity(os.getpid())
    assert mine != parents
    boot, pid, started = mine.split("/")
    assert (len(boot), pid) == (36, str(os.getpid()))
    assert int(started) > 0
    assert procfs.identity(2**22 + 1).endswith("/4194305/")
