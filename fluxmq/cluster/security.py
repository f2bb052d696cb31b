"""Who may speak to whom, and how: mutual TLS with a node's name in its certificate, or plaintext on loopback.

Names are compared as RFC 9525 (and RFC 6125 before it) has it: the DNS names of the certificate's subject alternative
names; the common name counts only where there are none. gRPC compares the names of those that are dialled in the same way.
Names with wildcards name no node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from fluxmq.cluster.channels import CLIENT
from fluxmq.cluster.errors import SecurityError
from fluxmq.settings.clustering import Cluster
from fluxmq.settings.values import is_loopback

_PEM: Final = b"-----BEGIN "


class Security:
    """What a node needs to know of others. ``members``: the names of the other nodes; ``own``: this one's."""

    def __init__(
        self,
        own: str,
        members: Iterable[str],
        *,
        allow_plaintext: bool = False,
        certificate: bytes = b"",
        key: bytes = b"",
        authority: bytes = b"",
    ) -> None:
        self.own = own
        self.members = frozenset(members) - {own}
        self.tls = bool(certificate)
        self._allow_plaintext = allow_plaintext
        self._certificate, self._key, self._authority = certificate, key, authority

    @classmethod
    def of(cls, cluster: Cluster) -> Security:
        """As the settings want it. Raises SecurityError when a file cannot be read or is none of a certificate."""
        transport = cluster.transport
        members = {*transport.peers, *cluster.raft.peers}
        for group in cluster.raft.groups.values():
            members.update(group.peers)
        if not transport.tls_enabled:
            return cls(cluster.node_id, members, allow_plaintext=transport.allow_plaintext)
        return cls(
            cluster.node_id,
            members,
            certificate=_pem("tls_cert_file", transport.tls_cert_file),
            key=_pem("tls_key_file", transport.tls_key_file),
            authority=_pem("tls_ca_file", transport.tls_ca_file),
        )

    def check_address(self, address: str) -> None:
        """Raise SecurityError for an address where plaintext is spoken, and others may read and forge it."""
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        if not (self.tls or self._allow_plaintext or is_loopback(host)):
            raise SecurityError(
                f"{address} is not a loopback address, and there is neither TLS between nodes"
                " (cluster.transport.tls_enabled) nor cluster.transport.allow_plaintext"
            )

    def server_credentials(self) -> Any:
        """What a server of gRPC is given; None for plaintext. Whoever connects must show a certificate."""
        if not self.tls:
            return None
        pair = ((self._key, self._certificate),)
        return grpc.ssl_server_credentials(pair, self._authority, require_client_auth=True)

    def channel(self, address: str, node: str) -> Any:
        """A channel to a node, which must prove its name. Raises SecurityError."""
        self.check_address(address)
        if not self.tls:
            return grpc.aio.insecure_channel(address, options=CLIENT)
        credentials = grpc.ssl_channel_credentials(self._authority, self._key, self._certificate)
        names = (("grpc.ssl_target_name_override", node), ("grpc.default_authority", node))
        return grpc.aio.secure_channel(address, credentials, options=(*CLIENT, *names))

    def problem_with(self, node: str, shown: Mapping[str, Iterable[bytes]]) -> str:
        """Why whoever calls itself ``node`` is not believed; empty if it is.

        ``shown``: gRPC's authentication context of the connection, with what the certificate says.
        """
        if node == self.own:
            return "that is this node's own name"
        if node not in self.members:
            return "it is not among the nodes of cluster.transport.peers and cluster.raft.peers"
        if not self.tls:
            return ""
        names = [each.decode("utf-8", "replace") for each in shown.get("peer_dns", ())]
        if not names and not any(True for _ in shown.get("x509_subject_alternative_name", ())):
            names = [each.decode("utf-8", "replace") for each in shown.get("x509_common_name", ())]
        if node.lower() in (name.lower() for name in names):
            return ""
        return f"its certificate names {', '.join(names)[:200] or 'nobody'}"


def _pem(key: str, path: str | None) -> bytes:
    where = f"cluster.transport.{key}"
    if path is None:
        raise SecurityError(f"{where} is not given")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SecurityError(f"{where}: {path} cannot be read: {error.strerror}") from error
    if _PEM not in data:
        raise SecurityError(f"{where}: {path} is not in PEM format")
    return data
