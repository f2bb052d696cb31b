"""Every mutation still fits the source, and those of a sample are noticed.

`python -m tests.mutations` tries all of them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.__main__ import MUTATIONS, main
from tests.mutations.mutation import Mutation, attempt, copy_tree

SAMPLE = [each for each in MUTATIONS if not each.slow][::16]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_the_mutation_fits_the_source(mutation: Mutation) -> None:
    assert mutation.complaints() == []
    assert mutation.rule.endswith(".")


def test_names_are_given_once() -> None:
    assert [
        name for name, times in Counter(each.name for each in MUTATIONS).items() if times > 1
    ] == []


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree to break things in."""
    path = tmp_path_factory.mktemp("mutated")
    copy_tree(path)
    return path


@pytest.mark.parametrize("mutation", SAMPLE, ids=lambda each: each.name)
def test_the_mutation_is_noticed(mutation: Mutation, tree: Path) -> None:
    before = (tree / mutation.file).read_text()
    verdict = attempt(mutation, tree)
    assert verdict.noticed, f"{mutation.rule}\n{verdict.output}"
    assert (tree / mutation.file).read_text() == before


def test_what_changes_nothing_is_not_noticed(tree: Path) -> None:
    """The framework itself: a harmless change, and one that makes no test run at all, are no success."""
    harmless = Mutation(
        "harmless",
        "Nothing is broken.",
        "fluxmq/_hot/window.py",
        "PACKET_ID_MAX = 65535\n",
        "PACKET_ID_MAX = 0xFFFF\n",
        "tests/unit/hot/test_scan.py::test_errors",
    )
    assert not attempt(harmless, tree).noticed
    broken = Mutation(
        "broken",
        "Not Python.",
        "fluxmq/_hot/scan.py",
        "INCOMPLETE = 0\n",
        "INCOMPLETE = = 0\n",
        "tests/unit/hot/test_scan.py::test_errors",
    )
    assert not attempt(broken, tree).noticed


def test_unknown_names_and_stale_mutations_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing of the kind"]) == 2
    assert "unknown" in capsys.readouterr().out
    stale = Mutation("stale", "Gone.", "setup.cfg", "no such text", "", "tests/conftest.py::test_x")
    assert stale.complaints() == [
        "setup.cfg holds the old text 0 times",
        "tests/conftest.py has no test_x",
    ]
