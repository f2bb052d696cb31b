"""Logs against a list: any batches, rolls, trims, checkpoints and crashes; replaying writes the same bytes again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluxmq.model.batch_format import Batch
from fluxmq.model.segments import newest_head
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import log_batches, scan_log
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog, SegmentOptions
from tests.unit.storage.logs import SECOND, batch_of, checkpoint, contents, opened

OPTIONS = SegmentOptions(segment_bytes=8 << 10, segment_age=50 * SECOND, index_bytes=300)
PAYLOADS = st.lists(
    st.integers(0, 700).map(lambda size: b"%d:" % size + bytes(size)), min_size=1, max_size=5
)


class Logs(RuleBasedStateMachine):
    """One log that is checkpointed and crashes, beside one that never does."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory()
        self.here, self.there = (Path(self.root.name) / name for name in ("here", "there"))
        self.log = self.open(self.here)
        self.steady = self.open(self.there)
        self.state: LogState | None = None
        self.messages: list[bytes] = []
        self.start = 0
        self.entries: list[Batch | int] = []

    def open(self, path: Path, *, recovering: bool = False) -> QueueLog:
        state = self.state if recovering else None
        return opened(path, state, options=OPTIONS, recovering=recovering)

    def teardown(self) -> None:
        self.log.close()
        self.steady.close()
        self.root.cleanup()

    @rule(payloads=PAYLOADS)
    def append(self, payloads: list[bytes]) -> None:
        made = batch_of(len(self.messages), payloads)
        for log in (self.log, self.steady):
            log.append(made)
        self.messages += payloads
        self.entries.append(made)

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        start = self.start + round(part * (len(self.messages) - self.start))
        for log in (self.log, self.steady):
            log.trim(start)
        self.start = start
        self.entries.append(start)

    @rule(messages=st.integers(0, 40))
    def retain(self, messages: int) -> None:
        for log in (self.log, self.steady):
            log.flush()
        start = max(self.start, len(self.messages) - messages)
        for log in (self.log, self.steady):
            log.trim(start)
        self.start = start
        self.entries.append(start)

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def take_checkpoint(self) -> None:
        self.state = checkpoint(self.log)
        self.state = LogState.unpack(self.state.pack())
        self.entries.clear()

    @rule(lost=st.integers(0, 3000), flushed=st.booleans())
    def crash(self, lost: int, flushed: bool) -> None:
        """The process ends, written or not; what is behind the checkpoint in the last files may be torn."""
        if flushed:
            self.log.flush()
        self.log.close()
        promised = (
            {} if self.state is None else {each.base_offset: each for each in self.state.segments}
        )
        for path in sorted(self.here.glob("*.seg"))[-2:]:
            known = promised.get(int(path.stem))
            least = 0 if known is None else known.file_bytes
            data = path.read_bytes()
            path.write_bytes(data[: max(least, len(data) - lost)])
        self.log = self.open(self.here, recovering=True)
        for entry in self.entries:
            if isinstance(entry, int):
                self.log.trim(entry)
            else:
                self.log.append(entry)
        self.log.cut()

    @invariant()
    def the_ends_are_right(self) -> None:
        for log in (self.log, self.steady):
            assert (log.start_offset, log.next_offset) == (self.start, len(self.messages))

    @precondition(lambda self: len(self.messages) > self.start)
    @rule(parts=st.lists(st.floats(0, 1), min_size=1, max_size=4))
    def read(self, parts: list[float]) -> None:
        for part in parts:
            offset = self.start + round(part * (len(self.messages) - 1 - self.start))
            found = self.log.read(offset)
            assert found.payload(offset - found.base_offset) == self.messages[offset]
            time = found.time(offset - found.base_offset)
            at = self.log.offset_at(time)
            assert self.start <= at <= offset
            earlier = self.log.read(at)
            assert at == self.start or earlier.time(at - earlier.base_offset) >= time

    @rule()
    def files_are_equal(self) -> None:
        for log in (self.log, self.steady):
            log.flush()
        assert contents(self.here) == contents(self.there)
        assert self.log.state() == self.steady.state()
        assert self.log.bytes == self.log.state().bytes
        head = newest_head((self.here / "head").read_bytes())
        assert head is not None
        assert (head.start, head.committed) == (self.start, len(self.messages))
        report = scan_log(Files(), str(self.here), self.log.state())
        assert [each for each in report.problems if each.path != f"{self.here}/head"] == []
        found = [
            each.payload(index)
            for each in log_batches(Files(), str(self.here))
            for index in range(each.count)
            if each.base_offset + index >= self.start
        ]
        assert found == self.messages[self.start :]


TestLogs = Logs.TestCase
assert settings.default is not None
TestLogs.settings = settings(
    max_examples=settings.default.max_examples // 2, stateful_step_count=40
)


@given(st.lists(PAYLOADS, max_size=40), st.integers(0, 2**20), st.binary(min_size=1, max_size=8))
def test_what_is_read_was_written_or_is_refused(
    made: list[list[bytes]], position: int, noise: bytes
) -> None:
    """Bytes written over any part of any file of a bare log: a tool gives records that were written, in order."""
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "orders"
        log = opened(path, options=OPTIONS)
        messages: list[bytes] = []
        for payloads in made:
            log.append(batch_of(len(messages), payloads))
            messages += payloads
        log.flush()
        log.close()
        segments = sorted(path.glob("*.seg"))
        if segments:
            damaged = segments[position % len(segments)]
            data = bytearray(damaged.read_bytes())
            at = position % len(data)
            data[at : at + len(noise)] = noise
            damaged.write_bytes(data)
        report = scan_log(Files(), str(path))
        found: list[bytes] = []
        try:
            for each in log_batches(Files(), str(path)):
                assert each.base_offset == len(found)
                found += [each.payload(index) for index in range(each.count)]
        except Corruption as error:
            found_at: tuple[str, int] | None = (error.path, error.position)
        else:
            found_at = None
        assert found == messages[: len(found)]
        first = next(((each.path, each.position) for each in report.problems), None)
        assert found_at == first
        assert found_at or found == messages
