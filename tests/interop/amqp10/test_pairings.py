"""Qpid Proton and rhea, each with each through a queue: the receiver sees the types and values that the sender sent.

The cases are those of Qpid's interoperability tests and more: `tests.interop.amqp10.pairing_cases`, with a table of what a
client cannot express.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest

from tests.interop.amqp10 import pairing_cases
from tests.interop.amqp10.conftest import AmqpBroker
from tests.interop.amqp10.test_rhea import rhea

__all__ = ["rhea"]

HERE = Path(__file__).parent
WITHIN_S = 100
DEFAULTS: dict[str, Any] = {
    "durable": ["boolean", "00"],
    "priority": ["ubyte", "04"],
    "first-acquirer": ["boolean", "00"],
    "delivery-count": ["uint", "00000000"],
    # Proton writes 0 where there is none, if the message has a group.
    "group-sequence": ["uint", "00000000"],
}


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command_of(
    client: str, entry: Path, broker: AmqpBroker, does: str, *arguments: str
) -> list[str]:
    if client == "rhea":
        program = str(HERE / "rhea_pairing.mjs")
        return ["node", program, str(entry), does, broker.host, str(broker.port), *arguments]
    url = f"amqp://guest:guest@{broker.host}:{broker.port}"
    return [sys.executable, str(HERE / "proton_pairing.py"), does, url, *arguments]


def expected_of(case: dict[str, Any], queue: str) -> dict[str, Any]:
    """What the receiver sees of a message: annotations of the broker, and none that are for one transfer."""
    header = {**case.get("header", {}), "first-acquirer": ["boolean", "01"]}
    header.pop("delivery-count", None)
    if "absolute-expiry-time" in case.get("properties", {}):
        header["ttl"] = header.get("ttl")
    annotations = {
        **dict(case.get("annotations", [])),
        "x-exchange": ["string", ""],
        "x-routing-key": ["string", queue],
    }
    return {
        "body": case["body"],
        "header": header,
        "properties": case.get("properties", {}),
        "application": case.get("application", []),
        "annotations": annotations,
        "delivery": [],
        "footer": case.get("footer", []),
    }


def comparable(seen: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """What the receiver saw, without defaults and offsets of a stream, and with the ttl that was sent in the place of what
    plausibly remains of it."""
    header, properties = (
        {field: value for field, value in seen[each].items() if value != DEFAULTS.get(field)}
        for each in ("header", "properties")
    )
    if "ttl" in header and 0 <= whole_ms(sent) - int(header["ttl"][1], 16) < WITHIN_S * 1000:
        header = {**header, "ttl": sent.get("header", {}).get("ttl")}
    annotations = dict(seen["annotations"])
    annotations.pop("x-stream-offset", None)
    named = {"header": header, "properties": properties, "annotations": annotations}
    return {"footer": [], **seen, **named}


def whole_ms(sent: dict[str, Any]) -> int:
    """The life of a message: its ttl, or what its absolute-expiry-time leaves."""
    if "ttl" in sent.get("header", {}):
        return int(sent["header"]["ttl"][1], 16)
    return pairing_cases.LIFE_MS if "absolute-expiry-time" in sent.get("properties", {}) else 0


@pytest.mark.parametrize(
    ("sender", "receiver", "kind"),
    [
        ("proton", "proton", "classic"),
        ("proton", "rhea", "classic"),
        ("rhea", "proton", "classic"),
        ("rhea", "rhea", "classic"),
        ("rhea", "proton", "quorum"),
        ("proton", "rhea", "stream"),
    ],
)
def test_a_message_arrives_with_the_types_and_values_that_were_sent(
    amqp: AmqpBroker,
    rhea: Path,
    name: Callable[[], str],
    tmp_path: Path,
    sender: str,
    receiver: str,
    kind: str,
) -> None:
    queue = name()
    with pika.BlockingConnection(pika.URLParameters(amqp.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    limited = pairing_cases.limited(sender, receiver)
    cases = pairing_cases.every_message() if kind == "classic" else [*pairing_cases.bodies()]
    sent = [case for case in cases if case["name"] not in limited]
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(sent))
    run(command_of(sender, rhea, amqp, "send", queue, str(file)))
    count, start = str(len(sent)), ["first"] if kind == "stream" else []
    output = run(command_of(receiver, rhea, amqp, "receive", queue, count, *start))
    seen = json.loads(output)
    assert len(seen) == len(sent)
    different = [
        f"{case['name']}: {comparable(got, case)!r:.2000} instead of {expected_of(case, queue)!r:.2000}"
        for case, got in zip(sent, seen, strict=True)
        if comparable(got, case) != expected_of(case, queue)
    ]
    assert not different, "\n".join(different)
