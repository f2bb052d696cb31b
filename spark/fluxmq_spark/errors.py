"""What reading and writing queues with Spark fails with. All can be pickled: tasks raise them far from the driver."""

from __future__ import annotations


class SparkSourceError(Exception):
    """What a user of the source can do something about; the text says what is wrong, and where."""


class OptionError(SparkSourceError):
    """Options, or a schema, that cannot be; the text names every mistake, not only the first."""


class DataLoss(SparkSourceError):  # noqa: N818 - says what is the case
    """Messages that were asked for are not there any more; the text names queue, offsets and what to do."""


class Damage(SparkSourceError):  # noqa: N818 - says what is the case
    """A file that is not what it should be at one place: `what` is wrong at byte `position` of `path`."""

    def __init__(self, path: str, position: int, what: str) -> None:
        super().__init__(path, position, what)
        self.path = path
        self.position = position
        self.what = what

    def __str__(self) -> str:
        return f"{self.path}, byte {self.position}: {self.what}"
