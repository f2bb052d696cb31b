"""An issuer of tokens: keys, their public halves over HTTP, and signed tokens.

Its page is served by a thread; what it answers can be changed, and asked for how often it was read.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "fluxmq"
ALGORITHMS = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}

Answer = tuple[int, bytes]
Form = dict[str, str]


class SigningKey(NamedTuple):
    """A key pair with its id."""

    name: str
    kind: str
    private: Any

    @property
    def algorithm(self) -> str:
        """Algorithm that it signs with."""
        return ALGORITHMS[self.kind]

    def public(self) -> dict[str, Any]:
        """The public half as a JWK."""
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        made = algorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**made, "kid": self.name, "use": "sig"}


def signing_key(name: str, kind: str = "RSA") -> SigningKey:
    """A new key."""
    make: Mapping[str, Callable[[], Any]] = {
        "RSA": lambda: rsa.generate_private_key(65537, 2048),
        "EC": lambda: ec.generate_private_key(ec.SECP256R1()),
        "OKP": ed25519.Ed25519PrivateKey.generate,
    }
    return SigningKey(name, kind, make[kind]())


def document(*keys: SigningKey) -> bytes:
    """A set of public keys."""
    return json.dumps({"keys": [key.public() for key in keys]}).encode()


def token(
    key: SigningKey,
    *scopes: str,
    lasts: float = 300,
    header: Mapping[str, Any] | None = None,
    **claims: Any,
) -> str:
    """A token for `AUDIENCE` whose scopes have its prefix."""
    body = {
        "sub": "device",
        "aud": AUDIENCE,
        "exp": time.time() + lasts,
        "scope": " ".join(f"{AUDIENCE}.{scope}" for scope in scopes),
    } | claims
    left_out = {name: value for name, value in body.items() if value is not None}
    headers = {"kid": key.name} | dict(header or {})
    return jwt.encode(left_out, key.private, key.algorithm, headers=headers)


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes = b"") -> str:
    """A token with any header and signature."""

    def part(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(map(part, parts))


class WebServer:
    """A server of one function: from path and form to status and body."""

    def __init__(self, answer: Callable[[str, Form], Answer]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Form]] = []
        """What it was asked, with the method before the path."""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Answers."""

            def do_GET(self) -> None:
                """Answer a GET, the form in the address."""
                path, _, query = self.path.partition("?")
                self._answer(path, query)

            def do_POST(self) -> None:
                """Answer a POST."""
                size = int(self.headers.get("Content-Length", "0"))
                self._answer(self.path, self.rfile.read(size).decode())

            def _answer(self, path: str, encoded: str) -> None:
                form = dict(urllib_parse(encoded))
                outer.asked.append((f"{self.command} {path}", form))
                status, body = outer.answer(path, form)
                with suppress(ConnectionError):  # somebody did not wait
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        """Answer nobody from now on."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


def urllib_parse(encoded: str) -> list[tuple[str, str]]:
    """The fields of a form."""
    from urllib.parse import parse_qsl

    return parse_qsl(encoded, keep_blank_values=True)


@contextmanager
def web_server(answer: Callable[[str, Form], Answer]) -> Iterator[WebServer]:
    """A server for a block of code."""
    server = WebServer(answer)
    try:
        yield server
    finally:
        server.stop()
