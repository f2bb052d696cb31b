"""A node on another machine: fluxmqctl's requests through the management interface.

`RemoteCaller` has the calls of `fluxmq.ipc.polling_client.ControlCaller`, so that a command does not
know which one it was given. TLS certificates are verified; passwords are sent over plain HTTP to this
machine only, unless ``--insecure-http`` is given.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import http.client
import os
import ssl
import sys
import time
from ipaddress import ip_address
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

import orjson

from fluxmq.cli.exits import EXIT_NO_ANSWER, EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.passwords import password_in
from fluxmq.ipc.control_frames import FRAME_BYTES_MAX, FramingError, decode_value, encode_value
from fluxmq.ipc.messages import ERROR, Body, ControlMessage, Failure
from fluxmq.ipc.node_messages import HTTP_PATH, MEDIA_TYPE
from fluxmq.ipc.polling_client import CallError

PASSWORD_VARIABLE: Final = "FLUXMQ_PASSWORD"
PORTS: Final = {"http": 15672, "https": 15671}
"""Ports of the management interface, for addresses that name none."""
IDLE_SECONDS: Final = 30.0
"""Time after which a connection is not used again: the node closes idle ones after 75 s."""
_MESSAGE_ID: Final = 1


class RemoteNode:
    """A node's address and the user to log in as; the password is read once, when it is needed.

    Raises ExitError for an address that cannot be used.
    """

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self.url = url
        parts = _parts(url)
        self.host = str(parts.hostname)
        self.port = parts.port or PORTS[parts.scheme]
        if parts.scheme == "http" and not (is_loopback(self.host) or options.insecure_http):
            raise ExitError(
                EXIT_USAGE,
                f"{url}: the password would cross the network in clear text; use https://, or"
                " --insecure-http where the network is protected otherwise",
            )
        self._user = options.login or parts.username or ""
        self._options = options
        self._context = _context(options.ca_file) if parts.scheme == "https" else None
        self._secret: str | None = None

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection, not yet opened."""
        if self._context is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=timeout, context=self._context
        )

    def authorization(self) -> str:
        """Return the value of the header (RFC 7617). Exits without a user or a password."""
        if not self._user:
            raise ExitError(EXIT_USAGE, f"name the user to log in to {self.url} as: --user NAME")
        if self._secret is None:
            self._secret = _password(self._user, self._options)
        pair = f"{self._user}:{self._secret}".encode()
        return "Basic " + base64.b64encode(pair).decode()


class RemoteCaller:
    """Calls of one command; `timeout` in seconds bounds each."""

    def __init__(self, node: RemoteNode, timeout: float) -> None:
        self._node = node
        self._connection = node.connection(timeout)
        self._used = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, kind: str, body: Body) -> Body:
        """Return the body of the answer.

        Raises CallError when the node refuses, TimeoutError when it does not answer in time, ExitError
        when it cannot be reached or the login fails, FramingError or MessageError when the answer is
        not one.
        """
        message = ControlMessage(kind, _MESSAGE_ID, body)
        status, answer = self._post(encode_value(message.to_wire()))
        if status != http.client.OK:
            raise _problem(self._node.url, status, answer)
        found = ControlMessage.from_wire(decode_value(answer))
        if found.kind == ERROR:
            failure = Failure.from_body(found.body)
            raise CallError(failure.code, failure.text)
        return found.body

    def _post(self, body: bytes) -> tuple[int, bytes]:
        headers = {"Authorization": self._node.authorization(), "Content-Type": MEDIA_TYPE}
        url = self._node.url
        if time.monotonic() > self._used + IDLE_SECONDS:
            self._connection.close()
        try:
            self._connection.request("POST", HTTP_PATH, body, headers)
            response = self._connection.getresponse()
            answer = response.read(FRAME_BYTES_MAX + 1)
        except TimeoutError:
            raise
        except ssl.SSLCertVerificationError as problem:
            raise ExitError(
                EXIT_NO_ANSWER,
                f"{url}: the certificate is not trusted: {problem.verify_message}; name the"
                " authority that issued it with --ca-file",
            ) from None
        except (OSError, http.client.HTTPException) as problem:
            reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            raise ExitError(EXIT_NO_ANSWER, f"{url}: {reason}") from None
        self._used = time.monotonic()
        if len(answer) > FRAME_BYTES_MAX:
            raise FramingError(f"more than {FRAME_BYTES_MAX} bytes")
        return response.status, answer


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _parts(url: str) -> SplitResult:
    """Return the parts of an address. Raises ExitError."""
    try:
        parts = urlsplit(url)
        if _is_usable(parts):
            return parts
    except ValueError:
        pass  # of a port or an address in brackets
    raise ExitError(
        EXIT_USAGE, f"{url!r} is not the address of a management interface: https://HOST[:PORT]"
    )


def _is_usable(parts: SplitResult) -> bool:
    """Return whether an address has a scheme and a host, and nothing that would be ignored."""
    plain = not (parts.query or parts.fragment or parts.password)
    return bool(
        parts.scheme in PORTS
        and parts.hostname
        and plain
        and parts.path in ("", "/")
        and parts.port != 0
    )


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as problem:
        raise ExitError(EXIT_USAGE, f"--ca-file: {ca_file}: {problem}") from None


def _password(user: str, options: argparse.Namespace) -> str:
    if options.login_password_file is not None:
        return password_in(options.login_password_file)
    found = os.environ.get(PASSWORD_VARIABLE)
    if found is not None:
        return found
    if not sys.stdin.isatty():
        raise ExitError(
            EXIT_USAGE,
            f"no password: set {PASSWORD_VARIABLE}, or give --password-file before the command",
        )
    return getpass.getpass(f"Password of {user}: ")


def _problem(url: str, status: int, answer: bytes) -> Exception:
    """Return the error for an answer that is none of the control process."""
    if status == http.client.NOT_FOUND:
        return ExitError(EXIT_NO_ANSWER, f"{url}: no FluxMQ node of this version answers there")
    if status == http.client.TOO_MANY_REQUESTS:
        return ExitError(EXIT_REFUSED, f"{url}: too many failed logins; try again later")
    try:
        reason = orjson.loads(answer)
        text = str(reason.get("reason") or reason["error"])
    except (orjson.JSONDecodeError, AttributeError, KeyError):
        text = http.client.responses.get(status, "")
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        text += " (the user needs the tag administrator)" if text.startswith("Not ") else ""
        return ExitError(EXIT_REFUSED, f"{url}: {text}")
    if status == http.client.SERVICE_UNAVAILABLE:
        return TimeoutError(text)
    return ExitError(EXIT_NO_ANSWER, f"{url}: {status} {text}")
