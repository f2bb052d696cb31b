"""Qpid Proton, rhea and JMS, each with each through a queue: the receiver sees the types and values that the sender sent.

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
from tests.interop.amqp10.conftest import AmqpBroker, Jars, run_java
from tests.interop.amqp10.test_qpid_jms import ARTIFACT
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
    """Return the message as the receiver sees it: with annotations of the broker, and none that are for one transfer."""
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
    """Return what the receiver saw, without defaults and offsets of a stream, and with the ttl that was sent in the place of what
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
    """Return the life of a message: its ttl, or what its absolute-expiry-time leaves."""
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


JMS_FIELDS = {
    "header": ("priority",),
    "properties": ("subject", "correlation-id", "group-id", "group-sequence"),
}


def as_jms(given: dict[str, Any]) -> dict[str, Any]:
    """Return those parts of a message that JMS shows, without JMS' own; entries of a map, and properties, have no order there."""
    kind, content = given["body"]
    if content[0] == "map":
        content = ["map", sorted(content[1])]
    fields = {
        section: {name: given.get(section, {}).get(name, DEFAULTS.get(name)) for name in names}
        for section, names in JMS_FIELDS.items()
    }
    return {"body": [kind, content], "application": sorted(given.get("application", [])), **fields}


@pytest.mark.timeout(400)
def test_messages_of_jms_have_the_same_types_and_values_for_the_others(
    amqp: AmqpBroker, rhea: Path, jars: Jars, name: Callable[[], str], tmp_path: Path
) -> None:
    queue, sent = name(), pairing_cases.jms_messages()
    file, count = tmp_path / "messages.json", str(len(sent))
    file.write_text(json.dumps(sent))
    senders = {f"{queue}-of-{client}": client for client in ("proton", "rhea")}
    receivers = {f"{queue}-for-{client}": client for client in ("proton", "rhea", "jms")}
    with pika.BlockingConnection(pika.URLParameters(amqp.url)) as connection:
        channel = connection.channel()
        for each in (*senders, *receivers):
            channel.queue_declare(each, durable=True)
    for each, client in senders.items():
        run(command_of(client, rhea, amqp, "send", each, str(file)))
    url = f"amqp://{amqp.host}:{amqp.port}"
    read = ",".join((*senders, f"{queue}-for-jms"))
    lines = run_java(
        HERE / "JmsPairing.java", jars(*ARTIFACT), url, ",".join(receivers), read, count
    )
    seen = {each: json.loads(line) for each, line in lines.items()}
    for each, client in receivers.items():
        if client != "jms":
            seen[each] = json.loads(run(command_of(client, rhea, amqp, "receive", each, count)))
    different = [
        f"{each}, {case['name']}: {as_jms(got)!r:.2000} instead of {as_jms(case)!r:.2000}"
        for each, messages in seen.items()
        for case, got in zip(sent, messages, strict=True)
        if as_jms(got) != as_jms(case)
    ]
    assert not different, "\n".join(different)
