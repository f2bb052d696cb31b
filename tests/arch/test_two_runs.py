"""The two runs of `make test`: what the second one, of the uncompiled form, is made of."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT, TWICE


@pytest.mark.parametrize("where", TWICE)
def test_what_runs_twice_is_there(where: str) -> None:
    """A folder of tests that moves takes its place in the list with it, or would run in one form only."""
    assert (ROOT / where).exists()
