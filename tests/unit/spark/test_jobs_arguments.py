"""What the jobs' command lines understand, and how they refuse what they do not."""

from __future__ import annotations

import argparse
import io
import json
from datetime import UTC, datetime
from importlib import import_module

import pytest

from fluxmq_spark.errors import Damage, OptionError
from fluxmq_spark.jobs import arguments
from fluxmq_spark.jobs.arguments import Bound, JobError, UsageError, bound_of, selection_of
from fluxmq_spark.jobs.session import run, said

NOW = datetime(2026, 9, 21, 12, tzinfo=UTC)
NOON_US = 1_789_992_000_000_000
JOBS = ("export_parquet", "queue_report", "dead_letters", "replay", "audit")


@pytest.mark.parametrize(
    ("word", "bound"),
    [
        ("earliest", Bound()),
        ("latest", Bound()),
        ("17", Bound(offset=17)),
        ("now", Bound(time=NOON_US)),
        ("now-90s", Bound(time=NOON_US - 90_000_000)),
        ("now-15m", Bound(time=NOON_US - 900_000_000)),
        ("now-2d", Bound(time=NOON_US - 172_800_000_000)),
        ("2026-09-21T12:00:00Z", Bound(time=NOON_US)),
        ("2026-09-21T14:00+02:00", Bound(time=NOON_US)),
        ("2026-09-21T12:00:00.000001", Bound(time=NOON_US + 1)),
        ("2026-09-21", Bound(time=NOON_US - 43_200_000_000)),
    ],
)
def test_bounds(word: str, bound: Bound) -> None:
    """An offset, a moment with or without a zone, a time ago, or an end."""
    assert bound_of(word, NOW) == bound


@pytest.mark.parametrize("word", ["", "-1", "yesterday", "now-", "now-3w", "2026-13-01", "1" * 30])
def test_no_bounds(word: str) -> None:
    """Anything else is refused, with what would be taken."""
    with pytest.raises(UsageError, match="neither an offset nor a time"):
        bound_of(word, NOW)


def parsed(*words: str) -> argparse.Namespace:
    parser = arguments.Parser("job", "A job.")
    arguments.add_source(parser)
    arguments.add_range(parser)
    return arguments.parse(parser, words)


def test_options_of_the_source() -> None:
    """A selection becomes the source's options; an offset is one queue's, a time everybody's."""
    one = selection_of(
        parsed("--path", "/d", "--queue", "a", "--from", "5", "--to", "2026-09-21"), NOW
    )
    assert one.options() == {
        "path": "/d",
        "queues": "a",
        "startingOffsets": json.dumps({"a": 5}),
        "endingTimestamp": "2026-09-21T00:00:00+00:00",
    }
    words = ("--path", "s3://b/d", "--queue-pattern", "o.*", "--storage-options", '{"anon": true}')
    several = selection_of(parsed(*words), NOW)
    assert several.options() == {
        "path": "s3://b/d",
        "queuePattern": "o.*",
        "storageOptions": '{"anon": true}',
    }
    assert several.filesystem() == {"anon": True}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--queue", "a", "--queue-pattern", "b"), "are mutually exclusive"),
        (("--queue", "a,b"), "no comma"),
        (("--queue-pattern", "("), "is not a regular expression"),
        (("--from", "5"), "exactly one --queue"),
        (("--queue", "a", "--queue", "b", "--to", "5"), "exactly one --queue"),
        (("--queue", "a", "--from", "6", "--to", "5"), "--from is after --to"),
        (("--from", "now", "--to", "now-1h"), "--from is after --to"),
        (("--storage-options", "{"), "--storage-options is not JSON"),
        (("--storage-options", "[]"), "not a JSON object"),
    ],
)
def test_contradictions(words: tuple[str, ...], text: str) -> None:
    """What cannot be is said before anything is read."""
    with pytest.raises(UsageError, match=text):
        selection_of(parsed("--path", "/d", *words), NOW)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_helps_and_refuses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help goes to standard output; a mistake is one line on standard error, and exit code 2."""
    module = import_module(f"fluxmq_spark.jobs.{name}")
    with pytest.raises(SystemExit) as done:
        module.main(["--help"])
    assert done.value.code == 0
    assert "--path" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        module.main(["--no-such-option"])
    assert done.value.code == 2
    said_of_it = capsys.readouterr().err
    assert said_of_it.startswith(f"{name}: ")
    assert said_of_it.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "words", "text"),
    [
        (
            "replay",
            ("--path", "/d", "--target-queue", "t", "--dry-run"),
            "--path needs one --queue",
        ),
        ("replay", ("--path", "/d", "--queue", "q", "--target-queue", "t"), "needs --url"),
        (
            "replay",
            ("--path", "/d", "--queue", "q", "--target-queue", "t", "--url", "http://h"),
            "begins with amqp",
        ),
        ("dead_letters", ("--path", "/d", "--url", "amqp://h"), "for publishing"),
        ("dead_letters", ("--path", "/d", "--samples", "1000"), "--samples is at most 100"),
        (
            "dead_letters",
            ("--path", "/d", "--redrive", "--url", "amqp://h", "--producer-id", "a:b"),
            "no colon",
        ),
        ("audit", ("--path", "/d", "--path", "/d/"), "given twice"),
        ("queue_report", ("--path", "/d", "--from", "noon"), "neither an offset nor a time"),
        ("export_parquet", ("--path", "/d", "--output", "/o", "--output-options", "x"), "not JSON"),
    ],
)
def test_wrong_together(
    name: str, words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What each job refuses before it starts Spark: one line, exit code 2."""
    assert import_module(f"fluxmq_spark.jobs.{name}").main(words) == 2
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (UsageError("x is wrong"), 2),
        (OptionError("x is wrong"), 2),
        (JobError("x is wrong"), 3),
        (Damage("x", 7, "is wrong"), 3),
    ],
)
def test_exit_codes(problem: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors that a person can do something about are one line; any other is a bug and passes."""

    def job(*_: object) -> int:
        raise problem

    assert run("job", job) == code
    assert capsys.readouterr().err == f"job: {problem}\n"

    def broken(*_: object) -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        run("job", broken)


def test_what_tasks_say() -> None:
    """Of an error that comes through Spark the sentence that was raised is told, not the stack."""
    text = (
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker:\n"
        'Traceback (most recent call last):\n  File "scan.py", line 3, in scan\n    raise Damage(path)\n'
        "fluxmq_spark.errors.Damage: /d/0.seg, byte 4096: the batch's header does not match its checksum\n\n\tat org.apache.spark"
    )
    assert (
        said(RuntimeError(text))
        == "/d/0.seg, byte 4096: the batch's header does not match its checksum"
    )
    assert said(RuntimeError("first line\nsecond")) == "first line"
    assert said(RuntimeError()) == "RuntimeError"


def test_sizes() -> None:
    """Sizes with and without units."""
    assert [arguments.size_of(text) for text in ("7", "64m", "1GiB", "2kb")] == [
        7,
        64 << 20,
        1 << 30,
        2048,
    ]
    with pytest.raises(UsageError):
        arguments.size_of("64 parsecs")


def test_quiet_is_quiet() -> None:
    """Without progress nothing goes to standard error."""
    from fluxmq_spark.jobs.console import Console

    out, err = io.StringIO(), io.StringIO()
    console = Console("job", quiet=True, out=out, err=err)
    with console.stage("something"):
        console.note("a note")
    assert err.getvalue() == ""
