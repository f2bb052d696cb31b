"""Errors of reading and writing queues with Spark. All can be pickled: tasks raise them far from
the driver."""

from __future__ import annotations


class SparkSourceError(Exception):
    """An error that a user of the source can resolve; the text says what is wrong, and where."""


class OptionError(SparkSourceError):
    """Invalid options, or an invalid schema; the text names every mistake, not only the first."""


class DataLoss(SparkSourceError):  # noqa: N818 - says what is the case
    """Requested messages no longer exist; the text names queue, offsets and remedy."""


class Damage(SparkSourceError):  # noqa: N818 - says what is the case
    """A file is damaged at one place: `what` is wrong at byte `position` of `path`."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(path, position, what)
        self.path = path
        self.position = position
        self.what = what

    def __str__(self) -> str:
        return f"{self.path}, byte {self.position}: {self.what}"
