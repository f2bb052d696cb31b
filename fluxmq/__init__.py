"""FluxMQ: a multi-protocol message broker, one shard process per core."""

__version__ = "0.1.0"
