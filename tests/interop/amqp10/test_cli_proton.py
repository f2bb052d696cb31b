"""cli-proton-python, Qpid's command-line clients: sender, receiver and connector.

It has faults of its own, which show with any broker:

* A sender without content sends a message without a body, which the standard forbids and the broker rejects.
* A sender whose message is released, because no queue was reached, waits for ever.
* A receiver in a transaction accepts each message once more outside of it, unless ``--action`` is ``noack``; and it asks for
  as many messages as ``--count`` says at once, so that those beyond ``--tx-size`` come in no transaction.
* ``--process-reply-to`` fails with Proton 0.40 if the broker offers capabilities (``SymbolList`` has no ``elements``).
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest

from tests.interop.amqp10.conftest import AmqpBroker

WITHIN_S = 60


class Programs:
    """The three commands, for one broker."""

    def __init__(self, broker: AmqpBroker) -> None:
        self._address = f"{broker.host}:{broker.port}"

    def run(
        self, what: str, queue: str, *options: str, password: str = "guest"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, whose name is cli-proton-python- and ``what``."""
        path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
        program = shutil.which(f"cli-proton-python-{what}", path=path)
        if program is None:
            pytest.skip("cli-proton-python is not installed")
        # One slash ends the address, the other begins the node's name.
        url = f"guest:{password}@{self._address}//queues/{queue}"
        return subprocess.run(
            [program, "--broker-url", url, *options],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    def lines(self, what: str, queue: str, *options: str) -> list[str]:
        """Return the lines that a command prints which succeeds."""
        done = self.run(what, queue, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def send(self, queue: str, *options: str) -> list[dict[str, Any]]:
        """Return the messages that a sender has sent."""
        return [
            json.loads(line) for line in self.lines("sender", queue, "--log-msgs", "json", *options)
        ]

    def receive(self, queue: str, *options: str, count: int = 0) -> list[dict[str, Any]]:
        """Return the messages that a receiver gets, all that there are if `count` is 0."""
        shown = ("--log-msgs", "json", "--count", str(count))
        return [json.loads(line) for line in self.lines("receiver", queue, *shown, *options)]

    def contents(self, queue: str, *options: str, count: int = 0) -> list[Any]:
        """Return the contents of what a receiver gets."""
        return [each["content"] for each in self.receive(queue, *options, count=count)]


@pytest.fixture
def programs(amqp: AmqpBroker) -> Programs:
    """The commands."""
    return Programs(amqp)


@pytest.fixture
def queue(amqp: AmqpBroker, name: Callable[[], str]) -> str:
    """A durable queue with two priorities."""
    made = name()
    with pika.BlockingConnection(pika.URLParameters(amqp.url)) as connection:
        arguments = {"x-max-priority": 9}
        connection.channel().queue_declare(made, durable=True, arguments=arguments)
    return made


def test_messages_are_received_as_the_sender_shows_them(programs: Programs, queue: str) -> None:
    options = (
        "--count 3 --msg-content number-%d --msg-id id-1 --msg-subject subject --msg-reply-to /queues/r --msg-durable yes"
        " --msg-ttl 600000 --msg-priority 7 --msg-correlation-id c-1 --msg-user-id guest --msg-group-id g --msg-group-seq 5"
        " --msg-address /queues/a --msg-content-type text/x --msg-property text=a --msg-property number~5"
        " --msg-property part~1.5 --msg-property flag~true"
    )
    sent = programs.send(queue, *options.split())
    assert [each["content"] for each in sent] == ["number-0", "number-1", "number-2"]
    assert sent[0]["properties"] == {"text": "a", "number": 5, "part": 1.5, "flag": True}
    assert (sent[0]["durable"], sent[0]["priority"], sent[0]["ttl"]) == (True, 7, 600_000)
    browsed = programs.receive(queue, "--recv-browse", count=3)
    assert [each["content"] for each in browsed] == ["number-0", "number-1", "number-2"]
    received = [*programs.receive(queue, count=2), *programs.receive(queue)]
    assert len(received) == 3
    assert received[0]["first-acquirer"]
    for was, got in zip(sent, received, strict=True):
        assert 600_000 - WITHIN_S * 1000 < got["ttl"] <= 600_000
        # The first receiver has had the third message as well, and gave it back.
        changes = {field: got[field] for field in ("first-acquirer", "delivery-count", "ttl")}
        assert got == {**was, **changes}


@pytest.mark.parametrize(
    ("options", "content"),
    [
        (("--msg-content", "ä €"), "ä €"),
        (("--msg-content", "-5", "--content-type", "int"), -5),
        (("--msg-content", "1.5", "--content-type", "float"), 1.5),
        (("-L", "~1", "-L", "two", "-L", "~true", "-L", "~2.5"), [1, "two", True, 2.5]),
        (("-M", "one~1", "-M", "two=2", "-M", "no~false"), {"one": 1, "two": "2", "no": False}),
    ],
    ids=["text", "int", "float", "list", "map"],
)
def test_contents(programs: Programs, queue: str, options: tuple[str, ...], content: Any) -> None:
    programs.send(queue, *options)
    assert programs.contents(queue, count=1) == [content]


def test_a_large_content_from_a_file_and_the_annotations_of_a_dict(
    programs: Programs, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "content"
    file.write_text("0123456789abcdef" * 65_536)
    programs.send(queue, "--msg-content-from-file", str(file))
    (line,) = programs.lines("receiver", queue, "--count", "1", "--log-msgs", "dict")
    seen = ast.literal_eval(line)
    assert seen["content"] == file.read_text()
    assert seen["annotations"] == {"x-exchange": "", "x-routing-key": queue}
    assert seen["delivery_count"] == 0


def test_the_higher_priority_comes_first(programs: Programs, queue: str) -> None:
    for priority in ("1", "8", "5"):
        programs.send(queue, "--msg-content", priority, "--msg-priority", priority)
    assert programs.contents(queue, count=3) == ["8", "5", "1"]


def test_a_browser_has_a_selector_and_a_consumer_of_a_queue_none(
    programs: Programs, queue: str
) -> None:
    for colour, number in (("red", 1), ("blue", 2), ("red", 3)):
        told = ("--msg-property", f"colour={colour}", "--msg-property", f"number~{number}")
        programs.send(queue, "--msg-content", f"{colour} {number}", *told)
    red, late = "colour = 'red'", "colour = 'red' AND number > 1"
    assert programs.contents(queue, "--recv-browse", "--recv-selector", red) == ["red 1", "red 3"]
    assert programs.contents(queue, "--recv-browse", "--recv-selector", late) == ["red 3"]
    refused = programs.run("receiver", queue, "--count", "1", "--recv-selector", red)
    assert refused.returncode != 0
    assert f"a filter of messages on queue '{queue}' is not supported" in refused.stderr
    assert programs.contents(queue) == ["red 1", "blue 2", "red 3"]


def test_outcomes(programs: Programs, queue: str) -> None:
    programs.send(queue, "--msg-content", "x", "--link-at-most-once")
    counts = []
    for action in ("release", "noack", "reject"):
        (seen,) = programs.receive(queue, "--action", action, count=1)
        counts.append((seen["delivery-count"], seen["first-acquirer"]))
    assert counts == [(0, True), (1, False), (2, False)]
    assert programs.receive(queue) == []


def test_transactions(programs: Programs, queue: str) -> None:
    batches = ("--tx-size", "2", "--tx-action")
    programs.lines("sender", queue, "--count", "4", "--msg-content", "%d", *batches, "commit")
    taken = ("--action", "noack", *batches)
    assert programs.contents(queue, *taken, "rollback", count=2) == ["0", "1"]
    assert len(programs.receive(queue, "--recv-browse")) == 4
    assert programs.contents(queue, *taken, "commit", count=2) == ["0", "1"]
    assert programs.contents(queue) == ["2", "3"]


def test_a_message_without_a_body_is_rejected(programs: Programs, queue: str) -> None:
    done = programs.run("sender", queue)
    assert done.returncode != 0
    assert "REJECTED" in done.stderr
    assert programs.receive(queue) == []


def test_the_connector_counts_what_it_opens(programs: Programs, queue: str) -> None:
    assert programs.lines("connector", queue, "--count", "3") == ["3 0 3"]
    *opened, counts = programs.lines("connector", queue, "--log-stats", "connector")
    assert counts == "1 0 1"
    assert [ast.literal_eval(line.removeprefix("STATS ")) for line in opened] == [
        {
            "connection": {"open": 1, "error": 0},
            "session": {"open": 1},
            "link": {"open": 2, "sender": {"open": 1}, "receiver": {"open": 1}},
        }
    ]
    absent = programs.run("connector", f"{queue}-absent")
    assert (absent.returncode, absent.stdout.split()) == (1, ["1", "1", "1"])
    assert f"no queue '{queue}-absent'" in absent.stderr
    wrong = programs.run("connector", queue, password="wrong")
    assert (wrong.returncode, wrong.stdout.split()) == (1, ["0", "1", "1"])
    assert "uthentication" in wrong.stderr
