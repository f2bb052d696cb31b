"""The ``server`` section: the addresses that are opened, for which protocol, and their limits.

A listener that the file does not name is not opened. Nothing here opens anything.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

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

SNI_CERTIFICATES_MAX: Final = 100
"""Further certificates of one listener: each is a context of OpenSSL in every shard, some 100 KiB."""

Timeout = Annotated[Duration, Field(ge=0.01, le=3600)]


def _version_text(value: object) -> object:
    """Return a TLS version as text: YAML reads 1.2 as a number."""
    return str(value) if isinstance(value, float) else value


def _absolute(path: str) -> str:
    if not path.startswith("/") or any(character in path for character in "?# \t"):
        raise ValueError("is not a path; it begins with / and has neither spaces, ? nor #")
    return path


class ListenSettings(Section):
    """One listening address."""

    addr: Address
    """Address to listen on, as "host:port"; ":port" means every interface."""
    backlog: Annotated[int, Field(ge=1, le=65_535)] = 4096
    """Connections that the kernel queues until they are accepted; the system's somaxconn caps
    it."""

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
        """True when only this machine can reach the address."""
        return is_loopback(self.host)


class TcpListener(ListenSettings):
    """A protocol over plain TCP."""

    max_connections: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    """Maximum number of open connections on this listener; further ones are closed at once and
    counted. The limit on open files may allow fewer over all listeners: the start logs how many."""
    connect_timeout: Timeout = 10.0
    """Time from accepting a connection to its complete CONNECT, or to connection.open in AMQP (TLS
    and WebSocket handshakes included)."""


class Certificate(Section):
    """A certificate of a listener with TLS. In `sni_certificates`: for the host names in its
    subjectAltName."""

    cert_file: FilePath
    """PEM file with the server's certificate, followed by its intermediates."""
    key_file: FilePath
    """PEM file with the certificate's private key."""
    key_password: Secret | None = None
    """Password of an encrypted private key; better given by key_password_file or ${ENV}."""
    key_password_file: FilePath | None = None
    """File whose content, without one trailing newline, is key_password."""


class Handshakes(Section):
    """Handshakes of a listener with TLS."""

    sni_certificates: tuple[Certificate, ...] = ()
    """Further certificates, for clients that name another host (SNI); cert_file is for all others."""
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_version_text)] = "1.2"
    """Oldest TLS version accepted."""


class ClientCertificates(Section):
    """Certificates of clients (mutual TLS)."""

    ca_file: FilePath | None = None
    """PEM file with the CA certificates that client certificates are verified against."""
    client_auth: Literal["none", "request", "require"] = "none"
    """Client certificates: none requests none, request verifies one if it is sent, require insists
    on one (mutual TLS)."""


class WebPages(Section):
    """Requests of a WebSocket listener, and the pages that may make them."""

    path: Annotated[str, AfterValidator(_absolute)] = "/mqtt"
    """Path that the upgrade request must name."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, such as https://app.example.com, *.example.com, or *
    for any; empty accepts only pages of the listener's own origin (Origin and Host name the same
    host and port). Anonymous access is limited to those and to origins listed in full. Clients that
    are not browsers send no Origin and are not checked."""


class TlsListener(TcpListener, Certificate, Handshakes, ClientCertificates):
    """A protocol over TLS."""


class WebSocketListener(TcpListener, WebPages):
    """MQTT over WebSocket, subprotocol mqtt."""


class WebSocketTlsListener(TcpListener, WebPages, Certificate, Handshakes, ClientCertificates):
    """MQTT over WebSocket over TLS (wss), subprotocol mqtt."""


class HttpEndpoint(ListenSettings):
    """Limits of an HTTP listener."""

    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Maximum number of open connections on this listener; further ones are closed at once."""
    request_timeout: Timeout = 10.0
    """Time for the head of a request to arrive, from its first byte or from the opening of the
    connection."""


class HttpListener(HttpEndpoint):
    """The management interface, health and metrics over HTTP."""


class HttpsListener(HttpEndpoint, Certificate, Handshakes):
    """The management interface, health and metrics over HTTP with TLS."""


ClientTlsListener = TlsListener | WebSocketTlsListener
"""A listener for clients with TLS, over any protocol."""
AnyTlsListener = ClientTlsListener | HttpsListener
"""A listener with TLS."""


class MetricsListener(HttpEndpoint):
    """Health and metrics over HTTP, without a password, for Prometheus and probes."""

    without_password: bool = False
    """Required to be true where the address can be reached from other machines."""


class MqttServer(Section):
    """MQTT 3.1.1 and 5.0 on the same ports; the client's CONNECT selects the version."""

    tcp: TcpListener | None = None
    """MQTT over plain TCP."""
    tls: TlsListener | None = None
    """MQTT over TLS."""
    websocket: WebSocketListener | None = None
    """MQTT over WebSocket."""
    websocket_tls: WebSocketTlsListener | None = None
    """MQTT over WebSocket over TLS (wss); usually on port 8084."""


class AmqpServer(Section):
    """AMQP 0.9.1; other versions are answered with the supported one and disconnected."""

    tcp: TcpListener | None = None
    """AMQP over plain TCP."""
    tls: TlsListener | None = None
    """AMQP over TLS."""


class Server(Section):
    """Listeners, and the node's shutdown."""

    mqtt: MqttServer = MqttServer()
    """Listeners for MQTT clients."""
    amqp: AmqpServer = AmqpServer()
    """Listeners for AMQP clients."""
    http: HttpListener | None = None
    """Listener for the management interface, health and metrics."""
    https: HttpsListener | None = None
    """Listener for the same over TLS; usually on port 15671."""
    metrics: MetricsListener | None = None
    """Listener for health and metrics alone; usually on port 15692."""
    shutdown_timeout: Timeout = 30.0
    """Grace period for connections after SIGTERM; those still open at its end are closed."""
