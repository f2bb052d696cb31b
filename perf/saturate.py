"""A load beside the measured one: it is on for as long as something else is measured, and says how fast it was."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from perf import board as words
from perf.run import Measurement, Run, RunError, Target, Timing
from perf.workload import Workload

MARGIN_S = 4.0
"""Seconds that it outlasts the measured load, whose processes take time to start and connect."""

POLL_S = 0.01


class Background:
    """Runs a workload from entering to leaving, on these cores if any are named; ``result`` is there afterwards."""

    def __init__(
        self, target: Target, workload: Workload, beside: Timing, cores: Sequence[int] = ()
    ) -> None:
        self.result: Measurement | None = None
        timing = Timing(0.5, beside.warmup_s + beside.duration_s + MARGIN_S)
        self._run = Run(target, workload, timing, cores=cores)
        self._problem: Exception | None = None
        self._ended = 0.0
        self._thread = threading.Thread(target=self._measure, name="background")

    def _measure(self) -> None:
        try:
            self.result = self._run.measure()
        except (RunError, OSError) as problem:
            self._problem = problem
        self._ended = time.monotonic()

    def __enter__(self) -> Self:
        """Begin, and wait until messages flow. Raises ``RunError``."""
        started = self._run.board.words
        self._thread.start()
        while self._thread.is_alive():
            try:
                if started[words.START]:
                    return self
            except ValueError:
                # The board is gone because the run has ended.
                break
            time.sleep(POLL_S)
        self._thread.join()
        raise RunError(f"the load beside could not start: {self._problem}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for its end. Raises ``RunError`` when it broke, or ended before what it was beside."""
        left = time.monotonic()
        self._thread.join()
        if kind is not None:
            return
        if self._problem is not None:
            raise RunError(f"the load beside broke: {self._problem}")
        if self._ended < left:
            raise RunError("the load beside ended before what it was beside")
