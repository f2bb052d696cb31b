"""Management over AMQP 1.0: what RabbitMQ's clients send, and the statuses that they expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fluxmq.auth.logins import BackendLogin, RemoteDecisions
from fluxmq.auth.users import User, VhostPermission
from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp10 import codec
from fluxmq.protocols.amqp10.conditions import ConditionError
from fluxmq.protocols.amqp10.http_requests import PARAMETERS_MAX, REQUEST_BYTES_MAX
from fluxmq.protocols.amqp10.types import Array, Int, Milliseconds, Symbol, UInt, ULong, Uuid
from fluxmq.routing.topology.changes import SetVhostLimits
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp10.management import CREDIT, ManagementNode, QueuePlaces
from tests.unit.protocols.amqp10.sections import encoded
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp091.test_remote_rights import Server

NULL = object()
OWNER = "1.1"


class Caller:
    """A connection with a management link, and what it has received."""

    def __init__(
        self,
        broker: MemoryBroker | None = None,
        user: str = "guest",
        login: BackendLogin | None = None,
        places: Mapping[str, QueuePlaces] | None = None,
    ) -> None:
        self.broker = broker or MemoryBroker()
        self.info = ConnectionInfo("1:1", "1:2", 0, f"{OWNER}.{user}")
        self.info.user, self.info.vhost = user, "/"
        self.access = Access(self.broker, user, "/", login)
        self.exclusive = False
        self.tokens: list[bytes] = []
        self.errors: list[ConditionError] = []
        self.answers: list[tuple[str, Any, Any]] = []
        find = None if places is None else lambda queue: places[queue.name]
        self.management = ManagementNode(self, self.broker, self._renew, find)

    def _renew(self, token: bytes, done: Any) -> None:
        self.tokens.append(token)
        done(token == b"right")

    def send(self, method: str, path: str, body: object = NULL, **other: Any) -> None:
        """Send a request; `other`: fields of the properties."""
        said = {"message_id": "m", "reply_to": "$me", "subject": method, "to": path, **other}
        order = ("message_id", "user_id", "to", "subject", "reply_to")
        data = encoded(0x73, [said.get(name) for name in order])
        if body is not NULL:
            data += encoded(0x77, body)
        self.management.handle(data, self._answered, self.errors.append)

    def _answered(self, data: bytes) -> None:
        properties, at = codec.decode(data, 3)
        application, at = codec.decode(data, at + 3)
        body, at = codec.decode(data, at + 3)
        assert at == len(data)
        assert application == {"http:response": "1.1"}
        assert properties[:3] == [None] * 3
        self.answers.append((properties[3], properties[5], body))

    def call(self, method: str, path: str, body: object = None, **other: Any) -> tuple[int, Any]:
        """Send a request; return status and body of its answer."""
        self.send(method, path, body, **other)
        (answer,) = self.answers
        self.answers.clear()
        return int(answer[0]), answer[2]

    def refused(self, method: str, path: str, body: object = None, **other: Any) -> str:
        """Send a request that is answered by an error; return its condition."""
        self.send(method, path, body, **other)
        assert not self.answers
        return str(self.errors.pop().condition)


QUEUE: dict[str, Any] = {"durable": True, "exclusive": False, "auto_delete": False, "arguments": {}}


def test_declaring_a_queue() -> None:
    caller = Caller()
    arguments = {"x-queue-type": "quorum", "x-max-length": Int(5)}
    status, info = caller.call("PUT", "/queues/a%2Fb", {"arguments": arguments})
    assert status == 201
    assert info == {
        "leader": "fluxmq@localhost",
        "message_count": 0,
        "consumer_count": 0,
        "name": "a/b",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "type": "quorum",
        "arguments": {"x-queue-type": "quorum", "x-max-length": 5},
        "replicas": Array(0xB1, ["fluxmq@localhost"]),
    }
    assert type(info["message_count"]) is ULong
    assert type(info["consumer_count"]) is UInt
    assert caller.call("PUT", "/queues/a%2Fb", {"arguments": arguments}) == (200, info)
    assert caller.call("GET", "/queues/a%2Fb") == (200, info)
    status, text = caller.call("PUT", "/queues/a%2Fb", {"arguments": {}})
    assert status == 409
    assert "inequivalent arg" in text


def test_where_a_queue_is() -> None:
    caller = Caller(places={"q": QueuePlaces("b", ("a", "b")), "none": QueuePlaces("", ("a",))})
    info = caller.call("PUT", "/queues/q", {})[1]
    assert (info["leader"], info["replicas"].items) == ("b", ["a", "b"])
    assert "leader" not in caller.call("PUT", "/queues/none", {})[1]


def test_arguments_of_all_types() -> None:
    caller = Caller()
    given = {
        "text": "t",
        Symbol("symbol"): Symbol("s"),
        "number": UInt(5),
        "real": 1.5,
        "flag": True,
        "none": None,
        "bytes": b"\xff",
        "moment": Milliseconds(7000),
        "list": [Int(1), "a"],
        "array": Array(0xB1, ["a"]),
        "table": {"in": {}},
    }
    info = caller.call("PUT", "/queues/q", {"arguments": given})[1]
    assert info["arguments"] == {**given, "array": ["a"]}
    stored = caller.broker.topology.queue("/", "q")
    assert stored is not None
    assert (stored.arguments["moment"], type(stored.arguments["moment"])) == (7, Timestamp)
    assert type(stored.arguments["number"]) is int


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "no map"),
        ([], "no map"),
        ({"other": True}, "bad queue property 'other'"),
        ({"durable": "yes"}, "bad queue property 'durable'"),
        ({"arguments": []}, "bad queue property 'arguments'"),
        ({"arguments": {ULong(1): "a"}}, "unsupported argument"),
        ({"arguments": {"a": Uuid(bytes(15) + b"\5")}}, "unsupported argument 'a'"),
        ({"arguments": {"a": [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]}}, "nested too deeply"),
        ({"arguments": {"x-max-length": "many"}}, "x-max-length"),
        ({"arguments": {"x-queue-type": "fast"}}, "x-queue-type"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bad_queues(body: object, why: str) -> None:
    status, text = Caller().call("PUT", "/queues/q", body)
    assert status in (400, 409)
    assert why in text


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/queues/", 400, "empty name"),
        ("/queues/a%0Ab", 400, "line feed"),
        ("/queues/%zz", 400, "bad path segment"),
        ("/queues/amq.mine", 403, "reserved prefix"),
    ],
)
def test_bad_names_of_queues(path: str, status: int, why: str) -> None:
    found, text = Caller().call("PUT", path, {})
    assert found == status
    assert why in text


def test_a_vhost_that_is_full() -> None:
    caller = Caller()
    caller.broker.topology.apply(SetVhostLimits("/", {"max-queues": 1}))
    assert caller.call("PUT", "/queues/a", {})[0] == 201
    status, text = caller.call("PUT", "/queues/b", {})
    assert status == 403
    assert "queue limit in vhost" in text


def test_queues_of_other_connections() -> None:
    broker = MemoryBroker()
    one, other = Caller(broker), Caller(broker)
    other.info.owner = "other"
    body = {"exclusive": True, "durable": False}
    assert one.call("PUT", "/queues/q", body)[0] == 201
    assert one.exclusive
    assert one.call("PUT", "/queues/q", body)[0] == 200
    assert other.call("PUT", "/queues/q", body)[0] == 400
    assert other.call("DELETE", "/queues/q")[0] == 400


def test_queues_that_do_not_exist() -> None:
    caller = Caller()
    assert caller.call("GET", "/queues/q")[0] == 404
    assert caller.call("DELETE", "/queues/q/messages")[0] == 404
    assert caller.call("DELETE", "/queues/q") == (200, {"message_count": 0})
    assert caller.call("GET", "/queues/amq.rabbitmq.reply-to")[0] == 404


def test_purging_and_deleting() -> None:
    caller = Caller()
    caller.call("PUT", "/queues/q", {})
    queue = caller.broker.topology.queue("/", "q")
    assert isinstance(queue, QueueRecord)
    assert caller.call("DELETE", "/queues/q/messages") == (200, {"message_count": 0})
    status, body = caller.call("DELETE", "/queues/q")
    assert (status, body) == (200, {"message_count": 0})
    assert type(body["message_count"]) is ULong
    assert caller.broker.topology.queue("/", "q") is None
    caller.call("PUT", "/queues/s", {"arguments": {"x-queue-type": "stream"}})
    assert caller.call("DELETE", "/queues/s/messages")[0] == 400


def test_exchanges() -> None:
    caller = Caller()
    body = {"type": "topic", "durable": True, "internal": False, "arguments": {}}
    for _ in range(2):
        assert caller.call("PUT", "/exchanges/my%20e", body) == (204, None)
    assert caller.broker.topology.exchange("/", "my e") is not None
    assert caller.call("PUT", "/exchanges/my%20e", {**body, "type": "fanout"})[0] == 409
    assert caller.call("PUT", "/exchanges/amq.topic", {"type": "topic"}) == (204, None)
    assert caller.call("PUT", "/exchanges/plain", {}) == (204, None)
    assert caller.call("DELETE", "/exchanges/my%20e") == (204, None)
    assert caller.call("DELETE", "/exchanges/my%20e") == (204, None)
    assert caller.broker.topology.exchange("/", "my e") is None


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/exchanges/", {}, 403),
        ("PUT", "/exchanges/amq.mine", {}, 403),
        ("PUT", "/exchanges/e", {"type": "none"}, 400),
        ("PUT", "/exchanges/e", {"type": True}, 400),
        ("PUT", "/exchanges/e%0D", {}, 400),
        ("DELETE", "/exchanges/", None, 403),
        ("DELETE", "/exchanges/amq.topic", None, 403),
        ("DELETE", "/exchanges/e%0D", None, 400),
    ],
)
def test_bad_exchanges(method: str, path: str, body: object, status: int) -> None:
    found, text = Caller().call(method, path, body)
    assert found == status
    assert isinstance(text, str)


def bound() -> Caller:
    """A broker with exchanges e and f, and queue q."""
    caller = Caller()
    for name in ("e", "f f"):
        caller.call("PUT", f"/exchanges/{name.replace(' ', '%20')}", {})
    caller.call("PUT", "/queues/q", {})
    return caller


def test_bindings() -> None:
    caller = bound()
    body = {"source": "e", "destination_queue": "q", "binding_key": "a b", "arguments": {}}
    for _ in range(2):
        assert caller.call("POST", "/bindings", body) == (204, None)
    other = {**body, "arguments": {"x": Int(1)}}
    assert caller.call("POST", "/bindings", other) == (204, None)
    path = "/bindings?src=e&dstq=q&key=a%20b"
    status, (first, second) = caller.call("GET", path)
    assert status == 200
    assert first == {**body, "location": "/bindings/src=e;dstq=q;key=a%20b;args="}
    location = second.pop("location")
    assert second == {**body, "arguments": {"x": 1}}
    assert caller.call("DELETE", location) == (204, None)
    assert caller.call("GET", path) == (200, [first])
    for _ in range(2):
        assert caller.call("DELETE", first["location"]) == (204, None)
    assert caller.call("GET", path) == (200, [])


def test_bindings_of_exchanges() -> None:
    caller = bound()
    body = {"source": "e", "destination_exchange": "f f", "binding_key": "k"}
    assert caller.call("POST", "/bindings", body) == (204, None)
    status, (found,) = caller.call("GET", "/bindings?src=e&dste=f%20f&key=k")
    assert (status, found["destination_exchange"]) == (200, "f f")
    assert found["location"] == "/bindings/src=e;dste=f%20f;key=k;args="
    assert caller.call("DELETE", found["location"]) == (204, None)
    assert not caller.broker.topology.bindings_from("/", "e")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/bindings", {"source": "e", "destination_queue": "none"}, 400),
        ("POST", "/bindings", {"source": "none", "destination_queue": "q"}, 400),
        ("POST", "/bindings", {"source": "", "destination_queue": "q"}, 403),
        ("POST", "/bindings", {"source": "e", "destination_exchange": ""}, 403),
        ("POST", "/bindings", {"source": "e", "destination_queue": ""}, 400),
        ("POST", "/bindings", {"source": "e\n", "destination_queue": "q"}, 400),
        ("POST", "/bindings", {"source": "e"}, 400),
        ("POST", "/bindings", {"destination_queue": "q"}, 400),
        ("POST", "/bindings", {"source": "e", "destination_queue": "q", "other": "x"}, 400),
        (
            "POST",
            "/bindings",
            {"source": "e", "destination_queue": "q", "destination_exchange": "e"},
            400,
        ),
        ("DELETE", "/bindings/src=e;dstq=q", None, 400),
        ("DELETE", "/bindings/src=e;dstx=q;key=;args=", None, 400),
        ("DELETE", "/bindings/src=%zz;dstq=q;key=;args=", None, 400),
        ("DELETE", "/bindings/src=none;dstq=q;key=;args=", None, 204),
        ("DELETE", "/bindings/src=e;dstq=q;key=;args=abcd", None, 204),
        ("GET", "/bindings", None, 400),
        ("GET", "/bindings?src=e&key=k", None, 400),
        ("GET", "/bindings?src=e&dstq=q", None, 400),
        ("GET", "/bindings?src=&dstq=q&key=k", None, 403),
        ("GET", "/bindings?" + "a=b&" * (PARAMETERS_MAX + 1), None, 404),
    ],
)
def test_bad_bindings(method: str, path: str, body: object, status: int) -> None:
    assert bound().call(method, path, body)[0] == status


def test_tokens() -> None:
    caller = Caller()
    assert caller.call("PUT", "/auth/tokens", b"right") == (204, None)
    assert caller.call("PUT", "/auth/tokens", "text")[0] == 400
    assert caller.refused("PUT", "/auth/tokens", b"wrong") == "amqp:unauthorized-access"
    assert caller.tokens == [b"right", b"wrong"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "", 404),
        ("GET", "queues/q", 404),
        ("GET", "/queues", 404),
        ("GET", "/queues/q/other", 404),
        ("GET", "/exchanges/e", 405),
        ("POST", "/queues/q", 405),
        ("PATCH", "/queues/q", 405),
        ("PUT", "/bindings", 405),
    ],
)
def test_other_paths_and_methods(method: str, path: str, status: int) -> None:
    assert Caller().call(method, path)[0] == status


def test_a_body_that_no_method_takes() -> None:
    assert Caller().call("GET", "/queues/q", "text")[0] == 400
    assert Caller().call("GET", "/queues/q", NULL)[0] == 404


@pytest.mark.parametrize(
    "message_id", ["m", b"m", ULong(7), Uuid(bytes(15) + b"\5"), None], ids=str
)
def test_an_answer_names_its_request(message_id: object) -> None:
    caller = Caller()
    caller.send("GET", "/queues/q", message_id=message_id)
    ((status, found, _),) = caller.answers
    assert (status, found, type(found)) == ("404", message_id, type(message_id))


@pytest.mark.parametrize(
    ("other", "condition"),
    [
        ({"reply_to": "elsewhere"}, "amqp:invalid-field"),
        ({"reply_to": None}, "amqp:invalid-field"),
        ({"subject": None}, "amqp:invalid-field"),
        ({"to": None}, "amqp:invalid-field"),
        ({"to": Symbol("/queues/q")}, "amqp:invalid-field"),
    ],
    ids=str,
)
def test_messages_that_are_no_requests(other: dict[str, Any], condition: str) -> None:
    assert Caller().refused("GET", "/queues/q", **other) == condition


def test_bytes_that_are_no_message() -> None:
    caller = Caller()
    for data, condition in (
        (b"\xff", "amqp:decode-error"),
        (b"\0\x53\x73\xc0\x01", "amqp:decode-error"),
        (bytes(REQUEST_BYTES_MAX + 1), "amqp:link:message-size-exceeded"),
    ):
        caller.management.handle(data, caller._answered, caller.errors.append)
        assert caller.errors.pop().condition == condition


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/queues/q", None),
        ("PUT", "/queues/q", {}),
        ("DELETE", "/queues/q", None),
        ("DELETE", "/queues/q/messages", None),
        ("PUT", "/exchanges/e", {}),
        ("DELETE", "/exchanges/e", None),
        ("POST", "/bindings", {"source": "e", "destination_queue": "q"}),
        ("DELETE", "/bindings/src=e;dstq=q;key=;args=", None),
        ("GET", "/bindings?src=e&dstq=q&key=k", None),
    ],
)
def test_a_missing_permission_ends_the_session(method: str, path: str, body: object) -> None:
    broker = bound().broker
    broker.grant("bob", VhostPermission("/", "^b", "^b", "^b"))
    caller = Caller(broker, "bob")
    assert caller.refused(method, path, body) == "amqp:unauthorized-access"


def test_any_permission_is_enough_to_look_at_a_queue() -> None:
    broker = bound().broker
    for permission in (("q", "", ""), ("", "q", ""), ("", "", "q")):
        broker.grant("bob", VhostPermission("/", *permission))
        assert Caller(broker, "bob").call("GET", "/queues/q")[0] == 200


def test_answers_that_come_later() -> None:
    caller = Caller()
    caller.broker.slow = True
    caller.send("PUT", "/queues/a", {})
    caller.send("PUT", "/queues/b", {})
    assert not caller.answers
    for _ in range(3):
        caller.broker.release()
    assert [status for status, _, _ in caller.answers] == ["201", "201"]


def test_requests_under_way_are_bounded() -> None:
    caller = Caller()
    caller.broker.slow = True
    for number in range(CREDIT):
        caller.send("PUT", f"/queues/{number}", {})
    assert not caller.errors
    assert caller.refused("PUT", "/queues/more", {}) == "amqp:link:transfer-limit-exceeded"
    for _ in range(3):
        caller.broker.release()
    assert len(caller.answers) == CREDIT
    caller.send("PUT", "/queues/more", {})
    assert not caller.errors


def test_an_ended_session_gets_no_answers() -> None:
    caller = Caller()
    caller.broker.slow = True
    caller.send("PUT", "/queues/a", {})
    caller.management.close()
    for _ in range(3):
        caller.broker.release()
    assert not caller.answers
    assert not caller.errors


def test_permissions_that_another_backend_decides() -> None:
    server = Server("*")
    user = User("tom", "", None, (), (), True, (), (VhostPermission("/", "", "", ""),))
    login = BackendLogin("http", user, (), 0.0, RemoteDecisions(server, True, True))
    caller = Caller(user="tom", login=login)
    caller.send("PUT", "/queues/q", {})
    assert not caller.answers
    server.answer()
    assert [status for status, _, _ in caller.answers] == ["201"]
    caller.answers.clear()
    caller.send("GET", "/queues/q")
    server.answer()
    assert [status for status, _, _ in caller.answers] == ["200"]
    refused = Server()
    caller.access.login = BackendLogin("http", user, (), 0.0, RemoteDecisions(refused, True, True))
    caller.send("DELETE", "/queues/q")
    refused.answer()
    assert caller.errors.pop().condition == "amqp:unauthorized-access"
