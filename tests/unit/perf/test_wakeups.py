"""Processor time and wake-ups of processes, from /proc."""

from __future__ import annotations

import os
import threading

from perf.wakeups import Activity, activity, rows


def test_a_wait_counts_as_a_wake_up() -> None:
    before = activity(os.getpid())
    for _ in range(20):
        threading.Event().wait(0.001)
    after = activity(os.getpid())
    assert after.wakeups - before.wakeups >= 20
    assert after.milliseconds > before.milliseconds


def test_a_process_that_is_gone_does_nothing() -> None:
    assert activity(2**22 + 1) == Activity(0.0, 0)


def test_figures_are_per_second() -> None:
    before, after = {7: Activity(10.0, 5)}, {7: Activity(30.0, 25)}
    assert rows(before, after, 10.0) == [(7, 2.0, 2.0)]
