"""``fluxmqctl join``: what it checks before it asks the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from msgspec.structs import replace

from fluxmq.cli import join_command
from fluxmq.cli.exits import ExitError
from fluxmq.cli.join_command import addresses_of, move_copy, successors
from fluxmq.cli.main import run
from fluxmq.ipc.clusters import LEARNER, MEMBER_CHANGE, RaftListing
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_FAILED, Body
from fluxmq.ipc.polling_client import CallError
from tests.unit.control.test_clustering import member, row
from tests.unit.settings.test_membership import file_of, raw, record


def join(tmp_path: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> tuple[int, str]:
    """Run the command for a node whose file has more keys; no cluster answers."""
    settings = raw("d", "", **more) | {"storage": {"data_dir": str(tmp_path / "data")}}
    file = tmp_path / "node.yaml"
    file.write_text(yaml.safe_dump(settings))
    code = run(["--config", str(file), "--user", "guest", "join", "http://127.0.0.1:9"])
    return code, capsys.readouterr().err


def test_a_node_that_has_not_asked_for_it_does_not_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = join(tmp_path, capsys)
    assert code == 1
    assert "set cluster.enabled and cluster.join to true" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("meta.db", "is not empty: a node that joins has no data of its own"),
        ("nodes.json", "has joined a cluster"),
    ],
)
def test_a_node_with_data_does_not_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).touch()
    code, text = join(tmp_path, capsys, join=True)
    assert code == 1
    assert words in text


def test_a_cluster_that_does_not_answer_leaves_the_node_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUXMQ_PASSWORD", "guest")
    code, text = join(tmp_path, capsys, join=True)
    assert code == 4
    assert "http://127.0.0.1:9: Connection refused" in text
    assert not (tmp_path / "data").exists()


def test_other_nodes_reach_it_at_the_address_that_is_given() -> None:
    settings = file_of("d", "", join=True)
    assert addresses_of(settings, "") == record("d")
    assert addresses_of(settings, "d.example") == record("d", "d.example")
    assert addresses_of(settings, "::1").transport == "[::1]:4000"
    assert addresses_of(settings, "[::1]").etcd == "http://[::1]:4300"


def test_a_copy_goes_to_a_node_that_has_none_of_the_group_and_the_fewest_of_others() -> None:
    three = replace(row("g", "a", ("a", "b", "c")), members=tuple(map(member, "abc")))
    more = replace(row("h", "a", ("a", "d")), members=tuple(map(member, "ad")))
    assert successors((three, more), "g", ("b", "c", "d", "e")) == ["e", "d"]
    assert successors((three, more), "g", ("b", "c")) == []
    learner = replace(member("d"), kind=LEARNER)
    begun = replace(three, members=(*three.members, learner))
    assert successors((begun, more), "g", ("b", "c", "d", "e")) == ["d"], "it was interrupted"


class ElectingCluster:
    """A cluster whose group refuses new members a number of times, and takes the next."""

    def __init__(self, code: str, refusals: int) -> None:
        self.code = code
        self.refusals = refusals
        self.members = "abc"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def call(self, kind: str, _body: Body) -> Body:
        if kind == MEMBER_CHANGE and self.refusals:
            self.refusals -= 1
            raise CallError(self.code, "group g has no leader at the moment")
        if kind == MEMBER_CHANGE:
            self.members += "d"
        listed = replace(row("g", "a", self.members), members=tuple(map(member, self.members)))
        return RaftListing((listed,)).to_body()


def test_a_copy_moves_when_the_group_has_elected_its_leader(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(join_command, "POLL_SECONDS", 0.0)
    cluster = ElectingCluster(ERROR_AWAY, 3)
    move_copy(cluster, "g", ("b", "c", "d"), 60.0)
    assert capsys.readouterr().out == "d has a copy of group 'g'\n"
    for late in (ElectingCluster(ERROR_AWAY, 2), ElectingCluster(ERROR_FAILED, 1)):
        seconds = 0.0 if late.code == ERROR_AWAY else 60.0
        with pytest.raises(ExitError, match=r"no leader at the moment\nlet the group"):
            move_copy(late, "g", ("b", "c", "d"), seconds)
