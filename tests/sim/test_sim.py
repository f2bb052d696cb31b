"""The consensus core under the simulator: some hundred seeds, regressions, and that a seed is one run.

The two passes of the tests run different seeds: the core has no compiled part, so the same ones twice would say
nothing new.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fluxmq.raft.types import Membership, Message
from tests.sim.__main__ import main, seed_range
from tests.sim.campaign import (
    Summary,
    check_seeds,
    outputs_under_other_hashes,
    run_many,
    run_seeds,
    seeds_of_tests,
)
from tests.sim.member import Member
from tests.sim.operator import Operator
from tests.sim.swarm import ANY_APPENDS, Swarm, draw, plain, replacing, resting, storm
from tests.sim.world import World

SEEDS = 200

HAPPENS = (
    "acknowledged",
    "terms",
    "logs cut",
    "crashes",
    "reads",
    "records lost",
    "torn writes",
    "syncs stalled",
    "writes failed",
    "bits flipped",
    "directories replaced",
    "lost, disk failed",
    "lost, damage found at a start",
    "lost, directory not its own",
    "replacing, add_learner",
    "replacing, add_voter",
    "replacing, remove",
    "came back under the same number",
    "snapshots installed",
    "snapshots interrupted",
    "transfers to who is cut off",
)

PROMISES = {
    "state-machine safety",
    "state hashes",
    "acknowledged commands stay",
    "leader completeness",
    "one vote per term",
    "durable on a majority",
}
"""What is broken for somebody outside when a host trusts what its disk gives it."""

REGRESSIONS: dict[int, str] = {
    316: "a sole voter forgets a term that nobody has heard of, and leads it again",
    1168: "a window of one byte: slow is not stuck",
    1627: "two candidates raise their terms at the same pace, and the one behind is never told",
}
"""Seeds that once found something, with what they found; all before storage was worn."""


@pytest.mark.parametrize("seeds", seeds_of_tests(SEEDS), ids=lambda seeds: str(seeds.start))
def test_seeds_keep_every_promise(seeds: range) -> None:
    check_seeds(seeds, HAPPENS)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_a_seed_once_found_stays_away(seed: int) -> None:
    assert World(seed, plain(seed)).run()


@pytest.mark.parametrize("voters", [1, 2, 3, 5, 7])
def test_any_number_of_voters(voters: int) -> None:
    summary = run_seeds(range(12), voters, 2_000)
    assert summary.violations == []
    assert summary.seen["acknowledged"] > 0


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_members_at_rest_keep_every_promise(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 40):
        world = World(seed, resting(seed))
        assert world.run(2_000), (seed, world.history.violations[:1])
        seen += world.seen
    assert seen["rests"] > seen["terms"]
    assert min(seen["rests ended"], seen["acknowledged"], seen["reads"], seen["crashes"]) > 0


# A seed is one run


def text_of(seed: int) -> str:
    """Every event of a seed."""
    lines: list[str] = []
    world = World(seed, trace=lines.append)
    assert world.run(1_500)
    lines.append(str(world.digest))
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_seed_runs_the_same_twice(seed: int) -> None:
    assert text_of(seed) == text_of(seed)


def test_a_seed_runs_the_same_under_other_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--seed", "5", "--events", "1500", "--trace"]
    outputs = outputs_under_other_hashes(command)
    assert outputs[0] == outputs[1]
    assert main(command) == 0
    assert capsys.readouterr().out.encode() == outputs[0]


def test_seeds_differ() -> None:
    digests = set()
    for seed in range(20):
        world = World(seed)
        assert world.run(500)
        digests.add(world.digest)
    assert len(digests) == 20


# The harness notices hosts that break their part; for cores see tests/mutations/simulation.py


class SyncsNothing(Member):
    """Says that a write is durable as soon as it is made."""

    def pump(self) -> None:
        """Report every write, and send what waits for it, before the disk has it."""
        super().pump()
        while self._waiting and self.node is not None:
            _, last, answers = self._waiting.popleft()
            self._send_all(answers)
            if last is not None:
                self.node.advance(persisted=last)
            super().pump()

    def _send_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.world.send(message)


class ForgetsVotes(Member):
    """Loses the vote when it crashes, as if it had never been written."""

    def crash(self) -> None:
        """The term stays, the vote does not."""
        super().crash()
        for store in (self.disk.view, self.disk.durable):
            store.hard_state = replace(store.hard_state, vote=0)


class ForgetsTheTail(Member):
    """Loses the last entry it had synced."""

    def crash(self) -> None:
        """A disk that lies about its cache."""
        super().crash()
        for store in (self.disk.view, self.disk.durable):
            del store.log[-1:]


@pytest.mark.parametrize(
    ("broken", "seeds"), [(SyncsNothing, 20), (ForgetsVotes, 300), (ForgetsTheTail, 60)]
)
def test_broken_hosts_are_noticed(broken: type[Member], seeds: int) -> None:
    for seed in range(seeds):
        if not World(seed, storm(seed, 3), member_type=broken).run():
            return
    pytest.fail(f"{broken.__name__} was not noticed")


class TrustsAnyDirectory(Member):
    """Goes on with whatever it finds where its directory was."""

    def recognises_its_directory(self) -> bool:
        """An earlier copy, or nothing at all, is as good as the true one."""
        if self.found is not None:
            self.disk = self.world.disks[self.id] = self.found
            self.found = None
        return True


class ReadsWhatIsThere(Member):
    """Does not look at checks."""

    def start(self) -> None:
        """Whatever the bits say now is taken for what was written."""
        for store in (self.disk.view, self.disk.durable):
            for index in store.damaged:
                if index > store.base:
                    entry = store.log[index - store.base - 1]
                    flipped = bytes((entry.data[0] ^ 1,)) + entry.data[1:] if entry.data else b"x"
                    store.log[index - store.base - 1] = replace(entry, data=flipped)
                else:
                    flipped = store.snapshot.data[:-1] + bytes((store.snapshot.data[-1] ^ 1,))
                    store.snapshot = store.snapshot._replace(data=flipped)
            store.damaged.clear()
        super().start()


@pytest.mark.parametrize("broken", [TrustsAnyDirectory, ReadsWhatIsThere])
def test_hosts_that_trust_their_storage_are_noticed(broken: type[Member]) -> None:
    rules = set()
    for seed in range(40):
        world = World(seed, replacing(seed, plain(seed, 3)), member_type=broken)
        if not world.run(2_000):
            rules.add(world.history.violations[0].rule)
    assert rules & PROMISES


# Members that come back under their own number: see docs/simulation.md


class StreamsOutlive(World):
    """What a member said before it lost its promises arrives after it came back."""

    def forget_messages(self, member: Member) -> None:
        """Nothing ends."""


class RunsAtOnce(Operator):
    """Lets a member that has lost its promises run while it still has a vote."""

    def _take_vote_away(self, leader: Member, membership: Membership, lost: int) -> None:
        self._bring_back(self._world.members[lost], leader)


def coming_back(seed: int) -> Swarm:
    """Options under which whoever is lost comes back under its number."""
    return replace(replacing(seed, plain(seed, 3)), same_number=1.0, straggle=0.05)


def test_the_rules_of_coming_back_are_needed() -> None:
    assert World(360, coming_back(360)).run(2_000)
    assert not StreamsOutlive(360, coming_back(360)).run(2_000)
    world = World(0, coming_back(0))
    world.operator = RunsAtOnce(world)
    assert not world.run(2_000)
    assert World(0, coming_back(0)).run(2_000)


# The command line


def test_many_seeds_in_processes_are_the_same_seeds(tmp_path: Path) -> None:
    total = Summary()
    for chunk in run_many(1, 4, None, 500, 2):
        total.add(chunk)
    alone = run_seeds(range(1, 5), None, 500)
    assert (total.seeds, total.events, total.seen) == (4, alone.events, alone.seen)
    path = tmp_path / "summary.json"
    total.record(path, "a test", 1, 4, "none")
    content = json.loads(path.read_text())
    assert content["seeds"] == 4
    assert content["violations"] == []


def test_a_campaign_goes_on_where_it_was_interrupted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    command = ["--seeds", "1..120", "--events", "20", "--record"]
    assert main([*command, str(whole)]) == 0
    content = json.loads(whole.read_text())
    first = run_seeds(range(1, 101), None, 20)
    first.record(parts, content["what"], 1, 100, content["command"])
    assert main([*command, str(parts), "--from", "101"]) == 0
    assert capsys.readouterr().out.count("120 seeds, ") == 2
    found = json.loads(parts.read_text())
    for name in ("command", "first_seed", "last_seed", "seeds", "events", "violations", "seen"):
        assert found[name] == content[name]
    for wrong in (["--from", "101"], ["--from", "121", "--nodes", "3"]):
        with pytest.raises(ValueError, match="parts"):
            main([*command, str(parts), *wrong])
    with pytest.raises(SystemExit):
        main(["--seeds", "1..120", "--from", "101"])


def test_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    command = ["--seeds", "1..3", "--nodes", "3", "--events", "300", "--record", str(path)]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("3 seeds, ")
    assert path.exists()
    assert main(["--seed", "2", "--events", "300"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("ok")
    assert seed_range("3..9") == (3, 9)
    for wrong in (["--seeds", "9..3"], ["--seeds", "3"], []):
        with pytest.raises(SystemExit):
            main(wrong)


def test_seeds_draw_all_kinds_of_groups() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert {each.voters for each in drawn} == {1, 2, 3, 4, 5}
    assert {each.max_inflight_appends for each in drawn} == {1, 2, ANY_APPENDS}
    assert any(each.spares for each in drawn)
    assert (
        {each.pre_vote for each in drawn} == {each.check_quorum for each in drawn} == {True, False}
    )
