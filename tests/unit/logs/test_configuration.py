"""Lines reach the descriptor, and a descriptor that takes none stalls nobody."""

import logging
import os
import pty

import orjson
import pytest

from fluxmq.logs import configure, dropped_lines, get_logger
from fluxmq.logs.configuration import LineHandler


@pytest.fixture(autouse=True)
def restored_logging():
    top, ours = logging.getLogger(), logging.getLogger("fluxmq")
    handlers, levels = top.handlers[:], (top.level, ours.level)
    yield
    top.handlers[:] = handlers
    top.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.captureWarnings(False)


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def lines(descriptor):
    text = b""
    while True:
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            break
        if not data:
            break
        text += data
    return text.decode().splitlines()


def test_auto_writes_json_to_a_pipe(pipe):
    configure("info", "auto", "shard-3", descriptor=pipe[1])
    get_logger("fluxmq.shards.x").info("hello", extra={"a": 1})
    get_logger("fluxmq.shards.x").debug("not this")
    (line,) = map(orjson.loads, lines(pipe[0]))
    assert line["message"] == "hello"
    assert line["process"] == "shard-3"
    assert line["a"] == 1


def test_auto_writes_coloured_text_to_a_terminal():
    controller, terminal = pty.openpty()
    try:
        configure("info", "auto", "control", descriptor=terminal)
        get_logger("x").warning("hello")
        text = os.read(controller, 4096).decode()
    finally:
        os.close(controller)
        os.close(terminal)
    assert "\x1b[33mwarning" in text
    assert "hello" in text


def test_configuring_again_replaces(pipe):
    configure("error", "json", "a", descriptor=pipe[1])
    configure("debug", "text", "b", descriptor=pipe[1])
    get_logger("x").debug("once")
    (line,) = lines(pipe[0])
    assert line.endswith("once")
    assert sum(isinstance(h, LineHandler) for h in logging.getLogger().handlers) == 1


def test_libraries_are_heard_from_warning_on(pipe):
    configure("debug", "json", "a", descriptor=pipe[1])
    logging.getLogger("somelibrary").info("chatter")
    logging.getLogger("somelibrary").warning("news")
    assert [orjson.loads(line)["message"] for line in lines(pipe[0])] == ["news"]


def test_a_full_pipe_drops_lines_counts_them_and_says_so_later(pipe):
    reading, writing = pipe
    handler = configure("info", "json", "a", descriptor=writing)
    log = get_logger("x")
    for number in range(2000):
        log.info("line %d of many, with some length to fill the pipe sooner", number)
    assert handler.dropped > 0
    assert dropped_lines() == handler.dropped
    written = lines(reading)
    assert len(written) + handler.dropped == 2000
    assert all(orjson.loads(line)["message"].startswith("line ") for line in written)
    log.info("after")
    gap, after = map(orjson.loads, lines(reading))
    assert gap["lines"] == handler.dropped
    assert after["message"] == "after"


def test_a_closed_reader_is_counted_not_raised():
    reading, writing = os.pipe()
    os.close(reading)
    handler = configure("info", "json", "a", descriptor=writing)
    get_logger("x").info("nobody reads")
    os.close(writing)
    assert handler.dropped == 1


@pytest.mark.parametrize(("level", "line_format"), [("loud", "json"), ("info", "xml")])
def test_unknown_level_or_format_is_refused(level, line_format):
    with pytest.raises(ValueError, match="must be"):
        configure(level, line_format, "a")


def test_loggers_hang_below_one_root():
    assert get_logger("fluxmq.control.http").name == "fluxmq.control.http"
    assert get_logger("perf").name == "fluxmq.perf"
