"""A follower that changes its shard while it is the leader's only majority keeps what it acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.pinning import run

ROUNDS = 1
"""More are run by the command."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_confirmed_is_lost_with_the_leader(tmp_path: Path) -> None:
    """Review finding 1: confirmed messages were gone, or the two members that were left had no leader."""
    said: list[str] = []
    found = run(tmp_path, ROUNDS, 1, said.append)
    assert all(each.clean for each in found), "\n".join(said)
    assert sum(each.confirmed for each in found) > 0, "\n".join(said)
