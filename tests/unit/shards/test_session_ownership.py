"""Who owns a client id, in every order in which claims, grants, yields, releases and deaths can come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fluxmq.auth.users import User
from tests.conformance import wire
from tests.conformance.client import Client
from tests.conformance.received import Packet
from tests.unit.shards.interleavings import Story, explore
from tests.unit.shards.node import Clock, Node, drain

MakeNode = Callable[..., Node]
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)


ANN_AND_BOB = tuple(User(name, "x", None, ("#",), ("#",), True) for name in ("ann", "bob"))


def give(node: Node, shard: int, name: str, principal: str) -> Any:
    """A session of a principal, connected, with one message in it."""
    client = node.connect(shard, name, props=LASTING)
    client.subscribe("news", qos=1)
    session = node[shard].session(name)
    session.principal = session.client.username = principal
    node.connect(shard, node.id_of(shard, "other")).publish("news", b"m", qos=1)
    return session


@dataclass
class Arrival:
    """A connection that wants the client id, the shard it came to, and what it received in the end."""

    client: Client
    shard: int
    heard: list[Packet] = field(default_factory=list)


class Contest:
    """A client id whose home is shard 0, its session in a given shard with one message in it, and connections
    that want it. `attempts` are those that scripts have begun."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, owner: int) -> None:
        self.node = Node(3, clock, loop)
        self.name = self.node.id_of(0)
        self.attempts: list[Arrival] = []
        first = self.node.connect(owner, self.name, props=LASTING)
        first.subscribe("news", qos=1)
        first.drop()
        self.node.connect(owner, "other").publish("news", b"m", qos=1)
        self.node.run()

    def connect(self, shard: int, clean: bool = False, lasting: bool = True) -> Callable[[], None]:
        """A step: a connection comes to `shard` and wants the id."""

        def step() -> None:
            if self.node.shards[shard] is None:
                return
            client = self.node.client(shard)
            props = LASTING if lasting else ()
            client.send(wire.connect(wire.V5, self.name, clean=clean, props=props))
            self.attempts.append(Arrival(client, shard))

        return step

    def leave(self) -> None:
        """A step: the first connection goes away."""
        if self.attempts:
            self.attempts[0].client.drop()

    def kill(self, shard: int) -> Callable[[], None]:
        """A step: a shard dies."""
        return lambda: self.node.kill(shard)

    def start(self, shard: int) -> Callable[[], None]:
        """A step: it is started again."""

        def step() -> None:
            self.node.start(shard)
            self.node.hold()

        return step

    def notice(self, shard: int) -> Callable[[], None]:
        """A step: a shard's timer, by which it notices the dead."""

        def step() -> None:
            found = self.node.shards[shard]
            if found is not None:
                found.timer()

        return step

    def connected(self) -> list[Arrival]:
        """The attempts that are connected in the end, with what they received in `heard`."""
        found = []
        for attempt in self.attempts:
            if attempt.client.closed or self.node.shards[attempt.shard] is None:
                continue
            attempt.heard = drain(attempt.client)
            if not attempt.client.closed:
                found.append(attempt)
        return found

    def holder(self) -> int | None:
        """The shard that has the session; no two may, and the home must know."""
        holders = self.node.holders(self.name)
        assert len(holders) <= 1, f"sessions of one client id on shards {holders}"
        for shard in self.node:
            ownership = shard.ownership
            assert not ownership._pending, "a claim is never served"
            assert not ownership._asked, "a claim is never answered"
            assert not ownership._claiming
            assert not ownership.waiting
        home = self.node.shards[0]
        if home is not None:
            owner = holders[0] if holders and holders[0] != 0 else None
            assert home.ownership._owners.get(self.name) == owner, (
                "the home is wrong about the owner"
            )
        return holders[0] if holders else None


Begin = Callable[[int], Contest]


@pytest.fixture
def begin(clock: Clock, loop: asyncio.AbstractEventLoop) -> Begin:
    """Make contests."""
    return lambda owner: Contest(clock, loop, owner)


def play(
    begin: Begin, owner: int, scripts: Callable[[Contest], Any], check: Any, walks: int = 0
) -> int:
    """Explore a contest; `check` gets it at each end."""
    contests: list[Contest] = []

    def tell() -> Story:
        contests[:] = [begin(owner)]
        return Story(contests[0].node, scripts(contests[0]))

    return explore(tell, lambda _: check(contests[0]), walks)


def one_with_everything(contest: Contest) -> None:
    """One connection is left, it has the session, and the session has lost nothing."""
    holder = contest.holder()
    assert holder is not None
    (attempt,) = contest.connected()
    assert attempt.shard == holder
    connack, *rest = attempt.heard
    assert connack.kind == wire.CONNACK
    assert connack.session_present, str(connack)
    assert [packet.payload for packet in rest] == [b"m"]
    session = contest.node[holder].session(contest.name)
    assert session.delivery.inflight == 1


@pytest.mark.parametrize("owner", [0, 1])
def test_one_claim_moves_the_session(begin: Begin, owner: int) -> None:
    assert play(begin, owner, lambda c: [[c.connect(2)]], one_with_everything)


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("shards", [(1, 2), (0, 2), (2, 2), (0, 1, 2), (1, 2, 1), (2, 2, 1)])
def test_claims_at_once(begin: Begin, owner: int, shards: tuple[int, ...]) -> None:
    """Whoever comes last at the home wins; nothing in the session is lost on the way."""
    walks = 60 if len(shards) > 2 or not owner else 0
    ends = play(
        begin, owner, lambda c: [[c.connect(at)] for at in shards], one_with_everything, walks
    )
    assert ends > 1


def test_a_clean_claim_among_others(begin: Begin) -> None:
    """One of the connections starts anew: the session is either the old one no more, or lost in full."""

    def check(contest: Contest) -> None:
        holder = contest.holder()
        assert holder is not None
        (attempt,) = contest.connected()
        assert attempt.shard == holder
        session = contest.node[holder].session(contest.name)
        assert session.delivery.inflight == 0
        assert not session.subscriptions

    play(begin, 1, lambda c: [[c.connect(2, clean=True)], [c.connect(1)]], lambda c: c.holder())
    play(begin, 1, lambda c: [[c.connect(1), c.connect(2, clean=True)]], lambda c: c.holder())
    play(begin, 1, lambda c: [[c.connect(1, clean=True)]], check)
    play(begin, 1, lambda c: [[c.connect(2, clean=True)]], check)
    play(begin, 0, lambda c: [[c.connect(2, clean=True), c.connect(1, clean=True)]], check)


def test_sessions_that_end_with_their_connection(begin: Begin) -> None:
    """Releases cross claims: the home neither keeps what has ended nor forgets what has begun."""

    def short(contest: Contest, at: int) -> Callable[[], None]:
        return contest.connect(at, clean=True, lasting=False)

    def scripts(contest: Contest) -> Any:
        return [[short(contest, 1), contest.leave, short(contest, 1)], [short(contest, 2)]]

    assert play(begin, 1, scripts, lambda c: c.holder()) > 1

    def alone(contest: Contest) -> None:
        assert contest.holder() is None

    play(begin, 1, lambda c: [[short(c, 2), c.leave]], alone)
    play(begin, 0, lambda c: [[short(c, 2), c.leave], [c.notice(1)]], alone)


def test_the_client_goes_away_while_its_claim_is_under_way(begin: Begin) -> None:
    """The session, wherever it came to rest, is whole for the next try."""

    def check(contest: Contest) -> None:
        assert contest.holder() is not None
        contest.attempts.clear()
        contest.connect(1)()
        contest.node.run()
        one_with_everything(contest)

    play(begin, 1, lambda c: [[c.connect(2), c.leave]], check)
    play(begin, 0, lambda c: [[c.connect(2), c.leave]], check)
    play(begin, 2, lambda c: [[c.connect(0), c.leave]], check)


def test_the_claimer_dies(begin: Begin) -> None:
    """Unless the session had reached it, it is there for the next try."""

    def check(contest: Contest) -> None:
        contest.holder()
        contest.attempts.clear()
        contest.connect(1)()
        contest.node.run()
        contest.holder()
        (attempt,) = contest.connected()
        assert attempt.heard[0].reason == 0

    def scripts(contest: Contest) -> Any:
        return [[contest.connect(2), contest.kill(2)], [contest.notice(0), contest.notice(1)]]

    play(begin, 1, scripts, check, walks=100)
    play(begin, 0, scripts, check, walks=100)


def test_a_session_yielded_for_a_claimer_that_died_stays_where_it_is(begin: Begin) -> None:
    contest = begin(1)
    node = contest.node
    node.hold()
    contest.connect(2)()
    node.run()
    node.let(2, 0)  # claim
    node.kill(2)
    node[0].timer()  # the home notices while the owner has not answered
    node.let(0, 1)  # yield
    node.let(1, 0)  # the session's subscriptions
    node.release()
    assert contest.holder() == 1
    contest.attempts.clear()
    contest.connect(1)()
    node.run()
    one_with_everything(contest)
    node.close()


def test_the_owner_dies(begin: Begin) -> None:
    """Its session is gone; the claimer gets a new one instead of waiting for ever."""

    def scripts(contest: Contest) -> Any:
        return [[contest.connect(2)], [contest.kill(1), contest.notice(0), contest.notice(2)]]

    def check(contest: Contest) -> None:
        assert contest.holder() == 2
        (attempt,) = contest.connected()
        assert attempt.heard[0].reason == 0

    play(begin, 1, scripts, check, walks=100)

    def restarted(contest: Contest) -> Any:
        return [[contest.connect(2)], [contest.kill(1), contest.start(1)]]

    play(begin, 1, restarted, check, walks=100)


def test_the_home_dies(begin: Begin) -> None:
    """The claimer goes on without it; when it is back it learns who owns what, and of two owners one yields."""

    def scripts(contest: Contest) -> Any:
        return [[contest.connect(2)], [contest.kill(0), contest.notice(1), contest.start(0)]]

    def check(contest: Contest) -> None:
        assert contest.holder() in (1, 2)

    assert play(begin, 1, scripts, check, walks=200) > 1


def test_the_home_is_told_by_two_owners(begin: Begin) -> None:
    """However two shards came to have the id while the home was away: one of them is told to let go."""
    contest = begin(1)
    node = contest.node
    node.kill(0)
    for shard in node:
        shard.timer()
    contest.connect(1)()
    node.run()
    node[2].broker.sessions.create(contest.name)
    assert node.holders(contest.name) == [1, 2]
    node.start(0)
    node.run()
    assert contest.holder() in (1, 2)
    node.close()


def test_while_the_home_is_away_nothing_is_taken(begin: Begin) -> None:
    """Review finding 7: only the home knows whose an id is; a client that begins anew elsewhere waits for it."""
    contest = begin(1)
    node = contest.node
    node.kill(0)
    for shard in node:
        shard.timer()
    contest.connect(1)()
    contest.connect(2, clean=True)()
    node.run()
    assert node.holders(contest.name) == [1]
    first, second = (attempt.client for attempt in contest.attempts)
    assert [packet.kind for packet in drain(first)] == [wire.CONNACK, wire.PUBLISH]
    assert not drain(second)
    node.start(0)
    node.run()
    assert contest.holder() == 2
    assert [packet.kind for packet in drain(second)] == [wire.CONNACK]
    assert drain(first)[-1].reason == 0x8E
    node.close()


def test_the_home_dies_while_it_is_asked(begin: Begin) -> None:
    """Review finding 7: a claim that is not answered is made again, and not taken for granted."""
    contest = begin(0)
    node = contest.node
    node.hold()
    contest.connect(2, clean=True)()
    node.kill(0)
    node.release()
    for shard in node:
        shard.timer()
    node.run()
    assert node.holders(contest.name) == []
    assert not drain(contest.attempts[0].client)
    node.start(0)
    node.run()
    assert contest.holder() == 2
    assert [packet.kind for packet in drain(contest.attempts[0].client)] == [wire.CONNACK]
    node.close()


def test_a_home_that_was_restarted_waits_until_all_have_told(begin: Begin) -> None:
    """A claim that comes before the owner has told of its session must not be granted as nothing."""
    contest = begin(1)
    node = contest.node
    node.kill(0)
    node.hold()
    node.start(0)
    node.hold()
    node.let(0, 2, len(node.pipes[0, 2].records))  # its hello
    node.let(2, 0, len(node.pipes[2, 0].records))  # welcome, and what shard 2 wants
    contest.connect(2)()
    node.run()
    node.let(2, 0, len(node.pipes[2, 0].records))  # the claim, while nothing of shard 1 has come
    assert not drain(contest.attempts[0].client)
    node.release()
    one_with_everything(contest)
    node.close()


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("owner", [0, 1])
def test_the_id_of_another_principal_is_refused(
    make_node: MakeNode, owner: int, at: int, clean: bool
) -> None:
    """Review finding 7: wherever the session is and the claim comes, the session and its client stay."""
    node = make_node(3, users=ANN_AND_BOB)
    name = node.id_of(0)
    session = give(node, owner, name, "ann")
    for version, reason in ((wire.V5, 0x85), (wire.V4, 2)):
        stranger = node.client(at, version)
        assert stranger.connect(name, clean=clean).reason == reason
        assert stranger.ended(1)
    assert node.holders(name) == [owner]
    assert node[owner].session(name) is session
    assert session.client is not None
    assert session.delivery.inflight == 1
    node[owner].broker.handler.lost(session.client.connection)
    assert node.client(at).connect(name, clean=clean).reason == 0x85, "while its client is away"
    assert node.holders(name) == [owner]
    # The next claim of its own principal finds the home's table right.
    assert node[0].ownership._owners.get(name) == (owner or None)
    assert not node[0].ownership._pending


def test_an_arriving_client_is_not_put_out_by_another_principal(make_node: MakeNode) -> None:
    """Review finding 7: between the end of the old session on disk and the beginning of the new one."""
    node = make_node(1, users=ANN_AND_BOB)
    session = give(node, 0, "c", "ann")
    arriving = node.client(0)
    client = next(reversed(node[0].reactor.connections.values())).identity
    client.username = "ann"
    node[0].broker.takeover._arriving["c"] = client
    node[0].broker.handler.finish(session)
    assert node.client(0).connect("c").reason == 0x85
    assert node[0].broker.takeover._arriving["c"] is client
    assert not arriving.closed


@pytest.mark.parametrize("owner", [0, 1])
def test_the_session_of_a_user_who_is_no_more_ends(make_node: MakeNode, owner: int) -> None:
    """Review finding 7: nobody can be its principal again, so it holds nobody up; nor is it read."""
    node = make_node(3, users=ANN_AND_BOB)
    name = node.id_of(0)
    give(node, owner, name, "gone")
    client = node.client(2)
    connack = client.connect(name)
    assert connack.reason == 0
    assert not connack.session_present
    assert not drain(client)
    assert node.holders(name) == [2]


@pytest.mark.parametrize("connected", [True, False])
def test_an_administrator_ends_a_session(make_node: MakeNode, connected: bool) -> None:
    """Review finding 7: the way to free a client id that belongs to somebody else."""
    node = make_node(2)
    name = node.id_of(0)
    client = node.connect(1, name, props=LASTING)
    if not connected:
        client.drop()
    counts: list[int] = []
    for shard in node:
        shard.broker.takeover.close_session(name, counts.append)
    node.run()
    node.wait(node.clock.now + 1)
    assert sorted(counts) == [0, 1]
    assert node.holders(name) == []
    assert node[0].ownership._owners == {}
    if connected:
        assert drain(client)[-1].reason == 0x98
    assert not node.connect(1, name).present


def test_refused_claims_leave_nothing_behind(make_node: MakeNode) -> None:
    """A shard that holds as many sessions as it may refuses; the home does not remember the attempt."""
    node = make_node(2, {"session": {"max_sessions": 1}})
    limit = node[1].broker.limits.max_sessions
    home = [node.id_of(0, f"c{number}-") for number in range(limit + 20)]
    for name in home[:limit]:
        node.connect(1, name)
    assert len(node[0].ownership._owners) == limit
    for name in home[limit:]:
        client = node.client(1)
        assert client.connect(name).reason == 0x97
    assert len(node[0].ownership._owners) == limit
    assert len(node[1].broker.sessions.by_id) == limit
