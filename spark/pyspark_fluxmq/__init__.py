"""What makes ``spark.read.format("fluxmq")`` work without a call: Spark imports modules named ``pyspark_*`` by itself."""

from fluxmq_spark.source import FluxmqSource


class DefaultSource(FluxmqSource):
    """The source, under the name that Spark looks for."""
