"""``python -m tests.chaos.control --trials 45``: the positive control. Exit 0: losses were found; 1: none were.

A clean result of the harness means something only if the same harness finds losses where there are some. This is a small
replicated log on stock pysyncobj 0.3.17, three processes over TCP through the same proxies that stand between nodes, and
the checker is the same. With ``appendEntriesUseBatch=False`` each success of a follower takes the leader's send position
back; what was in flight is sent again, and the follower cuts off what it had already acknowledged before it takes it
again. A leader that is cut off within that time, while the third member lags, leaves nobody who has it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.broker import REPOSITORY
from tests.chaos import bodies
from tests.chaos.bodies import Identity
from tests.chaos.check import check_file
from tests.chaos.proxy import Link, Manner
from tests.chaos.records import (
    OK,
    UNKNOWN,
    Deliver,
    Drained,
    Fault,
    History,
    Lost,
    Publish,
    Queue,
    Run,
)
from tests.chaos.report import Report

MEMBERS = 3
LINK = Manner(delay=0.005, bandwidth=8_000_000)
"""Resends arrive one after the other, as they do on a network."""
LAG_S = 0.3
"""Of the third member: longer than its leader lives after that began to matter, shorter than an election."""
LOAD_S = (0.5, 1.5)
PACE_S = 0.003
WINDOW = 100
ELECTION_DEADLINE_S = 30.0
POLL_S = 0.02
QUEUE = "log"


class ControlError(RuntimeError):
    """A trial came to nothing: no leader, or a member that does not answer."""


class Member:
    """One process, and what it says."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.leader = False
        self.content: list[int] | None = None
        self.done: dict[int, float] = {}
        self.failed: dict[int, float] = {}
        self.reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, number: int, port: int, folder: Path, history: History) -> Member:
        """Start the process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.chaos.control_member", str(number), str(MEMBERS), str(port)),
            str(folder / f"{number}.journal"),
            cwd=REPOSITORY,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        member = cls(number, process)
        member.reading = asyncio.create_task(member._read(history))
        return member

    async def _read(self, history: History) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                return  # it was killed in the middle of it
            word, *rest = line.decode().split()
            if word == "done":
                self.done[int(rest[0])] = history.now()
            elif word == "failed":
                self.failed[int(rest[0])] = history.now()
            elif word == "state":
                self.leader = rest[0] == "1"
            elif word == "dump":
                self.content = [int(each) for each in rest]

    def tell(self, *words: object) -> None:
        """A line to the process."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())

    async def end(self) -> None:
        """SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        if self.reading is not None:
            await self.reading


class Trial:
    """Three members, the links between them, and one client."""

    def __init__(self, seed: int, port: int, folder: Path) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.port = port
        self.folder = folder
        self.history = History(folder / "history")
        self.links: dict[tuple[int, int], Link] = {}
        self.members: dict[int, Member] = {}
        self.sent: dict[int, float] = {}

    async def run(self) -> Report:
        """Load, cut off the leader while the third member lags, and see what is left. Raises ``ControlError``."""
        queue = Queue(QUEUE, "log", "control", (), "")
        numbers = range(1, MEMBERS + 1)
        names = tuple(f"n{each}" for each in numbers)
        run = Run(
            *("control", self.seed, names, "forward", 1.0, ELECTION_DEADLINE_S, WINDOW, WINDOW),
            queues=(queue,),
        )
        self.history.write(run)
        try:
            for one in numbers:
                for other in set(numbers) - {one}:
                    ports = (f"127.1.{one}.{other}", self.port + other)
                    link = Link(ports, ("127.0.0.1", self.port + other), self.random)
                    link.behave(LINK)
                    await link.start()
                    self.links[one, other] = link
            for each in numbers:
                self.members[each] = await Member.start(each, self.port, self.folder, self.history)
            await self._scenario()
        finally:
            for member in self.members.values():
                await member.end()
            for link in self.links.values():
                await link.stop()
            self.history.close()
        return check_file(self.history.path)

    async def _scenario(self) -> None:
        leader = await self._leader(list(self.members.values()))
        lagging = self.random.choice([n for n in self.members if n != leader.number])
        await self._load(leader, 0.3)
        for pair, link in self.links.items():
            if set(pair) == {leader.number, lagging}:
                link.behave(Manner(LAG_S))
        await self._load(leader, self.random.uniform(*LOAD_S))
        begin = self.history.now()
        for pair, link in self.links.items():
            if leader.number in pair:
                link.behave(Manner(stalled=True))
        leader.process.kill()
        await leader.end()
        for pair, link in self.links.items():
            if leader.number in pair:
                link.reset()
        lost = Lost(
            "client", f"n{leader.number}", f"n{leader.number}", self.history.now(), "killed"
        )
        self.history.write(lost)
        others = [member for member in self.members.values() if member is not leader]
        heir = await self._leader(others)
        fault = ("leader cut off", (f"n{leader.number}",), begin, self.history.now(), True, "")
        self.history.write(Fault(*fault))
        await self._barrier(heir, others)
        self._record(leader, heir)
        for member in others:
            self._read(member)

    async def _leader(self, members: Sequence[Member]) -> Member:
        """Who leads; waits until one does."""
        give_up = self.history.now() + ELECTION_DEADLINE_S
        while self.history.now() < give_up:
            for member in members:
                member.tell("state")
            await asyncio.sleep(POLL_S)
            leading = [member for member in members if member.leader]
            if len(leading) == 1:
                return leading[0]
        raise ControlError("nobody leads")

    async def _load(self, leader: Member, seconds: float) -> None:
        """Append at a pace, with no more than a window unanswered."""
        until = self.history.now() + seconds
        while self.history.now() < until:
            await asyncio.sleep(PACE_S)
            if len(self.sent) - len(leader.done) - len(leader.failed) < WINDOW:
                self._append(leader)

    def _append(self, member: Member) -> int:
        number = len(self.sent)
        self.sent[number] = self.history.now()
        member.tell("append", number)
        return number

    async def _barrier(self, heir: Member, others: Sequence[Member]) -> None:
        """Append until one is answered and everybody has it; what is there then is what there is."""
        give_up = self.history.now() + ELECTION_DEADLINE_S
        barrier = -1
        while self.history.now() < give_up:
            if barrier < 0 or barrier in heir.failed:
                heir = await self._leader(others)
                barrier = self._append(heir)
            for member in others:
                member.tell("dump")
            await asyncio.sleep(POLL_S * 5)
            if barrier in heir.done and all(barrier in (m.content or ()) for m in others):
                return
        raise ControlError("the members do not come to agree again")

    def _record(self, leader: Member, heir: Member) -> None:
        done = {**heir.done, **leader.done}
        end = self.history.now()
        for number, at in self.sent.items():
            by = leader if number in leader.done or number not in heir.done else heir
            outcome = OK if number in done else UNKNOWN
            record = Publish(
                *("client", "pysyncobj", f"n{by.number}", f"n{by.number}", (QUEUE,), 1, number),
                *(self._digest(number), at, done.get(number, end), outcome, "", -1),
            )
            self.history.write(record)

    def _read(self, member: Member) -> None:
        name = f"audit-n{member.number}"
        for offset, number in enumerate(member.content or ()):
            record = Deliver(
                *(name, "pysyncobj", f"n{member.number}", name, QUEUE, name, offset, 1, number),
                *(self._digest(number), False, True, self.history.now()),
            )
            self.history.write(record)
        self.history.write(Drained(QUEUE, name, self.history.now()))

    def _digest(self, number: int) -> str:
        return bodies.digest(bodies.build(Identity(self.seed, 1, number)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials; the last line says how many of them lost something."""
    options = argparse.ArgumentParser(prog="python -m tests.chaos.control", description=__doc__)
    options.add_argument("--trials", type=int, default=45)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--port", type=int, default=24_100)
    options.add_argument("--until-lost", action="store_true", help="end with the first loss")
    chosen = options.parse_args(arguments)
    losing = lost = confirmed = trials = 0
    for trial in range(chosen.trials):
        seed = chosen.seed + trial
        with tempfile.TemporaryDirectory(prefix="fx-control-") as folder:
            try:
                report = asyncio.run(Trial(seed, chosen.port, Path(folder)).run())
            except ControlError as error:
                print(f"seed {seed}: {error}", flush=True)
                continue
        trials += 1
        losing += report.lost > 0
        lost += report.lost
        confirmed += report.confirmed
        told = f"seed {seed}: confirmed {report.confirmed}, {report.lost} confirmed lost"
        print(f"{told}, broken {report.broken}", flush=True)
        if report.lost and chosen.until_lost:
            break
    print(f"trials={trials} losing={losing} confirmed={confirmed} {lost} confirmed lost")
    return 0 if lost else 1


if __name__ == "__main__":
    sys.exit(main())
