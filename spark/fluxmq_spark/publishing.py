"""Publishing over AMQP 0.9.1: one connection, publisher confirms, a window of unconfirmed messages.

Built on pika's ``SelectConnection``. Its loop runs only within the calls here, so that rows may
take their time in between: heartbeats are off, the kernel's keepalive detects a dead peer, and
`Publisher` itself measures how long an answer takes.

Source: AMQP 0-9-1 section 1.8.3 (basic), RabbitMQ's publisher confirms.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import pika  # type: ignore[import-untyped]
from pika.exceptions import AMQPError, ChannelClosedByBroker  # type: ignore[import-untyped]

from fluxmq_spark.errors import SparkSourceError

PORTS: Final = {"amqp": 5672, "amqps": 5671}
"""Default ports of plain and of encrypted connections. Source: IANA's registry."""
WINDOW_BYTES: Final = 16 << 20
"""Unconfirmed payload bytes: pika buffers what the socket does not take, so that this is memory."""
KEEPALIVE_SECONDS: Final = 60
"""Silence after which the kernel probes the broker."""
LOOK_SECONDS: Final = 0.5
"""Interval of timeout checks."""
CLOSE_SECONDS: Final = 5.0
"""Maximum time to close a connection, from which nothing is expected any more."""


class PublishError(SparkSourceError):
    """The broker refused a message, or was unreachable. Messages confirmed before stay in its
    queues."""


@dataclass(frozen=True)
class Address:
    """Location and credentials of a broker. The text omits the password."""

    host: str
    port: int
    vhost: str
    user: str
    password: str = field(repr=False)
    tls: bool
    ca_file: str = ""

    @staticmethod
    def of(url: str, ca_file: str = "") -> Address:
        """Parse ``amqp://user:password@host:port/vhost``. Raises ValueError, which does not repeat
        the URL."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("it is not a URL") from None
        if parts.scheme not in PORTS:
            raise ValueError("it starts with neither amqp:// nor amqps://")
        if not parts.hostname:
            raise ValueError("it names no host")
        if parts.query or parts.fragment:
            raise ValueError("it has more parts than amqp://user:password@host:port/vhost")
        tls = parts.scheme == "amqps"
        if ca_file and not tls:
            raise ValueError("caFile is for amqps:// only")
        return Address(
            parts.hostname,
            port or PORTS[parts.scheme],
            unquote(parts.path[1:]) or "/",
            unquote(parts.username) if parts.username is not None else "guest",
            unquote(parts.password) if parts.password is not None else "guest",
            tls,
            ca_file,
        )

    def __str__(self) -> str:
        scheme = "amqps" if self.tls else "amqp"
        return f"{scheme}://{self.host}:{self.port}, vhost '{self.vhost}'"

    def parameters(self, timeout: float) -> pika.ConnectionParameters:
        """Return pika's connection parameters. Raises PublishError for an unusable CA file."""
        options = None
        if self.tls:
            try:
                context = ssl.create_default_context(cafile=self.ca_file or None)
            except (OSError, ssl.SSLError) as error:
                raise PublishError(f"caFile {self.ca_file} cannot be used: {error}") from None
            options = pika.SSLOptions(context, self.host)
        return pika.ConnectionParameters(
            self.host,
            self.port,
            self.vhost,
            pika.PlainCredentials(self.user, self.password),
            heartbeat=0,
            ssl_options=options,
            connection_attempts=1,
            socket_timeout=timeout,
            stack_timeout=timeout,
            tcp_options={"TCP_KEEPIDLE": KEEPALIVE_SECONDS},
        )


class Publisher:
    """A connection that publishes persistent, mandatory messages and awaits a confirm for each. A
    context manager.

    At most ``window`` messages are unconfirmed. ``timeout``: seconds without any answer after which
    the broker is given up. Every method raises `PublishError`, after which the publisher is
    unusable.
    """

    def __init__(self, address: Address, *, window: int, timeout: float) -> None:
        self.address = address
        self.confirmed = 0
        self._window = window
        self._timeout = timeout
        self._waiting: dict[int, int] = {}
        """Bytes of unconfirmed payloads, by delivery tag."""
        self._waiting_bytes = 0
        self._published = 0
        self._failure: str | None = None
        self._blocked = ""
        self._opening = True
        self._ready = False
        self._closed = False
        self._heard = 0.0
        self._reached: Callable[[], bool] = lambda: False
        self._channel: Any = None
        self._connection = pika.SelectConnection(
            address.parameters(timeout),
            on_open_callback=self._opened,
            on_open_error_callback=self._not_opened,
            on_close_callback=self._connection_closed,
        )

    def __enter__(self) -> Self:
        """Connect."""
        try:
            self._wait(lambda: self._ready, "the connection was not opened")
        except PublishError:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection. Unconfirmed messages may or may not be safe: `finish` waits for
        them."""
        self._close()

    def publish(
        self, exchange: str, routing_key: str, body: bytes, properties: pika.BasicProperties
    ) -> None:
        """Publish a message, after waiting until the window has room for it."""
        if len(self._waiting) >= self._window or self._waiting_bytes >= WINDOW_BYTES:
            self._wait(self._has_room, "messages were not confirmed")
        self._check()
        try:
            self._channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)
        except AMQPError as error:
            # The loop has not reported the cause yet: this error has to do.
            self._fail(f"the connection was lost: {error!r}")
            self._check()
        self._published += 1
        self._waiting[self._published] = len(body)
        self._waiting_bytes += len(body)

    def finish(self) -> None:
        """Wait until all published messages are confirmed."""
        self._wait(lambda: not self._waiting, "messages were not confirmed")

    # Running the loop

    def _has_room(self) -> bool:
        """Return whether half of the window is free: the loop is not started for every message."""
        return 2 * len(self._waiting) <= self._window and 2 * self._waiting_bytes <= WINDOW_BYTES

    def _wait(self, reached: Callable[[], bool], otherwise: str) -> None:
        """Run the loop until a condition holds. Raises PublishError."""
        self._heard = time.monotonic()
        self._reached = reached
        loop = self._connection.ioloop

        timer: object = None

        def look() -> None:
            nonlocal timer
            timer = None
            if self._opening:
                # pika watches that itself, and cannot be closed before it is open.
                self._heard = time.monotonic()
            if time.monotonic() - self._heard > self._timeout:
                blocked = (
                    f"; it reports that it is blocked: {self._blocked}" if self._blocked else ""
                )
                self._fail(f"{otherwise}: no answer for {self._timeout:g} s{blocked}")
            else:
                timer = loop.call_later(LOOK_SECONDS, look)

        timer = loop.call_later(min(LOOK_SECONDS, self._timeout), look)
        while self._failure is None and not reached():
            loop.start()
        if timer is not None:
            loop.remove_timeout(timer)
        self._reached = lambda: False
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise PublishError(f"{self.address}: {self._failure}")

    def _fail(self, text: str) -> None:
        if self._failure is None:
            self._failure = text
        self._connection.ioloop.stop()

    def _news(self) -> None:
        """Note an answer of the broker."""
        self._heard = time.monotonic()
        if self._reached():
            self._connection.ioloop.stop()

    def _close(self) -> None:
        """End the connection, whatever its state."""
        loop = self._connection.ioloop
        if self._is_open():
            if not self._connection.is_closing:
                self._connection.close()
            timer = loop.call_later(CLOSE_SECONDS, self._given_up)
            while self._is_open():
                loop.start()
            loop.remove_timeout(timer)
        loop.close()

    def _is_open(self) -> bool:
        return not (self._closed or self._connection.is_closed)

    def _given_up(self) -> None:
        self._closed = True
        self._connection.ioloop.stop()

    # Callbacks of pika

    def _opened(self, connection: Any) -> None:
        self._opening = False
        connection.add_on_connection_blocked_callback(self._was_blocked)
        connection.add_on_connection_unblocked_callback(self._was_unblocked)
        connection.channel(on_open_callback=self._channel_opened)
        self._news()

    def _not_opened(self, _connection: Any, error: BaseException | str) -> None:
        self._opening = False
        self._closed = True
        self._fail(f"the connection was not opened: {_said(error)}")

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._answered, callback=self._selected)
        self._news()

    def _selected(self, _frame: Any) -> None:
        self._ready = True
        self._news()

    def _answered(self, frame: Any) -> None:
        """Handle basic.ack or basic.nack."""
        method = frame.method
        tag = method.delivery_tag
        tags = [tag]
        if method.multiple:
            tags = []
            for each in self._waiting:
                if each > tag:
                    break
                tags.append(each)
        for each in tags:
            self._waiting_bytes -= self._waiting.pop(each, 0)
        if isinstance(method, pika.spec.Basic.Nack):
            self._fail(
                "the broker refused a message (basic.nack): a queue that rejects what is beyond "
                "its limits is full, or the message could not be stored"
            )
            return
        self.confirmed += len(tags)
        self._news()

    def _returned(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        """Handle a mandatory message without a queue: returned before it is confirmed."""
        if method.exchange:
            where = f"exchange '{method.exchange}' leads messages with routing key '{method.routing_key}' to no queue"
        else:
            where = f"there is no queue '{method.routing_key}'"
        self._fail(f"a message was returned: {where} ({method.reply_code} {method.reply_text})")

    def _channel_closed(self, _channel: Any, reason: BaseException) -> None:
        # A channel closes with its connection too, whose close is reported next.
        if isinstance(reason, ChannelClosedByBroker):
            self._fail(f"the broker closed the channel: {_said(reason)}")

    def _connection_closed(self, _connection: Any, reason: BaseException) -> None:
        self._closed = True
        self._fail(f"the connection was lost: {_said(reason)}")

    def _was_blocked(self, _connection: Any, frame: Any) -> None:
        self._blocked = str(frame.method.reason) or "it gives no reason"

    def _was_unblocked(self, _connection: Any, _frame: Any) -> None:
        self._blocked = ""
        self._news()


def _said(reason: Any) -> str:
    """Return a close method's code and text, or the socket's error: pika wraps it several times."""
    inner: Any = reason
    while isinstance(inner, BaseException):
        reason = inner
        held = [*getattr(inner, "exceptions", ()), getattr(inner, "exception", None), *inner.args]
        inner = next((each for each in reversed(held) if isinstance(each, BaseException)), None)
    code, text = getattr(reason, "reply_code", 0), getattr(reason, "reply_text", "")
    return f"{code} {text}" if text else repr(reason)
