"""One Spark session for all tests of this directory; each of them is marked ``spark``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here: it runs on its own, after the others."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads that knows the source ``fluxmq``."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    from tests.spark.session import java_missing, session

    missing = java_missing()
    if missing:
        pytest.skip(missing)
    made = session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()
