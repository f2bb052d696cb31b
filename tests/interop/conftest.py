"""Fixtures of the tests with other people's clients."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable

import pytest

from tests.broker import broker, own_broker, shared_broker
from tests.conformance.conftest import pytest_configure

__all__ = ["broker", "own_broker", "pytest_configure", "shared_broker"]


@pytest.fixture
def topic() -> Callable[[], str]:
    """Makes topics that no other test uses."""
    root, numbers = f"interop/{uuid.uuid4().hex[:12]}", itertools.count(1)
    return lambda: f"{root}/{next(numbers)}"
