"""Shared groups: every message goes somewhere, evenly, whatever the sizes of runs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fluxmq.routing.shared import SharedGroup

_MEMBER = st.sampled_from("abcde")


@given(
    st.integers(0, 4),
    st.dictionaries(st.integers(0, 3), st.integers(1, 4), max_size=3),
    st.lists(st.integers(0, 40), max_size=20),
)
def test_runs_are_dealt_evenly(members: int, shards: dict[int, int], runs: list[int]) -> None:
    """After any sequence of runs, no slot has had two messages more than another."""
    group: SharedGroup[str] = SharedGroup(b"g", b"f")
    for member in "abcd"[:members]:
        group.join(member)
    slots: dict[str | int, int] = dict.fromkeys("abcd"[:members], 1)
    for shard, weight in shards.items():
        group.set_remote(shard, weight, 9)
        slots[shard] = weight
    received: Counter[str | int] = Counter()
    for count in runs:
        parts = group.split(count)
        assert sum(size for _, size in parts) == (count if slots else 0)
        assert all(size > 0 for _, size in parts)
        assert len({target for target, _ in parts}) == len(parts)
        for target, size in parts:
            received[target] += size
    if slots:
        least = sum(runs) // sum(slots.values())
        for target, weight in slots.items():
            assert least * weight <= received[target] <= (least + 1) * weight


@given(st.integers(1, 5), st.lists(st.integers(1, 12), max_size=12))
def test_runs_make_no_difference_to_the_order_of_turns(members: int, runs: list[int]) -> None:
    """Singles dealt one by one take the same turns as runs no longer than the group."""
    whole: SharedGroup[str] = SharedGroup(b"g", b"f")
    single: SharedGroup[str] = SharedGroup(b"g", b"f")
    for member in "abcde"[:members]:
        whole.join(member)
        single.join(member)
    for count in runs:
        short = min(count, members)
        expected = [part for _ in range(short) for part in single.split_local(1)]
        assert whole.split_local(short) == expected


class GroupAgainstModel(RuleBasedStateMachine):
    """Members come, go, lose and regain their connection; messages reach the right ones."""

    def __init__(self) -> None:
        super().__init__()
        self.group: SharedGroup[str] = SharedGroup(b"g", b"f")
        self.members: dict[str, bool] = {}
        self.remote: dict[int, tuple[int, int]] = {}

    @rule(member=_MEMBER, connected=st.booleans())
    def join(self, member: str, connected: bool) -> None:
        assert self.group.join(member, connected=connected) is (member not in self.members)
        self.members[member] = connected

    @rule(member=_MEMBER)
    def leave(self, member: str) -> None:
        assert self.group.leave(member) is (member in self.members)
        self.members.pop(member, None)

    @rule(shard=st.integers(0, 2), connected=st.integers(0, 3), offline=st.integers(0, 3))
    def change_shard(self, shard: int, connected: int, offline: int) -> None:
        self.group.set_remote(shard, connected, offline)
        self.remote.pop(shard, None)
        if connected or offline:
            self.remote[shard] = (connected, offline)

    @rule(count=st.integers(0, 30))
    def deal(self, count: int) -> None:
        online: set[str | int] = {each for each, on in self.members.items() if on}
        online |= {shard for shard, (connected, _) in self.remote.items() if connected}
        eligible = online or {*self.members, *self.remote}
        parts = self.group.split(count)
        assert {target for target, _ in parts} <= eligible
        assert sum(size for _, size in parts) == (count if eligible else 0)

    @rule(count=st.integers(0, 30))
    def deal_here(self, count: int) -> None:
        online = {each for each, on in self.members.items() if on}
        parts = self.group.split_local(count)
        assert {target for target, _ in parts} <= (online or set(self.members))
        assert sum(size for _, size in parts) == (count if self.members else 0)

    @invariant()
    def counts(self) -> None:
        connected = sum(self.members.values())
        assert self.group.counts == (connected, len(self.members) - connected)
        assert sorted(self.group.members()) == sorted(self.members)
        assert self.group.remote() == self.remote
        assert self.group.is_empty is (not self.members and not self.remote)


TestGroupAgainstModel = GroupAgainstModel.TestCase
