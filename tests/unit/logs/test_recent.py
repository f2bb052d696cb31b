"""The log lines that a process keeps for the management interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from fluxmq.logs import configure, get_logger
from fluxmq.logs.recent import LINES_MAX, TEXT_CHARACTERS_MAX, RecentLines, recent_lines


@pytest.fixture
def sink() -> Iterator[int]:
    """A descriptor for lines; loggers are as before afterwards."""
    top = logging.getLogger()
    before, level = top.handlers[:], top.level
    top.handlers = [each for each in before if not isinstance(each, RecentLines)]
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield descriptor
    os.close(descriptor)
    top.handlers, top.level = before, level


def test_the_last_lines_are_kept_with_their_fields(sink: int) -> None:
    configure("info", "json", "shard-0", descriptor=sink)
    log = get_logger("tests")
    log.debug("not so severe")
    for number in range(LINES_MAX + 5):
        log.info("line %d", number, extra={"user": "a b", "password": "x"})
    found = recent_lines()
    assert len(found) == LINES_MAX
    assert (found[0].level, found[0].text) == ("info", 'line 5  user="a b" password=***')
    assert found[0].time <= found[-1].time


def test_a_traceback_is_cut(sink: int) -> None:
    configure("info", "text", "shard-0", descriptor=sink)
    nothing: dict[str, int] = {}
    try:
        nothing["x" * 2 * TEXT_CHARACTERS_MAX]
    except KeyError:
        get_logger("tests").exception("failed")
    (line,) = recent_lines()
    assert line.level == "error"
    assert line.text.startswith("failed\nTraceback")
    assert len(line.text) == TEXT_CHARACTERS_MAX


def test_a_process_keeps_its_lines_when_settings_are_read_again_and_none_of_its_parent(
    sink: int,
) -> None:
    configure("info", "text", "supervisor", descriptor=sink)
    get_logger("tests").info("of the parent")
    configure("info", "text", "shard-0", descriptor=sink)
    get_logger("tests").info("first")
    configure("warning", "json", "shard-0", descriptor=sink)
    get_logger("tests").info("not severe any more")
    get_logger("tests").warning("second")
    assert [line.text for line in recent_lines()] == ["first", "second"]
