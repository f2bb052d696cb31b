"""The start of nodes that wait until they have joined a cluster, and of those that have left it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fluxmq.settings.membership import FILE_NAME, ClusterNode, KnownNodes, encode_nodes
from fluxmq.supervisor.joined import NotJoinedError, joined
from tests.unit.settings.test_membership import INITIAL, JOINED, file_of, record

LOOPBACK = {**INITIAL, "d": record("d", joined=True)}
_WAITING = """
import sys
from pathlib import Path
from fluxmq import logs
from fluxmq.supervisor.joined import joined
from tests.unit.settings.test_membership import file_of
logs.configure("info", "text", "supervisor")
found = joined(file_of("d", "", join=True), Path(sys.argv[1]), 1)
print(*sorted(found.cluster.transport.peers))
"""


def write(data_dir: Path, nodes: dict[str, ClusterNode] = LOOPBACK, *, left: bool = False) -> None:
    """Write the file as `fluxmqctl join` does: it is there whole, or not at all."""
    beside = data_dir / f"{FILE_NAME}.tmp"
    beside.write_bytes(encode_nodes(KnownNodes(nodes=nodes, left=left)))
    beside.rename(data_dir / FILE_NAME)


def test_a_node_works_by_the_nodes_of_its_directory(tmp_path: Path) -> None:
    settings = file_of("a", "bc")
    assert joined(settings, tmp_path, 1) is settings
    write(tmp_path)
    assert set(joined(settings, tmp_path, 1).cluster.transport.peers) == {"b", "c", "d"}


def test_addresses_of_joined_nodes_are_checked_as_those_of_the_file_are(tmp_path: Path) -> None:
    write(tmp_path, JOINED)
    with pytest.raises(NotJoinedError, match="plaintext is allowed on loopback"):
        joined(file_of("a", "bc"), tmp_path, 1)


def test_a_node_that_has_left_does_not_start(tmp_path: Path) -> None:
    write(tmp_path, left=True)
    for settings in (file_of("a", "bc"), file_of("d", "", join=True)):
        with pytest.raises(NotJoinedError, match="has left its cluster"):
            joined(settings, tmp_path, 1)


def test_a_node_with_data_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "meta.db").touch()
    with pytest.raises(NotJoinedError, match=r"has data \(meta.db\) and has joined no cluster"):
        joined(file_of("d", "", join=True), tmp_path, 1)


def test_a_damaged_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"{")
    with pytest.raises(NotJoinedError, match="copy this file from another node"):
        joined(file_of("a", "bc"), tmp_path, 1)


@pytest.mark.parametrize("ends", [False, True])
def test_an_empty_node_waits_until_it_has_joined_or_is_stopped(tmp_path: Path, ends: bool) -> None:
    (tmp_path / "LOCK").touch()
    command = [sys.executable, "-c", _WAITING, str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert process.stderr is not None
    assert "waiting for fluxmqctl join" in process.stderr.readline()
    if ends:
        process.send_signal(signal.SIGTERM)
    else:
        write(tmp_path)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said == ("" if ends else "a b c\n")
