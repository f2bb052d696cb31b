"""Connections to a node, on this machine or another, as commands use them."""

from __future__ import annotations

from typing import Protocol, Self

from fluxmq.ipc.messages import Body


class BrokerCaller(Protocol):
    """A blocking connection: `call` sends a request and waits for its answer."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...

    def call(self, kind: str, body: Body) -> Body:
        """Return the body of the answer.

        Raises CallError when the node refuses, TimeoutError when it does not answer in time.
        """
        ...
