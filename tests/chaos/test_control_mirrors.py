"""The positive control of mirrored queues (`python -m tests.chaos.control_mirrors`): what it breaks is still there."""

from __future__ import annotations

import pytest

from tests.chaos.control_mirrors import MUTATIONS
from tests.mutations.mutation import Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_what_is_broken_is_in_the_source(mutation: Mutation) -> None:
    assert mutation.complaints() == []
