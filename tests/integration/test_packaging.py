"""Installation: a wheel that starts by itself, the unit of systemd, and the files of a container."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.broker import REPOSITORY

pytestmark = pytest.mark.once

CONTAINER = REPOSITORY / "packaging" / "container"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel without compiled code, which takes minutes, made of the files that are under version control."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "fluxmq",
            "spark",
            "setup.*",
            "pyproject.toml",
            "README.md",
            "LICENSE",
            "NOTICE",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a clone")
    for name in listed.stdout.decode().split("\0"):
        if name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source)],
        env={**os.environ, "FLUXMQ_PURE": "1"},
        check=True,
        timeout=120,
    )
    (found,) = folder.glob("*.whl")
    return found


def test_a_wheel_has_everything(wheel: Path) -> None:
    assert wheel.name.startswith("fluxmq_broker-")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = [each for each in names if each.endswith("entry_points.txt")]
        commands = archive.read(points).decode()
    assert "fluxmq-supervisor = " in commands
    assert "fluxmqctl = " in commands
    pages = {path.name for path in (REPOSITORY / "fluxmq/control/management/pages").iterdir()}
    assert {f"fluxmq/control/management/pages/{each}" for each in pages} <= {*names}
    assert "fluxmq/settings/default.yaml" in names
    assert not [each for each in names if each.startswith(("tests/", "perf/"))]


def test_a_wheel_starts_by_itself(wheel: Path, tmp_path: Path) -> None:
    """Without a settings file and without the sources."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--target", str(tmp_path / "lib"), str(wheel)], check=True, timeout=60
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib"), "FLUXMQ_PURE": "1"}
    checked = subprocess.run(
        [sys.executable, "-P", "-m", "fluxmq.supervisor.main", "--workers", "1", "--check"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr
    assert "127.0.0.1:1883" in checked.stdout
    code = "import fluxmq.control.management.page_files as found; print(found.__file__)"
    where = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert where.stdout.startswith(str(tmp_path / "lib"))


def test_the_settings_of_a_container_are_valid(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fluxmq.supervisor.main", "--workers", "1", "--check"]
    checked = subprocess.run(
        [*command, "--config", str(CONTAINER / "fluxmq.yaml")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr


def test_a_container_opens_and_copies_what_there_is() -> None:
    text = (CONTAINER / "Containerfile").read_text()
    settings = yaml.safe_load((CONTAINER / "fluxmq.yaml").read_text())
    server = settings["server"]
    addresses = [
        server["mqtt"]["tcp"],
        server["mqtt"]["websocket"],
        server["amqp"]["tcp"],
        server["http"],
    ]
    ports = {each["addr"].removeprefix(":") for each in addresses}
    (exposed,) = re.findall(r"^EXPOSE (.*)$", text, re.MULTILINE)
    assert {*exposed.split()} == ports
    for copied in re.findall(r"^COPY (packaging\S+) ", text, re.MULTILINE):
        assert (REPOSITORY / copied).exists()
    (service,) = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"].values()
    assert {each.partition(":")[2] for each in service["ports"]} == ports
    assert (CONTAINER / service["build"]["context"]).resolve() == REPOSITORY
    (data,) = re.findall(r"^VOLUME (.*)$", text, re.MULTILINE)
    assert data == settings["storage"]["data_dir"]


def test_the_unit_of_systemd_waits_until_the_node_serves() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(REPOSITORY / "packaging/systemd/fluxmq.service")
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["ExecStart"].split()[0].endswith("/fluxmq-supervisor")
    assert int(service["WatchdogSec"]) >= 10
    assert service["KillMode"] == "mixed"
