"""The nodes of a run: each in a namespace of its own, with its data on an image of its own that can lose power.

What blocks here (starting, killing, mounting) is for threads; nothing in this module knows an event loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import xxhash

from fluxmq.settings.clustering import OWN_GROUP_PREFIXES
from tests.broker import REPOSITORY
from tests.chaos.network import address, inside, namespace_of, prefix_of
from tests.chaos.records import Replica
from tests.chaos.settings import (
    AMQP,
    HTTP,
    MQTT,
    make_certificates,
    node_settings,
)
from tests.powercut.image import Image, tool
from tests.powercut.node import NodeError, Processes, answers_ready
from tests.wall_clock import WallClock

READY_DEADLINE_S = 60.0
POLL_S = 0.05
STOP_S = 30.0
COMMAND_TIMEOUT_S = 30.0
IMAGE_BYTES = 256 << 20
"""Small, so that a disk is soon full."""
FOLDER_PREFIX = "fx-chaos-"
SHARD = "fluxmq-shard-"
LEADS = re.compile(r'^fluxmq_raft_leader\{[^}]*group="([^"]+)"[^}]*\} 1(\.0)?$', re.MULTILINE)
"""The sample by which a node says that it leads a group."""
APPLIED = re.compile(
    r'^fluxmq_raft_applied_index\{[^}]*group="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE
)
"""That by which it says how much of a group's log it has applied."""


class Member(Processes):
    """One node of the cluster."""

    def __init__(
        self,
        number: int,
        nodes: int,
        folder: Path,
        *,
        mode: str,
        proxied: bool,
        certificates: Path | None,
        dead_letters: bool,
        cores: str,
        checkpoint_interval: str,
        workers: int,
    ) -> None:
        self.number = number
        self.name = f"node{number}"
        self.host = address(number)
        self.port, self.amqp_port = MQTT, AMQP
        own = folder / self.name
        own.mkdir()
        self.image = Image(own, IMAGE_BYTES)
        self.wanted = False
        """Whether it should be running now."""
        prefix = prefix_of(number)
        # A supervisor pins its first shard to its first processor: those of different nodes should not be the same.
        usable = sorted(os.sched_getaffinity(0))
        cores = cores or str(usable[number % len(usable)])
        prefix = (*prefix, tool("taskset"), "-c", cores)
        settings = node_settings(
            number,
            nodes,
            self.image.place / "data",
            mode=mode,
            proxied=proxied,
            certificates=certificates,
            dead_letters=dead_letters,
            checkpoint_interval=checkpoint_interval,
        )
        super().__init__(own, settings, workers, self.name, prefix)
        self.wall = WallClock(own)
        self.environment = self.wall.environment

    def launch(self, failpoint: str = "") -> None:
        self.wanted = True
        super().launch(failpoint)

    def kill(self) -> None:
        self.wanted = False
        super().kill()

    def ready(self) -> bool:
        """Whether ``/ready`` answers 200."""
        with inside(namespace_of(self.number)):
            return answers_ready("127.0.0.1", HTTP)

    def metrics(self) -> str:
        """The page ``/metrics``; nothing when it does not answer."""
        with inside(namespace_of(self.number)), contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{HTTP}/metrics"
            with urllib.request.urlopen(url, timeout=5) as page:
                return str(page.read().decode())
        return ""

    def leads(self) -> set[str]:
        """The groups that it says it leads."""
        return {found[0] for found in LEADS.findall(self.metrics())}

    def pids_of(self, *words: str) -> list[int]:
        """Processes of this node whose command line begins with one of these words."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                if line.startswith(words):
                    found.append(pid)
        return found

    def signal_all(self, number: signal.Signals) -> None:
        """A signal to every process of the node."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def control(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``fluxmqctl`` with these words, at this node."""
        command = [*self.prefix, sys.executable, "-m", "fluxmq.cli.main"]
        command += ["--config", str(self.config), *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def power_off(self) -> None:
        """The file system loses power, and the processes die."""
        self.image.cut()
        self.kill()

    def power_on(self) -> None:
        """Mount what is left, and start."""
        self.image.remount()
        self.launch()


class Cluster:
    """The members of a run and the folder they are in. A context manager: left, everything is gone."""

    def __init__(
        self,
        nodes: int,
        *,
        mode: str = "forward",
        proxied: bool = False,
        tls: bool = False,
        dead_letters: bool = False,
        cores: str = "",
        checkpoint_interval: str = "200ms",
        workers: int = 1,
    ) -> None:
        """Make images and configurations. Raises ``NotPermittedError``."""
        remove_folders()
        self.folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        self.members: list[Member] = []
        certificates = None
        try:
            if tls:
                certificates = self.folder / "certificates"
                certificates.mkdir()
                make_certificates(certificates, nodes)
            for number in range(1, nodes + 1):
                member = Member(
                    number,
                    nodes,
                    self.folder,
                    mode=mode,
                    proxied=proxied,
                    certificates=certificates,
                    dead_letters=dead_letters,
                    cores=cores,
                    checkpoint_interval=checkpoint_interval,
                    workers=workers,
                )
                self.members.append(member)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    def start(self) -> None:
        """Start all and wait until all are ready. Raises ``NodeError``."""
        for member in self.members:
            member.launch()
        self.wait_ready(READY_DEADLINE_S)

    def wait_ready(self, seconds: float) -> None:
        """Wait until every member is ready. Raises ``NodeError``."""
        deadline = time.monotonic() + seconds
        for member in self.members:
            while not member.ready():
                if not member.running or time.monotonic() > deadline:
                    raise NodeError(f"{member.name} is not ready:\n{member.said()}")
                time.sleep(POLL_S)

    def leader(self, group: str) -> Member | None:
        """Who says that it leads a group, if exactly one does."""
        found = [member for member in self.members if member.running and group in member.leads()]
        return found[0] if len(found) == 1 else None

    def died(self) -> list[Member]:
        """Members that should be running and are not."""
        return [member for member in self.members if member.wanted and not member.running]

    def power_cut(self, members: Sequence[Member]) -> float:
        """Every one of these loses power, one directly after the other; how many seconds that took."""
        began = time.monotonic()
        for member in members:
            member.image.cut()
        took = time.monotonic() - began
        for member in members:
            member.kill()
        return took

    def stop(self) -> None:
        """SIGTERM to all at once, and wait."""
        for member in self.members:
            member.wanted = False
            if member.process is not None:
                member.process.terminate()
        for member in self.members:
            if member.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.process.wait(STOP_S)
            member.kill()

    def replicas(self) -> Iterator[Replica]:
        """What is on the stopped members' disks of queues that more than one of them has."""
        found: dict[tuple[str, str], dict[str, Path]] = {}
        for member in self.members:
            for path in _segments(member):
                found.setdefault((path.parent.name, path.name), {})[member.name] = path
        for (queue, segment), paths in found.items():
            lengths = {name: path.stat().st_size for name, path in paths.items()}
            common = min(lengths.values())
            for name, path in paths.items():
                with path.open("rb") as file:
                    digest = xxhash.xxh3_128_hexdigest(file.read(common))
                yield Replica(name, queue, segment, lengths[name], common, digest)

    def extents(self) -> list[dict[str, float]]:
        """For each member, how far it has applied each group's log."""
        return [
            {group: float(index) for group, index in APPLIED.findall(member.metrics())}
            for member in self.members
        ]

    def close(self) -> None:
        """Kill what runs, unmount and remove."""
        for member in self.members:
            member.signal_all(signal.SIGCONT)
            member.kill()
        remove_folder(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _segments(member: Member) -> list[Path]:
    """The segments of a member's queues in groups that others have, too."""
    groups = member.image.place / "data" / "groups"
    return [
        path
        for path in sorted(groups.glob("*/queues/*/*.seg"))
        if not path.parts[-4].startswith(OWN_GROUP_PREFIXES)
    ]


def remove_folders() -> None:
    """Remove what runs that were killed left mounted. Only who holds the network's lock may."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Unmount what is mounted below, and remove all of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for place in folder.glob("*/mount"):
        deadline = time.monotonic() + 10.0
        while os.path.ismount(place) and libc.umount2(os.fsencode(place), 0):
            if time.monotonic() > deadline:
                raise NodeError(f"{place} stays mounted")
            time.sleep(POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
