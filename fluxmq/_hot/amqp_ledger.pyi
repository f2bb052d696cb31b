# Types of ``amqp_ledger``, for the checker: the source's annotations are C types.

from collections.abc import Callable
from typing import Any, Final

from fluxmq._hot.amqp_confirms import Confirmation, ConfirmWindow

__all__ = ["RANGE_MAX", "SWEEP_MIN", "ChannelLedger", "ConfirmWindow", "Confirmation"]

RANGE_MAX: Final = 4096
SWEEP_MIN: Final = 64

class ChannelLedger:
    channel: int
    mark: Callable[[], object] | None
    direct: bool
    publishing: bool
    unsettled: int
    next_tag: int

    def __init__(self, channel: int, mark: Callable[[], object] | None = None) -> None: ...
    def given(self, consumer: object, count: int, first_offset: int) -> int: ...
    def acknowledge(self, tag: int, multiple: bool) -> bool: ...
    def settle(self, tag: int, multiple: bool) -> list[tuple[Any, int, int]] | None: ...
    def take_acknowledged(self) -> list[tuple[Any, int, int]]: ...
    def outstanding(self, consumer: object = None) -> int: ...
    def forget(self, consumer: object) -> list[tuple[Any, int, int]]: ...
    def all(self) -> list[tuple[Any, int, int]]: ...
