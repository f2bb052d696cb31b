"""Selectors: the grammar of JMS with its three-valued logic, patterns, and limits."""

from __future__ import annotations

import re
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.amqp10.selector_terms import LIKE_STEPS_MAX, Fields, Scalar
from fluxmq.protocols.amqp10.selectors import (
    DEPTH_MAX,
    LENGTH_MAX,
    TOKENS_MAX,
    SelectorError,
    compile_selector,
)

NOW: Final = 1_700_000_000_000
FIELDS: Final[Fields] = {
    "i": 7,
    "f": 2.5,
    "s": "blue",
    "t": True,
    "n": False,
    "b": b"\x01\xff",
    "dotted.name": 1,
    "with space": 1,
    "_under$": 1,
    "$dollar": 1,
    "ü": 1,
    "quote": "it's",
}


def evaluate(text: str, fields: Fields = FIELDS) -> Scalar:
    """The value of a condition, None for unknown."""
    selector = compile_selector(text, lambda name: name)
    for value in (True, False):
        if compile_selector(f"({text}) = {value}", lambda name: name).matches(fields, NOW):
            assert selector.matches(fields, NOW) is value
            return value
    assert not selector.matches(fields, NOW)
    return None


@pytest.mark.parametrize(
    "text",
    [
        "TRUE",
        "t",
        "NOT n",
        "not FALSE",
        "i = 7",
        "i=7 And f=2.5",
        "i = 7.0",
        "i <> 8",
        "i != 8",
        "i > 6 AND i >= 7 AND i < 8 AND i <= 7",
        "i + 1 = 8 AND i - 1 = 6 AND i * 2 = 14 AND i / 2 = 3.5 AND i % 4 = 3",
        "-i = -7 AND +i = 7 AND - i % 4 = -3",
        "i = -(-7)",
        "1 + 2 * 3 = 7 AND (1 + 2) * 3 = 9",
        "10 - 2 - 3 = 5 AND 8 / 2 / 2 = 2",
        "i BETWEEN 7 AND 9",
        "i BETWEEN 5 AND 7",
        "i NOT BETWEEN 8 AND 9",
        "i BETWEEN 1 AND 9 AND s = 'blue'",
        "s = 'blue'",
        's = "blue"',
        "s > 'black'",
        "s IN ('red', 'blue')",
        "s NOT IN ('red', 'green')",
        "i IN (1, 3 + 4)",
        "s LIKE 'bl%'",
        "s LIKE '%ue'",
        "s LIKE 'b%e'",
        "s LIKE 'bl_e'",
        "s LIKE 'blue'",
        "s LIKE '%'",
        "s NOT LIKE 'b_e'",
        "'50%' LIKE '50!%' ESCAPE '!'",
        "'a_b' LIKE 'a\\_b' ESCAPE '\\'",
        "quote = 'it''s'",
        '\'a"b\' = "a""b"',
        "missing IS NULL",
        "i IS NOT NULL",
        "b = 0x01FF",
        "[with space] = 1",
        "dotted.name = 1",
        "_under$ = 1 AND $dollar = 1 AND ü = 1",
        "1e3 = 1000 AND 1.5E+1 = 15 AND .5 = 0.5 AND 7. = 7 AND 7f = 7 AND 57L = 57",
        "UTC() = 1700000000000",
        "i-1=6",
        "t OR missing",
        "missing OR t",
        "NOT (n AND missing)",
        "s = 'blue' OR s = 'red' AND i = 0",
        "NOT i = 8 AND t",
        "\n\t i\n=\t7 ",
    ],
)
def test_true(text: str) -> None:
    assert evaluate(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "FALSE",
        "n",
        "NOT t",
        "i = 8",
        "i <> 7",
        "s = 'Blue'",
        "i = 'blue'",
        "i <> 'blue'",
        "t = 1",
        "t > FALSE",
        "s < 5",
        "b = 'blue'",
        "i IN (1, 2)",
        "s LIKE 'b_e'",
        "s LIKE ''",
        "s LIKE '%blue_%'",
        "i IS NULL",
        "missing IS NOT NULL",
        "n AND missing",
        "missing AND n",
        "i BETWEEN 8 AND 6",
    ],
)
def test_false(text: str) -> None:
    assert evaluate(text) is False


@pytest.mark.parametrize(
    "text",
    [
        "missing",
        "NOT missing",
        "missing = 1",
        "missing <> 1",
        "missing = missing",
        "missing BETWEEN 1 AND 2",
        "missing IN (1)",
        "missing NOT IN (1)",
        "i IN (1, missing)",
        "missing LIKE 'a'",
        "missing NOT LIKE 'a'",
        "i LIKE '7'",
        "missing + 1 = 1",
        "-s = 1",
        "i / 0 = 1",
        "i % 0 = 1",
        "f % 2 = 1",
        "t + 1 = 2",
        "t AND missing",
        "n OR missing",
        "NOT (t AND missing)",
    ],
)
def test_unknown(text: str) -> None:
    assert evaluate(text) is None


@pytest.mark.parametrize("text", ["i", "s", "f", "i + 1"])
def test_what_is_no_condition_does_not_match(text: str) -> None:
    assert not compile_selector(text, str).matches(FIELDS, NOW)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unexpected 'the end' at 1"),
        ("i =", "unexpected 'the end'"),
        ("= 1", "unexpected '=' at 1"),
        ("i = 1 2", "unexpected '2' at 7"),
        ("(i = 1", "unexpected 'the end'"),
        ("i = 1)", r"unexpected '\)'"),
        ("i IN ()", r"unexpected '\)'"),
        ("i IN 1", "unexpected '1'"),
        ("i NOT 1", "unexpected '1'"),
        ("i IS 1", "unexpected '1'"),
        ("s LIKE i", "unexpected 'i'"),
        ("s LIKE 1", "unexpected '1'"),
        ("s LIKE 'a' ESCAPE 'bc'", "one character"),
        ("s LIKE 'a!' ESCAPE '!'", "ends in its escape"),
        ("i BETWEEN 1 OR 2", "unexpected 'OR'"),
        ("NULL = 1", "unexpected 'NULL'"),
        ("EXISTS(i)", "unexpected 'EXISTS'"),
        ("UTC = 1", "unexpected '='"),
        ("i == 1", "unexpected '='"),
        ("i = 'open", "unexpected character at 4"),
        ("i & 1", "unexpected character"),
        ("12abc = 1", "unexpected character"),
        ("[a\x01b] = 1", "control character"),
        ("b = 0x1", "odd number"),
        ("i = 9223372036854775808", "64 bits cannot hold"),
        ("i = 1 = 1", "unexpected '='"),
        ("a AND", "unexpected 'the end'"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, why: str) -> None:
    with pytest.raises(SelectorError, match=why):
        compile_selector(text, str)


def test_limits() -> None:
    longest = "'" + "x" * (LENGTH_MAX - 6) + "'='x'"
    assert len(longest) <= LENGTH_MAX
    compile_selector(longest, str)
    with pytest.raises(SelectorError, match="more than 4096 characters"):
        compile_selector(" " * (LENGTH_MAX + 1), str)
    most = "1" + "+1" * ((TOKENS_MAX - 1) // 2)
    compile_selector(most, str)
    with pytest.raises(SelectorError, match="more than 200 words"):
        compile_selector(most + "+1", str)
    for opening, closing in (("(", ")"), ("NOT ", "")):
        compile_selector(opening * DEPTH_MAX + "t" + closing * DEPTH_MAX, str)
        with pytest.raises(SelectorError, match="inside each other"):
            compile_selector(opening * (DEPTH_MAX + 1) + "t" + closing * (DEPTH_MAX + 1), str)


def test_a_pattern_cannot_take_long() -> None:
    hostile = "%_" * 1000 + "%X"
    selector = compile_selector(f"s LIKE '{hostile}' OR s NOT LIKE '{hostile}'", str)
    assert not selector.matches({"s": "a" * 2 * LIKE_STEPS_MAX}, NOW)
    assert compile_selector("s LIKE 'a%'", str).matches({"s": "a" * 90_000}, NOW)


def test_conditions_inside_each_other_are_evaluated_once() -> None:
    """Unknown values between bounds, inside each other: twice for each would take hours."""
    asked = 0

    class Counting(dict[str, Scalar]):
        def get(self, key: str, default: Scalar = None) -> Scalar:  # type: ignore[override]
            nonlocal asked
            asked += 1
            assert asked == 1, "asked again"
            return default

    nested = "(" * DEPTH_MAX + "missing" + " BETWEEN 1 AND 2)" * DEPTH_MAX
    assert not compile_selector(nested[1:-1], str).matches(Counting(), NOW)
    assert asked == 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("i BETWEEN missing AND 1", False),
        ("i BETWEEN 9 AND missing", False),
        ("i BETWEEN missing AND 9", None),
        ("i BETWEEN 1 AND missing", None),
        ("missing BETWEEN 1 AND 9", None),
        ("i BETWEEN 7 AND 7", True),
    ],
)
def test_bounds_that_are_unknown(text: str, answer: Scalar) -> None:
    assert evaluate(text) is answer


def test_numbers_beyond_all_bounds_are_unknown() -> None:
    huge = " * ".join(["9223372036854775807"] * 60)
    assert evaluate(f"{huge} / 2 > 1") is None
    assert evaluate(f"{huge} > 1") is True


def test_only_the_clock_makes_an_answer_change() -> None:
    assert compile_selector("UTC() > 1 AND i = 7", str).uses_clock
    assert not compile_selector("i = 7", str).uses_clock


TRUTH = st.sampled_from(["TRUE", "FALSE", "missing"])


@given(TRUTH, TRUTH, st.sampled_from(["AND", "OR"]))
def test_the_logic_has_three_values(one: str, other: str, word: str) -> None:
    values: dict[str, Scalar] = {"TRUE": True, "FALSE": False, "missing": None}
    left, right = values[one], values[other]
    ends = word == "OR"
    expected = ends if ends in (left, right) else (None if None in (left, right) else not ends)
    assert evaluate(f"{one} {word} {other}") is expected
    dual = "AND" if ends else "OR"
    assert evaluate(f"NOT (NOT {one} {dual} NOT {other})") is expected


@given(st.text("ab%_", max_size=12), st.text("ab", max_size=12))
def test_patterns_are_those_of_regular_expressions(pattern: str, text: str) -> None:
    regular = "".join({"%": ".*", "_": "."}.get(each, each) for each in pattern)
    expected = re.fullmatch(regular, text) is not None
    assert evaluate(f"'{text}' LIKE '{pattern}'") is expected


@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            (
                *(
                    "i",
                    "s",
                    "(",
                    ")",
                    "AND",
                    "OR",
                    "NOT",
                    "=",
                    "<",
                    "+",
                    "-",
                    "1",
                    "'x'",
                    "IN",
                    ",",
                ),
                *("NULL", "LIKE", "BETWEEN", "UTC()", "missing", "2.5", "*", "/", "%", "[q]", "IS"),
            )
        ),
        max_size=12,
    ).map(" ".join)
)
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        selector = compile_selector(text, str)
    except SelectorError:
        return
    assert selector.matches(FIELDS, NOW) in (True, False)
