"""The program of the member of etcd, and its command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxmq.settings.clustering import ClusterSettings, Etcd
from fluxmq.supervisor import etcd
from fluxmq.supervisor.etcd import EtcdProgramError, arguments, note_on, problem_with, program_of


def program(folder: Path, output: str, name: str = "etcd") -> str:
    """A program that writes some text, whatever it is asked."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("version", "used", "noted"),
    [
        ((3, 3, 27), False, False),
        ((3, 4, 22), False, True),
        ((3, 4, 23), True, True),
        ((3, 4, 34), True, False),
        ((3, 5, 5), False, True),
        ((3, 5, 6), True, True),
        ((3, 5, 16), True, False),
        ((3, 6, 0), True, False),
        ((3, 7, 3), True, False),
        ((4, 0, 0), True, False),
    ],
)
def test_versions(version: tuple[int, int, int], used: bool, noted: bool) -> None:
    assert (problem_with(version) == "") is used
    assert (note_on(version) != "") is noted


def test_the_program_of_the_settings_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = program(tmp_path, "etcd Version: 3.6.1", "named")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(etcd, "BUILT", Path(program(tmp_path, "etcd Version: 3.7.3", "built")))
    assert program_of(Etcd()) == str(etcd.BUILT)
    found = program(tmp_path, "etcd Version: 3.5.5")
    assert program_of(Etcd()) == str(etcd.BUILT)
    program(tmp_path, "etcd Version: 3.5.6\nGit SHA: x")
    assert program_of(Etcd()) == found
    assert program_of(Etcd(binary=named)) == named


def test_without_a_program_all_ways_to_one_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(etcd, "BUILT", tmp_path / "nothing")
    old = program(tmp_path, "etcd Version: 3.5.5")
    with pytest.raises(EtcdProgramError) as refused:
        program_of(Etcd())
    for part in (
        f"{old} is version 3.5.5",
        "make etcd",
        "PATH",
        "binary",
        "cluster.etcd.endpoints",
    ):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("etcd Version: 3.5.5", "is version 3.5.5; needed is 3.4.23, 3.5.6, 3.6 or later"),
        ("mosquitto version 2.0", "does not say that it is etcd"),
    ],
)
def test_a_program_of_the_settings_that_cannot_be_used_is_refused(
    tmp_path: Path, output: str, problem: str
) -> None:
    with pytest.raises(EtcdProgramError, match=problem):
        program_of(Etcd(binary=program(tmp_path, output)))
    with pytest.raises(EtcdProgramError, match="cannot be run"):
        program_of(Etcd(binary=str(tmp_path / "nothing")))


def command_line(cluster: dict[str, Any], *, old: bool = False, **more: Any) -> dict[str, str]:
    settings = ClusterSettings.model_validate(
        {"enabled": True, "node_id": "n1", "etcd": more, **cluster}
    )
    assert settings.member is not None
    found = {}
    for each in arguments(settings, settings.member, "/data/", (3, 4, 34) if old else (3, 7, 3)):
        name, _, value = each.removeprefix("--").partition("=")
        found[name] = value
    return found


def test_the_command_line_says_what_the_settings_say() -> None:
    alone = command_line({})
    assert alone["name"] == "n1"
    assert alone["data-dir"] == "/data/"
    assert alone["log-outputs"] == "/data.log"
    assert set(alone) - set(command_line({}, old=True)) == {
        "enable-log-rotation",
        "log-rotation-config-json",
    }
    assert alone["initial-cluster"] == "n1=http://127.0.0.1:2380"
    assert alone["initial-advertise-peer-urls"] == "http://127.0.0.1:2380"
    assert alone["initial-cluster-state"] == "new"
    assert alone["strict-reconfig-check"] == ""
    assert not [name for name in alone if name.endswith("cert-file")]
    tls = {
        "tls_enabled": True,
        "tls_cert_file": "c.pem",
        "tls_key_file": "k.pem",
        "tls_ca_file": "a.pem",
    }
    lone = command_line({"transport": tls}, bind_addr=":2380")
    assert lone["initial-cluster"] == "n1=https://0.0.0.0:2380"
    assert lone["listen-peer-urls"] == lone["initial-advertise-peer-urls"] == "https://0.0.0.0:2380"
    members = "n1=https://10.0.0.1:2380,n2=https://10.0.0.2:2380,n3=https://10.0.0.3:2380"
    given = command_line(
        {"transport": tls},
        bind_addr=":2380",
        client_addr="10.0.0.1:2379",
        initial_cluster=members,
        bootstrap=False,
    )
    assert given["initial-cluster"] == members
    assert given["initial-cluster-state"] == "existing"
    assert given["listen-peer-urls"] == "https://0.0.0.0:2380"
    assert given["initial-advertise-peer-urls"] == "https://10.0.0.1:2380"
    assert given["listen-client-urls"] == given["advertise-client-urls"] == "https://10.0.0.1:2379"
    for side in ("", "peer-"):
        assert given[f"{side}cert-file"] == "c.pem"
        assert given[f"{side}key-file"] == "k.pem"
        assert given[f"{side}trusted-ca-file"] == "a.pem"
        assert given[f"{side}client-cert-auth"] == "true"


def test_clusters_have_different_tokens() -> None:
    other = "n1=http://127.0.0.1:2380,n2=http://127.0.0.1:2381,n3=http://127.0.0.1:2382"
    tokens = {
        command_line({}, initial_cluster=each)["initial-cluster-token"] for each in (None, other)
    }
    assert len(tokens) == 2


def test_a_directory_that_is_older_than_what_was_acknowledged_is_discarded(tmp_path: Path) -> None:
    data_dir = tmp_path / "etcd"
    assert not etcd.is_behind(str(data_dir))
    for content in (b"earlier", b"later"):
        (data_dir / "member").mkdir(parents=True)
        (data_dir / "member" / "wal").write_bytes(content)
        log = tmp_path / "etcd.log"
        log.write_bytes(b'{"level":"warn","msg":"something else"}\n')
        assert not etcd.is_behind(str(data_dir))
        log.write_bytes(
            log.read_bytes() + b'{"msg":"tocommit(76) is out of range [lastIndex(5)]."}\n'
        )
        assert etcd.is_behind(str(data_dir))
        etcd.discard(str(data_dir))
        assert list(data_dir.iterdir()) == []
        assert b"tocommit" in (tmp_path / "etcd.behind.log").read_bytes()
        assert not etcd.is_behind(str(data_dir))
