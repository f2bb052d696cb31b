"""The ``server`` section: which addresses are opened, for what, and under which limits.

A listener that the file does not name is not opened. Nothing here opens anything.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from fluxmq.settings.section import Section
from fluxmq.settings.values import (
    Address,
    Duration,
    FilePath,
    Secret,
    is_loopback,
    split_address,
)

Timeout = Annotated[Duration, Field(ge=0.01, le=3600)]


def _version_text(value: object) -> object:
    """YAML reads 1.2 as a number; it is meant as the name of a TLS version."""
    return str(value) if isinstance(value, float) else value


def _absolute(path: str) -> str:
    if not path.startswith("/") or any(character in path for character in "?# \t"):
        raise ValueError("is not a path; it begins with / and has neither spaces, ? nor #")
    return path


class Endpoint(Section):
    """One address that is listened on."""

    addr: Address
    """Address to listen on, as "host:port"; ":port" means every interface."""
    backlog: Annotated[int, Field(ge=1, le=65_535)] = 4096
    """Connections the kernel may hold before they are accepted; the system's somaxconn caps it."""

    @property
    def host(self) -> str:
        """Host part of the address; empty for every interface."""
        return split_address(self.addr)[0]

    @property
    def port(self) -> int:
        """Port part of the address."""
        return split_address(self.addr)[1]

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


class Listener(Endpoint):
    """A protocol over plain TCP."""

    max_connections: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Connections open at once on this listener; more are closed at once and counted. The limit of open files may allow fewer
    over all listeners: the start says how many."""
    connect_timeout: Timeout = 10.0
    """Time from accepting a connection to its complete CONNECT, or to connection.open of AMQP (TLS and WebSocket
    handshakes included)."""


class TlsListener(Listener):
    """A protocol over TLS."""

    cert_file: FilePath
    """PEM file with the server's certificate, followed by its intermediates."""
    key_file: FilePath
    """PEM file with the certificate's private key."""
    key_password: Secret | None = None
    """Password of an encrypted private key; better given by key_password_file or ${ENV}."""
    key_password_file: FilePath | None = None
    """File whose content, less one final line end, is key_password."""
    ca_file: FilePath | None = None
    """PEM file with the authorities that client certificates are checked against."""
    client_auth: Literal["none", "request", "require"] = "none"
    """Client certificates: none asks for none, request checks one that is sent, require insists (mutual TLS)."""
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_version_text)] = "1.2"
    """Oldest TLS version accepted."""


class WebSocketListener(Listener):
    """MQTT over WebSocket, subprotocol mqtt."""

    path: Annotated[str, AfterValidator(_absolute)] = "/mqtt"
    """Path that the upgrade request must name."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, such as https://app.example.com, *.example.com, or * for any; empty takes pages
    of the listener's own origin only (Origin names the host and port that Host does). Anonymous access is for those and for
    origins named in full. Programs send no Origin, and are not held to this."""


class HttpListener(Endpoint):
    """Health, metrics and administration over HTTP."""

    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Connections open at once on this listener; more are closed at once."""
    request_timeout: Timeout = 10.0
    """Time for the head of a request to arrive, from its first byte or from the connection's opening."""


class MqttServer(Section):
    """MQTT 3.1.1 and 5.0 on the same ports; the client's CONNECT says which."""

    tcp: Listener | None = None
    """MQTT over plain TCP."""
    tls: TlsListener | None = None
    """MQTT over TLS."""
    websocket: WebSocketListener | None = None
    """MQTT over WebSocket."""


class AmqpServer(Section):
    """AMQP 0.9.1; a client that speaks another version is told so and disconnected."""

    tcp: Listener | None = None
    """AMQP over plain TCP."""
    tls: TlsListener | None = None
    """AMQP over TLS."""


class Server(Section):
    """Listeners, and how the node stops."""

    mqtt: MqttServer = MqttServer()
    """Listeners for MQTT clients."""
    amqp: AmqpServer = AmqpServer()
    """Listeners for AMQP clients."""
    http: HttpListener | None = None
    """Listener for /health, /ready and /metrics; on loopback only, because it asks for no password yet."""
    shutdown_timeout: Timeout = 30.0
    """Time that connections get to end after SIGTERM; what is left then is closed."""
