"""The positive control: the checker finds what stock pysyncobj loses, and is silent about a run without faults.

`python -m tests.sim --stock --seeds 0..199` runs more of it.
"""

from __future__ import annotations

from importlib.metadata import version

import pysyncobj.syncobj
import pytest

from tests.sim.__main__ import main
from tests.sim.campaign import Summary
from tests.sim.history import VIOLATIONS_MAX, History
from tests.sim.stock import run_stock, run_stock_seeds

# The library reads its term and vote from a file that it leaves to the collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

LOSES = "state-machine safety", "acknowledged commands stay"


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("pysyncobj") == "0.3.17"


def test_its_losses_are_found() -> None:
    total = Summary()
    for summary in run_stock_seeds(15, 39):
        total.add(summary)
    assert {rule: total.seen[rule] > 0 for rule in LOSES} == dict.fromkeys(LOSES, True)
    assert total.seen["acknowledged"] > 1_000
    assert len(total.violations) < total.seeds, "a checker that always complains proves nothing"


def test_a_seed_is_one_run() -> None:
    before = pysyncobj.syncobj.monotonicTime
    runs = [run_stock(18) for _ in range(2)]
    assert runs[0].history.violations == runs[1].history.violations != []
    assert runs[0].steps == runs[1].steps
    assert pysyncobj.syncobj.monotonicTime is before


def test_the_command_says_that_promises_were_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stock", "--seed", "18"]) == 1
    assert "state-machine safety" in capsys.readouterr().out


# The checker itself


def test_one_command_per_index() -> None:
    history = History()
    history.applied(1, 1, 10)
    history.applied(2, 1, 10)
    assert history.violations == []
    history.applied(3, 1, 11)
    assert history.violations[0].rule == "state-machine safety"


def test_what_was_acknowledged_must_be_there_in_the_end() -> None:
    history = History()
    history.acknowledge(1, 10)
    history.acknowledge(2, 20)
    history.finish({1: {1: 10, 2: 20}, 2: {1: 10, 2: 20, 3: 0}})
    assert history.violations == []
    history.finish({1: {1: 10, 2: 20}, 2: {1: 10, 2: 99}})
    assert [violation.rule for violation in history.violations] == ["acknowledged commands stay"]


def test_members_must_catch_up() -> None:
    history = History()
    history.acknowledge(2, 20)
    history.finish({1: {1: 10, 2: 20}, 2: {1: 10}, 3: {}})
    assert [violation.rule for violation in history.violations] == ["members catch up"] * 2


def test_a_command_is_acknowledged_at_one_index() -> None:
    history = History()
    history.acknowledge(1, 10)
    history.acknowledge(2, 10)
    assert "acknowledged once" in str(history.violations[0])


def test_violations_are_bounded() -> None:
    history = History()
    for member in range(VIOLATIONS_MAX * 2):
        history.applied(member, 1, member)
    assert len(history.violations) == VIOLATIONS_MAX
