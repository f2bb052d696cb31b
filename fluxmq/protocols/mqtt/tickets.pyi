# Types of ``tickets``, for the checker: the source's annotations are C types.

from typing import Any, Final

from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.run import Run

PAUSED_ANSWERS: Final = 8
TICKETS_MAX: Final = 1024

class Ticket:
    reactor: Any
    connection: Connection | None
    answers: bytes
    waiting: int
    notify: object
    reason: int

    def __init__(self, reactor: Any) -> None: ...
    def hold(self) -> Ticket: ...
    def done(self, reason: int = 0) -> int: ...
    def answer(self, connection: Connection, answers: bytes) -> int: ...

def respond(connection: Connection, run: Run, ticket: Ticket | None, reactor: Any) -> int: ...
def release(connection: Connection, reactor: Any) -> int: ...
def abandon(connection: Connection) -> int: ...
