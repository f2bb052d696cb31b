"""Logs whose syncers leave the writing to them, and logs whose syncers write."""

import pytest

from tests.faults import ManualSyncer


@pytest.fixture(params=[pytest.param(False, id="thread"), pytest.param(True, id="direct")])
def direct(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the syncers of this test write."""
    monkeypatch.setattr(ManualSyncer, "direct", request.param)
    return bool(request.param)
