"""The campaign: load, cut the power, restart, read everything again; as often as asked.

The data directory lives through ``fresh`` rounds, so that every recovery is one of a longer history; then a new
image begins. A round's chances come from the campaign's seed and its number alone.
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.broker import REPOSITORY
from tests.powercut import load
from tests.powercut.history import History
from tests.powercut.image import Image
from tests.powercut.kept import Kept
from tests.powercut.load import ReadError
from tests.powercut.node import STREAM, WORK, Node, NodeError

FRESH_ROUNDS = 10
LOAD_S = (0.1, 0.7)
FREQUENT = frozenset({"wal.write", "wal.written", "wal.synced", "segment.write"})
COUNTS_FREQUENT, COUNTS = (1, 2, 3, 5, 10, 30, 100), (1, 1, 2, 3, 5, 8)
"""At which reach of a failpoint the process dies: of those passed with every write, and of the others."""

LINGER_S = 0.03
"""Longest life of the node after its file system is gone: what it confirms then, it must not have."""


@dataclass(frozen=True)
class Plan:
    """What to run. ``buffered``: acknowledge without syncing, which must lose messages. ``workers`` 0: one or two,
    by chance. ``amqp``: clients of AMQP publish beside those of MQTT."""

    rounds: int
    seed: int = 1
    failpoints: bool = False
    buffered: bool = False
    workers: int = 0
    fresh: int = FRESH_ROUNDS
    amqp: bool = True


@dataclass
class Tally:
    """What came of it."""

    rounds: int = 0
    confirmed: int = 0
    delivered: int = 0
    lost: int = 0
    phantoms: int = 0
    broken: int = 0
    reached: dict[str, int] = field(default_factory=dict)
    publishers: set[int] = field(default_factory=set)
    """Those of queues that were confirmed something."""
    sentences: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every rule held."""
        return not (self.lost or self.phantoms or self.broken)

    def line(self) -> str:
        """The last line of the output."""
        others = f", {self.broken} rules broken" if self.broken else ""
        return (
            f"rounds={self.rounds} confirmed={self.confirmed} {self.lost} confirmed lost,"
            f" {self.phantoms} phantoms{others}"
        )


def failpoint_names(root: Path = REPOSITORY) -> list[str]:
    """The places at which the storage layer can be made to die, as its source names them."""
    found: set[str] = set()
    for source in (root / "fluxmq" / "storage").glob("*.py"):
        found.update(re.findall(r'\breach\("([a-z_.]+)"\)', source.read_text("utf-8")))
    return sorted(found)


class Campaign:
    """Runs a plan; ``say`` gets a line per round."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.say = say
        self.tally = Tally()
        self.names = failpoint_names()

    def run(self) -> Tally:
        """All rounds. Raises ``NotPermittedError`` where images cannot be mounted, ``NodeError`` when the node
        does not come up again."""
        done = 0
        while done < self.plan.rounds:
            count = min(self.plan.fresh, self.plan.rounds - done)
            with (
                tempfile.TemporaryDirectory(prefix="powercut-") as folder,
                Image(Path(folder)) as image,
            ):
                self._image(image, Path(folder), done, count)
            done += count
        return self.tally

    def _image(self, image: Image, folder: Path, first: int, count: int) -> None:
        history, kept = History(first + 1), Kept()
        chance = random.Random(f"{self.plan.seed}/{first}")
        workers = self.plan.workers or chance.choice((1, 1, 2))
        node = Node(folder, image.place / "data", workers, self.plan.buffered)
        lost: set[tuple[int, int]] = set()
        try:
            node.start()
            for number in range(first, first + count):
                before = history.confirmed()
                began = time.monotonic()
                how = self._round(image, node, history, kept, number)
                lost |= self._verify(node, history, kept, number)
                self.tally.rounds += 1
                self.say(
                    f"round {number + 1}: {workers} worker(s), {how}; confirmed"
                    f" {history.confirmed() - before}, on image {history.confirmed()}; lost {len(lost)},"
                    f" phantoms {history.phantoms}, broken {history.broken};"
                    f" {time.monotonic() - began:.1f} s"
                )
                self._report(history)
        except NodeError as error:
            # A node that does not start has lost all that it confirmed.
            history.violated(str(error))
            lost |= history.all_confirmed()
            self._report(history)
        finally:
            node.kill()
            self.tally.confirmed += history.confirmed() + kept.confirmed
            self.tally.publishers |= {n for n, sent in history.publishers.items() if sent.confirmed}
            self.tally.delivered += sum(len(taken.delivered) for taken in history.groups.values())
            self.tally.lost += len(lost)
            self.tally.phantoms += history.phantoms
            self.tally.broken += history.broken - history.phantoms

    def _report(self, history: History) -> None:
        """Say and keep the rules broken since the last time."""
        for sentence in history.violations:
            self.say(f"violated: {sentence}")
        self.tally.sentences += history.violations
        history.violations.clear()

    def _round(self, image: Image, node: Node, history: History, kept: Kept, number: int) -> str:
        """Load and kill, restart; what was done in words. Raises ``NodeError``."""
        chance = random.Random(f"{self.plan.seed}/{number}/load")
        seconds = chance.uniform(*LOAD_S)
        if self.plan.failpoints:
            return self._failpoint(image, node, history, kept, chance)

        def end() -> None:
            image.cut()
            time.sleep(chance.uniform(0, LINGER_S))
            node.kill()

        amqp = self.plan.amqp
        died = asyncio.run(load.run(node, history, kept, chance, seconds, end, amqp))
        if died:
            history.violated(f"round {number + 1}: the node died by itself:\n{node.said()}")
        image.remount()
        node.start()
        return f"power cut after {seconds:.2f} s"

    def _failpoint(
        self, image: Image, node: Node, history: History, kept: Kept, chance: random.Random
    ) -> str:
        """The same, with the node dying at a named place, and the power going with it every second time."""
        name = chance.choice(self.names)
        count = chance.choice(COUNTS_FREQUENT if name in FREQUENT else COUNTS)
        cut = chance.random() < 0.5
        armed = f"{name}:{count}"
        node.stop()

        def end() -> None:
            if cut:
                image.cut()
            node.kill()

        try:
            node.start(armed)
        except NodeError:
            died = True
            end()
        else:
            amqp = self.plan.amqp
            died = asyncio.run(load.run(node, history, kept, chance, LOAD_S[1] * 2, end, amqp))
        self.tally.reached[name] = self.tally.reached.get(name, 0) + died
        if cut:
            image.remount()
        node.start()
        ended = "killed there" if died else "not reached, killed"
        return f"{armed} {ended}{' and power cut' if cut else ''}"

    def _verify(
        self, node: Node, history: History, kept: Kept, number: int
    ) -> set[tuple[int, int]]:
        """Read both queues and what was kept beside them, and look at every rule; the confirmed messages that are not there."""
        chance = random.Random(f"{self.plan.seed}/{number}/read")
        group = f"audit-{number}"

        lossy = self.plan.buffered
        seconds = load.DRAIN_TIMEOUT_CONTROL_S if lossy else load.DRAIN_TIMEOUT_S

        lost: set[tuple[int, int]] = set()

        async def read() -> None:
            lost.update(await kept.lost(node.port))
            await load.read_stream(node.port, history, group)
            await load.drain_work(node.port, history, chance, seconds)

        try:
            asyncio.run(read())
        except (ReadError, OSError) as error:
            history.violated(f"round {number + 1}: {error}\n{node.said()}")
        for queue in (STREAM, WORK):
            history.check_order(queue)
        lost |= {*history.missing(WORK), *history.missing_from(STREAM, group)}
        for message in sorted(lost)[:5]:
            history.violations.append(f"round {number + 1}: confirmed and lost: {message}")
        for offset in history.unread(STREAM, group)[:5]:
            history.violated(f"round {number + 1}: {STREAM} offset {offset} was there and is not")
        return lost
