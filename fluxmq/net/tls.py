"""TLS between the socket and MQTT, over memory buffers.

OpenSSL does the handshake and the record layer; this module feeds it and fetches its output. It
never sees the socket, so a TLS connection is driven by the same code as a plain one, and it does
not decide who may connect: with mutual TLS it only reports the verified certificate's identity.

Memory: OpenSSL holds at most one record (16 KiB) of input in either state and bounds a certificate
chain at 100 KiB; decrypted bytes are returned at once; its output is bounded by its input.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from fluxmq.model.errors import FluxmqError
from fluxmq.net.streams import Chunk
from fluxmq.settings.listeners import (
    AnyTlsListener,
    Certificate,
    ClientTlsListener,
    WebSocketTlsListener,
)

HANDSHAKE_BYTES_MAX = 256 * 1024
"""Wire bytes after which a handshake must be complete: a client certificate chain is at most 100
KiB."""

_RECORD_BYTES = 16 * 1024  # RFC 8446 section 5.1

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "request": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


class TlsSettingsError(FluxmqError):
    """The certificate, key or CA file cannot be used; the message names the file."""


@dataclass(slots=True, frozen=True)
class PeerIdentity:
    """Identity in a verified client certificate.

    ``alternative_names`` are pairs of kind (``DNS``, ``URI``, ``email``, ``IP Address``) and value.
    """

    common_name: str | None
    alternative_names: tuple[tuple[str, str], ...]


def certificate_context(settings: AnyTlsListener, pair: Certificate) -> ssl.SSLContext:
    """Return a context with one of a listener's certificates. Raises TlsSettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    # Renegotiation lets a client make the server compute for free; TLS 1.3 has none.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Without a password callback, OpenSSL would prompt on the terminal.
    password = pair.key_password.reveal() if pair.key_password is not None else ""
    try:
        context.load_cert_chain(pair.cert_file, pair.key_file, lambda: password)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise TlsSettingsError(
            f"certificate {pair.cert_file} with key {pair.key_file}: {exc}"
        ) from exc
    return context


def server_context(settings: ClientTlsListener, pair: Certificate | None = None) -> ssl.SSLContext:
    """Return a context with one of the certificates of a client listener (default: its first), and
    its rules about client certificates. Raises TlsSettingsError."""
    context = certificate_context(settings, pair or settings)
    mode = _CLIENT_AUTH[settings.client_auth]
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(settings.ca_file)
        except (OSError, ValueError) as exc:
            raise TlsSettingsError(f"authorities {settings.ca_file}: {exc}") from exc
    elif mode is not ssl.CERT_NONE:
        raise TlsSettingsError(f"client_auth {settings.client_auth} needs a ca_file")
    context.verify_mode = mode
    # All of a listener's contexts offer the same: a client that offers none is served all the same.
    protocols = ["http/1.1"] if isinstance(settings, WebSocketTlsListener) else ["mqtt"]
    context.set_alpn_protocols(protocols)
    return context


class TlsStream:
    """The server's side of one TLS connection (see `streams.ByteFilter`).

    ``context``: that of its handshake; it stays in use however often the listener's is reloaded.
    """

    __slots__ = ("_closed", "_error", "_fed", "_incoming", "_outgoing", "_tls", "handshake_done")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._fed = 0
        self._closed = False
        self._error: str | None = None
        self.handshake_done = False

    @property
    def closed(self) -> bool:
        """True when no plain byte will come out any more."""
        return self._closed

    @property
    def error(self) -> str | None:
        """Reason for the failure; None for an orderly end."""
        return self._error

    def feed(self, data: Chunk) -> bytes:
        """Take wire bytes and return the plain bytes of every record they complete."""
        if self._closed:
            return b""
        self._incoming.write(data)
        if not self.handshake_done and not self._shake_hands(len(data)):
            return b""
        plain: list[bytes] = []
        try:
            while True:
                piece = self._tls.read(_RECORD_BYTES)
                if not piece:  # the peer's orderly end
                    self._end()
                    break
                plain.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end()
        except ssl.SSLError as exc:
            self._fail(exc)
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def encode(self, chunks: Sequence[Chunk]) -> bytes:
        """Encrypt ``chunks``. Before the handshake they are dropped: the peer cannot read them."""
        if self.handshake_done and not self._closed:
            plain = memoryview(chunks[0] if len(chunks) == 1 else b"".join(chunks))
            written = 0
            try:
                while written < len(plain):  # a call writes at least one record
                    written += self._tls.write(plain[written:])
            except ssl.SSLError as exc:
                self._fail(exc)
        return self._outgoing.read()

    def pending(self) -> bytes:
        """Return the handshake messages, alerts and pending acks that OpenSSL wants to send."""
        return self._outgoing.read()

    def shutdown(self) -> bytes:
        """Return the wire bytes of close_notify (RFC 8446 section 6.1)."""
        if not self._closed:
            self._end()
        return self._outgoing.read()

    def peer_identity(self) -> PeerIdentity | None:
        """Return the identity in the verified client certificate; None without one."""
        if not self.handshake_done:
            return None
        certificate = self._tls.getpeercert()
        if not certificate:
            return None
        names = [
            str(pair[1])
            for relative in certificate.get("subject", ())
            for pair in relative
            if isinstance(pair, tuple) and pair[0] == "commonName"
        ]
        alternatives = tuple(
            (str(pair[0]), str(pair[1])) for pair in certificate.get("subjectAltName", ())
        )
        # The last common name is the most specific one (RFC 4514 writes them in reverse).
        return PeerIdentity(names[-1] if names else None, alternatives)

    def release(self) -> None:
        """Do nothing: there are no reference cycles here."""

    def _shake_hands(self, received: int) -> bool:
        """Advance the handshake as far as the input allows; return whether it is complete."""
        self._fed += received
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._fed > HANDSHAKE_BYTES_MAX:
                self._closed = True
                self._error = f"TLS handshake not complete after {HANDSHAKE_BYTES_MAX} bytes"
            return False
        except ssl.SSLError as exc:
            self._fail(exc)
            return False
        self.handshake_done = True
        return True

    def _end(self) -> None:
        """Close in order: write close_notify, expect nothing more."""
        self._closed = True
        if self.handshake_done:
            # SSLWantReadError: the peer's answer, which nobody waits for.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()

    def _fail(self, exc: ssl.SSLError) -> None:
        self._closed = True
        reason = exc.reason or exc.__class__.__name__
        self._error = f"TLS: {reason.lower().replace('_', ' ')}"
