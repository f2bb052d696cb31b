"""Installation: wheels that start by themselves, a Debian package, the unit of systemd, and the files of a container."""

from __future__ import annotations

import configparser
import gzip
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import fluxmq
from fluxmq.settings import load
from fluxmq.supervisor.main import EXIT_USAGE
from fluxmq.supervisor.tree import STOP_ORDER, STOP_SECONDS
from tests.broker import HOST, REPOSITORY, Broker, free_ports, merged
from tests.conformance.client import Client
from tests.conformance.client import tcp as tcp_stream
from tests.conformance.wire import V5
from tests.spark_queues import QueueOnDisk
from tests.wheels import install, link_requirements, make_wheel

pytestmark = pytest.mark.once

CONTAINER = REPOSITORY / "packaging" / "container"
DEBIAN = REPOSITORY / "packaging" / "debian"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The broker's wheel."""
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def spark_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the package for Spark."""
    return make_wheel(tmp_path_factory.mktemp("spark-wheel"), "spark")


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
    assert {each.partition("/")[0] for each in names if ".dist-info" not in each} == {"fluxmq"}


def test_a_wheel_starts_by_itself(wheel: Path, tmp_path: Path) -> None:
    """Without a settings file and without the sources."""
    install(wheel, tmp_path / "lib")
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


READ = """
import sys

import pyarrow

from fluxmq_spark.options import given_options, read_options
from fluxmq_spark.planning import make_plan, open_path
from fluxmq_spark.scan import Statistics, scan

storage, root = open_path(options := read_options(given_options(sys.argv[1], {"queue": "orders"})))
schema = pyarrow.schema([("offset", pyarrow.int64()), ("key", pyarrow.string()), ("payload", pyarrow.binary())])
plan = make_plan(storage, root, options)
for piece in [piece for task in plan.tasks for piece in task.segment_ranges]:
    how = {"verify": True, "fail_on_data_loss": True, "statistics": Statistics()}
    for batch in scan(storage, piece, schema.names, schema, **how):
        for row in batch.to_pylist():
            print(row["offset"], row["key"], row["payload"].decode())
import fluxmq_spark.formats.batch_format, fluxmq_spark.states, fluxmq_spark.times
assert not [name for name in sys.modules if name.partition(".")[0] in ("fluxmq", "cython", "Cython")]
"""
"""Reads a queue as a task of Spark does, and prints it."""


def test_the_package_for_spark_reads_without_a_broker(spark_wheel: Path, tmp_path: Path) -> None:
    """Where only what its metadata asks for is installed, PySpark as an extra: no broker, and no Cython."""
    pytest.importorskip("pyspark", reason="the extra spark is not installed")
    queue = QueueOnDisk(tmp_path / "data")
    queue.fill(2000)
    install(spark_wheel, tmp_path / "lib")
    link_requirements(tmp_path / "lib", "pyspark")
    code = f"import sys; sys.path.append({str(tmp_path / 'lib')!r})\n{READ}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(queue.root)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{offset} {message.key.decode()} {message.payload.decode()}"
        for offset, message in enumerate(queue.messages)
    ]


def test_the_two_wheels_share_no_file(wheel: Path, spark_wheel: Path) -> None:
    """Either can be installed, upgraded and removed without the other."""
    with zipfile.ZipFile(wheel) as ours, zipfile.ZipFile(spark_wheel) as theirs:
        assert not {*ours.namelist()} & {*theirs.namelist()}
        copied = {
            Path(each).stem for each in theirs.namelist() if each.startswith("fluxmq_spark/formats")
        }
        sources = [theirs.read(each).decode() for each in theirs.namelist() if each[-3:] == ".py"]
        (metadata,) = [each for each in theirs.namelist() if each.endswith("METADATA")]
        assert f"Version: {fluxmq.__version__}\n" in theirs.read(metadata).decode()
    wanted = {"batch_format", "batches", "group_states", "octets", "properties", "segments"}
    wanted |= {"amqp10_readers", "amqp10_sections", "amqp10_values"}
    assert copied == {*wanted, "cython", "__init__"}
    imported = re.findall(r"^\s*(?:from|import) +(fluxmq|cython)\b", "".join(sources), re.MULTILINE)
    # Cython's declarations, of which only compiled code takes notice.
    assert {*imported} == {"cython"}
    (guarded,) = [each for each in sources if re.search(r"^ +from cython", each, re.MULTILINE)]
    assert not re.search(r"^(?:from|import) +cython", guarded, re.MULTILINE)


def test_a_wheel_without_compiled_code_needs_no_repair(wheel: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(REPOSITORY / "packaging/portable-wheel"), str(wheel), str(tmp_path / "dist")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "dist").iterdir()] == [wheel.name]


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


@pytest.fixture(scope="module")
def package(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian package without what the broker needs, which would have to be fetched."""
    if shutil.which("dpkg-deb") is None or sys.base_prefix != "/usr":
        pytest.skip("neither Debian nor a relative, or Python is not the distribution's")
    target = tmp_path_factory.mktemp("deb")
    options = ["--no-deps", "--compression", "none"]
    made = subprocess.run(
        [sys.executable, str(DEBIAN / "make-deb"), *options, str(wheel), str(target)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.strip())


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's files, elsewhere than where they belong."""
    target = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(target)], check=True)
    return target


def test_a_debian_package_has_what_a_service_needs(unpacked: Path) -> None:
    control = (unpacked / "DEBIAN/control").read_text()
    fields = dict(re.findall(r"^([\w-]+): (.*)$", control, re.MULTILINE))
    assert fields["Package"] == "fluxmq"
    assert fields["Version"] == f"{fluxmq.__version__}-1"
    minor = sys.version_info[1]
    assert f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1})" in fields["Depends"]
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/fluxmq/fluxmq.yaml\n"
    settings = yaml.safe_load((unpacked / "etc/fluxmq/fluxmq.yaml").read_text())
    assert settings["storage"]["data_dir"] == "/var/lib/fluxmq"
    assert (unpacked / "etc/fluxmq/fluxmq.yaml").stat().st_mode & 0o777 == 0o640
    for name in ("fluxmq-supervisor", "fluxmqctl"):
        assert (unpacked / "usr/bin" / name).resolve().is_relative_to(unpacked / "usr/lib/fluxmq")
        page = unpacked / f"usr/share/man/man8/{name}.8.gz"
        assert name.encode().replace(b"-", b"\\-") in gzip.decompress(page.read_bytes())
    unit = (unpacked / "usr/lib/systemd/system/fluxmq.service").read_text()
    (started,) = re.findall(r"^ExecStart=(\S+) --config (\S+) ", unit, re.MULTILINE)
    assert all((unpacked / each[1:]).is_file() for each in started)
    owned = {path.name for path in (unpacked / "usr/lib/fluxmq").rglob("direct_url.json")}
    assert not owned, "it would name the machine that made the package"


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_the_scripts_of_the_package_can_be_parsed(unpacked: Path, script: str) -> None:
    path = unpacked / "DEBIAN" / script
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["/bin/sh", "-n", str(path)], check=True)


def test_the_package_s_interpreter_finds_the_package(unpacked: Path) -> None:
    """By what lies beside it, and not the modules of the distribution."""
    code = "import sys, fluxmq; print(sys.prefix, fluxmq.__file__, *sys.path, sep='\\n')"
    told = subprocess.run(
        [str(unpacked / "usr/lib/fluxmq/bin/python"), "-P", "-c", code],
        env={},
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert told[0] == str(unpacked / "usr/lib/fluxmq")
    assert told[1].startswith(told[0])
    assert not [path for path in told if "dist-packages" in path]


def test_a_broker_starts_from_the_package(unpacked: Path, tmp_path: Path) -> None:
    """With the package's settings, but for addresses and the directory."""
    tcp, amqp, http = free_ports(3)
    given = yaml.safe_load((unpacked / "etc/fluxmq/fluxmq.yaml").read_text())
    changed = {
        "server": {
            "mqtt": {"tcp": {"addr": f"{HOST}:{tcp}"}, "websocket": None},
            "amqp": {"tcp": {"addr": f"{HOST}:{amqp}"}},
            "http": {"addr": f"{HOST}:{http}"},
        },
        "storage": {"data_dir": str(tmp_path / "data")},
    }
    config = tmp_path / "fluxmq.yaml"
    config.write_text(yaml.safe_dump(merged(given, changed)))
    (site,) = (unpacked / "usr/lib/fluxmq/lib").glob("python3.*/site-packages")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    programs = unpacked / "usr/bin"
    command = [sys.executable, "-P", str(programs / "fluxmq-supervisor")]
    output = tmp_path / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--config", str(config), "--workers", "1"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    started = Broker(HOST, tcp, http_port=http, config=config, output=output, process=process)
    try:
        started.wait_ready()
        with Client(tcp_stream(HOST, tcp), V5) as client:
            client.connect("packaged")
            client.subscribe("greetings/#", qos=1)
            client.publish("greetings/hello", b"Hello", qos=1)
            assert client.receive().payload == b"Hello"
        told = subprocess.run(
            [sys.executable, "-P", str(programs / "fluxmqctl"), "--config", str(config), "ping"],
            cwd=tmp_path,
            env=environment,
            check=False,
            capture_output=True,
            timeout=60,
        )
        assert told.returncode == 0, told.stderr
    finally:
        started.stop(check=False)


def test_the_unit_of_systemd_waits_until_the_node_serves() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(REPOSITORY / "packaging/systemd/fluxmq.service")
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["ExecStart"].split()[0].endswith("/fluxmq-supervisor")
    assert int(service["WatchdogSec"]) >= 10
    assert service["KillMode"] == "mixed"
    assert service["RestartPreventExitStatus"] == str(EXIT_USAGE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Every directive is known, and has a value that it takes."""
    unit = (REPOSITORY / "packaging/systemd/fluxmq.service").read_text()
    program = "/opt/fluxmq/bin/fluxmq-supervisor"
    assert program in unit
    path = tmp_path / "fluxmq.service"
    path.write_text(unit.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told = [line for line in done.stderr.splitlines() if "fluxmq.service" in line]
    assert (done.returncode, told) == (0, []), done.stderr


def test_a_container_is_given_the_time_that_a_stop_takes() -> None:
    (service,) = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"].values()
    stop = load(CONTAINER / "fluxmq.yaml", {}).server.shutdown_timeout
    stop += STOP_SECONDS * len({*STOP_ORDER} - {"etcd"})
    assert int(service["stop_grace_period"].removesuffix("s")) >= stop


def test_podman_builds_the_image_with_its_health_check() -> None:
    """An image in OCI's format, podman's default, has none."""
    for page in ("docs/installing.md", "docs/kubernetes.md", "packaging/container/Containerfile"):
        commands = re.findall(r"^.*podman build .*$", (REPOSITORY / page).read_text(), re.MULTILINE)
        assert commands
        assert all("--format docker" in each for each in commands), page
