"""A member of the control's replicated log: stock pysyncobj, told what to do by lines on standard input.

``python -m tests.chaos.control_member NUMBER MEMBERS PORT JOURNAL``. Lines in: ``append N``, ``state``, ``dump``. Lines
out: ``done N INDEX``, ``failed N``, ``state LEADER``, ``dump N N ...`` in the order of the log. Members know each other as
``n1``, ``n2``, ...; those names lead to the proxies between them: what member 1 calls ``n2`` is 127.1.1.2.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated

COMMAND_BYTES = 8_000
"""Of random filler in each, which no compression makes smaller."""
BATCH_BYTES = 10_000
"""One command to a message, as commands of 60 kB are to the library's own 64 KiB."""


class ReplicatedLog(SyncObj):  # type: ignore[misc]
    """The smallest state machine there is: it remembers what it was given."""

    def __init__(self, me: str, others: Sequence[str], settings: SyncObjConf) -> None:
        self.content: list[int] = []
        super().__init__(me, others, conf=settings)

    @replicated  # type: ignore[untyped-decorator]
    def append(self, command: int, filler: bytes) -> int:
        """Called by the library for each committed command."""
        self.content.append(command)
        return len(self.content) - 1


def through_proxies(number: int) -> None:
    """Make the members' names lead to the proxies on the way from this one."""
    plain = socket.getaddrinfo

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(host, str) and host[:1] == "n" and host[1:].isdigit():
            host = f"127.1.{number}.{host[1:]}"
        return plain(host, *rest, **more)

    socket.getaddrinfo = resolve


def main(arguments: Sequence[str]) -> int:
    """Run until standard input ends."""
    number, members, port = (int(word) for word in arguments[:3])
    logging.disable(logging.CRITICAL)
    through_proxies(number)
    settings = SyncObjConf(
        appendEntriesUseBatch=False,
        appendEntriesBatchSizeBytes=BATCH_BYTES,
        journalFile=arguments[3],
        bindAddress=f"127.0.0.1:{port + number}",
        connectionRetryTime=0.1,
        raftMinTimeout=0.4,
        raftMaxTimeout=1.0,
        autoTickPeriod=0.005,
        commandsWaitLeader=False,
    )
    names = {each: f"n{each}:{port + each}" for each in range(1, members + 1)}
    log = ReplicatedLog(names.pop(number), list(names.values()), settings)
    lock = threading.Lock()

    def say(*words: object) -> None:
        with lock:
            print(*words, flush=True)

    def append(command: int) -> None:
        def answered(index: int | None, failure: int) -> None:
            if failure == FAIL_REASON.SUCCESS:
                say("done", command, index)
            else:
                say("failed", command)

        log.append(command, os.urandom(COMMAND_BYTES), callback=answered)

    for line in sys.stdin:
        word, *rest = line.split()
        if word == "append":
            append(int(rest[0]))
        elif word == "state":
            say("state", int(log._isLeader()))
        elif word == "dump":
            say("dump", *list(log.content))
    log.destroy()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
