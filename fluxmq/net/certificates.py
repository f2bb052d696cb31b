"""The certificates of one listener: chosen by the host name that a client asks for, and reloaded.

A set of certificates is loaded whole or not at all, so that a bad file leaves the previous set in
use. Connections keep the context of their handshake; a reload concerns handshakes from then on.
The module does not decide when to reload.

Names are those of a certificate's subjectAltName, compared by RFC 6125 section 6.4: without regard
to case, a wildcard standing for the whole leftmost label. An exact name precedes a wildcard, an
earlier certificate a later one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from fluxmq.net.tls import TlsSettingsError, certificate_context, server_context
from fluxmq.settings.certificate_files import CertificateFacts, certificate_facts
from fluxmq.settings.listeners import AnyTlsListener, Certificate, ClientTlsListener


class ListenerCertificates:
    """Contexts with the certificates of a listener. ``context`` is for connections that are accepted
    from now on; it changes with each reload."""

    def __init__(self, settings: AnyTlsListener) -> None:
        """Load the certificates. Raises TlsSettingsError."""
        self._settings = settings
        self.context, self._by_name = _load(settings)

    def reload(self) -> None:
        """Load the certificates again. Raises TlsSettingsError, and keeps the previous ones then."""
        self.context, self._by_name = _load(self._settings)

    def fixed_context(self) -> ssl.SSLContext:
        """Return a context for a server that takes one for good: each of its handshakes changes to
        the certificate that is current then."""
        fixed = certificate_context(self._settings, self._settings)

        def choose(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
            tls.context = chosen(self._by_name, name) or self.context

        # OpenSSL calls it for clients without a server name as well.
        fixed.sni_callback = choose
        return fixed


def chosen(by_name: Mapping[str, ssl.SSLContext | None], name: str | None) -> ssl.SSLContext | None:
    """Return the context for a host name; None for the listener's first certificate."""
    if name is None or not by_name:
        return None
    name = name.lower().removesuffix(".")
    if name in by_name:
        return by_name[name]
    return by_name.get("*." + name.partition(".")[2])


def facts_of(path: str) -> CertificateFacts:
    """Return the facts in a certificate file. Raises TlsSettingsError."""
    try:
        return certificate_facts(Path(path).read_bytes())
    except (OSError, ValueError) as exc:
        raise TlsSettingsError(f"certificate {path}: {exc}") from exc


def _load(
    settings: AnyTlsListener,
) -> tuple[ssl.SSLContext, dict[str, ssl.SSLContext | None]]:
    """Return the context of the first certificate, and those of host names; None is the first.
    Raises TlsSettingsError."""
    default = _context(settings, settings)
    by_name: dict[str, ssl.SSLContext | None] = {}
    if settings.sni_certificates:
        # Written down without the context itself, which would refer to its own callback's table.
        by_name.update(dict.fromkeys(facts_of(settings.cert_file).names))
    for pair in settings.sni_certificates:
        context = _context(settings, pair)
        names = facts_of(pair.cert_file).names
        if not names:
            raise TlsSettingsError(f"certificate {pair.cert_file}: names no host")
        for name in names:
            by_name.setdefault(name, context)
    if by_name:
        default.sni_callback = _changing(by_name)
    return default, by_name


def _context(settings: AnyTlsListener, pair: Certificate) -> ssl.SSLContext:
    if isinstance(settings, ClientTlsListener):
        return server_context(settings, pair)
    return certificate_context(settings, pair)


def _changing(
    by_name: Mapping[str, ssl.SSLContext | None],
) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Return a callback that changes a handshake to the certificate of the name asked for."""

    def choose(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        found = chosen(by_name, name)
        if found is not None:
            tls.context = found

    return choose
