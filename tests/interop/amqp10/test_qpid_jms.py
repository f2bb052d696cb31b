"""Qpid JMS, the client of Java programs: queues, browsers, transactions, topics, temporary destinations.

Its jars are fetched with Maven into pytest's cache directory, once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.amqp10.conftest import AmqpBroker, Jars, run_java

PROGRAM = Path(__file__).with_name("JmsExchange.java")
ARTIFACT = ("org.apache.qpid", "qpid-jms-client", "2.7.0")
TEXTS = "text 0, text 1"


@pytest.mark.timeout(400)
def test_a_jms_program_runs(amqp: AmqpBroker, jars: Jars, name: Callable[[], str]) -> None:
    queue = name()
    url = f"amqp://{amqp.host}:{amqp.port}"
    said = run_java(PROGRAM, jars(*ARTIFACT), url, queue)
    assert said["queue"] == f"{TEXTS}, text 2"
    assert said["browser"] == "[text 7, text 8, text 9] of 10"
    assert said["transacted"] == f"{TEXTS}, nothing"
    assert said["topic"] == f"{TEXTS}; text 1"
    assert said["temporary"] == "answer true; text 0, text 0"
    gathered = "text 0 and text 1"
    absent = "InvalidDestinationException"
    assert said["subscriptions"] == f"text 0, text 0, text 0, {gathered}, {gathered}, {absent}"
    assert "a filter of messages on queue" in said["refused"]
