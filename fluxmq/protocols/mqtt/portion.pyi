# Types of ``portion``, for the checker: the source's annotations are C types.

from typing import Any, Final

from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.delivery import Delivery
from fluxmq.protocols.mqtt.run import Run

GROWTH_MAX: Final = 16
CLOCK_SLACK: Final = 0.02
EXPIRY_MAX: Final = 0xFFFFFFFF

class Target:
    delivery: Delivery
    qos: int
    no_local: bool
    keep_retain: bool
    own: Target | None
    subscription_ids: bytes

    def __init__(
        self,
        delivery: Delivery,
        qos: int,
        no_local: bool = False,
        keep_retain: bool = False,
        subscription_ids: bytes = b"",
    ) -> None: ...

class Portion:
    run: Run
    offset: int
    count: int
    qos: int
    retain: int
    subscription_ids: bytes
    group: Any
    pid: int
    acknowledged: int
    settle: Any
    base: int
    reported: int
    held: int
    queued: bool

    def __init__(
        self,
        run: Run,
        offset: int,
        count: int,
        qos: int,
        retain: int,
        subscription_ids: bytes,
        group: Any,
    ) -> None: ...
    def take(self, count: int) -> Portion: ...
    def forget_fit(self) -> int: ...

def fitting(portion: Portion, connection: Connection) -> list[Portion]: ...
def unanswered(portion: Portion, early: set[int] | None) -> list[Portion]: ...
def write_portion(connection: Connection, portion: Portion, pid: int, again: bool) -> int: ...
