"""A Celery worker: results, retries, ETA, chains, control commands, on classic and quorum queues."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import celery
import pytest
from celery import chain, group
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue

from tests.broker import REPOSITORY
from tests.interop.amqp091.conftest import AmqpBroker

DEADLINE_S = 30.0
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


@pytest.fixture(scope="module", params=["classic", "quorum"])
def application(
    amqp: AmqpBroker, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    """A worker on queues of this kind, running."""
    kind = str(request.param)
    queue = f"celery-{kind}-{os.getpid()}"
    environment = {"CELERY_URL": amqp.url, "CELERY_QUEUE": queue, "CELERY_QUEUE_TYPE": kind}
    log = tmp_path_factory.mktemp("celery") / f"{kind}.log"
    command = [sys.executable, "-m", "celery", "-A", MODULE, "worker", "--pool=threads"]
    command += ["--concurrency=4", "--loglevel=INFO", f"--hostname=interop-{kind}@%h"]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=REPOSITORY, stdout=output, stderr=output
        )
    exchange = "topic" if kind == "quorum" else "direct"
    client = celery.Celery("client", broker=amqp.url, backend="rpc://", set_as_current=False)
    client.conf.update(
        task_default_queue=queue,
        task_default_exchange=queue,
        task_default_exchange_type=exchange,
        task_default_routing_key=queue,
        task_create_missing_queue_type=kind,
        broker_transport_options={"confirm_publish": True},
        result_expires=60,
    )
    arguments = {"x-queue-type": "quorum"} if kind == "quorum" else None
    client.conf.task_queues = [
        Queue(queue, Exchange(queue, exchange), routing_key=queue, queue_arguments=arguments)
    ]
    found = Application(client, kind, log)
    try:
        end = time.monotonic() + DEADLINE_S
        while not found.workers():
            assert worker.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
        yield found
    finally:
        worker.terminate()
        worker.wait(DEADLINE_S)
        client.close()
        print(log.read_text())


def test_a_result(application: Application) -> None:
    assert application.task("add", 4, 4).get(timeout=DEADLINE_S) == 8


def test_many_results(application: Application) -> None:
    results = [application.task("add", number, 1) for number in range(50)]
    assert [each.get(timeout=DEADLINE_S) for each in results] == list(range(1, 51))


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
