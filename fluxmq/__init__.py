"""FluxMQ: a multi-protocol message broker, one shard process per core."""

import os

__version__ = "0.1.0"

if os.environ.get("FLUXMQ_PURE", "") == "1":
    from fluxmq import source_only

    source_only.install()
