"""Who a client is: passwords off the loop, anonymous clients by where they come from, certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.origins import PageOrigin
from fluxmq.auth.scram import StoredKeys, derive_keys
from fluxmq.auth.users import User
from fluxmq.net import sockets
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.sessions.mqtt.session import MqttClient
from fluxmq.settings.schema import AuthSettings
from fluxmq.shards.authentication import Authentication, is_loopback, without_credentials

CHEAP = {"time_cost": 1, "memory_cost": 8192, "parallelism": 1}
HASH = hash_password("secret", b"s" * 16, HashParameters(1, 8, 1))
LOCAL, REMOTE = "127.0.0.1:5000", "192.0.2.7:5000"


def user(name: str = "anna", **fields: Any) -> User:
    """A user with the password "secret"."""
    values: dict[str, Any] = {
        "hash": HASH,
        "scram": None,
        "publish": ("#",),
        "subscribe": ("#",),
        "enabled": True,
    }
    return User(name=name, **values | fields)


def client(peer: str = LOCAL, certificate: str = "") -> MqttClient:
    """A connection from somewhere."""
    found = MqttClient(Connection(-1, Tally(), [], 1000, sockets.send), peer, 0)
    found.certificate_name = certificate
    return found


Make = Callable[..., Authentication]


@pytest.fixture
def make(loop: asyncio.AbstractEventLoop) -> Iterator[Make]:
    """Make authentications with cheap hashes."""
    made: list[Authentication] = []

    def build(*users: User, **settings: Any) -> Authentication:
        found = Authentication(AuthSettings.model_validate({"argon2": CHEAP} | settings), loop)
        found.set_users(1, users)
        made.append(found)
        return found

    yield build
    for each in made:
        each.close()


class Outcome:
    """Takes the answer."""

    def __init__(self) -> None:
        self.results: list[AuthResult] = []

    def __call__(self, result: AuthResult) -> None:
        self.results.append(result)

    @property
    def outcome(self) -> LoginOutcome:
        (result,) = self.results
        return result.outcome


def check(
    authentication: Authentication,
    loop: asyncio.AbstractEventLoop,
    name: str | None,
    password: bytes | None = None,
    who: MqttClient | None = None,
) -> AuthResult:
    """Check and wait for the answer."""
    outcome = Outcome()
    connect = Connect(client_id="c", version=5, username=name, password=password)
    authentication.check(who or client(), connect, outcome)
    wait(authentication, loop)
    (result,) = outcome.results
    return result


def wait(authentication: Authentication, loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until no verification is under way."""

    end = loop.time() + 30
    while authentication.pending:
        assert loop.time() < end
        loop.run_until_complete(asyncio.sleep(0.001))


def test_passwords(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    authentication = make(user(), user("off", enabled=False))
    assert check(authentication, loop, "anna", b"secret") == AuthResult(
        LoginOutcome.ACCEPTED, "anna"
    )
    bad = AuthResult(LoginOutcome.WRONG)
    assert check(authentication, loop, "anna", b"Secret") == bad
    assert check(authentication, loop, "anna", b"") == bad
    assert check(authentication, loop, "anna", None) == bad
    assert check(authentication, loop, "nobody", b"secret") == bad
    assert check(authentication, loop, "off", b"secret") == bad
    assert check(authentication, loop, "anna", b"x" * 100_000) == bad
    assert authentication.results == {("password", "success"): 1, ("password", "failure"): 6}


def test_too_many_verifications_at_once(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Beyond the limit clients are told that the server is busy; the others are answered."""
    authentication = make(user(), max_pending_verifications=3, verify_threads=1)
    outcomes = [Outcome() for _ in range(5)]
    connect = Connect(client_id="c", version=5, username="anna", password=b"secret")
    for outcome in outcomes:
        authentication.check(client(), connect, outcome)
    assert [bool(outcome.results) for outcome in outcomes] == [False] * 3 + [True] * 2
    assert {outcome.outcome for outcome in outcomes[3:]} == {LoginOutcome.BUSY}
    wait(authentication, loop)
    assert {outcome.outcome for outcome in outcomes[:3]} == {LoginOutcome.ACCEPTED}
    assert authentication.results["password", "busy"] == 2
    assert check(authentication, loop, "anna", b"secret").outcome is LoginOutcome.ACCEPTED


def test_a_user_that_changes_while_the_password_is_verified(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    for changed in ((), (user(enabled=False),), (user(hash=HASH.replace("$v=19", "$v=19 ")),)):
        authentication = make(user())
        outcome = Outcome()
        connect = Connect(client_id="c", version=5, username="anna", password=b"secret")
        authentication.check(client(), connect, outcome)
        authentication.set_users(2, changed)
        wait(authentication, loop)
        assert outcome.outcome is LoginOutcome.WRONG


def test_before_the_users_are_known(loop: asyncio.AbstractEventLoop) -> None:
    """A client is told to come again, not that its password is wrong."""
    authentication = Authentication(AuthSettings.model_validate({"argon2": CHEAP}), loop)
    result = check(authentication, loop, "anna", b"secret")
    assert result.outcome is LoginOutcome.UNAVAILABLE
    certificate = authentication.without_name(client(certificate="device"))
    assert certificate.outcome is LoginOutcome.UNAVAILABLE
    assert check(authentication, loop, None).outcome is LoginOutcome.ACCEPTED, (
        "anonymous ones need no users"
    )
    authentication.set_users(1, ())
    away = client(REMOTE)
    result = check(authentication, loop, "anna", b"x", away)
    assert result.outcome is LoginOutcome.WRONG
    authentication.close()


def test_verifications_under_way_survive_new_settings_and_the_loops_end(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    authentication = make(user())
    outcome = Outcome()
    connect = Connect(client_id="c", version=5, username="anna", password=b"secret")
    authentication.check(client(), connect, outcome)
    authentication.configure(AuthSettings.model_validate({"argon2": CHEAP, "verify_threads": 1}))
    wait(authentication, loop)
    assert outcome.outcome is LoginOutcome.ACCEPTED
    other = asyncio.new_event_loop()
    late = Authentication(AuthSettings.model_validate({"argon2": CHEAP}), other)
    late.set_users(1, (user(),))
    late.check(client(), connect, outcome)
    pool = late._verifications.pool
    assert pool is not None
    other.close()
    pool.shutdown(wait=True)
    assert len(outcome.results) == 1, "nobody is left to tell"


@pytest.mark.parametrize(
    ("allow", "local", "remote"),
    [("loopback", True, False), ("always", True, True), ("never", False, False)],
)
def test_anonymous_clients(
    make: Make, loop: asyncio.AbstractEventLoop, allow: str, local: bool, remote: bool
) -> None:
    authentication = make(anonymous={"allow": allow})
    for peer, allowed in ((LOCAL, local), (REMOTE, remote)):
        result = check(authentication, loop, None, who=client(peer))
        assert result == AuthResult(LoginOutcome.ACCEPTED if allowed else LoginOutcome.DENIED)


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("::1:1", True),
        ("::ffff:127.0.0.1:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("::ffff:192.0.2.1:1", False),
        ("192.0.2.1:127", False),
        ("1270.0.0.1:1", False),
        ("[fe80::1%lo]:1", False),
        ("10.127.0.1:1", False),
        ("localhost:1", False),
        ("", False),
        ("unix", False),
    ],
)
def test_loopback(peer: str, expected: bool) -> None:
    assert is_loopback(peer) is expected


def test_certificates(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """The name in a certificate is who the client is, unless it names itself, or that user is disabled."""
    authentication = make(user(), user("off", enabled=False), anonymous={"allow": "never"})
    device = client(REMOTE, "device")
    assert check(authentication, loop, None, who=device) == AuthResult(
        LoginOutcome.ACCEPTED, "device"
    )
    assert check(authentication, loop, "anna", b"secret", device) == AuthResult(
        LoginOutcome.ACCEPTED, "anna"
    )
    assert check(authentication, loop, "anna", b"no", device).outcome is LoginOutcome.WRONG
    off = client(LOCAL, "off")
    assert check(authentication, loop, None, who=off) == AuthResult(LoginOutcome.DENIED)


def test_policies(make: Make) -> None:
    """A user's own, else those of anonymous clients."""
    authentication = make(
        user(publish=("a/{client_id}",), subscribe=("b/{username}/#",)),
        anonymous={"publish": ("open",), "subscribe": ("open/{client_id}",)},
    )
    anna = authentication.policy("c1", "anna")
    assert anna.may_publish("a/c1")
    assert not anna.may_publish("open")
    assert anna.may_subscribe("b/anna/#")
    for name in ("", "device"):
        other = authentication.policy("c1", name)
        assert other.may_publish("open")
        assert other.may_subscribe("open/c1")
        assert not other.may_subscribe("open/c2")


def test_the_anonymous_policy_is_made_once_where_it_may_be(make: Make) -> None:
    plain = make()
    assert plain.policy("a", "") is plain.policy("b", "x")
    named = make(anonymous={"publish": ("{client_id}",)})
    assert named.policy("a", "").may_publish("a")
    assert not named.policy("b", "").may_publish("a")
    before = plain.policy("a", "")
    plain.configure(AuthSettings.model_validate({"anonymous": {"publish": ("x",)}}))
    assert plain.policy("a", "") is not before


def test_snapshots_of_users(make: Make) -> None:
    authentication = make(user("a"), user("b"), user("c"))
    changed = authentication.set_users(7, (user("a"), user("b", publish=()), user("d")))
    assert changed == {"b", "c", "d"}
    assert authentication.revision == 7
    assert {each.name for each in authentication.users()} == {"a", "b", "d"}
    assert authentication.user("c") is None


def test_scram(make: Make) -> None:
    """Only enabled users have keys; nonces are never the same."""
    keys: StoredKeys = derive_keys("secret", b"s" * 16, 4096)
    authentication = make(user(scram=keys), user("off", scram=keys, enabled=False), user("plain"))
    assert authentication.scram_keys("anna", "127.0.0.1:1") == keys
    assert authentication.scram_keys("off", "127.0.0.1:1") is None
    assert authentication.scram_keys("plain", "127.0.0.1:1") is None
    assert authentication.scram_keys("nobody", "127.0.0.1:1") is None
    firsts = set()
    for _ in range(10):
        exchange = authentication.scram_exchange()
        exchange.receive_client_first(b"n,,n=anna,r=nonce")
        firsts.add(exchange.server_first(keys))
    assert len(firsts) == 10


def test_some_users_are_let_in_from_this_machine_only(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    keys: StoredKeys = derive_keys("secret", b"s" * 16, 4096)
    authentication = make(
        user("guest", scram=keys), user("anna", scram=keys), loopback_users=("guest",)
    )
    away = "192.0.2.7:1000"
    assert check(authentication, loop, "guest", b"secret").outcome is LoginOutcome.ACCEPTED
    refused = check(authentication, loop, "guest", b"secret", client(away))
    assert refused == check(authentication, loop, "nobody", b"secret", client(away))
    assert (
        check(authentication, loop, "anna", b"secret", client(away)).outcome
        is LoginOutcome.ACCEPTED
    )
    assert authentication.scram_keys("guest", LOCAL) == keys
    assert authentication.scram_keys("guest", away) is None
    assert authentication.scram_keys("anna", away) == keys


def test_a_verified_password_is_known_again_until_the_user_changes(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    authentication = make(user())
    assert check(authentication, loop, "anna", b"secret").outcome is LoginOutcome.ACCEPTED
    again = Outcome()
    connect = Connect(client_id="c", version=5, username="anna", password=b"secret")
    authentication.check(client(), connect, again)
    assert (authentication.pending, again.outcome) == (0, LoginOutcome.ACCEPTED), "answered at once"
    assert check(authentication, loop, "anna", b"other").outcome is LoginOutcome.WRONG
    changed = replace(user(), hash=hash_password("new", b"s" * 16, HashParameters(1, 8, 1)))
    authentication.set_users(2, (changed,))
    assert check(authentication, loop, "anna", b"secret").outcome is LoginOutcome.WRONG
    authentication.set_users(3, (user("anna", enabled=False),))
    assert check(authentication, loop, "anna", b"secret").outcome is LoginOutcome.WRONG


@pytest.mark.parametrize(
    ("page", "peer", "loopback", "always"),
    [
        (PageOrigin.NONE, LOCAL, True, True),
        (PageOrigin.NAMED, LOCAL, True, True),
        (PageOrigin.LOCAL, LOCAL, True, True),
        (PageOrigin.SAME, LOCAL, False, True),
        (PageOrigin.FOREIGN, LOCAL, False, False),
        (PageOrigin.NONE, REMOTE, False, True),
        (PageOrigin.NAMED, REMOTE, False, True),
        (PageOrigin.FOREIGN, REMOTE, False, False),
    ],
)
def test_pages_from_elsewhere_are_not_anonymous(
    make: Make,
    loop: asyncio.AbstractEventLoop,
    page: PageOrigin,
    peer: str,
    loopback: bool,
    always: bool,
) -> None:
    """Review finding 6: a browser on this machine lends its address to any page."""
    for allow, expected in (("loopback", loopback), ("always", always), ("never", False)):
        authentication = make(user(), anonymous={"allow": allow})
        who = client(peer)
        who.page = page
        let_in = check(authentication, loop, None, who=who).outcome is LoginOutcome.ACCEPTED
        assert let_in is expected, allow
        assert check(authentication, loop, "anna", b"secret", who).outcome is LoginOutcome.ACCEPTED


def test_an_empty_name_is_none(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Many small clients send one where nothing was configured; a password beside it is nobody's."""
    authentication = make(user())
    assert check(authentication, loop, "") == AuthResult(LoginOutcome.ACCEPTED)
    assert check(authentication, loop, "", b"secret") == AuthResult(LoginOutcome.ACCEPTED)
    refused = AuthResult(LoginOutcome.DENIED)
    assert check(authentication, loop, "", who=client(REMOTE)) == refused


def test_an_unknown_name_is_none_until_somebody_adds_a_user(
    make: Make, loop: asyncio.AbstractEventLoop
) -> None:
    bad = AuthResult(LoginOutcome.WRONG)
    for users in ((), (user("guest"),)):
        authentication = make(*users)
        assert check(authentication, loop, "sensor", b"x") == AuthResult(LoginOutcome.ACCEPTED)
        assert check(authentication, loop, "sensor", b"x", client(REMOTE)) == bad
    assert check(authentication, loop, "guest", b"wrong") == bad
    page = client()
    page.page = PageOrigin.FOREIGN
    assert check(authentication, loop, "sensor", b"x", page) == bad
    authentication.set_users(2, (user("guest"), user()))
    assert check(authentication, loop, "sensor", b"x") == bad
    authentication.set_users(3, (user("guest"),))
    assert check(authentication, loop, "anna", b"x") == bad, "a user who was deleted"
    never = make(user("guest"), anonymous={"allow": "never"})
    assert check(never, loop, "sensor", b"x") == bad


def test_amqp_clients_without_credentials_are_one_user_from_where_they_may_be(make: Make) -> None:
    refused = AuthResult(LoginOutcome.DENIED)
    accepted = AuthResult(LoginOutcome.ACCEPTED, "anna")
    here = make(user("anna"), anonymous={"amqp_user": "anna"})
    assert without_credentials(here, LOCAL) == accepted
    assert without_credentials(here, REMOTE) == refused
    everywhere = make(user("anna"), anonymous={"amqp_user": "anna", "allow": "always"})
    assert without_credentials(everywhere, REMOTE) == accepted
    everywhere.set_users(2, ())
    assert without_credentials(everywhere, REMOTE) == refused, "the user has gone"
    guest = make(user("guest"), anonymous={"amqp_user": "guest", "allow": "always"})
    assert without_credentials(guest, REMOTE) == refused, "guest may come from this machine only"
    nobody = make(user("anna"), anonymous={"allow": "always"})
    assert without_credentials(nobody, LOCAL) == refused
    never = make(user("anna"), anonymous={"amqp_user": "anna", "allow": "never"})
    assert without_credentials(never, LOCAL) == refused


def test_certificates_honour_loopback_users(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 12: a certificate that names guest is no way round, whatever the protocol."""
    authentication = make(user("guest"), user())
    refused = AuthResult(LoginOutcome.DENIED)
    assert check(authentication, loop, None, who=client(REMOTE, "guest")) == refused
    assert check(authentication, loop, None, who=client(LOCAL, "guest")).username == "guest"
    for needed in (False, True):
        assert authentication.by_certificate("guest", REMOTE, needed) == refused
        assert authentication.by_certificate("guest", LOCAL, needed) == AuthResult(
            LoginOutcome.ACCEPTED, "guest"
        )
        assert authentication.by_certificate("anna", REMOTE, needed) == AuthResult(
            LoginOutcome.ACCEPTED, "anna"
        )
    assert authentication.by_certificate("device", REMOTE) == AuthResult(
        LoginOutcome.ACCEPTED, "device"
    )
    assert authentication.by_certificate("device", REMOTE, True) == refused
    assert authentication.by_certificate("", REMOTE, True) == refused
    early = Authentication(AuthSettings.model_validate({"argon2": CHEAP}), loop)
    assert early.by_certificate("anna", LOCAL, True).outcome is LoginOutcome.UNAVAILABLE
    early.close()


def test_whose_sessions_are_kept_for_them(make: Make, loop: asyncio.AbstractEventLoop) -> None:
    """Review finding 7: a user, disabled or not, may come back; a deleted one and forbidden anonymous ones may not."""
    authentication = make(user(), user("off", enabled=False), anonymous={"allow": "never"})
    found = {name: authentication.may_return(name) for name in ("anna", "off", "gone", "")}
    assert found == {"anna": True, "off": True, "gone": False, "": False}
    assert make(anonymous={"allow": "always"}).may_return("")
    with_certificates = Authentication(AuthSettings.model_validate({"argon2": CHEAP}), loop, True)
    with_certificates.set_users(1, ())
    assert with_certificates.may_return("device")
    with_certificates.close()
    early = Authentication(AuthSettings.model_validate({"argon2": CHEAP}), loop)
    assert early.may_return("anna"), "control has not told who there is"
    early.close()
