"""FluxMQ does what RabbitMQ did when it was recorded, but for the exceptions that are listed with their reasons."""

from __future__ import annotations

import json
from itertools import groupby

import pytest

from tests.differential import compare, runner
from tests.differential.compare import Meant
from tests.differential.runner import Target
from tests.differential.script import Case, ScriptError, load, parse
from tests.differential.wire import Typed

CASES = load()
AREAS = {area: list(cases) for area, cases in groupby(CASES, lambda case: case.area)}
CASES_MIN = 150


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= CASES_MIN


def test_what_is_recorded_is_of_these_scripts() -> None:
    recorded = json.loads(compare.RECORDED.read_text())
    assert recorded["scripts"] == {case.identifier: compare.script_of(case) for case in CASES}


def test_nothing_in_the_recording_is_a_wait_that_ended() -> None:
    text = compare.RECORDED.read_text()
    for sign in ("no answer", "nothing more", "broke off"):
        assert sign not in text


def test_exceptions_name_steps_and_reasons() -> None:
    meant = compare.load_exceptions()
    assert compare.unknown(meant, CASES) == []
    assert all(len(each.reason) > 10 for each in meant)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("area", AREAS)
def test_area(fluxmq: Target, area: str) -> None:
    recorded, meant = compare.load_recorded(), compare.load_exceptions()
    wrong = []
    for case in AREAS[area]:
        found = runner.run(fluxmq, case)
        wrong += compare.differences(case, recorded[case.identifier], found, meant)
    assert not wrong, "\n".join(each.text() for each in wrong)


# --- the harness itself -----------------------------------------------------------------------------------------------


def one_case(text: str) -> Case:
    (case,) = parse(text, "area")
    return case


def test_a_script_is_read() -> None:
    case = one_case(
        "== A name, and more\n# a comment\n"
        '@two #3 queue.declare queue=$q durable=1 arguments={"a": {"!l": 5}, "b": ["$q"]}\n'
        "!basic.get queue=$q2 no_ack=true\n"
    )
    assert case.identifier == "area: A name, and more"
    assert case.names == {"q": "q-a-name-and-more", "q2": "q2-a-name-and-more"}
    first, second = case.steps
    assert (first.connection, first.channel, first.verb, first.bare) == (
        "two",
        3,
        "queue.declare",
        False,
    )
    assert first.settings["arguments"] == {"a": Typed("l", 5), "b": ["q-a-name-and-more"]}
    assert first.settings["durable"] == 1
    assert second.bare
    assert second.settings == {"queue": "q2-a-name-and-more", "no_ack": True}


@pytest.mark.parametrize(
    "text", ["queue.declare queue=$q", "== a case", "== a case\n@1 #2", '== a case\nx a={"b"']
)
def test_a_script_that_says_nothing(text: str) -> None:
    with pytest.raises(ScriptError):
        parse(text, "area")


def test_differences_are_found_and_explained() -> None:
    case = one_case("== c\nquiet\nquiet\nquiet\n")
    theirs, ours = [["a"], ["b"], ["c"]], [["a"], ["x"], ["c"]]
    (wrong,) = compare.differences(case, theirs, ours, [])
    assert (wrong.step, wrong.expected, wrong.found) == (2, ("b",), ("x",))
    meant = Meant("area: c", 2, ("x",), "a reason that is given")
    assert compare.differences(case, theirs, ours, [meant]) == []
    other = Meant("area: c", 2, ("y",), "a reason that is given")
    assert [each.found for each in compare.differences(case, theirs, ours, [other])] == [("x",)]


def test_an_exception_that_is_none_is_told() -> None:
    case = one_case("== c\nquiet\n")
    meant = Meant("area: c", 1, ("a",), "a reason that is given")
    (wrong,) = compare.differences(case, [["a"]], [["a"]], [meant])
    assert "is none" in wrong.line


def test_exceptions_for_nothing_are_told() -> None:
    case = one_case("== c\nquiet\n")
    listed = [
        Meant("area: c", 1, (), "r"),
        Meant("area: c", 2, (), "r"),
        Meant("area: d", 1, (), "r"),
    ]
    assert compare.unknown(listed, [case]) == ["area: c, step 2", "area: d, step 1"]


def test_outcomes_are_shown_briefly() -> None:
    """Numbers by their ends, and of many lines the first and the last."""
    assert compare.brief(["basic.ack [1, 2, 3, 5]", "basic.nack [4]"]) == [
        "basic.ack [1 to 3, 5]",
        "basic.nack [4]",
    ]
    assert compare.brief([f"c: m{number}" for number in range(20)]) == [
        "c: m0",
        "18 more",
        "c: m19",
    ]
    assert compare.brief([]) == ["nothing"]
