"""The node's member of etcd: which program it is, and how it is started.

The supervisor forks a child that becomes etcd. It lives and dies with the node, and is restarted
as all children are. What the member needs to know is on its command line, so that no file of its
own can differ from the node's settings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, NoReturn

import fluxmq
from fluxmq.ipc.launch import Launch, fail_boot, read_settings
from fluxmq.ipc.table import ProcessTable
from fluxmq.model.errors import FluxmqError
from fluxmq.settings.clustering import ClusterSettings, Etcd, bindable
from fluxmq.settings.membership import settings_of
from fluxmq.supervisor.etcd_members import Admission, admission_of, initial_cluster, members_told

BUILT: Final = Path(fluxmq.__file__).parent.parent / "build" / "etcd"
"""The program that ``make etcd`` builds."""
LOG_ROTATION: Final = '{"maxsize": 10, "maxbackups": 2}'
"""Size of the member's log, in MB, at which a new file is begun, and how many old ones are kept."""
VERSION_SECONDS: Final = 10.0
"""Time for the program to state its version."""
QUOTA_BYTES: Final = 8 << 30
"""Size of the store at which it refuses changes; the largest that etcd recommends."""
OPERATIONS_MAX: Final = 1024
"""Operations of a transaction."""
REQUEST_BYTES_MAX: Final = 32 << 20
"""Size of a transaction: an import of hundreds of thousands of queues is one."""
ADMISSION_SECONDS: Final = 0.25
"""Interval at which a member without a directory asks whether it has been admitted."""
KEEP_ALIVE_MIN: Final = "500ms"
"""Shortest interval of clients' HTTP/2 keep-alives."""

LOG_TAIL_BYTES: Final = 64 << 10
"""End of the member's log in which the reason for its end is looked for."""

_BEHIND: Final = re.compile(rb"tocommit\(\d+\) is out of range")
"""Words of etcd's Raft when a leader counts on entries that the member does not have."""
_OLDEST: Final = {(3, 4): 23, (3, 5): 6}
"""First usable release of a line: before, watches lost events and the data could be damaged."""
_GOOD: Final = {(3, 4): 34, (3, 5): 16}
"""First release of a line without known faults that matter here."""


class EtcdProgramError(FluxmqError):
    """There is no usable program of etcd."""


def program_of(etcd: Etcd) -> str:
    """Return the path of the member's program: the settings', the one on PATH, or the one that was
    built. Raises EtcdProgramError."""
    if etcd.binary is not None:
        problem = problem_with(version_of(etcd.binary))
        if problem:
            raise EtcdProgramError(f"cluster.etcd.binary: {etcd.binary} {problem}")
        return etcd.binary
    passed_over = []
    for found in (shutil.which("etcd"), str(BUILT) if BUILT.exists() else None):
        if found is None:
            continue
        problem = problem_with(version_of(found))
        if not problem:
            return found
        passed_over.append(f"{found} {problem}; ")
    raise EtcdProgramError(
        f"cluster.etcd: {''.join(passed_over)}there is no program of etcd to run: build one with"
        " make etcd, install one on PATH or name one in cluster.etcd.binary; or name the endpoints"
        " of an etcd that runs elsewhere in cluster.etcd.endpoints"
    )


def version_of(program: str) -> tuple[int, int, int]:
    """Return the version of a program of etcd. Raises EtcdProgramError."""
    try:
        told = subprocess.run(
            [program, "--version"],
            capture_output=True,
            check=True,
            timeout=VERSION_SECONDS,
            text=True,
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as problem:
        raise EtcdProgramError(f"cluster.etcd: {program} cannot be run: {problem}") from problem
    found = re.search(r"^etcd Version: (\d+)\.(\d+)\.(\d+)", told, re.MULTILINE)
    if found is None:
        raise EtcdProgramError(f"cluster.etcd: {program} does not say that it is etcd")
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


def problem_with(version: tuple[int, int, int]) -> str:
    """Return why a version is not used; empty for one that is."""
    line, patch = version[:2], version[2]
    oldest = _OLDEST.get(line, 0 if line > (3, 5) else None)
    if oldest is not None and patch >= oldest:
        return ""
    return f"is version {'.'.join(map(str, version))}; needed is 3.4.23, 3.5.6, 3.6 or later"


def note_on(version: tuple[int, int, int]) -> str:
    """Return a warning about a version that is used; empty for a good one."""
    good = _GOOD.get(version[:2], 0)
    if version[2] >= good:
        return ""
    return (
        f"etcd {'.'.join(map(str, version))} may revoke leases of living clients, and is slow with many"
        f" leased keys: use {version[0]}.{version[1]}.{good} or later"
    )


def log_of(data_dir: str) -> str:
    """Return the path of a member's log: beside its directory, where it expects no other files."""
    return f"{data_dir.rstrip('/')}.log"


def arguments(
    cluster: ClusterSettings,
    etcd: Etcd,
    data_dir: str,
    version: tuple[int, int, int],
    joined: str = "",
) -> list[str]:
    """Return the member's command line, without the program. ``data_dir``: its directory;
    ``joined``: the members of the running cluster that has admitted it, if it starts anew there."""
    transport = cluster.transport
    scheme, members = cluster.url_scheme, cluster.members(etcd)
    token = "fluxmq-" + "-".join(sorted(members))
    given = {
        "name": cluster.node_id,
        "data-dir": data_dir,
        "listen-peer-urls": f"{scheme}://{bindable(etcd.bind_addr)}",
        "initial-advertise-peer-urls": members[cluster.node_id],
        "listen-client-urls": f"{scheme}://{bindable(etcd.client_addr)}",
        "advertise-client-urls": f"{scheme}://{bindable(etcd.client_addr)}",
        "initial-cluster": joined or ",".join(f"{name}={url}" for name, url in members.items()),
        "initial-cluster-state": "new" if etcd.bootstrap and not joined else "existing",
        "initial-cluster-token": token,
        "auto-compaction-retention": "0",  # the node that coordinates compacts
        "quota-backend-bytes": str(QUOTA_BYTES),
        "max-txn-ops": str(OPERATIONS_MAX),
        "max-request-bytes": str(REQUEST_BYTES_MAX),
        "grpc-keepalive-min-time": KEEP_ALIVE_MIN,
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": log_of(data_dir),
    }
    if version >= (3, 5, 0):
        given["enable-log-rotation"] = "true"
        given["log-rotation-config-json"] = LOG_ROTATION
    if transport.tls_enabled:
        for side in ("", "peer-"):
            given[f"{side}cert-file"] = transport.tls_cert_file or ""
            given[f"{side}key-file"] = transport.tls_key_file or ""
            given[f"{side}trusted-ca-file"] = transport.tls_ca_file or ""
            given[f"{side}client-cert-auth"] = "true"
    return [f"--{name}={value}" for name, value in given.items()] + ["--strict-reconfig-check"]


def is_behind(data_dir: str) -> bool:
    """Return whether the member has ended because its directory is older than what it has
    acknowledged: the directory was put back, say from a backup."""
    try:
        with open(log_of(data_dir), "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return _BEHIND.search(log.read()) is not None
    except OSError:
        return False


def discard(data_dir: str) -> None:
    """Delete a member's directory, so that the others admit it again: they have all that is in it.
    Its log is kept under another name."""
    shutil.rmtree(Path(data_dir) / "member")
    log = Path(log_of(data_dir))
    log.replace(log.with_suffix(".behind.log"))


def _joined(cluster: ClusterSettings, etcd: Etcd, data_dir: str) -> str:
    """Wait until a member without a directory may start; return the members of the running cluster
    that has admitted it, empty if the cluster is new or the member has its directory."""
    members = cluster.members(etcd)
    others = [url for name, url in members.items() if name != cluster.node_id]
    if is_behind(data_dir) and members_told(cluster, others):
        discard(data_dir)
    while not (Path(data_dir) / "member").is_dir():
        told = members_told(cluster, others)
        admission = admission_of(told, members[cluster.node_id]) if told else Admission.FIRST
        if admission is Admission.FIRST and etcd.bootstrap:
            return ""
        if admission is Admission.ADMITTED:
            return initial_cluster(told, cluster.node_id)
        time.sleep(ADMISSION_SECONDS)
    return ""


def run(launch: Launch) -> NoReturn:
    """Become the member. Does not return."""
    table = ProcessTable(launch.table_fd)
    settings = settings_of(read_settings(launch.settings_fd), launch.data_dir)
    etcd = settings.cluster.member
    assert etcd is not None, "the settings ask for a member"
    data_dir = etcd.directory(launch.data_dir)
    try:
        program = program_of(etcd)
        Path(data_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        joined = _joined(settings.cluster, etcd, data_dir)
        options = arguments(settings.cluster, etcd, data_dir, version_of(program), joined)
        table.set_reason(launch.slot, f"see {log_of(data_dir)}")  # if it ends
        os.execv(program, ["etcd", *options])
    except EtcdProgramError as problem:
        fail_boot(str(problem), table, launch.slot)
    except OSError as problem:
        fail_boot(f"cluster.etcd: {data_dir}: {problem.strerror}", table, launch.slot)
