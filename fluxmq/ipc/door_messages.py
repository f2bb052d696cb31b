"""Messages about who may connect: certificates to load again, and bans.

control -> shard             reload_certificates, bans (after hello and at each change)
control -> acceptor          bans
fluxmqctl -> control         ban, unban, list_bans
control -> another node's    bans_wanted
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.auth.bans import BANS_MAX, REASON_CHARACTERS_MAX, Ban, ban_problem
from fluxmq.ipc.messages import MessageBody, Natural, Word

RELOAD_CERTIFICATES: Final = "reload_certificates"
BANS: Final = "bans"
BAN: Final = "ban"
UNBAN: Final = "unban"
LIST_BANS: Final = "list_bans"
BANS_WANTED: Final = "bans_wanted"


class CertificatesReloaded(MessageBody, frozen=True):
    """A shard's answer: it has loaded its certificates again, or has logged why not."""


class BanList(MessageBody, frozen=True):
    """All bans: from control to the processes that enforce them, and the answer to list_bans."""

    bans: Annotated[tuple[Ban, ...], Meta(max_length=BANS_MAX)]

    def unusable(self) -> str | None:
        """Return the fault of a ban."""
        return next(filter(None, (ban_problem(ban.kind, ban.value) for ban in self.bans)), None)


class BanRequest(MessageBody, frozen=True):
    """Ban an address, a user or a client id. ``seconds``: for how long; None for good."""

    kind: Word
    value: Annotated[str, Meta(max_length=65_535)]
    seconds: Annotated[float, Meta(gt=0)] | None = None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""

    def unusable(self) -> str | None:
        """Return the ban's fault."""
        return ban_problem(self.kind, self.value)


class UnbanRequest(MessageBody, frozen=True):
    """Lift a ban."""

    kind: Word
    value: Annotated[str, Meta(max_length=65_535)]

    def unusable(self) -> str | None:
        """Return the fault of what is to be unbanned."""
        return ban_problem(self.kind, self.value)


class BanChanged(MessageBody, frozen=True):
    """The answer to ban and unban. ``closed``: connections that were closed; ``unconfirmed``:
    processes, and other nodes, that have not confirmed the change in time."""

    closed: Natural
    unconfirmed: Annotated[tuple[str, ...], Meta(max_length=1024)]


class BansWanted(MessageBody, frozen=True):
    """Question of a node that has changed the cluster's bans, answered with `BansApplied` when they
    are in force on the other one. ``revision``: etcd's."""

    revision: Natural


class BansApplied(MessageBody, frozen=True):
    """A process's or another node's answer: the connections that were closed."""

    closed: Natural
