"""Opens logs with small files for tests, and says what they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_mark import MARK_FILE
from fluxmq.storage.wal_options import NO_MARK, MarkWrite, WalOptions
from tests.faults import FailingFiles, ManualSyncer, PowerCutFiles

FILE_BYTES = 4096


def small(**settings: Any) -> WalOptions:
    """Options of a log that is small and does everything at once."""
    chosen = {"file_bytes": FILE_BYTES, "retry_seconds": 0.0, "background": False, **settings}
    return WalOptions(**chosen)


class Bench:
    """A log in a directory, with a disk and a syncer that do what the test says."""

    def __init__(
        self,
        folder: Path,
        files: FailingFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.folder = folder
        self.files = FailingFiles() if files is None else files
        self.options = small(**settings)
        self.seconds: list[float] = []
        self.running = False
        self.start()

    def start(self) -> None:
        """Open the log."""
        self.syncer = ManualSyncer(self.files)
        self.log = WriteAheadLog.open(
            self.files,
            str(self.folder / "wal"),
            self.syncer,
            self.options,
            on_sync=self.seconds.append,
            clock=self.clock,
        )
        self.running = True

    def commit(self) -> int:
        """Write everything buffered and sync it; the number of the last write."""
        number = self.log.flush()
        while self.syncer.waiting:
            self.syncer.sync()
            self.log.completed()
        return number

    def close(self) -> None:
        """Close in order, syncing as asked."""
        self.commit()
        syncer = self.syncer
        submit, write = syncer.submit, syncer.write

        def at_once(fd: int, number: int, mark: MarkWrite = NO_MARK) -> None:
            submit(fd, number, mark)
            syncer.sync()

        def written_at_once(
            parts: list[bytes], position: int, number: int, mark: MarkWrite = NO_MARK
        ) -> bool:
            waiting = syncer.waiting
            done = write(parts, position, number, mark)
            if syncer.waiting > waiting:
                syncer.sync()
            return done

        syncer.submit = at_once  # type: ignore[method-assign]
        syncer.write = written_at_once  # type: ignore[method-assign]
        self.log.close()
        syncer.close()
        self.running = False

    def kill(self) -> None:
        """End without a word: descriptors go, nothing is written but what the kernel was given.

        As after a power cut, of how far the log was synced nothing is known but what is in it (a disk that forgets has
        its own way with that).
        """
        if not self.running:
            return
        self.running = False
        self.syncer.land()
        for file in (*self.log._row.used, *self.log._row.ready):
            self.files.close(file.fd)
        self.syncer.close()
        if not isinstance(self.files, PowerCutFiles):
            (self.folder / "wal" / MARK_FILE).unlink(missing_ok=True)

    def again(self) -> None:
        """Kill it and start anew."""
        self.kill()
        self.start()

    @property
    def names(self) -> list[str]:
        """The log's files, by number."""
        return [str(int(path.stem)) for path in sorted((self.folder / "wal").glob("*.wal"))]

    def contents(self) -> dict[str, list[tuple[int, int, bytes]]]:
        """Entries of each group as index, term, body."""
        return {
            name: [(e.index, e.term, e.body) for e in self.log.recovered(name).entries]
            for name in self.log.groups()
        }


@contextmanager
def bench(folder: Path, files: FailingFiles | None = None, **settings: Any) -> Iterator[Bench]:
    """A log that is killed at the end, whatever happened."""
    made = Bench(folder, files, **settings)
    try:
        yield made
    finally:
        made.kill()


def fill(made: Bench, group: int, first: int, last: int, size: int = 100, term: int = 1) -> None:
    """Commit entries one by one, each with a body that says its index."""
    for index in range(first, last + 1):
        made.log.append_entry(group, term, index, 0, body(index, size))
        assert made.commit()


def body(index: int, size: int = 100) -> bytes:
    """A body that says its index."""
    return (b"%d." % index * size)[:size]
