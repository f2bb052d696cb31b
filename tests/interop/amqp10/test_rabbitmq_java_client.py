"""RabbitMQ's AMQP 1.0 client for Java: management, confirms, consumers, streams, requests and replies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.amqp10.conftest import AmqpBroker, Jars, run_java

PROGRAM = Path(__file__).with_name("RabbitMqExchange.java")
ARTIFACT = ("com.rabbitmq.client", "amqp-client", "1.0.0")


@pytest.mark.timeout(400)
def test_a_program_with_rabbitmqs_client_runs(
    amqp: AmqpBroker, jars: Jars, name: Callable[[], str]
) -> None:
    url = f"amqp://guest:guest@{amqp.host}:{amqp.port}/%2f"
    said = run_java(PROGRAM, jars(*ARTIFACT), url, name())
    assert said["declared"] == "QUORUM true 0"
    assert said["published"] == "200 1 200"
    assert said["settled"] == "200 0"
    assert said["stream"] == "0=0, 150=150"
    assert said["answered"] == "answer to question"
    absent = "AmqpEntityDoesNotExistException"
    assert said["refused"] == f"{absent} {absent} {absent} AmqpException AmqpException"
