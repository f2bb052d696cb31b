"""The paper's figures 7 and 8, and what else needs a history in five acts."""

from __future__ import annotations

from typing import Any

from fluxmq.raft.types import (
    COMMAND,
    Entry,
    HardState,
    Message,
    MessageKind,
    Role,
)
from tests.unit.raft.cluster import Cluster, Disk

FIGURE_7 = {
    1: [1, 1, 1, 4, 4, 5, 5, 6, 6, 6],
    2: [1, 1, 1, 4, 4, 5, 5, 6, 6],  # (a)
    3: [1, 1, 1, 4],  # (b)
    4: [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],  # (c)
    5: [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],  # (d)
    6: [1, 1, 1, 4, 4, 4, 4],  # (e)
    7: [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],  # (f)
}


def log_of(terms: list[int]) -> list[Entry]:
    return [
        Entry(term, index, COMMAND, b"%d/%d" % (index, term)) for index, term in enumerate(terms, 1)
    ]


def with_logs(logs: dict[int, list[int]], leader_term: int, **options: Any) -> Cluster:
    """Members with logs of these terms; the first has heard of `leader_term` already."""
    cluster = Cluster(len(logs), **options)
    for number, terms in logs.items():
        disk = Disk(cluster.membership, log_of(terms))
        disk.hard_state = HardState(leader_term if number == 1 else max(terms), 0, 0)
        cluster.add(number, disk)
    return cluster


def test_figure_7_all_logs_become_the_leaders() -> None:
    cluster = with_logs(FIGURE_7, 7)
    rejections = 0

    def count(message: Message) -> bool:
        nonlocal rejections
        rejections += message.kind is MessageKind.APPEND_ANSWER and message.reject
        return True

    cluster[1].node.campaign()
    cluster.settle(count)
    leader = cluster[1].node.status()
    assert (leader.role, leader.term, leader.commit) == (Role.LEADER, 8, 11)
    for number, member in cluster.members.items():
        assert [entry.term for entry in member.disk.log] == [*FIGURE_7[1], 8], number
    # (c) and (d) match at once; (a), (b) and (e) need one hint, (f) two: never one per entry.
    assert rejections <= 6


def test_figure_8_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """(c) and (d): S1 brings entry 2 of term 2 to S2 and S3, a majority, and S5 overwrites it nevertheless."""
    cluster = with_logs({1: [1, 2], 2: [1], 3: [1], 4: [1], 5: [1, 3]}, 3, max_message_bytes=1)
    cluster.cut(5)
    cluster[1].node.campaign()

    def only_entry_2(message: Message) -> bool:
        if message.kind is not MessageKind.APPEND or message.target == 4:
            return message.kind is not MessageKind.APPEND
        # The first probe brings entry 3 and is refused; once entry 2 is there, entry 3 does not arrive.
        return message.index < 2 or cluster[message.target].node.status().last_index == 1

    cluster.settle(only_entry_2)
    leader = cluster[1].node.status()
    assert (leader.role, leader.term, leader.persisted) == (Role.LEADER, 4, 3)
    for number in (2, 3):
        assert [entry.term for entry in cluster[number].disk.log] == [1, 2]
        assert leader.progress[number].match == 2
    assert leader.commit == 0
    cluster.network.clear()
    cluster.heal()
    cluster.cut(1)
    for number in (2, 3, 4):
        cluster[number].crash()
    cluster[5].node.campaign()
    cluster.settle()
    cluster[5].node.campaign()
    cluster.settle()
    assert cluster[5].node.status().role is Role.LEADER
    for number in (2, 3, 4, 5):
        assert [entry.term for entry in cluster[number].disk.log][:2] == [1, 3]


def test_figure_8_an_entry_of_the_own_term_commits_those_before_it() -> None:
    """(e): when term 4 has an entry on a majority, S5 cannot win any more."""
    cluster = with_logs({1: [1, 2], 2: [1, 2], 3: [1], 4: [1], 5: [1, 3]}, 3)
    cluster.cut(5)
    cluster.cut(4)
    cluster.elect(1)
    assert cluster[1].node.status().commit == 3
    cluster.heal()
    cluster.cut(1)
    for number in (2, 3, 4):
        cluster[number].crash()
    for _ in range(3):
        cluster[5].node.campaign()
        cluster.settle()
        assert cluster[5].node.status().role is not Role.LEADER


def test_a_stale_answer_of_an_earlier_term_does_not_count() -> None:
    """Entries 2 to 5 of term 1 were held by a node that has overwritten them since. Its answer of then comes when
    node 1 leads again and has other entries at these places; with it they would seem to be on a majority."""
    cluster = Cluster(5)
    cluster.elect(1)
    for number in (3, 4, 5):
        cluster.cut(number)
    for _ in range(4):
        cluster.propose(1, b"lost")
    cluster.settle(lambda message: message.kind is not MessageKind.APPEND_ANSWER)
    stale = [each for each in cluster.network if each.kind is MessageKind.APPEND_ANSWER][-1:]
    assert [(each.source, each.term, each.index) for each in stale] == [(2, 1, 5)]
    cluster.network.clear()

    cluster.heal()
    cluster.cut(1)
    cluster.cut(2)
    cluster.members[4].crash()
    cluster.members[5].crash()
    cluster[3].crash()
    cluster.elect(3)
    cluster.heal()
    cluster.tick(3)
    assert [entry.term for entry in cluster[2].disk.log] == [1, 2]
    cluster[3].node.transfer_leadership(1)
    cluster.settle()
    assert cluster[1].node.status().role is Role.LEADER

    for number in (2, 4, 5):
        cluster.cut(number)
    for _ in range(3):
        cluster.propose(1, b"new")
    cluster.settle()
    before = cluster[1].node.status()
    assert (before.last_index, before.commit) == (6, 3)
    assert before.progress[3].match == 6
    for message in stale:
        cluster[1].node.step(message)
    cluster.settle()
    after = cluster[1].node.status()
    assert after.progress[2].match == 3
    assert after.commit == 3


def test_a_minority_commits_nothing() -> None:
    cluster = Cluster(5)
    cluster.elect(1)
    for number in (3, 4, 5):
        cluster.cut(number)
    cluster.propose(1, b"a")
    cluster.settle()
    assert cluster[1].node.status().progress[2].match == 2
    assert cluster[1].node.status().commit == 1
    cluster.heal()
    cluster.cut(4)
    cluster.cut(5)
    cluster.tick(2)
    assert cluster[1].node.status().commit == 2
