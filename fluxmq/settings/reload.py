"""Settings that a running node may adopt from a changed file, and those that wait for a restart.

Settings are live if they are looked up at each use and no table, socket or file was sized or opened
with them. Session limits apply to sessions created from then on.
"""

from __future__ import annotations

from typing import Final

from fluxmq.settings.schema import Settings
from fluxmq.settings.section import Path, Shape, leaves, spell

LIVE: Final[tuple[Path, ...]] = (
    ("log",),
    ("ratelimit",),
    ("auth",),
    ("session",),
    ("memory",),
    ("broker", "max_qos"),
)
"""Sections and keys that SIGHUP changes in a running node."""


def changes(old: Settings, new: Settings) -> tuple[list[str], list[str]]:
    """Return the paths that differ: those that change live, and those that need a restart, in the
    file's order."""
    before, after = _values(old), _values(new)
    live: list[str] = []
    restart: list[str] = []
    for path in dict.fromkeys([*before, *after]):
        if before.get(path, _ABSENT) != after.get(path, _ABSENT):
            is_live = any(path[: len(prefix)] == prefix for prefix in LIVE)
            (live if is_live else restart).append(spell(path))
    return live, restart


_ABSENT: Final = object()


def _values(settings: Settings) -> dict[Path, object]:
    return {path: value for path, value, _ in leaves(settings, Shape(Settings))}
