"""force-quorum for the node's member of etcd, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxmq.cli.main import run

SETTINGS = """
storage: {{data_dir: {DATA}}}
cluster:
  enabled: true
  node_id: a
  etcd: {ETCD}
  raft: {{enabled: true, bind_addr: "127.0.0.1:21100"}}
"""


@pytest.mark.parametrize(
    ("etcd", "words"),
    [
        ("{}", "there is no member of etcd here: {data}/etcd/member"),
        ("{data_dir: {data}/own}", "there is no member of etcd here: {data}/own/member"),
        (
            '{endpoints: ["http://127.0.0.1:1"]}',
            "there is no member of etcd here: see cluster.etcd",
        ),
    ],
)
def test_no_member_is_forced_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], etcd: str, words: str
) -> None:
    data, file = tmp_path / "data", tmp_path / "node.yaml"
    data.mkdir()
    place = str(data)
    file.write_text(SETTINGS.format(DATA=place, ETCD=etcd.replace("{data}", place)))
    command = ["--config", str(file), "force-quorum", "etcd"]
    assert run([*command, "--this-copy-is-the-truth"]) == 1
    assert words.replace("{data}", place) in capsys.readouterr().err
