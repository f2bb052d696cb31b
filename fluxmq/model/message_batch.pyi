# Types of ``message_batch``, for the checker: the source's annotations are C types.

def build_message(
    key: bytes,
    properties: bytes,
    payload: bytes,
    now_us: int,
    expiry_us: int = 0,
    delay_us: int = 0,
    attributes: int = 0,
    producer: int = 0,
    sequence: int = 0,
) -> bytes: ...
