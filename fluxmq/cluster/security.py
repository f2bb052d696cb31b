"""Authentication between nodes: mutual TLS with a node's name in its certificate, or plaintext on
loopback.

Names are compared according to RFC 9525 (and RFC 6125 before it): the DNS names of the
certificate's subject alternative names; the common name counts only if there are none. Both sides
are checked the same way. Names with wildcards match no node.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from fluxmq.cluster.errors import SecurityError
from fluxmq.cluster.guard import Guard
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.values import is_loopback

_PEM: Final = b"-----BEGIN "


class Security:
    """A node's knowledge of others. ``members``: the names of the other nodes; ``own``: this one's;
    ``hosts``: their addresses by the settings; ``guard``: the shared state of this process's
    connections.
    """

    def __init__(
        self,
        own: str,
        members: Iterable[str],
        *,
        allow_plaintext: bool = False,
        certificate: str = "",
        key: str = "",
        authority: str = "",
        hosts: Iterable[str] = (),
    ) -> None:
        """``certificate``, ``key``, ``authority``: files in PEM format; none for plaintext. Raises
        SecurityError.
        """
        self.own = own
        self.members = frozenset(members) - {own}
        self.hosts = frozenset(hosts)
        self.guard = Guard()
        self.tls = bool(certificate)
        self._allow_plaintext = allow_plaintext
        self._files = (certificate, key, authority)
        self.server_context: ssl.SSLContext | None = None
        """Context for listening: clients must show a certificate. None for plaintext."""
        self.client_context: ssl.SSLContext | None = None
        """Context for dialling."""
        self.reload()

    def reload(self) -> None:
        """Read the files again, for connections from now on. Raises SecurityError, and keeps what was
        read before then."""
        if self.tls:
            server = _context(ssl.PROTOCOL_TLS_SERVER, *self._files)
            self.client_context = _context(ssl.PROTOCOL_TLS_CLIENT, *self._files)
            self.server_context = server

    @classmethod
    def of(cls, cluster: ClusterSettings) -> Security:
        """Return the security of the settings. Raises SecurityError for an unreadable file, or one
        without a certificate.
        """
        transport = cluster.transport
        members, hosts = _others(cluster)
        if not transport.tls_enabled:
            plaintext = transport.allow_plaintext
            return cls(cluster.node_id, members, allow_plaintext=plaintext, hosts=hosts)
        return cls(
            cluster.node_id,
            members,
            certificate=_pem("tls_cert_file", transport.tls_cert_file),
            key=_pem("tls_key_file", transport.tls_key_file),
            authority=_pem("tls_ca_file", transport.tls_ca_file),
            hosts=hosts,
        )

    def follow(self, cluster: ClusterSettings) -> None:
        """Trust the nodes that these settings name, and no others."""
        members, hosts = _others(cluster)
        self.members, self.hosts = frozenset(members) - {self.own}, frozenset(hosts)

    def check_address(self, address: str) -> None:
        """Raise SecurityError for an address whose plaintext others may read and forge."""
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        if not (self.tls or self._allow_plaintext or is_loopback(host)):
            raise SecurityError(
                f"{address} is not a loopback address, and there is neither TLS between nodes"
                " (cluster.transport.tls_enabled) nor cluster.transport.allow_plaintext"
            )

    def problem_with(self, node: str, shown: Mapping[str, Any] | None) -> str:
        """Return why the node that claims to be ``node`` is not trusted; empty if it is.

        ``shown``: the content of its certificate, as `ssl.SSLSocket.getpeercert` returns it.
        """
        if node == self.own:
            return "that is this node's own name"
        if node not in self.members:
            return "it is not among the nodes of cluster.transport.peers and cluster.raft.peers"
        if not self.tls:
            return ""
        found = (shown or {}).get("subjectAltName", ())
        names = [value for kind, value in found if kind == "DNS"]
        if not found:
            subject = [pair for each in (shown or {}).get("subject", ()) for pair in each]
            names = [value for kind, value in subject if kind == "commonName"]
        if node.lower() in (name.lower() for name in names):
            return ""
        return f"its certificate names {', '.join(names)[:200] or 'nobody'}"


def _others(cluster: ClusterSettings) -> tuple[set[str], set[str]]:
    """Return the names of the other nodes in the settings, and the hosts of their addresses."""
    peers = [cluster.transport.peers, cluster.raft.peers]
    peers += [group.peers for group in cluster.raft.groups.values()]
    members = {node for each in peers for node in each}
    return members, {address.rpartition(":")[0] for each in peers for address in each.values()}


def _context(protocol: Any, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """Return a context for mutual TLS; names are checked afterwards, the same on either side."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    try:
        # Never prompt for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise SecurityError(
            f"cluster.transport.tls_cert_file and tls_key_file: {certificate} and {key} are no pair: {error}"
        ) from error
    try:
        context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise SecurityError(
            f"cluster.transport.tls_ca_file: {authority} cannot be used: {error}"
        ) from error
    return context


def _pem(key: str, path: str | None) -> str:
    """Check and return the file of a setting."""
    where = f"cluster.transport.{key}"
    if path is None:
        raise SecurityError(f"{where} is not given")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SecurityError(f"{where}: {path} cannot be read: {error.strerror}") from error
    if _PEM not in data:
        raise SecurityError(f"{where}: {path} is not in PEM format")
    return path
