"""A generator process: ``python -m perf.worker``, started by ``perf.run`` and by nobody else.

Its task comes as one JSON object on standard input; the board's descriptor and the eventfds are inherited.
It connects, reports ready on the board, waits for the start time, runs, and prints its report as one JSON
object. It cannot outlive its parent (parent-death signal) nor its deadline (alarm).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from typing import Any

from perf import board as words
from perf.amqp_churn import AmqpChurn
from perf.board import Board
from perf.churn import Churn
from perf.generator import BrokenRunError, Generator
from perf.workload import Workload

PR_SET_PDEATHSIG = 1
FAILED = 2
"""Exit code of a run that broke; the reason is on standard error."""

START_POLL_S = 0.001


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system lets this user have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def build(task: dict[str, Any], board: Board) -> Generator | Churn | AmqpChurn:
    """The loop that the task asks for."""
    workload = Workload.from_json(task["workload"])
    address = (str(task["host"]), int(task["port"]))
    worker = int(task["worker"])
    if workload.kind == "churn" and workload.protocol == "amqp":
        return AmqpChurn(workload, address, len(task["publishers"]), board, worker)
    if workload.kind == "churn":
        return Churn(workload, address, len(task["publishers"]), board, worker)
    publishers, subscribers = task["publishers"], task["subscribers"]
    loop = Generator(
        workload, address, publishers, subscribers, board, worker, int(task["subscriber_port"])
    )
    loop.pair_ports = [(int(to), int(of)) for to, of in task["pair_ports"]]
    return loop


def main() -> int:
    """Run one task; the exit code says whether there is a report."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    task: dict[str, Any] = json.load(sys.stdin)
    signal.alarm(int(task["deadline_s"]))
    if task["cores"]:
        os.sched_setaffinity(0, set(task["cores"]))
    raise_descriptor_limit()
    board = Board.open(int(task["board_fd"]), list(task["wake_fds"]))
    loop = build(task, board)
    state = board.place(int(task["worker"]), words.STATE)
    try:
        loop.connect()
        board.words[state] = words.READY
        while not board.words[words.START]:
            time.sleep(START_POLL_S)
        gc.freeze()
        gc.disable()
        loop.run()
        board.words[state] = words.FINISHED
        report = loop.report()
    except (BrokenRunError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    finally:
        loop.close()
    json.dump(report, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
