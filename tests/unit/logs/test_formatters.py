"""How a record becomes a line, for machines and for people."""

import logging
import sys

import orjson
import pytest

from fluxmq.logs.formatters import (
    EXCEPTION_CHARACTERS_MAX,
    FIELD_CHARACTERS_MAX,
    FIELDS_MAX,
    MESSAGE_CHARACTERS_MAX,
    JsonFormatter,
    TextFormatter,
)


def raised(text):
    """Return the exception information of an error that was raised and caught."""
    try:
        _fail(text)
    except RuntimeError:
        return sys.exc_info()


def _fail(text):
    raise RuntimeError(text)


def record(message, *arguments, exception=None, severity=logging.INFO, **fields):
    made = logging.LogRecord(
        "fluxmq.test", severity, "file.py", 1, message, arguments or None, exception
    )
    made.created = 1_700_000_000.25
    made.__dict__.update(fields)
    return made


def as_json(*arguments, **keywords):
    return orjson.loads(JsonFormatter("shard-0").format(record(*arguments, **keywords)))


def test_a_json_line_has_time_level_process_logger_message_and_fields():
    assert as_json("hello %s", "world", client="c1", count=3, ok=True, nothing=None) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "info",
        "process": "shard-0",
        "logger": "fluxmq.test",
        "message": "hello world",
        "client": "c1",
        "count": 3,
        "ok": True,
        "nothing": None,
    }


def test_an_exception_is_a_field_of_its_own():
    line = as_json("failed", exception=raised("went\nwrong \x1b[0m"))
    assert line["exception"].endswith("RuntimeError: went\nwrong \\x1b[0m")
    assert line["exception"].startswith("Traceback")


def test_a_very_long_exception_is_cut_at_the_front():
    line = as_json("failed", exception=raised("x" * 100_000))
    assert len(line["exception"]) == EXCEPTION_CHARACTERS_MAX + 1


def test_bytes_are_shown_by_length_only_in_fields_and_arguments():
    line = as_json("got %s and %s", b"secret payload", memoryview(b"abc"), body=bytearray(7))
    assert line["message"] == "got <14 bytes> and <3 bytes>"
    assert line["body"] == "<7 bytes>"


@pytest.mark.parametrize("name", ["password", "new_password", "api_token", "Authorization"])
def test_fields_named_like_secrets_are_hidden(name):
    assert as_json("login", **{name: "hunter2"})[name] == "***"


def test_fields_cannot_replace_columns():
    line = as_json("real", level="forged", time="forged", exception_="x")
    assert line["level"] == "info"
    assert line["level_"] == "forged"
    assert line["time_"] == "forged"


def test_limits_on_message_fields_and_their_number():
    line = as_json("m" * 5000, long="f" * 5000)
    assert len(line["message"]) == MESSAGE_CHARACTERS_MAX + 1
    assert len(line["long"]) == FIELD_CHARACTERS_MAX + 1
    many = as_json("many", **{f"f{number}": number for number in range(FIELDS_MAX + 5)})
    assert many["fields_cut"] is True
    assert f"f{FIELDS_MAX}" not in many


def test_numbers_json_cannot_hold_are_text():
    assert as_json("big", number=2**80)["number"] == str(2**80)


def test_a_template_that_does_not_fit_its_arguments_costs_no_line():
    assert as_json("%d things", "three")["message"].startswith("%d things")


def test_a_text_line_shows_fields_as_pairs_and_quotes_where_needed():
    line = TextFormatter("acceptor", colour=False).format(
        record("hello", severity=logging.WARNING, client='a "b"', empty="", count=2, none=None)
    )
    assert line == (
        "2023-11-14 22:13:20.250Z warning  acceptor   hello"
        '  client="a \\"b\\"" empty="" count=2 none=-'
    )


def test_a_text_line_from_outside_cannot_forge_another():
    line = TextFormatter("shard-0", colour=False).format(record("topic %s", "a\n2023 error"))
    assert "\n" not in line
    assert line.endswith("topic a\\n2023 error")


def test_only_the_first_line_of_a_traceback_begins_at_the_margin():
    text = TextFormatter("s", colour=False).format(
        record("f", exception=raised("x\n2023-11-14 forged"))
    )
    assert all(line.startswith("    ") for line in text.split("\n")[1:])


def test_colour_is_added_only_when_asked_for():
    assert "\x1b[" in TextFormatter("s", colour=True).format(
        record("x", severity=logging.ERROR, a=1)
    )
    assert "\x1b[" not in TextFormatter("s", colour=False).format(record("x", a=1))
