r"""Escaping of untrusted text before it reaches a log line.

Client ids, topics and peers' reason strings are chosen by strangers. Written raw they could forge a
second line, move a terminal's cursor or reverse the order in which a line is read. Every character
that can do so is written as an escape (``\n``, ``\x1b``, ``\u202e``) and every text is truncated to
a stated length. This module knows characters, not loggers.
"""

from __future__ import annotations

import re

# C0 and C1 controls, DEL, line and paragraph separators, bidirectional overrides and marks, the
# byte order mark, and lone surrogates (which cannot be encoded as UTF-8 at all).
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    named = _NAMED.get(character)
    if named is not None:
        return named
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def escape(text: str, limit: int) -> str:
    """Return `text` with every unsafe character written as an escape, truncated to `limit`
    characters of the original.

    A truncation is marked by a trailing ``…``. The result may be longer than `limit` by the escapes
    it contains (at most six characters for one).
    """
    if len(text) > limit:
        text = text[:limit] + "…"
    return _UNSAFE.sub(_escaped, text)


def escape_lines(text: str, limit: int) -> str:
    """Escape a traceback like `escape`, but keep line ends, and keep the end when truncating, where
    the exception itself is."""
    if len(text) > limit:
        text = "…" + text[-limit:]
    return "\n".join(_UNSAFE.sub(_escaped, line) for line in text.splitlines())
