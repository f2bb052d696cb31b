"""The scripts about mirrored queues: what is recorded of RabbitMQ, how rows are read and compared, and one of them run."""

from __future__ import annotations

import importlib.util
import json

import pytest

from perf import rabbitmq
from tests.differential import compare, mirrors, targets
from tests.differential.mirrors import Lettered, Row
from tests.differential.script import COMMAND

CASES = mirrors.load()
CASES_MIN = 40
LETTERS = {"perf1@localhost": "A", "perf2@localhost": "B", "perf3@localhost": "C"}
DOCUMENTED = (
    ("ha-two", r"^two\.", '{"ha-mode":"exactly","ha-params":2,"ha-sync-mode":"automatic"}'),
    ("ha-all", r"^ha\.", '{"ha-mode":"all"}'),
)
SHORT = "mirrored: all operations from a node without the leader"


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= CASES_MIN


def test_documented_policies_are_used_word_for_word() -> None:
    """S4-34, S4-35."""
    words = {step.words for case in CASES for step in case.steps if step.verb == COMMAND}
    for policy in DOCUMENTED:
        assert ("set_policy", *policy) in words


def test_what_is_recorded_is_of_these_scripts() -> None:
    recorded = json.loads(mirrors.RECORDED.read_text())
    assert recorded["scripts"] == {case.identifier: compare.script_of(case) for case in CASES}


def test_exceptions_name_steps_and_reasons() -> None:
    meant = compare.load_exceptions(mirrors.EXCEPTIONS)
    assert compare.unknown(meant, CASES) == []
    assert all(len(each.reason) > 10 for each in meant)


def test_exceptions_differ_from_what_is_recorded() -> None:
    recorded = compare.load_recorded(mirrors.RECORDED)
    for each in compare.load_exceptions(mirrors.EXCEPTIONS):
        assert tuple(recorded[each.case][each.step - 1]) != each.outcome, each


def test_a_row_is_read_by_letters() -> None:
    """S4-10, S4-20, S4-54."""
    line = (
        "two.q\tha-two\t<perf1@localhost.17.341.0>\t[<perf3@localhost.17.9.0>, <perf2@localhost.1.8.0>]"
        "\t[<perf2@localhost.1.8.0>]"
    )
    row = mirrors.row_of(line, LETTERS)
    assert row == Row("A", "ha-two", ("C", "B"), ("B",))
    apart = {"leader": "A", "policy": "ha-two", "mirrors": "B,C", "synchronised": "B"}
    assert row.parts(told_apart=True) == apart
    assert row.parts(told_apart=False) == apart | {"mirrors": "2", "synchronised": "1"}
    alone = mirrors.row_of("one.q\tha-one\t<perf2@localhost.1.5.0>\t[]\t[]", LETTERS)
    assert alone.parts(told_apart=False) == {
        "leader": "not A",
        "policy": "ha-one",
        "mirrors": "0",
        "synchronised": "0",
    }
    plain = mirrors.row_of("q\t\t<perf1@localhost.1.5.0>\t\t", LETTERS)
    assert plain == Row("A", "", None, None)
    assert mirrors.row_of("q\t\t\t\t", LETTERS).parts(told_apart=True)["leader"] == "none"


def test_names_of_nodes_are_letters_in_outcomes() -> None:
    texts = Lettered({letter: name for name, letter in LETTERS.items()})
    told = "home node 'perf2@localhost' of durable queue 'perf2' is down"
    assert texts.shown(told) == "home node 'B' of durable queue 'perf2' is down"
    assert (
        texts.named('["rabbit@nodeA", "rabbit@nobody"]') == '["perf1@localhost", "rabbit@nobody"]'
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_case_against_both() -> None:
    """S4-04, S4-30."""
    if not rabbitmq.installed() or importlib.util.find_spec("fluxmq.shards.amqp") is None:
        pytest.skip("needs RabbitMQ, and a build that serves AMQP")
    (case,) = [each for each in CASES if each.identifier == SHORT]
    theirs = mirrors.run_all(targets.RABBITMQ, [case], show=False)
    ours = mirrors.run_all(targets.FLUXMQ, [case], show=False)
    meant = compare.load_exceptions(mirrors.EXCEPTIONS)
    wrong = compare.differences(case, theirs[SHORT], ours[SHORT], meant)
    assert not wrong, "\n".join(each.text() for each in wrong)
