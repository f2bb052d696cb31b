"""Permissions that another backend decides, one operation at a time.

An answer that is known is used; otherwise `UndecidedError` names the question, and the operation
waits: the caller has the question asked, and tries again. Pure.

Source: RabbitMQ's HTTP authentication backend (resource_path, topic_path).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

EXCHANGE: Final = "exchange"
QUEUE: Final = "queue"
TOPIC: Final = "topic"
CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"


@dataclass(frozen=True, slots=True)
class RightsQuestion:
    """May this user do that? ``resource``: exchange, queue or, with a routing key, topic."""

    backend: str
    user: str
    tags: tuple[str, ...]
    vhost: str
    resource: str
    name: str
    permission: str
    routing_key: str = ""


class UndecidedError(Exception):
    """The answer to a question is not known yet."""

    def __init__(self, question: RightsQuestion, decisions: Decisions) -> None:
        super().__init__(f"{question.permission} {question.resource} is undecided")
        self.question = question
        self._decisions = decisions

    def ask(self, done: Callable[[], None]) -> None:
        """Have the question asked, see `Decisions.ask`."""
        self._decisions.ask(self.question, done)


class Decisions(Protocol):
    """Answers known to a shard."""

    @property
    def generation(self) -> int:
        """Number that changes when answers are forgotten."""

    def find(self, question: RightsQuestion, /) -> bool | None:
        """Return the answer; None when it is not known."""

    def ask(self, question: RightsQuestion, done: Callable[[], None], /) -> None:
        """Have a question asked; ``done`` is called, at once or later, when the answer is known."""


class RemoteRights:
    """The questions of one user in one virtual host. ``resources``, ``topics``: what the backend
    decides; the rest is not asked."""

    __slots__ = ("_backend", "_decisions", "_tags", "_user", "_vhost", "resources", "topics")

    def __init__(
        self,
        decisions: Decisions,
        backend: str,
        user: str,
        tags: tuple[str, ...],
        vhost: str,
        resources: bool,
        topics: bool,
    ) -> None:
        self._decisions = decisions
        self._backend = backend
        self._user = user
        self._tags = tags
        self._vhost = vhost
        self.resources = resources
        self.topics = topics

    def allow(self, resource: str, name: str, permission: str, routing_key: str = "") -> bool:
        """Return whether the user may. Raises UndecidedError."""
        question = RightsQuestion(
            *(self._backend, self._user, self._tags, self._vhost),
            *(resource, name, permission, routing_key),
        )
        found = self._decisions.find(question)
        if found is None:
            raise UndecidedError(question, self._decisions)
        return found
