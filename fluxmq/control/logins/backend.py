"""Interface of a login backend: its question, its answers and its failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.auth.users import VhostPermission
from fluxmq.ipc.login_messages import LoginQuestion
from fluxmq.model.errors import FluxmqError


class BackendError(FluxmqError):
    """A backend cannot be asked now; says why."""


class AskLaterError(BackendError):
    """A backend could decide a moment later, and is not to blame."""


class BackendSettingsError(FluxmqError):
    """A backend cannot be made from its settings; the text names the setting."""


@dataclass(frozen=True, slots=True)
class LoginGrant:
    """An accepted login. ``scopes``: without prefix, where rights come from a token; otherwise
    ``permissions`` counts. ``expires_at``: seconds since the epoch, 0 for never.
    ``resources``, ``topics``: whether the backend decides about them by the operation."""

    name: str
    tags: tuple[str, ...] = ()
    permissions: tuple[VhostPermission, ...] = ()
    scopes: tuple[str, ...] = ()
    expires_at: float = 0.0
    resources: bool = False
    topics: bool = False


Verdict = LoginGrant | str
"""A grant, or the reason for a refusal, for the log."""


NOT_TEXT: Final = "the password is not text"


def text_of(password: bytes) -> str | None:
    """Return a password as text, None if it is not UTF-8."""
    try:
        return password.decode()
    except UnicodeDecodeError:
        return None


class LoginBackend(Protocol):
    """One backend."""

    async def check(self, question: LoginQuestion, vhosts: Sequence[str]) -> Verdict:
        """Decide a login; ``vhosts``: the broker's virtual hosts. Raises BackendError."""

    async def allows(self, question: RightsQuestion) -> bool:
        """Decide about one operation of a user whom this backend has let in. Raises
        BackendError."""

    async def stop(self) -> None:
        """Close connections and threads."""
