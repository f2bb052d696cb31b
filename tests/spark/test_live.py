"""What a real broker confirms is read back while it goes on; ``python -m tests.spark.live`` does it with millions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark import live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_is_confirmed_is_read_while_more_is_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    line, right = live.run(spark, 40_000, tmp_path)
    assert right, line
    assert "missing=0 wrong=0 as sent=yes" in line
