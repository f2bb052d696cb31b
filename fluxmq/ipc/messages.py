"""What processes of one node say to the control process, and it to them.

A frame (`framing`) holds ``[version, kind, id, body]``. Requests flow both ways; each side numbers
its own. A *reply* or an *error* carries the id of the request it answers. A peer that speaks
another version is answered with an error whose code is ``version`` and then disconnected.

    shard, acceptor -> control   hello
    control -> shard             users (after hello and at each change), collect, status
    control -> acceptor          collect, status
    shard -> control             topology_change
    fluxmqctl -> control         status, hashing, user_list, user_add, user_password, user_permit,
                                 user_enable, user_delete, and those of `permission_messages`,
                                 `topology_messages`, `row_messages` and `placements`
    anyone -> control            ping

Pure: values to plain lists and maps and back; every body that arrives is checked here, field by
field, before anyone uses it. The messages about users are in `user_messages`, those about queues and
exchanges in `topology_messages`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from fluxmq.ipc.table import ALARMS
from fluxmq.metrics.registry import Sample
from fluxmq.model.errors import FluxmqError

VERSION: Final = 1

HELLO: Final = "hello"
PING: Final = "ping"
REPLY: Final = "reply"
ERROR: Final = "error"
COLLECT: Final = "collect"
STATUS: Final = "status"
HASHING: Final = "hashing"
USERS: Final = "users"
USER_LIST: Final = "user_list"
USER_ADD: Final = "user_add"
USER_PASSWORD: Final = "user_password"
USER_PERMIT: Final = "user_permit"
USER_ENABLE: Final = "user_enable"
USER_DELETE: Final = "user_delete"

# Error codes, for programs; the text beside them is for people.
ERROR_VERSION: Final = "version"
ERROR_MALFORMED: Final = "malformed"
ERROR_UNKNOWN_KIND: Final = "unknown_kind"
ERROR_NOT_FOUND: Final = "not_found"
ERROR_EXISTS: Final = "exists"
ERROR_INVALID: Final = "invalid"
ERROR_LIMIT: Final = "limit"
ERROR_FAILED: Final = "failed"
ERROR_AWAY: Final = "away"
"""Said by a process to itself: control is not there."""

ROLES: Final = ("shard", "acceptor", "control")
KIND_CHARACTERS_MAX: Final = 32
TEXT_CHARACTERS_MAX: Final = 4096
ID_MAX: Final = 2**32 - 1
# One shard reports some hundred series; links to 255 other shards add a few thousand.
SAMPLES_MAX: Final = 16384
LABELS_MAX: Final = 8
PROCESSES_MAX: Final = 1024
LISTENERS_MAX: Final = 8


class MessageError(FluxmqError):
    """A message that is not one of this protocol: wrong shape, missing or ill-typed field. `code`
    goes on the wire."""

    def __init__(self, text: str, code: str = ERROR_MALFORMED) -> None:
        super().__init__(text)
        self.code = code


class VersionMismatchError(MessageError):
    """The peer speaks another version of this protocol; `id` is the request to answer."""

    def __init__(self, version: object, message_id: int) -> None:
        super().__init__(f"control protocol version {version!r} is not {VERSION}", ERROR_VERSION)
        self.id = message_id


Body = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Message:
    """One message as framed: its kind, the sender's number for it (or the answered request's), and
    its body."""

    kind: str
    id: int
    body: Body

    def to_wire(self) -> list[object]:
        """Return the value to frame."""
        return [VERSION, self.kind, self.id, dict(self.body)]

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """Read a framed value. Raises VersionMismatchError, or MessageError when it is no message
        at all."""
        if not isinstance(value, list) or len(value) != 4:
            raise MessageError("message is not [version, kind, id, body]")
        version, kind, message_id, body = value
        if not _is_integer(message_id) or not 0 <= message_id <= ID_MAX:
            raise MessageError("message id is not a number of 32 bits")
        if not _is_integer(version) or version != VERSION:
            raise VersionMismatchError(version, message_id)
        if not isinstance(kind, str) or not 0 < len(kind) <= KIND_CHARACTERS_MAX:
            raise MessageError("message kind is not a short text")
        if not isinstance(body, dict):
            raise MessageError("message body is not a map")
        return cls(kind, message_id, body)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Fields:
    """Typed, checked access to one body; every method raises MessageError naming the message and
    the field."""

    __slots__ = ("_body", "_of")

    def __init__(self, body: object, of: str) -> None:
        if not isinstance(body, dict | Mapping):
            raise MessageError(f"{of} is not a map")
        self._body: Body = body
        self._of = of

    @property
    def body(self) -> Body:
        """The map itself."""
        return self._body

    def _get(self, name: str) -> object:
        try:
            return self._body[name]
        except KeyError:
            raise MessageError(f"{self._of}.{name} is missing") from None

    def text(self, name: str, limit: int = TEXT_CHARACTERS_MAX) -> str:
        """Return a text of at most `limit` characters."""
        value = self._get(name)
        if not isinstance(value, str) or len(value) > limit:
            raise MessageError(f"{self._of}.{name} is not a text of at most {limit} characters")
        return value

    def data(self, name: str, limit: int) -> bytes:
        """Return bytes, at most `limit`."""
        value = self._get(name)
        if not isinstance(value, bytes) or len(value) > limit:
            raise MessageError(f"{self._of}.{name} is not a string of at most {limit} bytes")
        return value

    def integer(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """Return an integer from `low` to `high`."""
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise MessageError(f"{self._of}.{name} is not an integer from {low} to {high}")
        return value

    def number(self, name: str) -> float:
        """Return a number, integer or not."""
        value = self._get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise MessageError(f"{self._of}.{name} is not a number")
        return value

    def boolean(self, name: str) -> bool:
        """Return a boolean."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise MessageError(f"{self._of}.{name} is not true or false")
        return value

    def items(self, name: str, limit: int) -> list[object]:
        """Return a list of at most `limit` values of any kind."""
        value = self._get(name)
        if not isinstance(value, list | tuple) or len(value) > limit:
            raise MessageError(f"{self._of}.{name} is not a list of at most {limit}")
        return list(value)

    def texts(self, name: str, limit: int, each: int = TEXT_CHARACTERS_MAX) -> tuple[str, ...]:
        """Return a list of at most `limit` texts, each of at most `each` characters."""
        values = self.items(name, limit)
        texts = tuple(value for value in values if isinstance(value, str) and len(value) <= each)
        if len(texts) != len(values):
            raise MessageError(
                f"{self._of}.{name} is not a list of texts of at most {each} characters"
            )
        return texts

    def optional(self, name: str) -> object:
        """Return the field's value, or None when it is absent."""
        return self._body.get(name)


@dataclass(frozen=True, slots=True)
class Hello:
    """Who is calling: role, index among processes of that role, and process id."""

    role: str
    index: int
    pid: int

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"role": self.role, "index": self.index, "pid": self.pid}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, HELLO)
        role = fields.text("role", 16)
        if role not in ROLES:
            raise MessageError(f"hello.role {role!r} is not one of {', '.join(ROLES)}")
        return cls(role, fields.integer("index", 0, PROCESSES_MAX), fields.integer("pid", 1))


@dataclass(frozen=True, slots=True)
class Failure:
    """The body of an error: a code for programs, a sentence for people."""

    code: str
    text: str

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"code": self.code, "text": self.text[:TEXT_CHARACTERS_MAX]}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, ERROR)
        return cls(fields.text("code", KIND_CHARACTERS_MAX), fields.text("text"))


@dataclass(frozen=True, slots=True)
class Report:
    """All numbers of one process at one moment: the answer to collect."""

    samples: tuple[Sample, ...]

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"metrics": [[name, dict(labels), value] for name, labels, value in self.samples]}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        return cls(tuple(_samples(Fields(body, COLLECT).items("metrics", SAMPLES_MAX))))


def _samples(items: Iterable[object]) -> Iterable[Sample]:
    for item in items:
        if not isinstance(item, list | tuple) or len(item) != 3:
            raise MessageError("collect.metrics holds something that is not [name, labels, number]")
        name, labels, value = item
        if not isinstance(name, str) or not isinstance(labels, dict) or len(labels) > LABELS_MAX:
            raise MessageError("collect.metrics holds a sample without name or labels")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise MessageError(f"collect.metrics: {name} is not a number")
        if not all(isinstance(key, str) and isinstance(text, str) for key, text in labels.items()):
            raise MessageError(f"collect.metrics: {name} has a label that is not text")
        yield name, labels, value


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """What a shard (or the acceptor) says about itself for `fluxmqctl status`; what does not apply
    is 0."""

    connections: int = 0
    sessions: int = 0
    subscriptions: int = 0
    retained: int = 0
    messages_received: int = 0
    messages_sent: int = 0
    users_revision: int = 0
    groups: int = 0
    groups_failed: int = 0
    groups_starting: int = 0
    groups_leaderless: int = 0
    """Replicated groups of which it has a copy, and that nobody is known to lead."""
    queues: int = 0
    queues_buffered: int = 0
    """Durable queues whose acknowledgements do not wait for the disk."""
    outbox_batches: int = 0
    """Acknowledged batches that this node alone has, until their queues' leaders have them."""
    state_failed: int = 0
    """1 when sessions and retained messages are not kept on disk any more."""
    state_full: int = 0
    """1 while the disk has no room for them."""
    clocks_apart: int = 0
    """Nodes of the cluster whose wall clocks differ from this one's by too much."""

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, STATUS)
        return cls(*(fields.integer(name) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of the node as the control process sees it.

    Times are seconds; `heartbeat_age` is None before the first heartbeat, `last_exit` (negative: a
    signal) while the process never ended; `reason` is why it failed last. `connections` has one
    count per listener. `numbers` is None when the process did not answer in time or has none.
    """

    role: str
    index: int
    pid: int
    core: int
    state: str
    ready: bool
    uptime: float
    restarts: int
    last_exit: int | None
    reason: str
    heartbeat_age: float | None
    connections: tuple[int, ...]
    numbers: ProcessNumbers | None

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        body: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        body["connections"] = list(self.connections)
        body["numbers"] = None if self.numbers is None else self.numbers.to_body()
        return body

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, "process")
        age = fields.optional("heartbeat_age")
        last_exit = fields.optional("last_exit")
        numbers = fields.optional("numbers")
        connections = fields.items("connections", LISTENERS_MAX)
        return cls(
            role=fields.text("role", 16),
            index=fields.integer("index", 0, PROCESSES_MAX),
            pid=fields.integer("pid"),
            core=fields.integer("core", -1),
            state=fields.text("state", 32),
            ready=fields.boolean("ready"),
            uptime=fields.number("uptime"),
            restarts=fields.integer("restarts"),
            last_exit=None if last_exit is None else fields.integer("last_exit", -256, 256),
            reason=fields.text("reason", 256),
            heartbeat_age=None if age is None else fields.number("heartbeat_age"),
            connections=tuple(value for value in connections if isinstance(value, int)),
            numbers=None
            if numbers is None
            else ProcessNumbers.from_body(Fields(numbers, "numbers").body),
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """The node's alarms (of `table.ALARMS`) and its memory in bytes: held by its processes, the mark at which publishers are
    stopped, and all that is available."""

    alarms: tuple[str, ...] = ()
    memory_held: int = 0
    memory_high_watermark: int = 0
    memory_available: int = 0

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "alarms": list(self.alarms),
            "memory_held": self.memory_held,
            "memory_high_watermark": self.memory_high_watermark,
            "memory_available": self.memory_available,
        }

    @classmethod
    def from_body(cls, body: object) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, "resources")
        alarms = fields.items("alarms", len(ALARMS))
        return cls(
            tuple(kind for kind in ALARMS if kind in alarms),
            fields.integer("memory_held"),
            fields.integer("memory_high_watermark"),
            fields.integer("memory_available"),
        )


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The whole node: the answer to fluxmqctl's status."""

    version: str
    users_revision: int
    processes: tuple[ProcessStatus, ...]
    resources: Resources = Resources()

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {
            "version": self.version,
            "users_revision": self.users_revision,
            "processes": [process.to_body() for process in self.processes],
            "resources": self.resources.to_body(),
        }

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, STATUS)
        return cls(
            fields.text("version", 64),
            fields.integer("users_revision"),
            tuple(
                ProcessStatus.from_body(item) for item in fields.items("processes", PROCESSES_MAX)
            ),
            Resources.from_body(fields.body.get("resources")),
        )


def reply(to: Message, body: Body) -> Message:
    """Return the answer to a request."""
    return Message(REPLY, to.id, body)


def error(message_id: int, code: str, text: str) -> Message:
    """Return the refusal of a request; id 0 when the request could not even be read."""
    return Message(ERROR, message_id, Failure(code, text).to_body())
