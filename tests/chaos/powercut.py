"""``python -m tests.chaos.powercut --rounds 200``: all nodes lose power at once, again and again, while they are used.

Every image is shut down within 50 ms, then the nodes are killed, the images mounted again and the nodes started; load goes
on as soon as they serve. The directories live through ``FRESH_ROUNDS`` rounds, then everything is read and compared, and a
new cluster begins. Exit 0: every rule held; 1: not; 77: not permitted here.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.board import until
from tests.chaos.configurations import Configuration
from tests.chaos.disks import AllPowerCut
from tests.chaos.faults import Fault
from tests.chaos.records import FAIL, OK, Finding, Probe
from tests.chaos.run import Runner, run
from tests.powercut.__main__ import SKIPPED
from tests.powercut.image import NotPermittedError
from tests.powercut.node import NodeError

FRESH_ROUNDS = 10
LOAD_S = (0.2, 1.5)
DARK_S = 0.05
SERVES_S = 15.0
"""Time from power to confirmed messages in every queue."""
GIVEN_UP_S = 60.0
CUT_S = 0.05
POLL_S = 0.05


class PowerRunner(Runner):
    """A run whose faults are power cuts of all nodes. ``rounds``: so many."""

    rounds = FRESH_ROUNDS

    async def faults(self, until_s: float) -> Fault | None:
        """Load, cut, and wait until every queue takes messages again."""
        last: Fault | None = None
        for _ in range(self.rounds):
            await asyncio.sleep(self.place.random.uniform(*LOAD_S))
            last = AllPowerCut(self.place)
            await self.fault(last, DARK_S)
            if not await self._serves():
                break
        return last

    async def _serves(self) -> bool:
        confirmed = self.board.confirmed
        before = {queue.name: len(confirmed[queue.name]) for queue in self.queues}
        began = self.board.now()
        came = await until(
            lambda: all(len(confirmed[name]) > count for name, count in before.items()),
            GIVEN_UP_S,
            POLL_S,
        )
        now = self.board.now()
        outcome = OK if came else FAIL
        self.history.write(Probe("every queue is served", began, now, SERVES_S, outcome, ""))
        self.say(f"{now:7.2f} s  every queue is served: {now - began:.1f} s")
        for member in self.cluster.died():
            told = f"{member.name} died after a power cut:\n{member.said()}"
            self.history.write(Finding("I13", told))
        return came


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds; the last line of the output is the tally of all."""
    options = argparse.ArgumentParser(prog="python -m tests.chaos.powercut", description=__doc__)
    options.add_argument("--rounds", type=int, default=25)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--nodes", type=int, default=3)
    options.add_argument("--mode", choices=("forward", "replicate"), default="forward")
    folder = Path(tempfile.gettempdir()) / "chaos-histories"
    options.add_argument("--histories", type=Path, default=folder)
    chosen = options.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    chosen.histories.mkdir(parents=True, exist_ok=True)
    rounds = confirmed = lost = unexpected = broken = 0
    while rounds < chosen.rounds:
        part = min(FRESH_ROUNDS, chosen.rounds - rounds)
        seed = chosen.seed + rounds // FRESH_ROUNDS
        path = chosen.histories / f"power-{chosen.mode}-{seed}.history"
        try:
            report = run(
                Configuration("power", (), nodes=chosen.nodes, declared=chosen.nodes > 1),
                0.0,
                seed,
                chosen.mode,
                path,
                lambda line: print(line, flush=True),
                type("Rounds", (PowerRunner,), {"rounds": part}),
            )
        except NotPermittedError as error:
            print(f"skipped: {error}")
            return SKIPPED
        except NodeError as error:
            print(f"seed {seed}: {error}")
            return 1
        rounds += part
        print("\n".join([f"history: {path}", *report.lines()]), flush=True)
        confirmed += report.confirmed
        lost += report.lost
        unexpected += report.unexpected
        broken += sum(report.broken.values())
    others = f", {broken} rules broken" if broken else ""
    print(
        f"rounds={rounds} confirmed={confirmed} {lost} confirmed lost, {unexpected} phantoms{others}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
