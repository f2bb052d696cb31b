"""What would stop or surprise an upgrade: settings, format of the directory, room, backup, the others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluxmq
from fluxmq.cli.main import run
from fluxmq.cli.upgrade_command import NOTE, OK, STOP, cluster_findings
from fluxmq.ipc.clusters import GroupOutcome, GroupOutcomes
from fluxmq.ipc.node_messages import NodeDescription
from fluxmq.storage.directory import (
    FORMAT_VERSION,
    OLDEST_FORMAT_VERSION,
    VERSION_PREFIX,
    DataPaths,
    Placement,
    locked,
    write_placement,
    write_version,
)
from fluxmq.storage.files import Files

SETTINGS = """
server: {mqtt: {tcp: {addr: "127.0.0.1:1883"}}}
storage: {data_dir: "%s", min_free_bytes: %s}
"""
CLUSTER = """
cluster:
  enabled: true
  node_id: n1
  transport: {bind_addr: "127.0.0.1:7001", peers: {n2: "127.0.0.1:7002", n3: "127.0.0.1:7003"}}
  raft:
    enabled: true
    bind_addr: "127.0.0.1:7101"
    peers: {n2: "127.0.0.1:7102", n3: "127.0.0.1:7103"}
    groups: {%s}
"""
ETCD = "  etcd: {endpoints: ['http://127.0.0.1:2379']}\n"


class Checked:
    """A node's files, and what the command says about them."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = path / "data"
        self.paths = DataPaths(str(self.data))
        self.config = path / "node.yaml"
        self.backup = path / "backup"
        self._capsys = capsys
        for directory in (self.data, self.backup):
            directory.mkdir()
            write_version(Files(), DataPaths(str(directory)))
        write_placement(Files(), self.paths, Placement(2, 4))
        self.settings()

    def settings(self, more: str = "", free: str = "1MiB") -> None:
        """Write the settings."""
        self.config.write_text(SETTINGS % (self.data, free) + more)

    def __call__(self, *arguments: str, data_dir: bool = False, code: int = 0) -> list[str]:
        where = ("--data-dir", str(self.data)) if data_dir else ("--config", str(self.config))
        ended = run([*where, "upgrade-check", *arguments])
        out, err = self._capsys.readouterr()
        assert ended == code, out + err
        assert ("not to be upgraded yet" in err) is (code != 0)
        assert ("nothing stops an upgrade" in out) is (code == 0)
        return out.splitlines()


@pytest.fixture
def check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Checked]:
    """A node that does not run."""
    monkeypatch.delenv("FLUXMQ_CONFIG", raising=False)
    made = Checked(tmp_path, capsys)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    yield made
    after = {each: each.read_bytes() for each in before}
    changed = {each for each in before if before[each] != after[each]}
    assert changed <= {made.config, Path(made.paths.version)}, "the command changes nothing"


def test_a_node_that_can_be_upgraded(check: Checked) -> None:
    lines = check("--backup", str(check.backup))
    assert lines[0].startswith("ok: settings: valid in FluxMQ ")
    assert lines[1] == f"ok: data directory: format {FORMAT_VERSION}, which stays"
    assert lines[2].startswith("ok: disk: ")
    assert lines[3].startswith(f"ok: backup: {check.backup} is ")
    assert lines[4] == "note: node: does not run"
    assert lines[5:] == [f"nothing stops an upgrade to FluxMQ {fluxmq.__version__}"]


def test_every_mistake_in_the_settings_is_named(check: Checked) -> None:
    check.settings("unheard_of: 1\nlog: {level: loud}\n")
    lines = check(code=1)
    stops = [line for line in lines if line.startswith("stop: settings: ")]
    assert [str(check.config) in line for line in stops] == [True, True]
    assert "unheard_of" in stops[0]
    assert "log.level" in stops[1]
    assert any(line.startswith("note: data directory: not checked") for line in lines)
    assert any(line.startswith("ok: data directory") for line in check(data_dir=True))


def test_a_cluster_of_an_earlier_version_has_no_etcd(check: Checked) -> None:
    check.settings(CLUSTER % "")
    assert any("cluster.etcd" in line for line in check(code=1) if line.startswith("stop"))
    check.settings(CLUSTER % "_meta: {}" + ETCD)
    assert any("_meta" in line for line in check(code=1) if line.startswith("stop"))
    check.settings(CLUSTER % "" + ETCD)
    assert "note: node: does not run: whether the others can do without it was not checked" in (
        check()
    )


def test_the_format_of_the_directory(check: Checked) -> None:
    version = Path(check.paths.version)
    version.write_text(f"{VERSION_PREFIX}{OLDEST_FORMAT_VERSION}\n")
    (line,) = [each for each in check() if "data directory" in each]
    assert line.startswith(f"note: data directory: format {OLDEST_FORMAT_VERSION}, which the first")
    assert "no way back without a backup" in line
    version.write_text(f"{VERSION_PREFIX}{FORMAT_VERSION + 1}\n")
    assert any("a newer FluxMQ" in line for line in check(code=1) if line.startswith("stop"))
    Path(check.paths.placement).write_text("{")
    version.write_text(f"{VERSION_PREFIX}{FORMAT_VERSION}\n")
    assert len([line for line in check(code=1) if line.startswith("stop: data directory")]) == 1
    write_placement(Files(), check.paths, Placement(2, 4))


def test_a_directory_that_is_not_there_is_a_new_nodes(check: Checked) -> None:
    check.config.write_text(SETTINGS % (check.data / "new", "1MiB"))
    assert any("does not exist: a new node" in line for line in check())


def test_there_must_be_room(check: Checked) -> None:
    check.settings(free="1000TiB")
    assert any(line.startswith("stop: disk: ") for line in check(code=1))


def test_a_backup_is_one_and_not_old(check: Checked) -> None:
    assert "note: backup: not checked: name it with --backup DIR, or take one" in check()
    assert any("cannot be used" in line for line in check("--backup", "/nowhere", code=1))
    yesterday = time.time() - 90_000
    os.utime(check.backup / "VERSION", (yesterday, yesterday))
    (line,) = [each for each in check("--backup", str(check.backup), code=1) if "backup:" in each]
    assert line == f"stop: backup: {check.backup} is 1d 1h old: take another"


def test_a_node_that_does_not_answer_stops_the_upgrade_of_a_cluster(check: Checked) -> None:
    with locked(Files(), check.paths):
        (line,) = [each for each in check() if each.startswith("note: node: ")]
        assert "starting, stopping or restarting" in line
        check.settings(CLUSTER % "" + ETCD)
        (line,) = [each for each in check(code=1) if each.startswith("stop: ")]
        assert line.endswith("ask it with its own fluxmqctl can-stop")


def described(*running: str) -> NodeDescription:
    """A node of a cluster of three."""
    return NodeDescription(
        *("n1", "0.1.0", "3.10.8", 1, "/data", ("n1", "n2", "n3"), running, (), (), ()),
        clustered=True,
        vhosts=1,
        queues=0,
        disk_free=1,
        disk_free_limit=0,
    )


def test_what_a_node_knows_of_the_others() -> None:
    outcomes = GroupOutcomes((GroupOutcome("a", "n1"), GroupOutcome("b", "n1")))
    well = [*cluster_findings(described("n1", "n2", "n3"), outcomes)]
    assert [each.kind for each in well] == [OK, NOTE]
    assert well[0].text == "can-stop: 2 groups keep their quorum without n1"
    assert "n2, n3" in well[1].text
    lost = GroupOutcomes((GroupOutcome("a", "n1", "n3 is behind"), GroupOutcome("b", "n1")))
    found = [*cluster_findings(described("n1", "n2"), lost)]
    assert [each.kind for each in found] == [STOP, STOP, NOTE]
    assert found[0].text == "n1 has no contact with n3"
    assert found[1].text == "can-stop: group 'a': n3 is behind"
