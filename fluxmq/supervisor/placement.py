"""Number of shards, their cores, and the pins of groups. Pure: the cores come as an argument.

One shard per core, bound to it. With more shards than cores they wrap around; with fewer, the first
cores are used and the rest is left to the acceptor, the control process and the kernel. A node that
shares its cores with others, which would choose the same first ones, leaves its shards to the
kernel's scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fluxmq.model.errors import FluxmqError

WORKERS_MAX = 256
"""Maximum shards per node: links grow with the square, and no machine has more cores for one
broker."""

GROUP_CHARACTERS_MAX = 128
_GROUP = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_CPU_MAX = re.compile(r"(\d+|max) (\d+)")


class PlacementError(FluxmqError):
    """A command line option asks for something this machine does not have."""


@dataclass(slots=True, frozen=True)
class Plan:
    """The core of each shard, by shard index, and the shard of each pinned group. ``bound``: each
    shard runs on its core only."""

    cores: tuple[int, ...]
    pins: dict[str, int]
    bound: bool = True

    @property
    def workers(self) -> int:
        """Number of shards."""
        return len(self.cores)


def quota_cores(cpu_max: str) -> int | None:
    """Return the cores that a control group may use, from its ``cpu.max``; None when unlimited."""
    match = _CPU_MAX.fullmatch(cpu_max.strip())
    if match is None or match[1] == "max":
        return None
    quota, period = int(match[1]), int(match[2])
    return max(1, -(-quota // period)) if period else None


def worth_binding(cores: int, quota: int | None) -> bool:
    """Return whether shards are better off on cores of their own.

    A quota below the number of cores means a container that may use all of them: every container of
    this machine would bind its shards to the same first ones.
    """
    return quota is None or quota >= cores


def parse_workers(text: str, usable: int) -> int:
    """Return the number of shards meant by ``auto`` or a number. Raises PlacementError."""
    if text == "auto":
        return min(usable, WORKERS_MAX)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= WORKERS_MAX):
        raise PlacementError(
            f"--workers {text}: is neither auto nor a number from 1 to {WORKERS_MAX}"
        )
    return int(text)


def plan(workers: int, cores: Sequence[int], pins: Iterable[str], *, bound: bool = True) -> Plan:
    """Place ``workers`` shards on ``cores`` and read the pins. Raises PlacementError."""
    assert workers > 0
    assert cores
    placed = tuple(cores[index % len(cores)] for index in range(workers))
    found = _pins(pins, placed)
    if found and not bound:
        raise PlacementError(f"--pin {next(iter(found))}: shards have no cores with --bind never")
    return Plan(placed, found, bound)


def _pins(pins: Iterable[str], placed: tuple[int, ...]) -> dict[str, int]:
    """Return the shard for each ``GROUP=CORE`` pin: the first when several share the core."""
    found: dict[str, int] = {}
    for pin in pins:
        group, equals, core = pin.partition("=")
        if not equals or not (core.isascii() and core.isdigit()):
            raise PlacementError(f"--pin {pin}: write it as GROUP=CORE, with the number of a core")
        if len(group) > GROUP_CHARACTERS_MAX or _GROUP.fullmatch(group) is None:
            raise PlacementError(
                f"--pin {pin}: {group!r} is not the name of a group;"
                f" use up to {GROUP_CHARACTERS_MAX} letters, digits, - _ and ."
            )
        if group in found:
            raise PlacementError(f"--pin {pin}: {group} is pinned twice")
        if int(core) not in placed:
            cores = ", ".join(str(each) for each in sorted(set(placed)))
            raise PlacementError(f"--pin {pin}: no shard runs on core {core}; there are {cores}")
        found[group] = placed.index(int(core))
    return found
