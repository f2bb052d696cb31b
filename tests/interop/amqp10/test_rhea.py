"""rhea, the client of programs for Node.js: bodies, outcomes, credit, requests, and messages from and for Qpid Proton."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from proton import Message
from proton.utils import BlockingConnection

from tests.interop.amqp10.conftest import AmqpBroker
from tests.interop.npm import installed

PROGRAM = Path(__file__).with_name("rhea_exchange.mjs")
PACKAGE = "rhea@3.0.5"
OF_PROTON: list[Any] = ["text", 5, {"a": [1, 2]}, ["list", True]]


@pytest.fixture(scope="session")
def rhea(pytestconfig: pytest.Config) -> Path:
    """The installed package's entry file."""
    return installed(pytestconfig, PACKAGE, "lib/container.js")


def test_a_program_runs(amqp: AmqpBroker, rhea: Path, name: Callable[[], str]) -> None:
    queue = name()
    with pika.BlockingConnection(pika.URLParameters(amqp.url)) as connection:
        channel = connection.channel()
        for suffix in ("-dead", "-from-proton", "-to-proton"):
            channel.queue_declare(queue + suffix, durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{queue}-dead"}
        channel.queue_declare(queue, durable=True, arguments=dead)
    url = f"amqp://guest:guest@{amqp.host}:{amqp.port}"
    proton = BlockingConnection(url, allowed_mechs="PLAIN", allow_insecure_mechs=True)
    sender = proton.create_sender(f"/queues/{queue}-from-proton")
    for body in OF_PROTON:
        sender.send(Message(body))

    done = subprocess.run(
        ["node", str(PROGRAM), str(rhea), amqp.host, str(amqp.port), queue],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["bodies"] == {
        name: ["accepted", True, body]
        for name, body in {
            "text": "text",
            "large": 300_000,
            "list": ["a", 1, True, None],
            "map": {"a": 1, "b": [2, 3]},
            "ulong": 7,
            "long": -7,
            "double": 1.5,
            "symbol": "s",
            "timestamp": 1_700_000_000_000,
            "array": [1, 2, 3],
            "binary": [0, 255],
            "sequence": [1, "two"],
        }.items()
    }
    assert seen["counts"] == [0, 1, 2]
    assert seen["dead"] == ["again", "rejected"]
    assert seen["drained"] == 0
    assert (seen["replied"], seen["answer"]) == ("accepted", ["answer", "c1"])
    assert seen["refused"] == "amqp:not-found"
    assert seen["fromProton"] == OF_PROTON

    receiver = proton.create_receiver(f"/queues/{queue}-to-proton", credit=10)
    messages = [receiver.receive(timeout=10) for _ in range(6)]
    expected = ["text", ["a", 1, True, None], {"a": 1, "b": [2, 3]}, 7, -7, 1.5]
    assert [each.body for each in messages] == expected
    assert {each.id for each in messages} == {5}
    proton.close()
