"""The positive control of mirrored queues: what is broken is still there to break, and the checker finds what is lost then."""

from __future__ import annotations

import pytest

from tests.chaos import control_mirrors
from tests.chaos.control_mirrors import MUTATIONS
from tests.mutations.mutation import Mutation
from tests.powercut.__main__ import SKIPPED


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_what_is_broken_is_in_the_source(mutation: Mutation) -> None:
    assert mutation.complaints() == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_losses_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    code = control_mirrors.main(["--only", "mirrors_leader_alone", "--seconds", "40"])
    said = capsys.readouterr().out
    if code == SKIPPED:
        pytest.skip("no chaos here")
    assert code == 0, said
    assert said.splitlines()[-1] == "1 of 1 broken rules found"
