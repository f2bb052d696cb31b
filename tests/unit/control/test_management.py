"""The management interface: rights, lists, names of bindings, definitions, imported hashes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from fluxmq.auth.credentials import (
    SALT_BYTES,
    HashParameters,
    PasswordVerifier,
    hash_password,
)
from fluxmq.auth.hash_upgrades import HashUpgrade
from fluxmq.auth.imported_hashes import rabbitmq_hash
from fluxmq.auth.login_throttle import ThrottleLimits
from fluxmq.auth.users import User
from fluxmq.control.management.access import ManagementAccess
from fluxmq.control.management.amqp_calls import contents_of
from fluxmq.control.management.api import check_rights
from fluxmq.control.management.definition_file import DefinitionFile
from fluxmq.control.management.list_query import ListQuery, cut
from fluxmq.control.management.requests import ApiError, ApiRoute, Ask, Call, Caller, Right
from fluxmq.control.management.rows import properties_key, user_row
from fluxmq.control.peers import RequestError
from fluxmq.ipc.login_messages import LOGIN, LoginAnswer, LoginQuestion
from fluxmq.ipc.messages import USER_UPGRADE, Body
from fluxmq.ipc.user_messages import UserUpgrade
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties, frames_of_content
from fluxmq.protocols.amqp091.method_codec import frame
from fluxmq.protocols.amqp091.methods import BasicGetEmpty, BasicGetOk
from fluxmq.routing.topology.records import Binding
from fluxmq.settings.schema import AuthSettings
from tests.unit.auth.test_hash_upgrades import imported
from tests.unit.control.management import make_api, user

PARAMETERS = HashParameters(time_cost=1, memory_cost_kib=8)
TAGS = ("", "management", "policymaker", "monitoring", "administrator")


def allowed(route: ApiRoute, caller: Caller, vhost: str) -> bool:
    """Whether a user may use a route for a virtual host."""
    try:
        check_rights(route, caller, {"vhost": vhost} if "{vhost}" in route.path else {})
    except ApiError as problem:
        return problem.status != 401
    return True


def test_rights_by_route_tag_and_virtual_host() -> None:
    """The whole table: reading needs a tag and sight of the virtual host, changes need permissions there, and what
    concerns everyone an administrator."""
    found: dict[tuple[str, ...], set[str]] = {}
    for route in make_api().routes:
        row = []
        for tag in TAGS:
            caller = Caller(user("u", *([tag] if tag else []), vhosts=["own"]))
            own, other = (allowed(route, caller, vhost) for vhost in ("own", "other"))
            row.append("own and other" if other else "own" if own else "none")
            assert own or not other, route
        found.setdefault(tuple(row), set()).add(f"{route.method} {route.path}")
    everybody = ("none", *["own and other"] * 4)
    reading = ("none", "own", "own", "own and other", "own and other")
    entering = ("none", "own", "own", "own", "own")
    administering = ("none", "none", "none", "none", "own and other")
    policies = ("none", "none", "own", "none", "own and other")
    parameters = ("none", "none", "own and other", "none", "own and other")
    assert found.keys() <= {
        *(everybody, reading, entering, administering, policies, parameters),
        ("none", "none", "none", "own and other", "own and other"),
        ("none", "none", "none", "own", "own and other"),
        ("none", "none", "none", "own", "own"),
    }
    assert {"GET whoami", "GET overview", "GET queues"} <= found[everybody]
    assert "GET queues/{vhost}/{name}" in found[reading]
    assert {"PUT queues/{vhost}/{name}", "POST queues/{vhost}/{name}/get"} <= found[entering]
    assert {"PUT users/{user}", "POST definitions", "DELETE vhosts/{vhost}"} <= found[administering]
    one = "parameters/{component}/{vhost}/{name}"
    assert found[policies] == {
        *("PUT policies/{vhost}/{name}", "DELETE policies/{vhost}/{name}"),
        *(f"{method} {one}" for method in ("GET", "PUT", "DELETE")),
        "GET parameters/{component}/{vhost}",
    }
    assert found[parameters] == {
        *("GET parameters", "GET parameters/{component}", "GET global-parameters"),
        *(f"{method} global-parameters/{{name}}" for method in ("GET", "PUT", "DELETE")),
    }


def test_no_route_needs_no_right() -> None:
    assert all(route.right >= Right.MANAGEMENT for route in make_api().routes)


def test_paths_are_unique() -> None:
    paths = [(route.method, route.path) for route in make_api().routes]
    assert len(set(paths)) == len(paths)


def query(text: str) -> ListQuery:
    """Return the query of a request."""
    return ListQuery(Call(make_mocked_request("GET", f"/?{text}"), Caller(user("u"))))


ROWS: list[dict[str, Any]] = [
    {"name": name, "n": number, "deep": {"rate": number * 2.0}}
    for name, number in (("b", 3), ("a", 1), ("Ab", 2))
]


def test_lists_are_sorted_and_cut() -> None:
    def names(text: str) -> list[str]:
        found = query(text).whole([*ROWS])
        assert isinstance(found, list)
        return [each["name"] for each in found]

    assert names("") == ["b", "a", "Ab"]
    assert names("sort=n") == ["a", "Ab", "b"]
    assert names("sort=deep.rate&sort_reverse=true") == ["b", "Ab", "a"]
    assert names("name=a&sort=name") == ["Ab", "a"]
    assert names("name=^a&use_regex=true") == ["a", "Ab"]
    assert names("name=^(%3F!a)&use_regex=true") == ["b"]
    mixed = query("sort=n&sort_reverse=true").ordered("abcd", [2, None, "x", 3])
    assert mixed == ["c", "d", "a", "b"], "texts after numbers, and nothing first"
    assert query("sort=n").ordered("abcd", [2, 1.5, True, 1]) == ["c", "d", "b", "a"]
    assert cut(ROWS[0], ["name", "deep.rate", "absent"]) == {"name": "b", "deep": {"rate": 6.0}}


def test_lists_have_pages() -> None:
    # KEDA asks for pages so; RabbitMQ does not look at the word.
    found = query("page=2&page_size=2&sort=n&name=&pagination=false").whole([*ROWS])
    assert isinstance(found, dict)
    assert [each["name"] for each in found.pop("items")] == ["b"]
    assert found == {
        "filtered_count": 3,
        "item_count": 1,
        "page": 2,
        "page_count": 2,
        "page_size": 2,
        "total_count": 3,
    }


@pytest.mark.parametrize("text", ["page=0", "page=x", "page=1&page_size=0", "page=4&page_size=1"])
def test_pages_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(ApiError) as refusal:
        query(text).whole([*ROWS])
    assert refusal.value.status == 400


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ApiError) as refusal:
        query("name=(&use_regex=true")
    assert refusal.value.status == 400


def test_bindings_have_names() -> None:
    def key(routing_key: str, **arguments: object) -> str:
        return properties_key(Binding("/", "x", "q", "queue", routing_key, arguments))

    assert (key(""), key("a.b"), key("a/#")) == ("~", "a.b", "a%2F%23")
    assert key("k", x=1).startswith("k~")
    assert key("k", x=1) != key("k", x=2)
    assert key("", x=1) == "~" + key("k", x=1)[2:]


def test_messages_are_read_from_a_sessions_output() -> None:
    raw = encode_properties(BasicProperties(content_type="text/plain", headers={"a": 1}))
    got = BasicGetOk(1, False, "x", "k", 0)
    output = frame(1, got) + b"".join(frames_of_content(1, raw, b"payload" * 100, 128))
    first, second = contents_of(output + frame(1, BasicGetEmpty()))
    assert (first.method, first.payload) == (got, b"payload" * 100)
    assert first.properties is not None
    assert first.properties.content_type == "text/plain"
    assert (second.method, second.payload) == (BasicGetEmpty(), b"")


# Logging in


async def nobody(kind: str, _body: Body) -> Body:
    """Control, which is asked about users of no other backend."""
    raise AssertionError(kind)


def access(
    *,
    loopback: tuple[str, ...] = (),
    ask: Ask = nobody,
    users: Sequence[User] = (),
    **auth: Any,
) -> tuple[ManagementAccess, list[float]]:
    """Access for alice (management, "right") and bob (no tag), or else these, and a clock."""
    settings = AuthSettings.model_validate({"loopback_users": loopback, **auth})
    stored = hash_password("right", b"s" * SALT_BYTES, PARAMETERS)
    users = users or (user("alice", "management", stored=stored), user("bob", stored=stored))
    now = [1000.0]
    limits = ThrottleLimits(3, 50, 10.0, 60.0, 600.0)
    made = ManagementAccess(
        *(lambda: tuple(users), lambda: PARAMETERS, limits, lambda: settings, ask),
        lambda: now[0],
    )
    return made, now


def log_in(made: ManagementAccess, name: str, password: str, header: str = "") -> str:
    """The user that is let in, or why none is."""
    encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
    request = make_mocked_request(
        "GET", "/api/whoami", {"Authorization": header or f"Basic {encoded}"}
    )
    try:
        return asyncio.run(made.caller(request)).user.name
    except ApiError as problem:
        return f"{problem.status} {problem.reason}"
    except web.HTTPTooManyRequests as problem:
        return f"{problem.status} {problem.headers['Retry-After']}"


def test_a_password_lets_a_user_with_a_tag_in() -> None:
    made, _ = access()
    assert log_in(made, "alice", "right") == "alice"
    assert log_in(made, "alice", "wrong") == "401 Login failed"
    assert log_in(made, "nobody", "right") == "401 Login failed"
    assert log_in(made, "bob", "right") == "401 Not management user"
    assert log_in(made, "", "", "Bearer x") == "401 Login required"
    assert log_in(made, "", "", "Basic !") == "401 Login failed"
    assert made.failures == 2


SIGNED = "eyJh.e30.c2ln"
OAUTH2 = {"resource_server_id": "mq", "jwks_url": "https://issuer/keys"}


def elsewhere(**answer: Any) -> tuple[ManagementAccess, list[LoginQuestion]]:
    """Access where tokens are accepted, or else what `answer` says."""
    asked: list[LoginQuestion] = []

    async def ask(kind: str, body: Body) -> Body:
        assert kind == LOGIN
        asked.append(LoginQuestion.from_body(body))
        granted = {"outcome": "accepted", "backend": "oauth2", "name": "tom"}
        return LoginAnswer(**granted | {"tags": ("management",)} | answer).to_body()

    made, _ = access(loopback=("guest",), ask=ask, backends=("internal", "oauth2"), oauth2=OAUTH2)
    return made, asked


def test_a_bearer_and_a_password_may_be_a_token() -> None:
    made, asked = elsewhere()
    assert log_in(made, "", "", f"Bearer {SIGNED}") == "tom"
    assert log_in(made, "alice", SIGNED) == "tom"
    assert log_in(made, "alice", "right") == "alice"
    assert [each.password.decode() for each in asked] == [SIGNED, SIGNED]
    assert {each.backends for each in asked} == {("oauth2",)}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"outcome": "wrong"}, "401 Login failed"),
        ({"outcome": "unavailable"}, "503 the login cannot be checked now"),
        ({"outcome": "busy"}, "503 the login cannot be checked now"),
        ({"tags": ()}, "401 Not management user"),
        ({"name": "guest"}, "401 Login failed"),  # from this machine only
    ],
)
def test_what_other_backends_decide(answer: dict[str, Any], told: str) -> None:
    made, _ = elsewhere(**answer)
    assert log_in(made, "", "", f"Bearer {SIGNED}") == told


def test_guessing_is_delayed() -> None:
    made, now = access()
    for _ in range(3):
        log_in(made, "alice", "wrong")
    assert log_in(made, "alice", "wrong").startswith("401")
    assert log_in(made, "alice", "right").startswith("429")
    now[0] += 120
    assert log_in(made, "alice", "right") == "alice"


def test_some_users_are_let_in_from_this_machine_only() -> None:
    made, _ = access(loopback=("alice",))
    assert log_in(made, "alice", "right") == "401 Login failed", "the request has no address"


class Upgrading:
    """Control, which is asked to replace hashes."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.asked: list[HashUpgrade] = []
        self._refusal = refusal

    async def ask(self, kind: str, body: Body) -> Body:
        """Take a request."""
        assert kind == USER_UPGRADE
        self.asked += UserUpgrade.from_body(body).upgrades
        if self._refusal is not None:
            raise self._refusal
        return {}


def log_in_twice(made: ManagementAccess) -> None:
    """Two requests of one user, and what the first leads to in between."""
    encoded = base64.b64encode(b"alice:secret").decode()
    request = make_mocked_request("GET", "/api/whoami", {"Authorization": f"Basic {encoded}"})

    async def both() -> None:
        for _ in range(2):
            assert (await made.caller(request)).user.name == "alice"
            await asyncio.sleep(0)  # the task that asks has its turn

    asyncio.run(both())


def test_an_imported_hash_is_replaced_after_the_login() -> None:
    """Once; the new hash is known to be of the password that was right."""
    users, control = [user("alice", "management", stored=imported())], Upgrading()
    made, _ = access(users=users, ask=control.ask)
    log_in_twice(made)
    (found,) = control.asked
    assert (found.name, found.verified, found.problem()) == ("alice", users[0].hash, None)
    users[:] = [user("alice", "management", stored=found.hash)]
    verified = dict(made._verified)
    log_in_twice(made)
    assert made._verified == verified
    assert len(control.asked) == 1


@pytest.mark.parametrize("refusal", [RequestError("failed", "etcd is away"), OSError("disk")])
def test_a_hash_that_was_not_replaced_is_tried_at_the_next_login(refusal: Exception) -> None:
    users, control = [user("alice", "management", stored=imported())], Upgrading(refusal)
    made, _ = access(users=users, ask=control.ask)
    log_in_twice(made)
    assert len(control.asked) == made._upgrades.waiting == 1


# Hashes of RabbitMQ


@pytest.mark.parametrize("kind", ["sha256", "sha512"])
def test_hashes_of_rabbitmq_verify(kind: str) -> None:
    digest = hashlib.new(kind, b"saltsecret").digest()
    text = base64.b64encode(b"salt" + digest).decode()
    stored = rabbitmq_hash(f"rabbit_password_hashing_{kind}", text)
    verifier = PasswordVerifier(PARAMETERS, b"d" * SALT_BYTES)
    assert verifier.verify(b"secret", stored)
    assert not verifier.verify(b"secre", stored)
    row = user_row(user("u", stored=stored), {}, secret=True)
    assert (row["password_hash"], row["hashing_algorithm"]) == (
        text,
        f"rabbit_password_hashing_{kind}",
    )


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        ("rabbit_password_hashing_md5", "AAAA"),
        ("rabbit_password_hashing_sha256", "AAAA"),
        ("rabbit_password_hashing_sha256", "no base64"),
    ],
)
def test_other_hashes_are_refused(algorithm: str, text: str) -> None:
    with pytest.raises(ValueError, match="hash"):
        rabbitmq_hash(algorithm, text)


# The file of a node that starts


def test_a_node_of_a_cluster_declares_its_file_once_there_is_a_leader(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_text('{"vhosts": []}')
    declared: list[object] = []

    async def scenario() -> None:
        done = asyncio.Event()

        async def declare(definitions: object) -> None:
            declared.append(definitions)
            if len(declared) < 3:
                raise ApiError(503, "service_unavailable", "no leader")
            done.set()

        file = DefinitionFile(str(path), declare, 0.0)
        file.start()
        await asyncio.wait_for(done.wait(), 10)
        await file.stop()

    asyncio.run(scenario())
    assert declared == [{"vhosts": []}] * 3


@pytest.mark.parametrize("text", ["no JSON", "[]"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(text)
    with pytest.raises(ApiError, match="not"):
        DefinitionFile(str(path), lambda _: asyncio.sleep(0))
