"""Outcomes of logins, which each protocol translates into its own codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LoginOutcome(Enum):
    """Outcome of checking a client's credentials."""

    ACCEPTED = "accepted"
    WRONG = "wrong"
    """The name or the password is wrong; an unknown name looks the same."""
    DENIED = "denied"
    """A client without a name, or the holder of this certificate, is not let in."""
    UNAVAILABLE = "unavailable"
    """The users are not known yet: the client may try again."""
    BANNED = "banned"
    """An administrator has banned the address, the user or the client id."""
    BUSY = "busy"
    """Too many logins are waiting, or too many failed: the client may try again."""


@dataclass(slots=True, frozen=True)
class AuthResult:
    """Result of a login: its outcome and, if it is accepted, the principal; empty for an anonymous
    client."""

    outcome: LoginOutcome
    username: str = ""
