"""Local transactions by Qpid Proton's Python client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika  # type: ignore[import-untyped]
from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.interop.amqp10.conftest import AmqpBroker


class Sends(MessagingHandler, TransactionHandler):
    """Sends a batch in a transaction that is rolled back, and one in another that is committed."""

    def __init__(self, amqp: AmqpBroker, queue: str) -> None:
        super().__init__()
        self.amqp, self.queue = amqp, queue
        self.began = False
        self.ended: list[str] = []
        self.container: Any = None
        self.sender: Any = None

    def on_start(self, event: Any) -> None:
        """Connect."""
        self.container = event.container
        url = f"amqp://guest:guest@{self.amqp.host}:{self.amqp.port}"
        connection = event.container.connect(url, allowed_mechs="PLAIN", reconnect=False)
        self.sender = event.container.create_sender(connection, f"/queues/{self.queue}")

    def on_sendable(self, event: Any) -> None:
        """Begin, once."""
        if not self.began:
            self.began = True
            self.container.declare_transaction(self.sender.connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        """Send a batch."""
        for number in range(3):
            event.transaction.send(self.sender, Message(f"{len(self.ended)}-{number}"))
        if self.ended:
            event.transaction.commit()
        else:
            event.transaction.abort()

    def on_transaction_aborted(self, event: Any) -> None:
        """Begin the other."""
        self.ended.append("aborted")
        self.container.declare_transaction(self.sender.connection, handler=self)

    def on_transaction_committed(self, event: Any) -> None:
        """End."""
        self.ended.append("committed")
        self.sender.connection.close()


def test_a_rollback_leaves_nothing_and_a_commit_everything(
    amqp: AmqpBroker, name: Callable[[], str]
) -> None:
    queue = name()
    connection = pika.BlockingConnection(pika.URLParameters(amqp.url))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    sends = Sends(amqp, queue)
    Container(sends).run()
    assert sends.ended == ["aborted", "committed"]
    assert channel.queue_declare(queue, passive=True).method.message_count == 3
    connection.close()
