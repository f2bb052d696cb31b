"""A series of counters and lengths, and the rates and samples that RabbitMQ's management shows of it.

A point is added only when something has changed: between two points the values stay as at the
first. Pure: times are arguments, in seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

STEP_SECONDS: Final = 5.0
"""Time between two samples."""
FINE_SECONDS: Final = 65.0
"""Age up to which every sample is kept: a minute, and the sample before."""
COARSE_SECONDS: Final = 30.0
"""Distance of older samples of a queue."""
KEPT_SECONDS: Final = 610.0
"""Age at which samples are forgotten: ten minutes, and the sample before."""


class Series:
    """Values of one thing over the last ten minutes. ``coarse``: keep fewer of the older ones."""

    def __init__(self, width: int, coarse: bool = False) -> None:
        self._width = width
        self._coarse = coarse
        self._times = array("d")
        self._values = array("d")

    def add(self, time: float, values: Sequence[float]) -> None:
        """Add a point. One less than a step after another replaces that, unless it is the first."""
        times = self._times
        if len(times) > 1 and time - times[-2] < STEP_SECONDS * 0.9:
            self._remove(len(times) - 1)
        times.append(time)
        self._values.extend(values)
        self._thin(time)

    @property
    def last(self) -> float:
        """Time of the last point, when something changed last. There must be one."""
        return self._times[-1]

    def at(self, time: float) -> Sequence[float]:
        """Return the values at a time; before the first point those of that."""
        index = max(bisect_right(self._times, time) - 1, 0)
        return self._values[index * self._width : (index + 1) * self._width]

    def _remove(self, index: int) -> None:
        del self._times[index]
        del self._values[index * self._width : (index + 1) * self._width]

    def _thin(self, now: float) -> None:
        """Remove points too old to be needed; one of them remains, as the values until the next."""
        times = self._times
        while len(times) > 1 and now - times[1] > KEPT_SECONDS:
            self._remove(0)
        if not self._coarse:
            return
        index = 1
        while index < len(times) - 1 and now - times[index] > FINE_SECONDS:
            if times[index + 1] - times[index - 1] < COARSE_SECONDS:
                self._remove(index)
            else:
                index += 1


class SampledSpan:
    """Times at which values are wanted: a rate's two ends, and those of samples, newest first.

    ``offset`` is added to a time to make it one of the wall clock.
    """

    def __init__(self, begin: float, end: float, age: int, step: int, offset: float) -> None:
        self.begin = begin
        self.end = end
        count = age // step + 1 if age else 0
        self.times = [end - index * step for index in range(count)]
        self.offset = offset

    def rate(self, series: Series, column: int, *, grows: bool) -> float:
        """Return the rate of a column a second; see `details`."""
        seconds = self.end - self.begin
        difference = series.at(self.end)[column] - series.at(self.begin)[column]
        if grows:
            difference = max(difference, 0.0)
        return round(difference / seconds, 2) if seconds > 0 else 0.0

    def details(self, series: Series, column: int, *, grows: bool) -> dict[str, Any]:
        """Return the rate and the samples of a column, and their averages; one that only ``grows``
        has begun anew where it is less than before."""
        found: dict[str, Any] = {"rate": self.rate(series, column, grows=grows)}
        if self.times:
            values = [series.at(each)[column] for each in self.times]
            found["samples"] = [
                {"sample": int(value), "timestamp": int(1000 * (each + self.offset))}
                for value, each in zip(values, self.times, strict=True)
            ]
            length = self.times[0] - self.times[-1]
            found["avg"] = sum(values) / len(values)
            found["avg_rate"] = (values[0] - values[-1]) / length if length > 0 else 0.0
        return found
