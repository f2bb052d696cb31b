"""The jobs' Spark session, how far its work is, and what its errors say to a person."""

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
"""Set in the environment of a program that spark-submit started, which has a master then."""

LOCAL_SHUFFLE_PARTITIONS: Final = 8
"""Tasks behind a grouping where nobody says how many: what the jobs group is small, and 200 tasks, Spark's own number,
take longer than their work."""

_CAUSE: Final = re.compile(r"(?:fluxmq_spark\.[\w.]+|pyspark\.errors[\w.]*)\.(\w+): (.+)")


@contextmanager
def session(name: str, master: str | None, *, reuse: bool = True) -> Iterator[SparkSession]:
    """A session with the source registered; stopped at the end if it was started here.

    `master`: of the command line; without one what spark-submit gave, or all cores of this machine.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() if reuse else None
    if active is not None:
        fluxmq_spark.register(active)
        yield active
        return
    # Otherwise Spark's workers are the first python3 of PATH, which need not have pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    elif SUBMITTED not in os.environ:
        builder = builder.master("local[*]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        # What fails is told in one line; Spark would tell the same with every stack before.
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
    """What says how many of the running stages' tasks are done."""
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
    """The sentence in an error: of one raised in a task, what the task's Python said and not Spark's way to tell it."""
    text = str(error)
    found = _CAUSE.findall(text)
    if found:
        return str(found[-1][1]).strip()
    return text.strip().partition("\n")[0] or type(error).__name__


def run(name: str, job: Callable[[Console, datetime], int], *, quiet: bool = False) -> int:
    """Run a job and give its exit code; what is wrong is one line on standard error.

    2: what was asked for cannot be; 3: it failed on the way (damage, data that is gone, no broker).
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
