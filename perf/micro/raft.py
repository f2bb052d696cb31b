"""Two consensus cores on the same commands: three members in this process, joined by lists, nothing encoded or synced.

What is timed is the core: proposing, appending, counting, committing and applying on all three members, in rounds of
many commands. Carrying messages and writing to disk are left out on both sides, which favours pysyncobj: it pickles
each message, and its own transport compresses it, while the same entries leave our shard as they are. It is driven as
well as it can be: no thread, ticked when there is something to do, batches of 4 MiB, its clock moved by us so that no
command waits for a period to end, and commands pickled by protocol 5 (it takes 2, which inflates binary ones by half). `python -m perf.micro.raft` prints both and the ratio.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from fluxmq.raft.node import Config, Node
from fluxmq.raft.types import COMMAND, Entry, HardState, Membership, Message
from perf.micro import Benchmark, timed

MEMBERS = (1, 2, 3)
SIZES = ((100, "100 B", 1), (1024, "1 KiB", 1), (65_536, "64 KiB", 16))
"""Bytes of a command, their name, and by how much fewer commands of it are given."""
ROUND = 256
"""Commands under way."""
ROUNDS_MAX = 100
"""A round that takes more turns than that is stuck."""
PERIOD = 0.1
"""Seconds between appends of pysyncobj, its default; our clock jumps over them."""


class MemoryLog:
    """A member's log in memory, cut off behind what has been applied."""

    def __init__(self) -> None:
        self.base = 0
        self.base_term = 0
        self.log: list[Entry] = []

    def first_index(self) -> int:
        """See `fluxmq.raft.log.StableLog`."""
        return self.base + 1

    def last_index(self) -> int:
        """See `fluxmq.raft.log.StableLog`."""
        return self.base + len(self.log)

    def term(self, index: int) -> int:
        """See `fluxmq.raft.log.StableLog`."""
        return self.base_term if index == self.base else self.log[index - self.base - 1].term

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """See `fluxmq.raft.log.StableLog`; nothing is that long here."""
        return self.log[low - self.base - 1 : high - self.base - 1]

    def compact(self) -> tuple[int, int]:
        """Forget all but the last entry; where the log begins now."""
        index = self.last_index() - 1
        term = self.term(index)
        del self.log[: index - self.base]
        self.base, self.base_term = index, term
        return index, term


class OwnGroup:
    """Three members of fluxmq.raft; a write is durable as soon as it is made."""

    def __init__(self) -> None:
        self.applied = dict.fromkeys(MEMBERS, 0)
        self.logs = {me: MemoryLog() for me in MEMBERS}
        self.nodes = {
            me: Node(
                Config(me, 10, 1, 64 << 20, 4 << 20),
                self.logs[me],
                HardState(0, 0, 0),
                Membership(MEMBERS),
                0,
                lambda below: below // 2,
            )
            for me in MEMBERS
        }
        self.nodes[1].campaign()
        self.settle()

    def give(self, commands: Sequence[bytes]) -> None:
        """Propose commands and have them applied by every member."""
        self.nodes[1].propose(commands)
        self.settle()

    def settle(self) -> None:
        """Carry messages until there are none."""
        waiting: list[Message] = []
        for me in MEMBERS:
            waiting += self._pump(me)
        while waiting:
            messages, waiting = waiting, []
            for message in messages:
                self.nodes[message.target].step(message)
            for me in MEMBERS:
                waiting += self._pump(me)

    def _pump(self, me: int) -> list[Message]:
        node, log = self.nodes[me], self.logs[me].log
        messages: list[Message] = []
        while (ready := node.ready()) is not None:
            messages += ready.messages
            messages += ready.messages_after_persistence
            if ready.entries:
                log.extend(ready.entries)
                node.advance(persisted=(ready.entries[-1].index, ready.entries[-1].term))
            if ready.committed:
                self.applied[me] += sum(entry.kind == COMMAND for entry in ready.committed)
                node.advance(applied=ready.committed[-1].index)
        return messages

    def used(self) -> contextlib.AbstractContextManager[None]:
        """Nothing has to be prepared."""
        return contextlib.nullcontext()

    def compact(self) -> None:
        """Give the memory of applied commands back."""
        for me in MEMBERS:
            self.nodes[me].compact(*self.logs[me].compact())


class StockGroup:
    """Three members of pysyncobj with links like ours. The library has our clock and pickling while it is `used`."""

    def __init__(self, library: Any) -> None:
        self.applied = dict.fromkeys(MEMBERS, 0)
        self._module = cast("Any", importlib.import_module("pysyncobj.syncobj"))
        self._pickle = cast("Any", importlib.import_module("pysyncobj.pickle"))
        self._now = 0.0
        self._waiting: list[tuple[int, int, Any]] = []
        self._nodes = {me: importlib.import_module("pysyncobj.node").Node(me) for me in MEMBERS}
        settings = library.SyncObjConf(
            autoTick=False,
            appendEntriesPeriod=PERIOD,
            appendEntriesBatchSizeBytes=4 << 20,
            commandsQueueSize=10 * ROUND,
            pollerType="select",
        )
        member = _member_type(library, self._waiting, self.applied)
        with self.used():
            self.members = {
                me: member(
                    self._nodes[me], [n for n in self._nodes.values() if n.id != me], settings
                )
                for me in MEMBERS
            }
            for me in MEMBERS:
                for peer in MEMBERS:
                    if peer != me:
                        self.members[me].link._onNodeConnected(self._nodes[peer])
            while not self.members[1]._isLeader():
                self._now += 2.0  # above the longest timeout: who is ticked campaigns
                self._turn(1)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """The library's clock is ours, and it pickles as well as it can."""
        before = self._module.monotonicTime, self._pickle.dumps
        self._module.monotonicTime = lambda: self._now
        self._pickle.dumps = partial(self._pickle.pickle.dumps, protocol=5)
        try:
            yield
        finally:
            self._module.monotonicTime, self._pickle.dumps = before

    def give(self, commands: Sequence[bytes]) -> None:
        """Propose commands and have them applied by every member."""
        wanted = self.applied[1] + len(commands)
        leader = self.members[1]
        for command in commands:
            leader.append(command)
        for _ in range(ROUNDS_MAX):
            self._turn()
            if all(count >= wanted for count in self.applied.values()):
                return
        raise AssertionError(f"pysyncobj applied {self.applied} of {wanted} commands")

    def _turn(self, *ticked: int) -> None:
        """A period passes, for all or for some; messages are carried until there are none."""
        self._now += PERIOD * 1.01
        for me in ticked or MEMBERS:
            self.members[me].doTick(0)
        while self._waiting:
            messages = self._waiting.copy()
            self._waiting.clear()
            for source, target, message in messages:
                self.members[target].link._onMessageReceived(self._nodes[source], message)
            self.members[1].doTick(0)

    def compact(self) -> None:
        """Give the memory of applied commands back, as far as the library does."""
        for member in self.members.values():
            member.forceLogCompaction()
        self._turn()
        self._turn()


def _member_type(
    library: Any, waiting: list[tuple[int, int, Any]], applied: dict[int, int]
) -> type[Any]:
    """A member that counts what it applies."""
    transport: Any = importlib.import_module("pysyncobj.transport")

    class Link(transport.Transport):  # type: ignore[misc]
        """Puts messages on the one list of all."""

        def __init__(self, me: int) -> None:
            super().__init__(None, None, [])
            self.me = me

        def send(self, node: Any, message: Any) -> bool:
            """Queue a message."""
            waiting.append((self.me, node.id, message))
            return True

    class Member(library.SyncObj):  # type: ignore[misc]
        """The smallest state machine there is."""

        def __init__(self, me: Any, others: list[Any], settings: Any) -> None:
            self.link = Link(me.id)
            super().__init__(me, others, conf=settings, transport=self.link)

        def _counts(self) -> None:
            applied[self.selfNode.id] += 1

        @library.replicated  # type: ignore[untyped-decorator]
        def append(self, command: bytes) -> None:
            """Called by the library for each committed command."""
            self._counts()

    return Member


def _benchmark(name: str, group: OwnGroup | StockGroup, size: int, count: int) -> Benchmark:
    command = bytes(range(256)) * (size // 256 + 1)
    commands = [command[:size]] * min(count, ROUND)

    def step() -> int:
        before = group.applied.copy()
        with group.used():
            for first in range(0, count, ROUND):
                group.give(commands[: count - first])
            group.compact()
        return min(group.applied[me] - before[me] for me in MEMBERS)

    return Benchmark(name, count, step)


def benchmarks(scale: int) -> Iterator[Benchmark]:
    """Have three members apply ``scale`` commands, 64 KiB ones a sixteenth of it; pysyncobj if it is installed."""
    for size, name, fewer in SIZES:
        yield _benchmark(f"raft, {name}: fluxmq", OwnGroup(), size, max(scale // fewer, 1))
    if importlib.util.find_spec("pysyncobj") is None:
        return
    library = importlib.import_module("pysyncobj")
    for size, name, fewer in SIZES:
        group = StockGroup(library)
        yield _benchmark(f"raft, {name}: pysyncobj", group, size, max(scale // fewer, 1))


def main(seconds: float) -> None:
    """Print both cores' commands per second for each size, and how many times as many ours applies."""
    rates = {each.name: 1e9 / timed(each, seconds).ns_per_item for each in benchmarks(4096)}
    print(f"{'command':8} {'fluxmq /s':>12} {'pysyncobj /s':>13} {'ratio':>6}")
    for _, name, _ in SIZES:
        own, stock = rates[f"raft, {name}: fluxmq"], rates.get(f"raft, {name}: pysyncobj")
        if stock is None:
            print(f"{name:8} {own:12,.0f} {'not installed':>13}")
        else:
            print(f"{name:8} {own:12,.0f} {stock:13,.0f} {own / stock:6.1f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
