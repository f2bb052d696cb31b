"""Lines whose sockets are closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.protocols.mqtt.lines import Line


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    """Make lines."""
    made: list[Line] = []

    def make(**arguments: Any) -> Line:
        made.append(Line(**arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()
