"""Registers Spark's data source ``fluxmq``: Spark imports modules named ``pyspark_*`` by itself, so
that ``spark.read.format("fluxmq")`` works without a call."""

from fluxmq_spark.source import FluxmqSource


class DefaultSource(FluxmqSource):
    """The source, under the name that Spark looks for."""
