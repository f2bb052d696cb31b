"""FluxMQ: a multi-protocol message broker, one shard process per core."""

from fluxmq import source_only

__version__ = "0.1.0"

if source_only.PURE:
    source_only.install()
