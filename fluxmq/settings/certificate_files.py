"""Facts in a certificate file: the host names of its certificate, and the end of its validity.

Pure: bytes in, values out. The library that reads certificates is imported at the first call,
since few processes need it and it costs several megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """Facts in a certificate. ``names``: DNS names of its subjectAltName, in lower case, wildcards
    included (RFC 6125 section 6.4.3); ``expires``: last second of its validity, as Unix time."""

    names: tuple[str, ...]
    expires: float


def certificate_facts(pem: bytes) -> CertificateFacts:
    """Return the facts of the first certificate in a PEM file: the server's own, which stands
    before its intermediates. Raises ValueError for anything else."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(pem)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = found.value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = []
    expires = certificate.not_valid_after_utc.timestamp()
    return CertificateFacts(tuple(name.lower() for name in names), expires)
