"""What is done to disks: power cuts, full and failing disks, damage, old copies (F9 to F16)."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from tests.chaos.cluster import POLL_S, READY_DEADLINE_S, Member
from tests.chaos.faults import Fault
from tests.powercut.campaign import failpoint_names

POINT_COUNTS = (1, 2, 5, 20, 100)
BALLAST_CHUNK = 1 << 20
FLIPS = 8
"""Bits turned in one fault."""


class PowerCut(Fault):
    """F9: one node loses power, and comes back."""

    kind = "F9 power cut of one"

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        self.place.cluster.power_cut(self.members)

    def end(self) -> None:
        for member in self.members:
            member.power_on()


class AllPowerCut(PowerCut):
    """F10: all nodes lose power at once."""

    kind = "F10 power cut of all"
    recovery_s = 8.0

    def begin(self) -> None:
        self.members = self.place.up()
        took = self.place.cluster.power_cut(self.members)
        self.note = f"within {took * 1e3:.0f} ms"


class Failpoint(Fault):
    """F11: a node is started so that it dies at a named place of its storage, with the power."""

    kind = "F11 power cut at a named place"

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        name = self.place.random.choice(failpoint_names())
        count = self.place.random.choice(POINT_COUNTS)
        self.note = f"{name}:{count}"
        member.stop()
        member.launch(self.note)
        member.wanted = False

    def end(self) -> None:
        for member in self.members:
            member.power_off()
            member.power_on()


class DiskFull(Fault):
    """F12: one node's disk is full; it has to go on by itself when there is room again."""

    kind = "F12 disk full"

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        chunk = bytes(BALLAST_CHUNK)
        with contextlib.suppress(OSError), self._ballast(member).open("wb", buffering=0) as file:
            while True:
                file.write(chunk)

    def end(self) -> None:
        for member in self.members:
            self._ballast(member).unlink(missing_ok=True)

    @staticmethod
    def _ballast(member: Member) -> Path:
        return member.image.place / "ballast"


class DiskFailed(Fault):
    """F13: every write and sync of one node fails from one moment on, and it lives on meanwhile."""

    kind = "F13 disk failed"

    def begin(self) -> None:
        member, self.note = self.place.leader()
        self.members = [member]
        member.wanted = False
        member.image.cut()

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.power_on()


class BitsFlipped(Fault):
    """F15: bits of one node's files are turned while it is down."""

    kind = "F15 bits flipped"
    patterns = ("*.seg", "*.idx", "*.wal", "*.snap", "head")

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        member.kill()
        data = member.image.place / "data"
        pattern = self.place.random.choice(self.patterns)
        # What an earlier time made the node set aside is nobody's any more.
        found = (path for path in sorted(data.rglob(pattern)) if "damaged" not in str(path))
        files = [path for path in found if path.stat().st_size]
        for _ in range(FLIPS if files else 0):
            path = self.place.random.choice(files)
            at = self.place.random.randrange(path.stat().st_size)
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1 << self.place.random.randrange(8)]))
        self.note = f"{FLIPS} in {len(files)} files {pattern}"

    def end(self) -> None:
        for member in self.members:
            member.launch()


class OldDirectory(Fault):
    """F16: a node comes back with the data directory that it had some time ago."""

    kind = "F16 old directory"

    def begin(self) -> None:
        member = self.place.some()
        self.members = [member]
        member.stop()
        kept = member.folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        # Without the sockets of the last start, which are no files.
        leave = shutil.ignore_patterns("run")
        shutil.copytree(member.image.place / "data", kept, symlinks=True, ignore=leave)
        member.launch()
        # It has to have taken part again: what it then promises is what the old directory does not know.
        deadline = time.monotonic() + READY_DEADLINE_S
        while not member.ready() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def end(self) -> None:
        for member in self.members:
            member.stop()
            data, kept = member.image.place / "data", member.folder / "kept"
            shutil.rmtree(data)
            shutil.copytree(kept, data, symlinks=True)
            member.launch()
