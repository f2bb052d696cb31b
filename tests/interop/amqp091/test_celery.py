"""A Celery worker: results, retries, ETA, chains, control commands, on classic and quorum queues."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import celery
import pika  # type: ignore[import-untyped]
import pytest
from celery import chain, group
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue

from tests.broker import REPOSITORY
from tests.interop.amqp091.conftest import AmqpBroker

DEADLINE_S = 30.0
LATER_S = 10.0
"""How late tasks for later are: an ordinary one that waits for them is noticed on a slow machine as well."""
PREFETCH_MULTIPLIER = 4
"""Messages that a worker takes in advance for each of its threads."""
MODULE = "tests.interop.amqp091.celery_tasks"


@dataclass
class Application:
    """A worker and the tasks as a client calls them."""

    app: Any
    kind: str
    log: Path

    def task(self, name: str, *arguments: Any, **options: Any) -> Any:
        """``send_task``, as a program without the tasks' code calls them."""
        return self.app.send_task(f"{MODULE}.{name}", arguments, **options)

    def signature(self, name: str, *arguments: Any) -> Any:
        """A signature of a task."""
        return self.app.signature(f"{MODULE}.{name}", arguments)

    def workers(self) -> Any:
        """The answers of all workers to a ping."""
        return self.app.control.ping(timeout=1.0)


def queue_of(kind: str) -> str:
    """The default queue of this run's tasks."""
    return f"celery-{kind}-{os.getpid()}"


_clients: list[Any] = []
"""Kept for as long as the tests run: Celery names a program's reply queue after the address of its application, which the
next one would otherwise get."""


@contextmanager
def new_client(amqp: AmqpBroker, kind: str) -> Iterator[Any]:
    """A program that calls tasks."""
    queue = queue_of(kind)
    exchange = "topic" if kind == "quorum" else "direct"
    client = celery.Celery("client", broker=amqp.url, backend="rpc://", set_as_current=False)
    _clients.append(client)
    client.conf.update(
        task_default_queue=queue,
        task_default_exchange=queue,
        task_default_exchange_type=exchange,
        task_default_routing_key=queue,
        task_create_missing_queue_type="quorum" if kind == "quorum" else "classic",
        broker_transport_options={"confirm_publish": True},
        result_expires=60,
    )
    arguments = {"x-queue-type": "quorum"} if kind == "quorum" else None
    client.conf.task_queues = [
        Queue(queue, Exchange(queue, exchange), routing_key=queue, queue_arguments=arguments)
    ]
    yield client
    client.close()


@contextmanager
def running_worker(amqp: AmqpBroker, kind: str, *options: str) -> Iterator[Application]:
    """A worker on queues of this kind, and a program that calls its tasks."""
    environment = {"CELERY_URL": amqp.url, "CELERY_QUEUE": queue_of(kind)}
    environment |= {"CELERY_QUEUE_TYPE": kind, "CELERY_MULTIPLIER": str(PREFETCH_MULTIPLIER)}
    command = [sys.executable, "-m", "celery", "-A", MODULE, "worker", "--pool=threads"]
    command += ["--loglevel=INFO", f"--hostname=interop-{kind}@%h", *options]
    with (
        tempfile.TemporaryDirectory() as made,
        new_client(amqp, kind) as client,
    ):
        log = Path(made) / f"{kind}.log"
        with log.open("wb") as output:
            worker = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=REPOSITORY,
                stdout=output,
                stderr=output,
            )
        found = Application(client, kind, log)
        try:
            end = time.monotonic() + DEADLINE_S
            while not any(kind in host for answer in found.workers() for host in answer):
                assert worker.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
            yield found
        finally:
            worker.terminate()
            worker.wait(DEADLINE_S)
            print(log.read_text())


@pytest.fixture(scope="module", params=["classic", "quorum"])
def application(amqp: AmqpBroker, request: pytest.FixtureRequest) -> Iterator[Application]:
    """A worker on queues of this kind, running."""
    with running_worker(amqp, str(request.param), "--concurrency=4") as found:
        yield found


def test_a_result(application: Application) -> None:
    assert application.task("add", 4, 4).get(timeout=DEADLINE_S) == 8


def test_many_results(application: Application) -> None:
    results = [application.task("add", number, 1) for number in range(50)]
    assert [each.get(timeout=DEADLINE_S) for each in results] == list(range(1, 51))


class TransientQueue(Queue):
    """A reply queue as earlier versions of Celery declare it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "durable": False})


@pytest.mark.parametrize("others", range(2))
@pytest.mark.parametrize("replies", [Queue, TransientQueue], ids=["durable", "transient"])
def test_results_of_a_program_that_begins_now(
    amqp: AmqpBroker, application: Application, replies: Any, others: int
) -> None:
    """F1: it declares its reply queue on the connection that publishes and on the one that consumes.

    Each goes to another shard, or both to one, as connections are spread: ``others`` are there before.
    """
    before = [pika.BlockingConnection(pika.URLParameters(amqp.url)) for _ in range(others)]
    with new_client(amqp, application.kind) as client:
        client.backend.Queue = replies
        for number in range(3):
            asked = client.send_task(f"{MODULE}.add", (number, 1))
            assert asked.get(timeout=DEADLINE_S) == number + 1
    for connection in before:
        connection.close()


def test_tasks_for_later_do_not_hold_up_others(amqp: AmqpBroker) -> None:
    """F2: a worker takes more messages than its prefetch allows while it keeps some for later.

    It does so by raising a limit that counts all consumers of its channel, which it asks for if the broker is RabbitMQ.
    """
    with running_worker(amqp, "later", "--concurrency=1") as worker:
        held = [worker.task("when", countdown=LATER_S) for _ in range(4 * PREFETCH_MULTIPLIER)]
        began = time.time()
        ran = worker.task("when").get(timeout=DEADLINE_S)
        assert ran - began < LATER_S / 2
        times = [each.get(timeout=DEADLINE_S) for each in held]
        assert min(times) > ran


def test_an_error_is_told(application: Application) -> None:
    with pytest.raises(ValueError, match="as asked"):
        application.task("failing").get(timeout=DEADLINE_S)


def test_retries(application: Application) -> None:
    assert application.task("flaky", 2).get(timeout=DEADLINE_S) == 2


def test_too_many_retries(application: Application) -> None:
    with pytest.raises(RuntimeError, match="not yet"):
        application.task("flaky", 9).get(timeout=DEADLINE_S)


def test_eta_and_countdown(application: Application) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=2)  # noqa: TID251 - what Celery asks for
    later = application.task("when", eta=eta)
    soon = application.task("when", countdown=1)
    now = application.task("when")
    ran = {
        name: each.get(timeout=DEADLINE_S)
        for name, each in (("now", now), ("soon", soon), ("eta", later))
    }
    assert ran["now"] < ran["soon"] < ran["eta"]
    assert ran["eta"] >= eta.timestamp() - 0.05


def test_chains_and_groups(application: Application) -> None:
    chained = chain(application.signature("add", 1, 1), application.signature("add", 10))
    assert chained.apply_async().get(timeout=DEADLINE_S) == 12
    members = [application.signature("add", number, number) for number in range(5)]
    grouped = group(members, app=application.app)
    assert grouped.apply_async().get(timeout=DEADLINE_S) == [0, 2, 4, 6, 8]


def test_expired_tasks_do_not_run(application: Application) -> None:
    gone = application.task("add", 1, 1, countdown=1.5, expires=0.5)
    with pytest.raises(TaskRevokedError):
        gone.get(timeout=DEADLINE_S)


def test_workers_answer_commands(application: Application) -> None:
    inspect = application.app.control.inspect(timeout=2.0)
    [registered] = [
        tasks for host, tasks in inspect.registered().items() if application.kind in host
    ]
    assert f"{MODULE}.add" in registered
    [queues] = [each for host, each in inspect.active_queues().items() if application.kind in host]
    assert application.app.conf.task_default_queue in [queue["name"] for queue in queues]


def test_a_revoked_task_does_not_run(application: Application) -> None:
    later = application.task("add", 1, 1, countdown=2)
    later.revoke()
    with pytest.raises(TaskRevokedError):
        later.get(timeout=DEADLINE_S)
