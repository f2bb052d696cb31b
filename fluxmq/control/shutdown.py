"""Shutdown steps run concurrently and within a time limit: one that hangs must not keep the
process.

Streams end when the peers say goodbye, requests when they are answered. Nothing that must reach the
disk depends on them, and the supervisor kills a process that stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from fluxmq.logs import get_logger

END_SECONDS_MAX: Final = 3.0
"""Time for requests to be answered (1.5 s), leadership to be transferred (1 s) and streams to end:
less than the supervisor's five."""

_log = get_logger(__name__)


async def end(steps: Mapping[str, Coroutine[Any, Any, None]], seconds: float) -> bool:
    """Run the steps concurrently; return whether all ended within ``seconds``. Unfinished ones are
    abandoned and logged with where they wait; failures are logged."""
    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(step): what for what, step in steps.items()}
    if not tasks:
        return True
    done, left = await asyncio.wait(tasks, timeout=seconds)
    for task in done:
        if problem := task.exception():
            _log.error("%s did not stop cleanly", tasks[task], exc_info=problem)
    for task in left:
        _log.error("%s did not stop in time; it is waiting in %s", tasks[task], _where(task))
    return not left


def _where(task: asyncio.Task[None]) -> str:
    """Return the functions that a task waits in, innermost last."""
    names = []
    awaited: Any = task.get_coro()
    while awaited is not None and hasattr(awaited, "cr_await"):
        names.append(awaited.__qualname__)
        awaited = awaited.cr_await
    return " > ".join(names)
