# Types of ``batch_delivery``, for the checker: the source's annotations are C types.

from fluxmq.model.batch_format import Batch
from fluxmq.protocols.mqtt.run import Run

class OffsetProperties:
    queue: bytes

    def __init__(self, queue: bytes) -> None: ...
    def encode(self, offset: int) -> bytes: ...

def delivery_runs(
    batch: Batch,
    first: int,
    count: int,
    version: int,
    topic: bytes,
    properties: bytes,
    offsets: OffsetProperties | None = None,
    qos: int = 1,
    expiry_seconds: int = 0,
) -> list[Run]: ...
