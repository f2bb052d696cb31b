"""What processes hold in memory over time, and whether that grows.

Growth is the slope of the resident memory after the warm-up, times its duration: one sample that is high says nothing, and a
sawtooth has no slope. Knows of processes only what /proc says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROUGHNESS_BYTES = 6 << 20
"""Growth of a process that says nothing in a run of any length: arenas, tables and caches that fill to their bounds. Before
finding 17 was mended it was 8 KB for each queue: 36 MB in a run of 60 s."""
BYTES_PER_QUEUE = 64
"""Growth for each queue made and deleted that is allowed besides: less than a row of any table takes."""


class Held(NamedTuple):
    """Bytes of one process at a moment: resident, and its share of them."""

    rss: int
    pss: int


class Sample(NamedTuple):
    """Seconds since the load began, and what each process held then, by role."""

    at: float
    held: Mapping[str, Held]


def held_by(pid: int) -> Held:
    """What a process holds now. Raises OSError when there is none."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name] = int(rest.split()[0]) * 1024
    return Held(found["Rss"], found["Pss"])


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Units per second of the straight line that fits best (least squares)."""
    count = len(points)
    if count < 2:
        return 0.0
    middle = sum(at for at, _ in points) / count
    mean = sum(value for _, value in points) / count
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (value - mean) for at, value in points) / spread


@dataclass(frozen=True)
class Growth:
    """Of one process after the warm-up. ``allowed``: bytes by which it may grow."""

    role: str
    first: Held
    last: Held
    grown: float
    allowed: float

    @property
    def fine(self) -> bool:
        """Whether it stays as it is."""
        return self.grown <= self.allowed


def growth(samples: Sequence[Sample], warm_up: float, queues: int) -> list[Growth]:
    """What became of each process after so many seconds, in which there were so many queues."""
    counted = [sample for sample in samples if sample.at >= warm_up]
    if len(counted) < 2:
        raise ValueError("the run is not longer than its warm-up")
    seconds = counted[-1].at - counted[0].at
    return [
        Growth(
            role,
            counted[0].held[role],
            counted[-1].held[role],
            seconds * slope([(each.at, each.held[role].rss) for each in counted]),
            ROUGHNESS_BYTES + BYTES_PER_QUEUE * queues,
        )
        for role in counted[0].held
    ]
