"""Every mutation still fits the source, and those of a sample are noticed.

`python -m tests.mutations` tries all of them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.__main__ import MUTATIONS, main
from tests.mutations.mutation import Mutation, attempt, copy_tree
from tests.mutations.symbols import Place, find, pattern

SAMPLE = [each for each in MUTATIONS if not each.slow][::64]


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
    file = tree / find(tree, mutation.at).file
    before = file.read_text()
    verdict = attempt(mutation, tree)
    assert verdict.noticed, f"{mutation.rule}\n{verdict.output}"
    assert file.read_text() == before


def test_what_changes_nothing_is_not_noticed(tree: Path) -> None:
    """The framework itself: a harmless change, and one that makes no test run at all, are no success."""
    harmless = Mutation(
        "harmless",
        "Nothing is broken.",
        "PACKET_ID_MAX",
        "65535",
        "0xFFFF",
        "tests/unit/protocols/mqtt/test_scan.py::test_errors",
    )
    assert not attempt(harmless, tree).noticed
    broken = Mutation(
        "broken",
        "Not Python.",
        "scan:INCOMPLETE",
        "= 0",
        "= = 0",
        "tests/unit/protocols/mqtt/test_scan.py::test_errors",
    )
    assert not attempt(broken, tree).noticed


def test_unknown_names_and_stale_mutations_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing of the kind"]) == 2
    assert "unknown" in capsys.readouterr().out
    stale = Mutation("stale", "Gone.", "find_it", "x", "", "tests/conftest.py::test_x")
    assert stale.complaints() == [
        "find_it is in nowhere, not in one place",
        "tests/conftest.py has no test_x",
    ]


def test_a_symbol_is_found_wherever_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "fluxmq" / "net"
    folder.mkdir(parents=True)
    (tmp_path / "spark" / "fluxmq_spark").mkdir(parents=True)
    code = "LIMIT = 3\n\n\nclass Door:\n    @staticmethod\n    def open(key):\n        return key > LIMIT\n"
    (folder / "door.py").write_text(code)
    (folder / "gate.py").write_text("LIMIT = 4\n")
    assert find(tmp_path, "Door.open") == Place("fluxmq/net/door.py", 4, 7)
    assert find(tmp_path, "gate:LIMIT") == Place("fluxmq/net/gate.py", 0, 1)
    assert find(tmp_path, "fluxmq.net.door:Door.open") == find(tmp_path, "Door.open")
    for absent in ("Door.close", "LIMIT", "net:Door.open"):
        with pytest.raises(LookupError, match=absent):
            find(tmp_path, absent)


def test_code_is_found_however_its_lines_are_broken() -> None:
    wanted = pattern("self.take(first, second)\nreturn x")
    assert wanted.search("self.take(\n    first,\n    second)\n    return x")
    assert not wanted.search("self.take(first, second) returnx")
