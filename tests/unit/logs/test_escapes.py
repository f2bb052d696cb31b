"""Text from outside cannot forge lines or move a cursor."""

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.logs.escapes import escape, escape_lines


def test_controls_separators_and_direction_marks_are_escaped():
    assert escape("a\nb\r\t", 99) == "a\\nb\\r\\t"
    assert escape("\x1b[31m\x7f\x85", 99) == "\\x1b[31m\\x7f\\x85"
    assert escape("\u2028\u202e\u2066\ufeff", 99) == "\\u2028\\u202e\\u2066\\ufeff"
    assert escape("\ud800", 99) == "\\ud800"


def test_ordinary_text_of_any_script_stays():
    assert escape("Grüße, 世界 🙂 a/b+c#", 99) == "Grüße, 世界 🙂 a/b+c#"


def test_long_text_is_cut_and_says_so():
    assert escape("x" * 11, 10) == "x" * 10 + "…"
    assert escape("x" * 10, 10) == "x" * 10


def test_a_cut_traceback_keeps_its_end():
    assert escape_lines("first\nlast\x1b", 5) == "…last\\x1b"


@given(st.text(max_size=80))
def test_the_result_is_one_printable_line(text):
    escaped = escape(text, 40)
    assert len(escaped.splitlines()) <= 1
    assert escaped.encode("utf-8").decode("utf-8") == escaped
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) <= 0x9F for character in escaped)
