"""The chain of backends: order, what is remembered, backends that are away, bounds, HTTP servers."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.control.logins import service
from fluxmq.control.logins.backend import BackendSettingsError
from fluxmq.control.logins.service import FAILURES_IN_A_ROW, PAUSE_SECONDS, LoginBackends
from fluxmq.ipc.login_messages import LoginAnswer, LoginQuestion, RightsDecided
from fluxmq.settings.schema import AuthSettings
from tests.issuer import AUDIENCE, Form, WebServer, document, signing_key, token

KEY = signing_key("key", "EC")


class Chain:
    """Backends: a directory of names over HTTP, and tokens; on a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.server = WebServer(self.respond)
        self.answers = {"anna": "allow administrator monitoring", "bert": "allow"}
        self.vhosts = ["/", "prod", "test"]
        self.entered = {"/", "prod"}
        self.status = 200
        self.now = 1000.0
        self.current = AuthSettings()
        keys = folder / "keys.json"
        keys.write_bytes(document(KEY))
        url = self.server.url
        self.http: dict[str, Any] = {
            "user_path": f"{url}/user",
            "vhost_path": f"{url}/vhost",
            "read": "^r",
            "timeout": 1,
        }
        self.oauth2 = {"resource_server_id": AUDIENCE, "jwks_file": str(keys), "leeway": 0}

    def respond(self, path: str, form: Form) -> tuple[int, bytes]:
        """Answer as the settings of the test say."""
        if path == "/user":
            return self.status, self.answers.get(form["username"], "deny").encode()
        return self.status, b"allow" if form["vhost"] in self.entered else b"deny"

    def settings(self, *backends: str, **more: Any) -> AuthSettings:
        """Settings with these backends."""
        sections = {"http": self.http, "oauth2": self.oauth2}
        named = {name: sections[name] for name in backends if name in sections}
        return AuthSettings.model_validate({"backends": backends, **named, **more})

    def run(
        self, use: Callable[[LoginBackends], Coroutine[Any, Any, Any]], *names: str, **more: Any
    ) -> Any:
        """Use the backends on a loop, then stop them."""

        async def used() -> Any:
            self.current = self.settings(*(names or ("http",)), **more)
            made = LoginBackends(lambda: self.current, lambda: self.vhosts, lambda: self.now)
            try:
                return await use(made)
            finally:
                await made.stop()

        return asyncio.run(used())


def ask(
    name: str, password: str = "right", backends: tuple[str, ...] = ("http",), address: str = "::1"
) -> LoginQuestion:
    """A question."""
    return LoginQuestion(name, password.encode(), address, backends)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    """A chain, and its server."""
    made = Chain(tmp_path)
    yield made
    made.server.stop()


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_server_decides_by_rabbitmqs_questions(chain: Chain, method: str) -> None:
    chain.http["method"] = method
    answer = chain.run(lambda made: made.check(ask("anna", "a b&c=ü", address="192.0.2.1")))
    assert (answer.outcome, answer.backend, answer.name) == ("accepted", "http", "anna")
    assert answer.tags == ("administrator", "monitoring")
    assert [(each.vhost, each.configure, each.read) for each in answer.permissions] == [
        ("/", ".*", "^r"),
        ("prod", ".*", "^r"),
    ]
    assert answer.expires_in == 0
    word = method.upper()
    user, *vhosts = chain.server.asked
    assert user == (f"{word} /user", {"username": "anna", "password": "a b&c=ü"})
    assert (
        f"{word} /vhost",
        {
            "username": "anna",
            "vhost": "prod",
            "ip": "192.0.2.1",
            "tags": "administrator monitoring",
        },
    ) in vhosts
    assert len(vhosts) == 3


@pytest.mark.parametrize(
    ("status", "text", "outcome"),
    [
        (200, "deny", "wrong"),
        (200, "DENY because", "wrong"),
        (200, " Allow \n", "accepted"),
        (201, "allow [management, monitoring]", "accepted"),
        (200, "", "unavailable"),
        (200, "allowed", "unavailable"),
        (200, "allow" + "x" * 300_000, "unavailable"),
        (401, "allow", "unavailable"),
        (302, "allow", "unavailable"),
        (500, "allow", "unavailable"),
    ],
)
def test_answers_of_a_server(chain: Chain, status: int, text: str, outcome: str) -> None:
    """Only allow, with success, lets in."""
    chain.status, chain.answers["anna"] = status, text
    answer = chain.run(lambda made: made.check(ask("anna")))
    assert answer.outcome == outcome
    if "[" in text:
        assert answer.tags == ("management", "monitoring")


def test_names_and_passwords_that_nobody_has_are_not_sent(chain: Chain) -> None:
    async def use(made: LoginBackends) -> list[LoginAnswer]:
        bad = LoginQuestion("anna", b"\xff", "::1", ("http",))
        return [await made.check(each) for each in (ask(""), ask(" anna"), bad)]

    assert [each.outcome for each in chain.run(use)] == ["wrong"] * 3
    assert chain.server.asked == []


def test_answers_are_remembered_for_their_time(chain: Chain) -> None:
    async def use(made: LoginBackends) -> None:
        def asked() -> int:
            return sum(path == "POST /user" for path, _ in chain.server.asked)

        for _ in range(3):
            assert (await made.check(ask("anna"))).outcome == "accepted"
            assert (await made.check(ask("nobody"))).outcome == "wrong"
        assert asked() == 2
        assert (await made.check(ask("anna", "another"))).outcome == "accepted"
        assert (await made.check(ask("anna", address="10.0.0.1"))).outcome == "accepted"
        assert asked() == 4, "another password, and another address, are other questions"
        chain.now += 5.1
        await made.check(ask("nobody"))
        assert asked() == 5
        chain.now += 55
        chain.answers["anna"] = "deny"
        assert (await made.check(ask("anna"))).outcome == "wrong"

    chain.run(use)


def test_no_more_answers_are_remembered_than_the_settings_say(chain: Chain) -> None:
    async def use(made: LoginBackends) -> float:
        for number in range(5):
            await made.check(ask(f"user{number}"))
        samples = {name: value for name, _, value in made.samples()}
        return samples["fluxmq_login_cache_entries"]

    assert chain.run(use, cache={"entries": 3}) == 3
    assert chain.run(use, cache={"failure": 0}) == 0


def test_a_server_that_is_away_refuses_and_is_then_left_alone(chain: Chain) -> None:
    gone = WebServer(chain.respond)
    chain.http |= {"user_path": gone.url, "vhost_path": gone.url}
    gone.stop()

    async def use(made: LoginBackends) -> list[LoginAnswer]:
        return [await made.check(ask("anna")) for _ in range(FAILURES_IN_A_ROW + 3)]

    assert {each.outcome for each in chain.run(use)} == {"unavailable"}


def test_a_server_that_fails_is_tried_again_after_a_pause(chain: Chain) -> None:
    chain.status = 500

    async def use(made: LoginBackends) -> None:
        for _ in range(FAILURES_IN_A_ROW + 10):
            assert (await made.check(ask("anna"))).outcome == "unavailable"
        assert len(chain.server.asked) == FAILURES_IN_A_ROW
        chain.now += PAUSE_SECONDS
        assert (await made.check(ask("anna"))).outcome == "unavailable"
        assert len(chain.server.asked) == FAILURES_IN_A_ROW + 1
        assert (await made.check(ask("anna"))).outcome == "unavailable"
        assert len(chain.server.asked) == FAILURES_IN_A_ROW + 1
        chain.now += PAUSE_SECONDS
        chain.status = 200
        assert (await made.check(ask("anna"))).outcome == "accepted"
        assert made.outcomes["http", "unavailable"] == FAILURES_IN_A_ROW + 12

    chain.run(use)


def test_a_slow_server_refuses_after_its_time(chain: Chain) -> None:
    answered = threading.Event()

    def late(path: str, form: Form) -> tuple[int, bytes]:
        answered.wait(10)
        return chain.respond(path, form)

    chain.server.answer = late
    chain.http["timeout"] = 0.05

    async def use(made: LoginBackends) -> LoginAnswer:
        return await made.check(ask("anna"))

    assert chain.run(use).outcome == "unavailable"
    answered.set()


def test_a_login_with_many_questions_has_a_deadline(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.3)
    chain.vhosts = [str(number) for number in range(200)]
    respond = chain.respond
    released = threading.Event()

    def late(path: str, form: Form) -> tuple[int, bytes]:
        released.wait(0.1)
        return respond(path, form)

    chain.server.answer = late

    async def use(made: LoginBackends) -> str:
        return (await made.check(ask("anna"))).outcome

    assert chain.run(use) == "unavailable"
    released.set()
    assert len(chain.server.asked) < 100


def test_the_next_backend_is_asked_after_a_refusal_or_a_failure(chain: Chain) -> None:
    good = token(KEY, "read:*/*", sub="tom")
    both = ("oauth2", "http")

    async def use(made: LoginBackends) -> list[tuple[str, str]]:
        questions = (ask("anna", "x", both), ask("any", good, both), ask("nobody", "x", both))
        answers = [await made.check(each) for each in questions]
        return [(each.outcome, each.name) for each in answers]

    assert chain.run(use, *both) == [("accepted", "anna"), ("accepted", "tom"), ("wrong", "")]
    chain.status = 500
    assert chain.run(use, *both) == [("unavailable", ""), ("accepted", "tom"), ("unavailable", "")]


def test_rights_of_a_remembered_token_follow_the_virtual_hosts(chain: Chain) -> None:
    good = token(KEY, "read:new*/*", "write:%2F/x", lasts=100)
    question = ask("any", good, ("oauth2",))

    async def use(made: LoginBackends) -> None:
        first = await made.check(question)
        assert [each.vhost for each in first.permissions] == ["/"]
        assert 90 < first.expires_in <= 100
        chain.vhosts.append("new1")
        second = await made.check(question)
        assert [each.vhost for each in second.permissions] == ["/", "new1"]
        assert [each.vhost for each in second.keys] == ["/", "new1"]

    chain.run(use, "oauth2")


def test_a_remembered_token_ends_with_its_time(chain: Chain) -> None:
    made_at = [1_000_000.0]
    good = token(KEY, "read:*/*", exp=made_at[0] + 10)

    settings = chain.settings("oauth2")

    async def used() -> tuple[str, str]:
        made = LoginBackends(
            lambda: settings, lambda: chain.vhosts, lambda: chain.now, lambda: made_at[0]
        )
        before = await made.check(ask("any", good, ("oauth2",)))
        made_at[0] += 11
        after = await made.check(ask("any", good, ("oauth2",)))
        await made.stop()
        return before.outcome, after.outcome

    assert asyncio.run(used()) == ("accepted", "wrong")


def test_more_logins_than_can_wait_are_refused_as_busy(chain: Chain, monkeypatch: Any) -> None:
    monkeypatch.setattr(service, "CHECKS_MAX", 2)

    async def use(made: LoginBackends) -> list[str]:
        answers = await asyncio.gather(*(made.check(ask(f"u{n}")) for n in range(3)))
        return [each.outcome for each in answers]

    assert chain.run(use) == ["wrong", "wrong", "busy"]


def test_other_settings_count_at_once_and_unusable_ones_do_not(chain: Chain) -> None:
    async def use(made: LoginBackends) -> None:
        assert (await made.check(ask("anna"))).outcome == "accepted"
        chain.http["configure"] = "^only$"
        chain.current = chain.settings("http")
        answer = await made.check(ask("anna"))
        assert answer.permissions[0].configure == "^only$"
        (Path(str(chain.oauth2["jwks_file"])).parent / "ca.pem").write_text("no certificate")
        chain.http["ca_file"] = str(Path(str(chain.oauth2["jwks_file"])).parent / "ca.pem")
        chain.current = chain.settings("http")
        assert (await made.check(ask("anna"))).permissions[0].configure == "^only$"
        chain.current = chain.settings("internal")
        assert (await made.check(ask("anna"))).outcome == "wrong"

    chain.run(use)


def test_a_library_that_is_not_installed_is_named(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    for name in ("oauth2", "keys"):
        monkeypatch.delitem(sys.modules, f"fluxmq.control.logins.{name}", raising=False)
    settings = chain.settings("oauth2")
    with pytest.raises(BackendSettingsError) as refused:
        LoginBackends(lambda: settings, list)
    assert str(refused.value) == (
        "auth.oauth2: the module jwt is not installed: pip install 'fluxmq-broker[oauth2]'"
    )


def test_operations_are_decided_by_the_servers_paths(chain: Chain) -> None:
    url = chain.server.url
    chain.http |= {"resource_path": f"{url}/resource", "topic_path": f"{url}/topic"}
    del chain.http["read"]
    chain.entered |= {"q"}
    said = {"configure": b"allow", "write": b"deny", "read": b"what?"}
    respond = chain.respond
    chain.server.answer = lambda path, form: (
        (200, said[form["permission"]]) if path in ("/resource", "/topic") else respond(path, form)
    )
    queue = RightsQuestion("http", "anna", ("a", "b"), "/", "queue", "q", "configure")
    topic = RightsQuestion("http", "anna", (), "/", "topic", "x", "write", "k.1")

    async def use(made: LoginBackends) -> None:
        answer = await made.check(ask("anna"))
        assert (answer.resources, answer.topics) == (True, True)
        chain.server.asked.clear()
        assert await made.decide(queue) == RightsDecided(allowed=True)
        assert await made.decide(topic) == RightsDecided(allowed=False)
        unclear = replace(topic, permission="read")
        undecided = RightsDecided(allowed=False, decided=False)
        assert await made.decide(unclear) == undecided
        assert await made.decide(replace(queue, backend="ldap")) == undecided
        assert made.rights == {
            ("http", "allowed"): 1,
            ("http", "refused"): 1,
            ("http", "unavailable"): 1,
        }

    chain.run(use)
    assert chain.server.asked[0] == (
        "POST /resource",
        {
            "username": "anna",
            "vhost": "/",
            "resource": "queue",
            "name": "q",
            "permission": "configure",
            "tags": "a b",
        },
    )
    assert chain.server.asked[1] == (
        "POST /topic",
        {
            "username": "anna",
            "vhost": "/",
            "resource": "topic",
            "name": "x",
            "permission": "write",
            "tags": "",
            "routing_key": "k.1",
        },
    )
