"""What the supervisor reads of its children's processes."""

import os
import subprocess
import sys

from fluxmq.supervisor.children import Children

SPIN = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\nwhile True: pass"


def test_time_without_a_processor_is_told() -> None:
    """Two that want the same processor: each waits while the other runs, as long as that is watched."""
    children = Children()
    assert children.waited_ns(0) == 0
    command = [sys.executable, "-c", SPIN]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for slot, process in enumerate(spinning):
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            children._running[slot] = process
        before = [children.waited_ns(slot) for slot in range(2)]
        while any(children.waited_ns(slot) - before[slot] < 20_000_000 for slot in range(2)):
            os.sched_yield()  # the test's own time limit ends this when nothing is told
    finally:
        for process in spinning:
            process.kill()
            process.communicate()
