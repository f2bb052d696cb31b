"""Patterns of permissions and policies: what they match, what is refused, and how long it takes."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model import patterns
from fluxmq.model.patterns import Pattern, PatternError, compile_pattern, pattern_problem, quote


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", ["", "a"], []),
        ("a", ["a", "bab"], ["", "b"]),
        ("^$", [""], ["a"]),
        (".*", ["", "a", "ü€"], []),
        (r"^amq\.", ["amq.topic"], ["amqp", "x.amq."]),
        ("^(a|b)$", ["a", "b"], ["ab"]),
        ("(?i)^q", ["Q1", "q1"], ["aq"]),
        (r"^\d{2,3}$", ["12", "123"], ["1", "1234"]),
        ("^(?!amq\\.).*", ["queue", "", "amq"], ["amq.gen", "amq."]),
        ("^(?!(a|b)$)", ["c", "ab"], ["a", "b"]),
        ("^(?!a)(?!b)c*", ["", "cc", "d"], ["a", "bc"]),
        ("^(?=q)(?!q1)", ["q", "q2"], ["a", "q1"]),
        ("^(?![ab)]x)[c)|]*$", ["c", "|"], ["ax", ")x", "d"]),
        ("^(?!a[]|)])", ["a", "ab"], ["a]", "a|", "a)"]),
        ("^(?![[:digit:]])", ["a"], ["1"]),
        (r"^(?!\))b", ["b"], [")", "a"]),
        ("^(?!a)(b|c)", ["b", "c"], ["a", "d"]),
    ],
)
def test_patterns_match(pattern, matching, others):
    compiled = compile_pattern(pattern)
    assert [text for text in matching if not compiled.search(text)] == []
    assert [text for text in others if compiled.search(text)] == []
    assert compiled.text == pattern
    # What is understood beyond RE2 means what it means elsewhere.
    if "[:" not in pattern:
        assert all(re.search(pattern, text) for text in matching)
        assert not any(re.search(pattern, text) for text in others)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing"),
        ("[a", "missing"),
        ("*", "no argument"),
        (r"(a)\1", "escape"),
        ("a(?!b)", "invalid perl operator"),
        ("(?<=a)b", "invalid"),
        ("^(?!a)b|c", "invalid perl operator"),
        ("^(?!a)*", "invalid perl operator"),
        ("^(?!a", "invalid perl operator"),
        ("^(?!a[)]", "invalid perl operator"),
        (r"^(?!a)\Qx\E|c", "invalid perl operator"),
        (r"^(?!\Qa\E)", "invalid perl operator"),
        ("^" + "(?!a)" * 9, "invalid perl operator"),
        ("^(?!a{2000})", "repetition"),
        ("((a{1,50}){1,50}){1,50}", "repetition"),
        ("(\\pL|\\pN){900}", "too large"),
        ("a" * 4097, "longer than 4096"),
        ("\udc80", "not text"),
    ],
)
def test_patterns_refused(pattern, reason):
    with pytest.raises(PatternError, match=reason):
        compile_pattern(pattern)
    assert pattern_problem(pattern)


def test_case_does_not_matter_on_request():
    for text in ("^jobs", "^(?!x)jOBS", "^(?=JOBS)"):
        assert not Pattern(text).search("Jobs.a")
        assert Pattern(text, caseless=True).search("Jobs.a")
    assert not Pattern("^(?!JOBS)", caseless=True).search("jobs")


def test_a_usable_pattern_has_no_problem():
    assert pattern_problem("a+") is None


def test_what_is_not_text_is_matched_by_nothing():
    assert not compile_pattern(".*").search("\udc80")
    assert not compile_pattern("^(?!a)").search("\udc80")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)*$", "(.*)*x", "^(?!(a+)+$)b"])
def test_time_is_linear(pattern):
    compiled = compile_pattern(pattern)
    begun = time.monotonic()
    assert not compiled.search("a" * 100_000 + "!")
    # With backtracking it would take longer than the universe has lasted.
    assert time.monotonic() - begun < 2.0


def test_look_aheads_are_counted(monkeypatch):
    monkeypatch.setattr(patterns, "LOOKAHEADS_MAX", 1)
    assert compile_pattern("^(?!a)").search("b")
    with pytest.raises(PatternError):
        compile_pattern("^(?!a)(?!b)")


@given(st.text(max_size=20), st.text(max_size=20))
def test_quoted_text_matches_itself_alone(text, other):
    compiled = compile_pattern(f"^{quote(text)}$")
    assert compiled.search(text)
    assert compiled.search(other) == (other == text)


@given(st.text(alphabet="^(?!=)[]|\\ab*{1}Q:", max_size=24))
def test_nothing_but_a_pattern_error_escapes(text):
    try:
        compiled = compile_pattern(text)
    except PatternError:
        return
    assert compiled.search("ab") in (True, False)


@given(st.text(alphabet="ab|()[]", max_size=8), st.text(alphabet="ab|()[]", max_size=8))
def test_look_aheads_agree_with_a_backtracking_matcher(inner, rest):
    pattern = f"^(?!{inner}){rest}"
    try:
        compiled = compile_pattern(pattern)
        expected = re.compile(pattern)
    except (PatternError, re.error, FutureWarning):
        return
    for text in ("", "a", "b", "ab", "ba", "aab", "|", "[", "]", "()"):
        assert compiled.search(text) == (expected.search(text) is not None)
