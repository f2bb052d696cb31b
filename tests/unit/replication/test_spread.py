"""Leaders spread by themselves: only when all is quiet and whole, and never to and fro."""

import itertools

from fluxmq.replication.spread import (
    BACK_OFF_SECONDS,
    BACK_OFF_SECONDS_MAX,
    QUIET_SECONDS,
    Led,
    Spreading,
)

ABC = ("a", "b", "c")
OF_A, OF_B = "leader-a", "leader-b"


class Spread:
    """The leaders of groups as node ``a`` sees them, second by second."""

    def __init__(self, **leaders):
        self.spreading = Spreading("a")
        self.now = 100.0
        self.leaders = {group: Led(node, 1) for group, node in leaders.items()}
        self.lagging = set()

    def look(self):
        voters = dict.fromkeys(self.leaders, ABC)
        whole = {group for group, led in self.leaders.items() if led.node == "a"} - self.lagging
        return self.spreading.moves(self.now, self.leaders, voters, whole)

    def during(self, seconds):
        """What is to move in so many seconds, and when; what moves is led by whom it moves to."""
        found = []
        for _ in range(int(seconds)):
            for group, to in self.look():
                found.append((group, to))
                self.lead(group, to)
            self.now += 1.0
        return found

    def lead(self, group, node):
        self.leaders[group] = Led(node, self.leaders[group].term + 1)


def test_two_groups_of_one_node_are_led_by_two_once_it_is_quiet():
    spread = Spread(g="a", h="a")
    assert spread.during(QUIET_SECONDS) == []
    assert spread.during(2) == [("g", "b")]
    assert spread.during(10 * BACK_OFF_SECONDS) == []


def test_several_move_at_once_and_groups_of_other_nodes_are_left_to_them():
    spread = Spread(**{f"g{number}": "a" for number in range(6)})
    assert len(spread.during(QUIET_SECONDS + 1)) == 4
    assert sorted(led.node for led in spread.leaders.values()) == ["a", "a", "b", "b", "c", "c"]
    assert Spread(g="b", h="b", i="b").during(10 * QUIET_SECONDS) == []


def test_nothing_moves_while_leaders_change():
    spread = Spread(g="a", h="a", i="c")
    for _ in range(5):
        assert spread.during(QUIET_SECONDS - 1) == []
        spread.lead("i", "c")
    assert spread.during(QUIET_SECONDS + 1) == [("g", "b")]


def test_a_group_of_which_a_member_lags_stays_and_another_moves():
    spread = Spread(g="a", h="a")
    spread.lagging = {"g", "h"}
    assert spread.during(10 * QUIET_SECONDS) == []
    spread.lagging = {"g"}
    assert spread.during(QUIET_SECONDS) == []  # it must have had everything for a while
    assert spread.during(2) == [("h", "b")]


def test_what_comes_back_or_does_not_go_is_tried_again_seldomer_each_time():
    spread = Spread(g="a", h="a")
    spread.lagging = {"h"}
    tried = []
    for _ in range(int(8 * BACK_OFF_SECONDS)):
        tried += [spread.now for _ in spread.look()]  # nobody takes it over
        spread.now += 1.0
    apart = [call_later - earlier for earlier, call_later in itertools.pairwise(tried)]
    assert apart == [BACK_OFF_SECONDS, 2 * BACK_OFF_SECONDS, 4 * BACK_OFF_SECONDS]
    for _ in range(20 * int(BACK_OFF_SECONDS_MAX)):
        tried += [spread.now for _ in spread.look()]
        spread.now += 1.0
    assert tried[-1] - tried[-2] == BACK_OFF_SECONDS_MAX


def test_a_group_that_stayed_away_for_long_begins_with_the_shortest_pause():
    spread = Spread(g="a", h="a")
    assert spread.during(QUIET_SECONDS + 1) == [("g", "b")]
    spread.during(BACK_OFF_SECONDS + BACK_OFF_SECONDS_MAX)
    for _ in range(2):
        spread.lead("g", "a")
        assert spread.during(QUIET_SECONDS + 2) == [("g", "b")]
        spread.during(BACK_OFF_SECONDS)


def test_a_group_that_came_back_is_not_handed_over_at_once():
    spread = Spread(g="a", h="a")
    assert spread.during(QUIET_SECONDS + 1) == [("g", "b")]
    spread.lead("g", "a")
    spread.lagging = {"h"}
    assert spread.during(BACK_OFF_SECONDS - 2) == []
    assert spread.during(QUIET_SECONDS) == [("g", "b")]


def test_a_group_returns_to_the_node_that_should_lead_it_once_that_has_everything():
    spread = Spread(**{OF_B: "a", "g": "c"})
    spread.lagging = {OF_B}
    assert spread.during(10 * QUIET_SECONDS) == []
    spread.lagging = set()
    assert spread.during(QUIET_SECONDS) == []
    assert spread.during(2) == [(OF_B, "b")]
    assert spread.during(10 * BACK_OFF_SECONDS) == []


def test_a_group_stays_with_the_node_that_should_lead_it_and_others_are_spread_around():
    spread = Spread(**{OF_A: "a", "copies-2-leader-a": "a", "g": "a"})
    assert spread.during(QUIET_SECONDS + 1) == [("g", "b")]
    assert spread.during(10 * BACK_OFF_SECONDS) == [], "although it leads two more than another"


def test_a_group_of_a_node_that_is_no_voter_is_spread_like_others():
    spread = Spread(**{"leader-x": "a", OF_A: "a"})
    assert spread.during(QUIET_SECONDS + 1) == [("leader-x", "b")]


def test_a_group_that_an_operator_moved_here_stays_until_it_is_led_elsewhere():
    spread = Spread(**{OF_B: "b", "g": "c"})
    spread.spreading.kept[OF_B] = 1
    assert spread.during(3) == []
    spread.lead(OF_B, "a")
    assert spread.during(10 * BACK_OFF_SECONDS) == []
    spread.lead(OF_B, "c")
    spread.during(1)
    spread.lead(OF_B, "a")
    assert spread.during(QUIET_SECONDS + 2) == [(OF_B, "b")]
