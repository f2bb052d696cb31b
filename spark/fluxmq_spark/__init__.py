"""Queues and streams of FluxMQ as Spark DataFrames, read from a node's segment files, not the
broker.

``register`` adds the source to a session; if the package is installed for Spark's own Python that
is not necessary. ``plan`` shows what a query would read. ``read_metrics`` sums up what one did
read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluxmq_spark.metrics import Metrics
    from fluxmq_spark.planning import Plan

SOURCE_NAME: Final = "fluxmq"
"""Name for ``spark.read.format``."""


def register(spark: SparkSession) -> None:
    """Register ``format("fluxmq")`` with a session, also when the package came with
    ``--py-files``."""
    from fluxmq_spark.source import FluxmqSource

    spark.dataSource.register(FluxmqSource)


def plan(path: str, **options: object) -> Plan:
    """Return the plan of a batch read, without Spark: ``print(plan("/data", queue="orders"))``.

    Options are those of reading, as Python values. Raises SparkSourceError as the query would.
    """
    from fluxmq_spark.options import given_options, read_options
    from fluxmq_spark.planning import make_plan, open_path

    parsed = read_options(given_options(path, options))
    return make_plan(*open_path(parsed), parsed)


def read_metrics(path: str) -> Metrics:
    """Return the sums of the tasks' counts in the directory of option ``metricsPath``."""
    from fluxmq_spark import metrics

    return metrics.read_metrics(path)
