"""Which nodes lead which groups, so that none leads many more than another."""

from fluxmq.ipc.leader_balance import LeaderPlacement, first_leaders, leader_placement, rebalanced

ABC = ("a", "b", "c")


def moved(groups):
    return dict(rebalanced({name: LeaderPlacement(*placed) for name, placed in groups.items()}))


def test_leaders_that_are_as_even_as_can_be_stay():
    assert moved({}) == {}
    assert moved({"g": ("a", ABC)}) == {}
    assert moved({"g": ("a", ABC), "h": ("b", ABC), "i": ("c", ABC), "j": ("a", ABC)}) == {}


def test_leaders_move_from_the_node_with_most_and_no_more_than_needed():
    groups = {f"g{number}": ("a", ABC) for number in range(6)}
    moves = moved(groups)
    assert sorted(moves.values()) == ["b", "b", "c", "c"]
    after = {name: (moves.get(name, "a"), ABC) for name in groups}
    assert moved(after) == {}  # and then they stay


def test_a_leader_moves_over_a_node_in_between():
    # What a leads c has no copy of: a's goes to b, and one of b's to c.
    groups = {"ab1": ("a", ("a", "b")), "ab2": ("a", ("a", "b")), "bc": ("b", ("b", "c"))}
    assert moved(groups) == {"ab1": "b", "bc": "c"}


def test_nobody_leads_what_it_has_no_copy_of():
    assert moved({"g": ("a", ("a",)), "h": ("a", ("a",)), "i": ("b", ("b",))}) == {}


def test_groups_that_begin_are_led_evenly_and_the_same_whoever_asks():
    groups = {f"g{number}": ABC for number in range(7)}
    chosen = first_leaders(groups)
    assert sorted(list(chosen.values()).count(node) for node in ABC) == [2, 2, 3]
    backwards = {name: tuple(reversed(groups[name])) for name in reversed(groups)}
    assert first_leaders(backwards) == chosen
    assert len(set(first_leaders({"default": ABC, "other": ABC}).values())) == 2


def test_nobody_is_the_first_leader_of_what_it_has_no_copy_of():
    assert first_leaders({"g": ("a",), "h": ("a",), "i": ("a", "b"), "j": ()}) == {
        "g": "a",
        "h": "a",
        "i": "b",
    }


def test_the_first_leader_of_a_group_is_the_node_that_should_lead_it():
    groups = {**{f"leader-{node}": ABC for node in ABC}, "g": ABC, "h": ABC, "i": ABC}
    chosen = first_leaders(groups)
    assert all(chosen[f"leader-{node}"] == node for node in ABC)
    assert sorted(list(chosen.values()).count(node) for node in ABC) == [2, 2, 2]
    assert first_leaders({"leader-x": ("a",), "leader-b": ("a", "b")}) == {
        "leader-x": "a",
        "leader-b": "b",
    }


def test_groups_go_to_the_nodes_that_should_lead_them_and_others_are_spread_around():
    leaders = {"leader-a": "b", "leader-b": "b", "leader-c": "a", "g": "b", "h": "b", "i": "a"}
    moves = dict(
        rebalanced({name: leader_placement(name, at, ABC) for name, at in leaders.items()})
    )
    after = {**leaders, **moves}
    assert [after[f"leader-{node}"] for node in ABC] == ["a", "b", "c"]
    assert sorted(list(after.values()).count(node) for node in ABC) == [2, 2, 2]
    assert len(moves) == 3, "no more than needed"


def test_a_group_stays_while_the_node_that_should_lead_it_is_away():
    assert rebalanced({"leader-c": leader_placement("leader-c", "a", ("a", "b"))}) == []
    assert rebalanced({"g": leader_placement("g", "a", ("b",))}) == []
