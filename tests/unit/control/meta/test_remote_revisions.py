"""How far other nodes are: what is told them, who is waited for, and who is not any more."""

from fluxmq.control.meta.frames import TOPOLOGY, RevisionProgress, decode
from fluxmq.control.meta.remote_revisions import RemoteRevisions

NAMES = {2: "node2", 3: "node3"}


class Told:
    """What was sent, and how often there was news."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.news = 0
        self.elsewhere = RemoteRevisions(TOPOLOGY, NAMES, self.send)
        self.elsewhere.news = self.count

    def send(self, number: int, frame: bytes) -> bool:
        told = decode(frame)
        assert isinstance(told, RevisionProgress)
        assert told.what == TOPOLOGY
        self.sent.append((number, told.revision))
        return True

    def count(self) -> None:
        self.news += 1


def test_others_are_told_what_all_live_shards_work_by() -> None:
    told = Told()
    told.elsewhere.reached(["a", "b"], {"a": 5}, 5)  # b serves, and is not connected
    told.elsewhere.met(2)
    assert told.sent == []
    told.elsewhere.reached(["a", "b"], {"a": 5, "b": 4, "gone": 1}, 5)
    assert told.sent == [(2, 4), (3, 4)]
    told.elsewhere.reached(["a", "b"], {"a": 6, "b": 4}, 6)
    assert len(told.sent) == 2
    told.elsewhere.reached([], {}, 6)  # nobody serves here: nobody works by anything older
    told.elsewhere.met(3)
    assert told.sent[2:] == [(2, 6), (3, 6), (3, 6)]


def test_who_is_there_and_behind_is_waited_for() -> None:
    told = Told()
    assert told.elsewhere.lagging(1) == ()
    told.elsewhere.heard(2, 3)
    told.elsewhere.heard(3, 1)
    assert told.elsewhere.lagging(1) == ()
    assert told.elsewhere.lagging(2) == ("node3",)
    assert told.elsewhere.lagging(4) == ("node2", "node3")
    told.elsewhere.parted(3)
    assert told.elsewhere.lagging(4) == ("node2",)
    assert told.news == 3


def test_who_was_waited_for_in_vain_is_waited_for_again_when_it_has_caught_up() -> None:
    told = Told()
    told.elsewhere.heard(2, 3)
    told.elsewhere.heard(3, 1)
    told.elsewhere.give_up(3)
    assert told.elsewhere.lagging(5) == ("node2",)
    told.elsewhere.heard(3, 2)
    assert told.elsewhere.lagging(5) == ("node2",)
    told.elsewhere.heard(3, 3)
    assert told.elsewhere.lagging(5) == ("node2", "node3")
    told.elsewhere.give_up(5)
    assert told.elsewhere.lagging(6) == ()
    told.elsewhere.parted(3)
    told.elsewhere.heard(3, 0)  # it has begun anew
    assert told.elsewhere.lagging(6) == ("node3",)
