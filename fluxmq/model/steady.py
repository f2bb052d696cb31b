"""Steady time: the time base of a node's deadlines. It passes like a wall clock, but never jumps.

A wall clock is set: by an administrator, by NTP half a minute after boot, by a hardware clock that
holds local time. Time to live, back-off, visibility timeouts and expiry are durations, and a jump
of the wall clock must not change them. So steady time is taken from the wall clock once, when a
process starts, and from then on follows the clock that counts from boot. It is steered towards the
wall clock so slowly that no timer suffers.

Only a wall clock can tell how long a machine was off. A `ClockReadings` that an earlier process
left beside its data allows several answers, and the shortest counts: a message kept too long can
still be delivered, one that expired too early is gone.

All times are microseconds. Nothing here reads a clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from xxhash import xxh3_64_hexdigest

SLEW_PARTS: Final = 20
"""Steady time speeds up or slows down by at most one part in this many while it differs from the
wall clock: a difference of an hour is gone after 20 hours, and meanwhile no timer is off by more
than a twentieth."""


class SteadyClock:
    """Steady time, as a function of the time since boot."""

    __slots__ = ("_adrift", "_base", "_since")

    def __init__(self, time: int, elapsed: int) -> None:
        self._base = time
        self._since = elapsed
        self._adrift = 0
        """Lag behind its target at `_since`; below 0: ahead."""

    def at(self, elapsed: int) -> int:
        """Return steady time when `elapsed` has passed since boot. It never decreases, except by
        `step`."""
        passed = max(elapsed - self._since, 0)
        most, adrift = passed // SLEW_PARTS, self._adrift
        if adrift < 0:
            return self._base + passed - min(most, -adrift)
        return self._base + passed + min(most, adrift)

    def steer(self, elapsed: int, target: int | None) -> None:
        """Steer towards `target`, the right time at this moment; None: run at real-time speed."""
        self._base = self.at(elapsed)
        self._since = max(elapsed, self._since)
        self._adrift = 0 if target is None else target - self._base

    def step(self, elapsed: int, by: int) -> None:
        """Step in either direction, for a process that has just started and learns the time from
        others."""
        self._base = self.at(elapsed) + by
        self._since = max(elapsed, self._since)
        self._adrift = 0


class ClockReadings(NamedTuple):
    """Readings of a process's clocks at one moment: steady time, wall clock, time since boot, and
    the boot's id."""

    steady: int
    wall: int
    elapsed: int
    boot: str

    def encode(self) -> bytes:
        """Encode the readings as a line of text with a checksum."""
        text = f"{self.steady} {self.wall} {self.elapsed} {self.boot or '-'}".encode()
        return b"%s %s\n" % (text, xxh3_64_hexdigest(text).encode())

    @staticmethod
    def decode(line: bytes) -> ClockReadings | None:
        """Decode the result of `encode`; return None for anything else, such as a torn write."""
        words = line.split()
        if len(words) != 5 or xxh3_64_hexdigest(b" ".join(words[:4])).encode() != words[4]:
            return None
        steady, wall, elapsed = map(int, words[:3])
        return ClockReadings(steady, wall, elapsed, words[3].decode())

    def drift(self) -> int:
        """Return how far steady time was ahead of the wall clock."""
        return self.steady - self.wall


def resumed(mark: ClockReadings | None, wall: int, elapsed: int, boot: str) -> int:
    """Return steady time at the start of a process, given the last one's mark and the clocks now.

    Without a mark it is the wall clock's. With one, time has passed as the wall clock says; but
    that does not put steady time ahead of the wall clock, and within one boot no more has passed
    than on the clock that counts from boot. So a wall clock that is wrong only now, or was wrong
    only then, makes the unobserved time too short, not too long.
    """
    if mark is None:
        return wall
    claims = [mark.steady + wall - mark.wall, wall]
    if boot and boot == mark.boot:
        claims.append(mark.steady + elapsed - mark.elapsed)
    return max(mark.steady, min(claims))
