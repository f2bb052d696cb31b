"""The backends that one login is checked by, in order. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fluxmq.auth.logins import INTERNAL, OAUTH2

# A JOSE header is a JSON object: in base64, '{"' is always eyJ, and '{ ' or a line break may follow
# the brace in tokens that a person wrote.
_TOKEN: Final = re.compile(rb"e[yw][A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


def looks_like_token(password: bytes) -> bool:
    """Return whether a password has the form of a signed token (RFC 7515 section 7.1)."""
    return _TOKEN.fullmatch(password) is not None


def steps(backends: Sequence[str], known: bool, password: bytes) -> tuple[str, ...]:
    """Return the backends to ask, in order; none if none can let this login in.

    `known`: whether the internal backend has a user of this name. A token is given to the backend
    for tokens alone, if there is one, and that backend gets nothing else: a token that was sent to
    another server could be used there. An unknown name costs the internal backend's work where no
    other is asked, so that time does not tell whether a user exists.
    """
    if OAUTH2 in backends and looks_like_token(password):
        return (OAUTH2,)
    others = [each for each in backends if each != OAUTH2]
    asked = tuple(each for each in others if each != INTERNAL or known)
    return asked or tuple(others)
