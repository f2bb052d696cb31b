"""Steady time: what a node's deadlines are measured in. It passes as fast as a wall clock, and never jumps with one.

A wall clock is set: by an administrator, by NTP half a minute after boot, by a hardware clock that holds local time. Time
to live, back-off, visibility timeouts and expiry are durations, and a jump of the wall clock must change none of them.
So steady time is taken from the wall clock once, when a process starts, and from then on passes with the clock that
counts from boot. It is steered towards the wall clock so slowly that no timer suffers.

The one thing that only a wall clock can say is for how long a machine was off. A `Mark` that a former process left beside
its data allows several answers, and the shortest counts: a message that is kept too long can still be delivered, one
that expired too early is gone.

All times are microseconds. Nothing here reads a clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from xxhash import xxh3_64_hexdigest

SLEW_PARTS: Final = 20
"""Steady time runs faster or slower by at most one part in so many while it is not what the wall clock shows: a difference of
an hour is gone after 20 hours, and no timer meanwhile is wrong by more than a twentieth."""


class SteadyClock:
    """Steady time, as a function of the time since boot."""

    __slots__ = ("_adrift", "_base", "_since")

    def __init__(self, time: int, elapsed: int) -> None:
        self._base = time
        self._since = elapsed
        self._adrift = 0
        """By how much it was behind where it is to be, at `_since`; below 0: ahead."""

    def at(self, elapsed: int) -> int:
        """Return steady time when `elapsed` has passed since boot. Never less for a later moment, but for `step`."""
        passed = max(elapsed - self._since, 0)
        most, adrift = passed // SLEW_PARTS, self._adrift
        if adrift < 0:
            return self._base + passed - min(most, -adrift)
        return self._base + passed + min(most, adrift)

    def steer(self, elapsed: int, target: int | None) -> None:
        """Head for `target`, what it ought to be at this moment; None: go on as fast as real time."""
        self._base = self.at(elapsed)
        self._since = max(elapsed, self._since)
        self._adrift = 0 if target is None else target - self._base

    def step(self, elapsed: int, by: int) -> None:
        """Be set, in either direction: for a process that has just started and learns that others know better."""
        self._base = self.at(elapsed) + by
        self._since = max(elapsed, self._since)
        self._adrift = 0


class Mark(NamedTuple):
    """What a process's clocks showed at one moment: steady time, wall clock, time since boot, and which boot that was."""

    steady: int
    wall: int
    elapsed: int
    boot: str

    def encode(self) -> bytes:
        """Return it as a line of text with its check."""
        text = f"{self.steady} {self.wall} {self.elapsed} {self.boot or '-'}".encode()
        return b"%s %s\n" % (text, xxh3_64_hexdigest(text).encode())

    @staticmethod
    def decode(line: bytes) -> Mark | None:
        """Return what `encode` made; None for anything else, such as what a power cut left of it."""
        words = line.split()
        if len(words) != 5 or xxh3_64_hexdigest(b" ".join(words[:4])).encode() != words[4]:
            return None
        steady, wall, elapsed = map(int, words[:3])
        return Mark(steady, wall, elapsed, words[3].decode())

    def drift(self) -> int:
        """Return by how much steady time was ahead of the wall clock."""
        return self.steady - self.wall


def resumed(mark: Mark | None, wall: int, elapsed: int, boot: str) -> int:
    """Return steady time at the start of a process, given what the last one left and what the clocks show now.

    Without a mark it is the wall clock's. With one, time has passed as the wall clock says; but steady time does not get
    ahead of the wall clock by that, and within one boot no more has passed than the clock that counts from boot says. So a
    wall clock that is wrong only now, or was wrong only then, makes the time that nobody saw too short, not too long.
    """
    if mark is None:
        return wall
    claims = [mark.steady + wall - mark.wall, wall]
    if boot and boot == mark.boot:
        claims.append(mark.steady + elapsed - mark.elapsed)
    return max(mark.steady, min(claims))
