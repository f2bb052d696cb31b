"""Certificates for tests: an authority, and what it signs, with any names and validity."""

from __future__ import annotations

import os
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fluxmq.net.tls import TlsStream
from fluxmq.settings.listeners import Certificate


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates and writes them, with their keys, into a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name("authority of a test")
        certificate = self._builder(self._subject, self._key.public_key(), 3650.0)
        extension = x509.BasicConstraints(ca=True, path_length=None)
        signed = certificate.add_extension(extension, critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.ca_file = directory / "authority.pem"
        self.ca_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, file: str, *names: str, days: float = 365.0) -> Certificate:
        """Write ``file``.pem and ``file``.key, replacing both by renaming, and return the pair."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(file), key.public_key(), days)
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pair = self.pair(file)
        replace(Path(pair.cert_file), signed.public_bytes(pem))
        replace(Path(pair.key_file), secret)
        return pair

    def pair(self, file: str) -> Certificate:
        """Return the names of a pair's files."""
        return Certificate(
            cert_file=str(self.directory / f"{file}.pem"),
            key_file=str(self.directory / f"{file}.key"),
        )

    def client_context(self) -> ssl.SSLContext:
        """Return a client's context that trusts this authority, whatever names a certificate has."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.check_hostname = False
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: float
    ) -> x509.CertificateBuilder:
        now = datetime.fromtimestamp(time.time(), UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=400))
            .not_valid_after(now + timedelta(days=days))
        )


def replace(path: Path, content: bytes) -> None:
    """Replace a file as ACME clients do: by renaming a new one over it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def common_name(shown: object) -> str:
    """Return the common name in a certificate as `ssl.SSLSocket.getpeercert` returns it."""
    assert isinstance(shown, dict)
    return str(dict(pair for each in shown["subject"] for pair in each)["commonName"])


def shown_to(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str | None
) -> tuple[str, TlsStream]:
    """Shake hands in memory; return the common name that the client was shown, and the server's
    side."""
    stream = TlsStream(server)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname=name)
    done = False
    while not done:
        try:
            tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            assert not stream.closed, stream.error
        stream.feed(outgoing.read())
        incoming.write(stream.pending())
    return common_name(tls.getpeercert()), stream
