"""Fixtures and markers of the tests that talk MQTT to whole brokers."""

from __future__ import annotations

from tests.broker import own_broker
from tests.conformance.conftest import pytest_configure

__all__ = ["own_broker", "pytest_configure"]
