"""The jobs' Spark session, the progress of its tasks, and its errors for people."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import fluxmq_spark
from fluxmq_spark.errors import OptionError, SparkSourceError
from fluxmq_spark.jobs.arguments import EXIT_FAILED, EXIT_USAGE, JobError, UsageError
from fluxmq_spark.jobs.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable of programs started by spark-submit, which have a master then."""

LOCAL_SHUFFLE_PARTITIONS: Final = 8
"""Default number of tasks after a grouping: the jobs group little data, and 200 tasks, Spark's
default, take longer than their work."""

_CAUSE: Final = re.compile(r"(?:fluxmq_spark\.[\w.]+|pyspark\.errors[\w.]*)\.(\w+): (.+)")


@contextmanager
def session(name: str, master: str | None, *, reuse: bool = True) -> Iterator[SparkSession]:
    """Yield a session with the source registered; stop it at the end if it was started here.

    `master`: from the command line; without one spark-submit's, or all cores of this machine.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() if reuse else None
    if active is not None:
        fluxmq_spark.register(active)
        yield active
        return
    # Otherwise Spark's workers run the first python3 of PATH, which need not have pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    elif SUBMITTED not in os.environ:
        builder = builder.master("local[*]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        # Errors are reported in one line; Spark would first print each with its stack trace.
        builder = builder.config("spark.log.level", "FATAL")
        builder = builder.config("spark.sql.shuffle.partitions", str(LOCAL_SHUFFLE_PARTITIONS))
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    fluxmq_spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def tasks(spark: SparkSession) -> Callable[[], str]:
    """Return a function that tells how many of the running stages' tasks are done."""
    tracker = spark.sparkContext.statusTracker()

    def state() -> str:
        done = total = 0
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
        return f"{done} of {total} tasks" if total else "planning"

    return state


def said(error: BaseException) -> str:
    """Return the sentence in an error: for one raised in a task, the text from the task's Python
    without Spark's wrapping."""
    text = str(error)
    found = _CAUSE.findall(text)
    if found:
        return str(found[-1][1]).strip()
    return text.strip().partition("\n")[0] or type(error).__name__


def run(name: str, job: Callable[[Console, datetime], int], *, quiet: bool = False) -> int:
    """Run a job and return its exit code; errors are one line on standard error.

    Exit code 2: the request is impossible; 3: it failed on the way (damage, missing data, no
    broker).
    """
    console = Console(name, quiet=quiet)
    try:
        return job(console, datetime.now(UTC))  # noqa: TID251 -- where the time comes from
    except (UsageError, OptionError) as problem:
        console.err.write(f"{name}: {problem}\n")
        return EXIT_USAGE
    except (JobError, SparkSourceError, OSError) as problem:
        console.err.write(f"{name}: {problem}\n")
        return EXIT_FAILED
    except Exception as problem:
        if not _of_spark(problem):
            raise
        console.err.write(f"{name}: {said(problem)}\n")
        return EXIT_USAGE if "OptionError" in str(problem) else EXIT_FAILED


def _of_spark(problem: Exception) -> bool:
    modules: Sequence[str] = [each.__module__ for each in type(problem).__mro__]
    return any(each.startswith(("pyspark.", "py4j.")) for each in modules)
