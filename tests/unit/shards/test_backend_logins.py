"""Logins that other backends decide, as a shard sees them: order, bounds, and what clients notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.scopes import rights_of
from fluxmq.auth.users import User
from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.login_messages import LOGIN, SECRET_BYTES_MAX, LoginAnswer, LoginQuestion
from fluxmq.ipc.messages import ERROR_AWAY, Body, Failure
from fluxmq.ipc.will_messages import decode_will, encode_will
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.settings.schema import AuthSettings
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.backend_logins import ASKED_MAX, REMEMBERED_MAX
from fluxmq.shards.wills import value_of
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import LOOPBACK, Node, drain, messages, stream_of
from tests.unit.shards.test_authentication import CHEAP, REMOTE, Outcome, client, user, wait

TOKEN = b"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"
OAUTH2 = {"resource_server_id": "mq", "jwks_url": "https://issuer/keys"}
HTTP = {"user_path": "https://server/user", "vhost_path": "https://server/vhost"}
SECTIONS = {"oauth2": OAUTH2, "http": HTTP}
MAXIMUM_CONNECT_TIME, NOT_AUTHORIZED = 0xA0, 0x87


def settings(*backends: str, **more: Any) -> dict[str, Any]:
    """Settings with these backends."""
    named = {name: SECTIONS[name] for name in backends if name in SECTIONS}
    return {"argon2": CHEAP, "backends": backends, **named, **more}


def granted(*scopes: str, name: str = "tom", expires_in: float = 0.0) -> LoginAnswer:
    """What control answers to a good token."""
    rights = rights_of(scopes, ["/"])
    return LoginAnswer(
        *("accepted", "oauth2", name, (), rights.permissions, rights.keys, expires_in)
    )


class Control:
    """Takes the questions; the test answers."""

    def __init__(self) -> None:
        self.away = False
        self.asked: list[LoginQuestion] = []
        self._answers: list[Answered] = []

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Take a question."""
        assert kind == LOGIN
        if not self.away:
            self.asked.append(LoginQuestion.from_body(body))
            self._answers.append(answered)
        return not self.away

    def answer(self, answer: LoginAnswer | Failure | Body) -> None:
        """Answer the oldest question."""
        body = answer.to_body() if isinstance(answer, LoginAnswer) else answer
        self._answers.pop(0)(body)


Make = Callable[..., tuple[Authentication, Control]]


@pytest.fixture
def make(loop: asyncio.AbstractEventLoop) -> Iterator[Make]:
    """Make authentications."""
    made: list[Authentication] = []

    def build(*backends: str, users: tuple[User, ...] = (), **more: Any) -> Any:
        found = Authentication(AuthSettings.model_validate(settings(*backends, **more)), loop)
        found.set_users(2, users)
        control = Control()
        found.backends.connect(control)
        made.append(found)
        return found, control

    yield build
    for each in made:
        each.close()


def test_a_token_is_asked_about_and_names_the_user(make: Make) -> None:
    authentication, control = make("internal", "oauth2", users=(user(),))
    outcome = Outcome()
    authentication.verify("anna", TOKEN, REMOTE, outcome)
    assert outcome.results == []
    assert authentication.pending == 1
    assert control.asked == [LoginQuestion("anna", TOKEN, "192.0.2.7", ("oauth2",))]
    control.answer(granted("read:*/*"))
    (result,) = outcome.results
    assert (result.outcome, result.username) == (LoginOutcome.ACCEPTED, "tom")
    assert result.login is not None
    assert result.login.permissions("/") is not None
    assert authentication.pending == 0
    assert authentication.results == {("oauth2", "success"): 1}
    assert authentication.may_return("tom")


def test_backends_are_asked_in_their_order(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    authentication, control = make("http", "internal", users=(user(),))
    outcome = Outcome()
    authentication.verify("anna", b"secret", REMOTE, outcome)
    control.answer(LoginAnswer("wrong", "http"))
    wait(authentication, loop)
    assert outcome.results == [AuthResult(LoginOutcome.ACCEPTED, "anna")]
    assert authentication.results == {("password", "success"): 1}

    authentication, control = make("internal", "http", users=(user(),))
    right, wrong = Outcome(), Outcome()
    authentication.verify("anna", b"secret", REMOTE, right)
    wait(authentication, loop)
    assert control.asked == []
    authentication.verify("anna", b"other", REMOTE, wrong)
    while not control.asked:
        loop.run_until_complete(asyncio.sleep(0.001))
    assert wrong.results == []
    control.answer(granted(name="anna"))
    assert wrong.outcome is LoginOutcome.ACCEPTED
    assert wrong.results[0].login is not None


@pytest.mark.parametrize(
    ("answer", "outcome", "counted"),
    [
        (LoginAnswer("wrong", "oauth2"), LoginOutcome.WRONG, ("oauth2", "failure")),
        (LoginAnswer("unavailable", "oauth2"), LoginOutcome.UNAVAILABLE, ("oauth2", "busy")),
        (LoginAnswer("busy"), LoginOutcome.BUSY, ("backend", "busy")),
        (Failure(ERROR_AWAY, "gone"), LoginOutcome.UNAVAILABLE, ("backend", "busy")),
        ({"outcome": "accepted?"}, LoginOutcome.UNAVAILABLE, ("backend", "busy")),
        ({}, LoginOutcome.UNAVAILABLE, ("backend", "busy")),
    ],
)
def test_nothing_but_an_acceptance_lets_in(
    make: Make, answer: Any, outcome: LoginOutcome, counted: tuple[str, str]
) -> None:
    authentication, control = make("oauth2")
    found = Outcome()
    authentication.verify("x", TOKEN, REMOTE, found)
    control.answer(answer)
    assert found.outcome is outcome
    assert authentication.results == {counted: 1}


def test_without_control_nobody_is_let_in(make: Make) -> None:
    authentication, control = make("oauth2")
    control.away = True
    found = Outcome()
    authentication.verify("x", TOKEN, REMOTE, found)
    assert found.outcome is LoginOutcome.UNAVAILABLE


def test_what_no_backend_takes_is_wrong_at_once(make: Make) -> None:
    authentication, control = make("oauth2")
    for name, password in (("x", b"password"), ("n" * 257, TOKEN), ("x", TOKEN * 500)):
        found = Outcome()
        authentication.verify(name, password, REMOTE, found)
        assert found.outcome is LoginOutcome.WRONG
    assert len(TOKEN * 500) > SECRET_BYTES_MAX
    assert control.asked == []


def test_a_user_of_this_machine_stays_one_of_it(make: Make) -> None:
    for peer, outcome in ((REMOTE, LoginOutcome.WRONG), (LOOPBACK, LoginOutcome.ACCEPTED)):
        authentication, control = make("oauth2")
        found = Outcome()
        authentication.verify("x", TOKEN, peer, found)
        control.answer(granted(name="guest"))
        assert found.outcome is outcome


def test_guessing_is_delayed_for_other_backends_too(make: Make) -> None:
    authentication, control = make("http", failed_logins={"per_user": 2, "first_delay": 60})
    for _ in range(3):
        found = Outcome()
        authentication.verify("x", b"guess", REMOTE, found)
        control.answer(LoginAnswer("wrong", "http"))
        assert found.outcome is LoginOutcome.WRONG
    found = Outcome()
    authentication.verify("x", b"guess", REMOTE, found)
    assert found.outcome is LoginOutcome.BUSY
    assert len(control.asked) == 3


def test_logins_wait_in_turn_and_in_bounds(make: Make) -> None:
    authentication, control = make("oauth2", max_pending_verifications=4, max_pending_per_address=3)
    flood = [Outcome() for _ in range(ASKED_MAX + 5)]
    for outcome in flood:
        authentication.verify("x", TOKEN, REMOTE, outcome)
    assert len(control.asked) == ASKED_MAX
    assert [bool(each.results) for each in flood[-5:]] == [False] * 3 + [True] * 2
    assert flood[-1].outcome is LoginOutcome.BUSY
    other = Outcome()
    authentication.verify("y", TOKEN, "192.0.2.8:1", other)
    assert authentication.pending == ASKED_MAX + 4
    for _ in range(2):
        control.answer(granted())
    assert control.asked[-1].username == "y", "addresses take turns"
    for _ in range(ASKED_MAX + 2):
        control.answer(granted())
    assert authentication.pending == 0
    assert {each.outcome for each in (other, *flood[:-2])} == {LoginOutcome.ACCEPTED}


def test_a_token_needs_no_name_and_an_unknown_name_is_not_anonymous(make: Make) -> None:
    authentication, control = make("oauth2")
    found = Outcome()
    authentication.check(client(), Connect("c", version=5, username=None, password=TOKEN), found)
    assert control.asked[0].username == ""
    authentication.set_users(0, ())
    unknown = Outcome()
    authentication.check(client(), Connect("c", version=5, username="x", password=b"p"), unknown)
    assert unknown.outcome is LoginOutcome.WRONG


def test_the_last_logins_are_remembered_in_bounds(make: Make) -> None:
    authentication, _ = make("oauth2")
    for number in range(REMEMBERED_MAX + 1):
        authentication.backends.login(granted(name=f"u{number}"))
    assert authentication.backends.last("u0") is None
    assert authentication.backends.last("u1") is not None


# Clients


class Doors:
    """One shard that lets tokens in, with a control process that the test is."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.shard = node[0]
        self.control = Control()
        self.shard.authentication.backends.connect(self.control)

    def connect(self, answer: LoginAnswer, version: int = 5, **fields: Any) -> Client:
        """A client with a token."""
        found = self.node.client(0, version)
        found.send(wire.connect(version, "c", username="x", password=TOKEN, keep_alive=0, **fields))
        self.node.run()
        self.control.answer(answer)
        self.node.run()
        connack = drain(found)[0]
        assert connack.reason == 0
        return found


@pytest.fixture
def doors(make_node: Callable[..., Node]) -> Doors:
    """A shard, with a user of its own who has a name that tokens have as well."""
    return Doors(make_node(1, {"auth": settings("internal", "oauth2")}, users=(user("tom"),)))


RIGHTS = ("write:%2F/amq.topic/*", "read:%2F/amq.topic/a.*")
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_is_disconnected_when_its_login_ends(doors: Doors, version: int) -> None:
    found = doors.connect(granted(*RIGHTS, expires_in=60), version)
    doors.node.advance(59)
    assert found.ping() == []
    doors.node.advance(2)
    packets = [(each.kind, each.reason) for each in drain(found)]
    assert packets == ([(wire.DISCONNECT, MAXIMUM_CONNECT_TIME)] if version == 5 else [])
    assert found.closed


def test_its_will_is_published_then(doors: Doors) -> None:
    watcher = doors.node.connect(0, "w")
    watcher.subscribe("gone/#")
    doors.connect(granted(*RIGHTS, name="device", expires_in=60), will=wire.Will("gone/c", b"bye"))
    doors.node.advance(61)
    assert messages(watcher) == [b"bye"]


@pytest.mark.parametrize("backends", [("internal", "oauth2"), ("internal",), ("oauth2", "http")])
def test_after_a_restart_a_will_is_published_that_its_backend_had_permitted(
    make_node: Callable[..., Node], backends: tuple[str, ...]
) -> None:
    """If that is still asked: nobody there knows the rights of the user, who may not be back."""
    auth = {"auth": settings("internal", "oauth2")}
    node = make_node(1, auth, users=(user("tom"),))
    doors = Doors(node)
    will = wire.Will("gone/c", b"bye", properties=((wire.WILL_DELAY_INTERVAL, 500),))
    doors.connect(granted(*RIGHTS, name="device"), props=LASTING, will=will)
    node.run()
    node.advance(1)
    node.kill(0)
    node.start(0)
    node.run()
    node[0].timer()
    node[0].permissions.configure(AuthSettings.model_validate(settings(*backends)))
    watcher = node.connect(0, "w")
    watcher.subscribe("gone/#")
    node.advance(600)
    assert messages(watcher) == ([b"bye"] if "oauth2" in backends else [])


def test_rights_of_a_later_login_count_for_a_will(doors: Doors) -> None:
    """Also where the internal backend has a user of that name."""
    watcher = doors.node.connect(0, "w")
    watcher.subscribe("gone/#")
    will = wire.Will("gone/c", b"bye", properties=((wire.WILL_DELAY_INTERVAL, 500),))
    found = doors.connect(granted(*RIGHTS), props=LASTING, will=will)
    stream_of(found).close()
    doors.node.run()
    doors.shard.authentication.backends.login(granted("write:%2F/amq.topic/a.*"))
    doors.node.advance(600)
    assert messages(watcher) == []
    assert doors.shard.broker.counts.drops["no_permission"] == 1


def test_another_node_is_told_which_backend_has_permitted_a_will(doors: Doors) -> None:
    doors.connect(granted(*RIGHTS, name="device"), will=wire.Will("gone/c", b"bye"))
    session = doors.shard.session("c")
    assert session.will is not None
    told = decode_will(encode_will(value_of(session, session.will)))
    assert (told.principal, told.backend, told.without_user) == ("device", "oauth2", False)
    earlier = encode_will(told)[:-7].replace(b"\x9c", b"\x9b", 1)
    assert decode_will(earlier).backend == ""


def test_a_resumed_session_keeps_what_the_new_login_permits(doors: Doors) -> None:
    first = doors.connect(granted(*RIGHTS), props=LASTING)
    first.subscribe("a/1", qos=1)
    first.subscribe("a/2", qos=1)
    stream_of(first).close()
    doors.node.run()
    doors.connect(granted("read:%2F/amq.topic/a.2"), props=LASTING, clean=False)
    assert list(doors.shard.session("c").subscriptions) == [b"a/2"]


def test_changes_of_users_do_not_concern_it(doors: Doors) -> None:
    found = doors.connect(granted(*RIGHTS))
    found.subscribe("a/#")
    doors.shard.permissions.set_users(9, (user("tom", subscribe=()),))
    doors.shard.permissions.set_users(10, ())
    doors.node.run()
    assert found.ping() == []
    changed = AuthSettings.model_validate(
        settings("internal", "oauth2", anonymous={"subscribe": ("x",)})
    )
    doors.shard.permissions.configure(changed)
    doors.node.run()
    assert found.ping() == []


def test_users_of_a_backend_that_is_removed_are_disconnected(doors: Doors) -> None:
    found = doors.connect(granted(*RIGHTS))
    other = doors.node.connect(0, "anonymous")
    doors.shard.permissions.configure(AuthSettings.model_validate(settings("internal")))
    doors.node.run()
    assert [(each.kind, each.reason) for each in drain(found)] == [
        (wire.DISCONNECT, NOT_AUTHORIZED)
    ]
    assert other.ping() == []
