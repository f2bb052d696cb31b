"""The trace files say what the core does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.raft.traces import read_blocks, run, written

FILES = sorted((Path(__file__).parents[2] / "data" / "raft").glob("*.txt"))


def test_there_are_traces() -> None:
    assert len(FILES) >= 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_trace(path: Path) -> None:
    text = path.read_text("utf-8")
    assert written(run(text)) == text


def test_a_wrong_expectation_is_noticed() -> None:
    text = "# one\ncluster 1\n----\nok\n\ncampaign 1\n----\nnothing of the kind\n"
    (first, second) = run(text)
    assert first == next(read_blocks(text))
    assert second.expected == "ok"
    assert written(run(text)) != text
