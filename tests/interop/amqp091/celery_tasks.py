"""A Celery application as its documentation begins one; the worker of the tests runs it by its name.

Environment: CELERY_URL, CELERY_QUEUE (the default queue, of this run alone), CELERY_QUEUE_TYPE (quorum, or anything else for classic),
CELERY_MULTIPLIER (messages taken in advance for each thread).
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

QUORUM = os.environ.get("CELERY_QUEUE_TYPE") == "quorum"
QUEUE = os.environ.get("CELERY_QUEUE", "celery")
EXCHANGE_TYPE = "topic" if QUORUM else "direct"

app = Celery("interop", broker=os.environ.get("CELERY_URL", ""), backend="rpc://")
app.conf.update(
    task_queues=[
        Queue(
            QUEUE,
            Exchange(QUEUE, EXCHANGE_TYPE),
            routing_key=QUEUE,
            queue_arguments={"x-queue-type": "quorum"} if QUORUM else None,
        )
    ],
    task_default_queue=QUEUE,
    task_default_exchange=QUEUE,
    task_default_exchange_type=EXCHANGE_TYPE,
    task_default_routing_key=QUEUE,
    task_acks_late=True,
    task_track_started=True,
    worker_prefetch_multiplier=int(os.environ.get("CELERY_MULTIPLIER", "4")),
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    result_expires=60,
)


@app.task  # type: ignore[untyped-decorator]
def add(x: int, y: int) -> int:
    """The first task of everybody."""
    return x + y


@app.task(bind=True, max_retries=3, default_retry_delay=1)  # type: ignore[untyped-decorator]
def flaky(self: Any, failures: int) -> int:
    """Fails so many times, then says at which attempt it did not."""
    if self.request.retries < failures:
        raise self.retry(exc=RuntimeError("not yet"))
    return int(self.request.retries)


@app.task  # type: ignore[untyped-decorator]
def failing() -> None:
    """Never succeeds."""
    raise ValueError("as asked")


@app.task  # type: ignore[untyped-decorator]
def when() -> float:
    """The time at which it ran."""
    return time.time()
