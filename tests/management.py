"""A user's view of the management interface."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

import pika  # type: ignore[import-untyped]

from tests.broker import HOST

NO_HEADERS: Mapping[str, str] = {}


class Answer(NamedTuple):
    """Status, body and headers."""

    status: int
    body: Any
    headers: dict[str, str]


class ManagementSite:
    """A user's view of the interface."""

    def __init__(self, port: int, amqp: int = 0) -> None:
        self.port = port
        self.amqp = amqp

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        user: str = "guest",
        password: str = "guest",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        """Send a request."""
        data = None if body is None else json.dumps(body).encode()
        url = f"http://{HOST}:{self.port}/api/{path}"
        request = urllib.request.Request(url, data, method=method)
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        for name, value in {"Authorization": f"Basic {secret}", **headers}.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return _answer(answer)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error)

    def get(self, path: str, **more: Any) -> Any:
        """The body of a GET that succeeds."""
        answer = self.ask("GET", path, **more)
        assert answer.status == 200, answer
        return answer.body

    def status(self, method: str, path: str, body: Any = None, **more: Any) -> int:
        """The status of a request."""
        return self.ask(method, path, body, **more).status

    def connect(self) -> pika.BlockingConnection:
        """An AMQP client."""
        return pika.BlockingConnection(pika.ConnectionParameters(HOST, self.amqp))


def _answer(answer: Any) -> Answer:
    raw = answer.read()
    return Answer(answer.status, json.loads(raw) if raw else None, dict(answer.headers))
