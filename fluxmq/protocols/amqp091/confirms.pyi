# Types of ``amqp_confirms``, for the checker: the source's annotations are C types.

from collections.abc import Callable
from typing import Final

REFUSED_MIN: Final = 0x80
ACK: Final = 80
NACK: Final = 120

class ConfirmWindow:
    next: int
    unanswered: int

    def __init__(self) -> None: ...
    def publish(self, count: int) -> int: ...
    def done(self, first: int, count: int, ok: bool) -> int: ...
    def answers(self, channel: int) -> bytes: ...

class Confirmation:
    window: ConfirmWindow
    first: int
    count: int
    mark: Callable[[], object] | None
    waiting: int
    reason: int

    def __init__(
        self,
        window: ConfirmWindow,
        first: int,
        count: int,
        mark: Callable[[], object] | None = None,
    ) -> None: ...
    def hold(self) -> Confirmation: ...
    def done(self, reason: int = 0) -> int: ...
