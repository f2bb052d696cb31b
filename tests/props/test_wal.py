"""Whatever is appended, synced and cut off: what is recovered is what some moment between the last acknowledgement and the
last write had, in order and nothing else, life after life.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.storage.errors import StorageError
from tests.faults import PowerCutFiles
from tests.unit.storage.wal_harness import Bench

NAMES = ("one", "two", "three")
FILE_BYTES = 2048

State = dict[str, tuple[tuple[int, int, int], int, list[tuple[int, int, bytes]]]]
Step = tuple[Any, ...]

OPERATIONS = st.one_of(
    st.tuples(st.just("entry"), st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 400)),
    st.tuples(st.just("entry"), st.sampled_from(NAMES), st.just(0), st.integers(0, 40)),
    st.tuples(st.just("hard"), st.sampled_from(NAMES), st.integers(0, 9)),
    st.tuples(st.just("truncate"), st.sampled_from(NAMES), st.integers(0, 5)),
    st.tuples(st.just("release"), st.sampled_from(NAMES), st.integers(0, 6)),
    st.tuples(st.just("snapshot"), st.sampled_from(NAMES), st.integers(0, 20)),
    st.tuples(st.just("forget"), st.sampled_from(NAMES)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("sync")),
    st.tuples(st.just("sync")),
    st.tuples(
        st.just("cut"),
        st.integers(0, 1 << 30),
        st.sampled_from(["nothing", "all", "prefix", "sectors"]),
    ),
    st.tuples(st.just("kill")),
)


def after(state: State, step: Step) -> State:
    """What a log holds after one more record."""
    kind, name = step[:2]
    if kind == "group":
        return {**state, name: ((0, 0, 0), 0, [])}
    if kind == "forget":
        return {other: held for other, held in state.items() if other != name}
    hard, checkpoint, entries = state[name]
    if kind == "entry":
        entries = [entry for entry in entries if entry[0] < step[2]] + [step[2:]]
    elif kind == "hard":
        hard = step[2]
    elif kind == "truncate":
        entries = [entry for entry in entries if entry[0] < step[2]]
    elif kind == "checkpoint":
        checkpoint = step[2]
        entries = [entry for entry in entries if entry[0] > checkpoint]
    return {**state, name: (hard, checkpoint, entries)}


class Model:
    """A log and the list of records it should be equal to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cuts = 0
        self.states: list[State] = [{}]
        """What the log holds after each record so far."""
        self.start()

    def start(self) -> None:
        self.files = PowerCutFiles(str(self.folder / f"stash-{self.cuts}"))
        self.bench = Bench(
            self.folder, self.files, file_bytes=FILE_BYTES, spare_files=2, cache_bytes=300
        )
        self.bench.syncer.direct = (
            self.cuts % 2 == 0
        )  # by turns: the log writes, or the syncer does
        self.written = {0: len(self.states) - 1}
        self.acknowledged = 0
        self.last = 0

    def content(self) -> State:
        log = self.bench.log
        found = {name: log.recovered(name) for name in log.groups()}
        return {
            name: (
                (held.hard_state.term, held.hard_state.vote, held.hard_state.commit),
                held.checkpoint_index,
                [(entry.index, entry.term, entry.body) for entry in held.entries],
            )
            for name, held in found.items()
        }

    def note(self, step: Step) -> None:
        self.states.append(after(self.states[-1], step))

    def number(self, name: str) -> int:
        known = name in self.bench.log.groups()
        number = self.bench.log.number(name)
        if not known:
            self.note(("group", name))
        return number

    def do(self, operation: Step, turn: int) -> None:
        kind, *rest = operation
        try:
            getattr(self, kind)(*rest, turn=turn)
        except StorageError as error:
            # Groups that left count until that was written: there is no place for another one.
            if "no more than" not in str(error):
                raise

    def entry(self, name: str, back: int, size: int, turn: int) -> None:
        log, group = self.bench.log, self.number(name)
        checkpoint = self.states[-1][name][1]
        index = max(checkpoint + 1, log.last_index(group) + 1 - back)
        body = (b"%d-%s." % (turn, name.encode()) * size)[:size]
        log.append_entry(group, turn + 1, index, 0, body)
        self.note(("entry", name, index, turn + 1, body))

    def hard(self, name: str, vote: int, turn: int) -> None:
        self.bench.log.append_hard_state(self.number(name), turn, vote, turn // 2)
        self.note(("hard", name, (turn, vote, turn // 2)))

    def truncate(self, name: str, back: int, turn: int) -> None:
        log, group = self.bench.log, self.number(name)
        index = max(self.states[-1][name][1] + 1, log.last_index(group) + 1 - back)
        log.append_truncation(group, index)
        self.note(("truncate", name, index))

    def release(self, name: str, back: int, turn: int) -> None:
        log, group = self.bench.log, self.number(name)
        index = log.last_index(group) - back
        if index > self.states[-1][name][1]:
            self.note(("checkpoint", name, index))
            log.release(group, index)

    def snapshot(self, name: str, ahead: int, turn: int) -> None:
        log, group = self.bench.log, self.number(name)
        index = log.last_index(group) + ahead
        if index > self.states[-1][name][1]:
            self.note(("checkpoint", name, index))
            log.append_checkpoint(group, index, turn)

    def forget(self, name: str, turn: int) -> None:
        if name in self.bench.log.groups():
            self.bench.log.forget(self.bench.log.number(name))
            self.note(("forget", name))

    def flush(self, turn: int) -> None:
        number = self.bench.log.flush()
        if number:
            self.last = number
            self.written[number] = len(self.states) - 1

    def sync(self, turn: int) -> None:
        if self.bench.syncer.waiting:
            self.bench.syncer.sync()
        self.acknowledged = self.bench.log.completed()

    def cut(self, seed: int, mode: str, turn: int) -> None:
        self.bench.kill()
        self.files.cut(Random(seed), mode)
        self.recover()

    def kill(self, turn: int) -> None:
        """The process dies, the disk goes on: the next life begins on what the kernel holds."""
        self.bench.kill()
        self.files.cut(Random(0), "all")
        self.recover()

    def recover(self) -> None:
        self.cuts += 1
        low, high = self.written[self.acknowledged], self.written[self.last]
        states = self.states
        self.start()
        found = self.content()
        for count in range(high, low - 1, -1):
            if states[count] == found:
                self.states = states[: count + 1]
                self.written = {0: count}
                return
        raise AssertionError(f"{found} was at no moment from {low} to {high} of {states}")


@given(st.lists(OPERATIONS, min_size=20, max_size=120))
def test_what_is_recovered_is_what_was_written(operations: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder))
        try:
            for turn, operation in enumerate(operations):
                model.do(operation, turn)
            model.cut(len(operations), "sectors", turn=0)
        finally:
            model.bench.kill()
