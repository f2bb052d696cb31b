# Types of ``batches``, for the checker: the source's annotations are C types.

from fluxmq.protocols.mqtt.run import Run

def build_batches(
    run: Run,
    key: bytes,
    properties: bytes,
    now_us: int,
    expiry_us: int = 0,
    delay_us: int = 0,
    attributes: int = 0,
) -> list[bytes]: ...
