"""The client ids of a node, by what control answers and when."""

from __future__ import annotations

from collections import deque

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import Body, Failure
from fluxmq.ipc.owner_messages import FoundOwner, FoundOwners
from fluxmq.shards.owned_ids import OwnedIds


class Home:
    """What uses the ids, and control, which answers when it is let."""

    def __init__(self) -> None:
        self.now = 0.0
        self.losses = 0
        self.found: list[FoundOwner | None] = []
        self.waiting: deque[Answered] = deque()
        self.ids = OwnedIds("n", self, lambda: self.now, lambda: None)
        self.ids.connect(self)

    def request(self, _kind: str, _body: Body, answered: Answered) -> bool:
        self.waiting.append(answered)
        return True

    def refuse(self) -> None:
        """Fail the claim that has waited for longest."""
        self.waiting.popleft()(Failure("away", "etcd cannot be reached"))

    def answer(self, revision: int, until: float) -> None:
        """Answer the claim that has waited for longest: it is granted."""
        owner = FoundOwner("n", "1", revision, ours=True)
        self.waiting.popleft()(FoundOwners((owner,), until).to_body())

    def in_use(self, _client_id: str) -> bool:
        return True

    def settled(self, client_id: str) -> None:
        pass

    def lost(self) -> None:
        self.losses += 1

    def taken(self, client_id: str) -> None:
        pass


def test_what_is_over_does_not_last_as_long_as_what_is_claimed_afterwards() -> None:
    """S2-13: the answer may come before the shard has looked at its clock."""
    home = Home()
    home.ids.claim("a", 0, home.found.append)
    home.answer(5, until=9.0)
    assert home.ids.fence("a") == 5
    home.now = 8.9
    home.ids.housekeeping()
    home.ids.claim("b", 0, home.found.append)
    home.now = 9.1
    home.answer(7, until=18.0)
    assert home.losses == 1
    assert (home.ids.has("a"), home.ids.fence("b")) == (False, 7)
    home.ids.housekeeping()
    assert home.losses == 1


def test_an_idle_shard_wakes_for_the_end_of_its_time_and_for_what_is_tried_again() -> None:
    home = Home()
    home.ids.claim("a", 0, home.found.append)
    assert home.ids.next_due > home.now, "the answer will wake it"
    home.answer(5, until=9.0)
    assert home.ids.next_due == 9.0
    home.ids.release("a")
    assert home.now < home.ids.next_due < 9.0
    home.ids.renew(["a"])
    home.refuse()
    assert home.ids.next_due == 0.0
