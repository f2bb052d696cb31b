"""The members of etcd as those that run tell, and how this node's member may start.

A member whose directory was lost has forgotten its votes, and cannot catch up under its old
identity: the others have to remove it and to admit it anew first. The members themselves know which
of them have run: ``/members`` at their addresses for each other, as etcd's own discovery of a
running cluster uses it.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from fluxmq.settings.clustering import ClusterSettings

ASK_SECONDS: Final = 1.0
"""Time for a member to answer."""
ANSWER_BYTES_MAX: Final = 1 << 20
"""Size of an answer: a cluster has a handful of members."""


class ToldMember(NamedTuple):
    """A member. ``name`` is empty until one that was admitted has started; ``started``: whether it
    has ever run."""

    name: str
    urls: tuple[str, ...]
    started: bool


class Admission(StrEnum):
    """How a member without a directory may start."""

    FIRST = "first"
    """With the others, for the first time."""
    ADMITTED = "admitted"
    """Into a cluster that runs, which has admitted it."""
    WAITING = "waiting"
    """Not yet: the others have to admit it."""


def admission_of(members: Iterable[ToldMember], url: str) -> Admission:
    """Return the admission of the member at this address, by what another one tells."""
    for member in members:
        if url in member.urls:
            if not member.name:
                return Admission.ADMITTED
            return Admission.WAITING if member.started else Admission.FIRST
    return Admission.WAITING


def initial_cluster(members: Iterable[ToldMember], name: str) -> str:
    """Return the members that run as etcd takes them; ``name``: of the one that is admitted."""
    return ",".join(f"{each.name or name}={url}" for each in members for url in each.urls)


def members_told(cluster: ClusterSettings, others: Iterable[str]) -> list[ToldMember]:
    """Return the members as the first of these addresses tells that answers; none if none does."""
    context = context_of(cluster)
    for url in others:
        try:
            with urllib.request.urlopen(
                f"{url}/members", timeout=ASK_SECONDS, context=context
            ) as answer:
                return _decode(json.loads(answer.read(ANSWER_BYTES_MAX)))
        except (OSError, ValueError, urllib.error.URLError):
            continue
    return []


def _decode(answer: Any) -> list[ToldMember]:
    """Decode an answer. Raises ValueError."""
    try:
        return [
            ToldMember(
                str(each.get("name", "")),
                tuple(str(url) for url in each["peerURLs"]),
                bool(each.get("clientURLs")),
            )
            for each in answer
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not a list of members") from error


def context_of(cluster: ClusterSettings) -> ssl.SSLContext | None:
    """Return what a connection to a member needs besides; None without TLS."""
    transport = cluster.transport
    if not transport.tls_enabled:
        return None
    context = ssl.create_default_context(cafile=transport.tls_ca_file)
    context.load_cert_chain(transport.tls_cert_file or "", transport.tls_key_file)
    return context
