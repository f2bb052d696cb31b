"""How much memory there is and is held, and the marks between which publishers stop and go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fluxmq.ipc.memory import ProcessMemory, Watermark, Watermarks, available, held, shared
from fluxmq.settings.schema import Memory

MIB = 1 << 20
STATUS = b"""Name:\tpython
VmSwap:\t     100 kB
VmRSS:\t   90000 kB
RssAnon:\t   60000 kB
RssFile:\t   25000 kB
RssShmem:\t    5000 kB
"""


@pytest.mark.parametrize(
    ("settings", "watermarks"),
    [
        ({}, (600, 540, 750)),
        ({"high_watermark": 0.9}, (900, 810, 950)),
        ({"high_watermark": 1.0}, (1000, 900, 1250)),
        ({"high_watermark_bytes": 200, "resume": 0.5}, (200, 100, 250)),
        ({"high_watermark_bytes": 2000}, (2000, 1800, 2500)),
        ({"high_watermark": 0.5, "critical": 1.0}, (500, 450, 500)),
    ],
)
def test_marks_are_a_share_or_a_size(
    settings: dict[str, float], watermarks: tuple[int, int, int]
) -> None:
    """Review finding 14: the critical mark lies at most halfway from the mark to the end."""
    found = Watermarks.of(Memory.model_validate(settings), 1000)
    assert (found.available, found.high, found.resume, found.critical) == (1000, *watermarks)


def test_the_alarm_ends_below_another_mark_than_it_begins() -> None:
    """Review finding 14: an alarm that ended where it begins would come and go with every message."""
    watermark = Watermark(Watermarks(1000, 600, 540, 750))
    uses = [599, 600, 599, 540, 539, 540, 599, 749, 750, 749, 539]
    assert [watermark.update(used) for used in uses] == (
        [False, True, True, True, False, False, False, True, True, True, False]
    )
    assert watermark.update(750)
    assert watermark.critical
    assert watermark.update(749)
    assert not watermark.critical


def test_what_the_kernel_cannot_take_back_is_held() -> None:
    assert held(STATUS) == (60_000 + 2_500 + 100) * 1024
    assert held(b"RssAnon:\t 1 kB\n") == 1024
    assert held(b"Name:\tx\n") == 0


def test_a_process_measures_itself() -> None:
    own = ProcessMemory()
    before = own.read()
    much = bytes(64 * MIB)[:-1] + b"x"  # touched, and so not the kernel's page of zeros
    after = own.read()
    own.close()
    assert len(much) == 64 * MIB
    assert 60 * MIB < after - before < 200 * MIB


SHARING = """
import os, time
from fluxmq.ipc.memory import ProcessMemory
much = os.urandom(64 << 20)
pid = os.fork()
if pid == 0:
    time.sleep(60)
own, child = ProcessMemory(), ProcessMemory(pid)
alone = ProcessMemory(settled=lambda: False)
print(alone.read(), own.read(), child.read())
os.kill(pid, 9)
os.waitpid(pid, 0)
try:
    child.read()
except ProcessLookupError:
    print("ended")
"""


def test_processes_count_what_they_share_once() -> None:
    """A fork that has written nothing: each of the two counts half of the pages."""
    command = [sys.executable, "-c", SHARING]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    alone, own, child = map(int, said[:3])
    assert alone > 64 * MIB
    assert own < 0.7 * alone
    assert child < 0.7 * alone
    assert own + child > 0.9 * alone
    assert said[3:] == ["ended"]


def test_a_kernel_that_does_not_tell_the_shared_part() -> None:
    assert shared(b"Pss_Anon:    1000 kB\nAnonymous:   3000 kB\n") == 2000 * 1024
    assert shared(b"Pss:    1000 kB\nAnonymous:   3000 kB\n") == 0


def place(root: Path, name: str, text: str) -> None:
    """A file of the kernel's."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (None, {}, 2048 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n"}, 2048 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{512 * MIB}\n"}, 512 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{256 * MIB}\n"}, 256 * MIB),
        ("0::/gone/here\n", {"memory.max": f"{128 * MIB}\n"}, 128 * MIB),
        ("0::/a\n", {"a/memory.max": f"{9000 * MIB}\n"}, 2048 * MIB),
        (
            "5:cpu,cpuacct:/c\n4:memory:/c\n0::/\n",
            {"memory/c/memory.limit_in_bytes": f"{64 * MIB}\n", "cpu/c/memory.max": "1\n"},
            64 * MIB,
        ),
        (
            "4:memory:/c\n",
            {"memory/memory.limit_in_bytes": "9223372036854771712\n"},
            2048 * MIB,
        ),
    ],
)
def test_a_control_group_may_allow_less_than_the_machine_has(
    tmp_path: Path, groups: str | None, files: dict[str, str], expected: int
) -> None:
    place(tmp_path, "meminfo", "MemTotal:        2097152 kB\nMemFree:  1 kB\n")
    if groups is not None:
        place(tmp_path, "cgroup", groups)
    for name, text in files.items():
        place(tmp_path / "groups", name, text)
    paths = [str(tmp_path / name) for name in ("meminfo", "cgroup", "groups")]
    assert available(*paths) == expected
