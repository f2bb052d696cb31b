"""Ending what a process has open, side by side and within a time: what does not end must not keep the process.

Streams to other nodes end when those say goodbye, requests when whoever is asked answers. Nothing that has to be on disk waits for
them, and the supervisor kills a process that stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from fluxmq.logs import get_logger

END_SECONDS_MAX: Final = 3.0
"""For requests to be answered (1.5 s), leadership to be handed over (1 s) and streams to end: less than the supervisor's five."""

_log = get_logger(__name__)


async def end(steps: Mapping[str, Coroutine[Any, Any, None]], seconds: float) -> bool:
    """Do these together; whether all were done within so many seconds. What was not is left as it is, and said with where
    it waits; so is what failed."""
    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(step): what for what, step in steps.items()}
    if not tasks:
        return True
    done, left = await asyncio.wait(tasks, timeout=seconds)
    for task in done:
        if problem := task.exception():
            _log.error("%s did not end in order", tasks[task], exc_info=problem)
    for task in left:
        _log.error("%s did not end in time: it waits in %s", tasks[task], _where(task))
    return not left


def _where(task: asyncio.Task[None]) -> str:
    """The functions that a task waits in, the innermost last."""
    names = []
    awaited: Any = task.get_coro()
    while awaited is not None and hasattr(awaited, "cr_await"):
        names.append(awaited.__qualname__)
        awaited = awaited.cr_await
    return " > ".join(names)
