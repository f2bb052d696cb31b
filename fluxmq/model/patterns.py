"""User-supplied regular expressions (permissions, policies) that messages are matched against.

Matching takes time linear in the text, whatever the pattern (RE2), so that no crafted pattern or
name can stall a shard. RE2 has no look-around and no back-references; of these only ``^(?!...)``
and ``^(?=...)`` at the very start of a pattern, which policies use to exclude names, are supported
here, as separate patterns. Everything else is refused on entry.

Pure. Patterns are those of RE2 (a subset of Perl's), ``search`` is unanchored as in RabbitMQ.
"""

from __future__ import annotations

from typing import Any, Final

import re2  # type: ignore[import-untyped]

from fluxmq.model.errors import FluxmqError

PATTERN_BYTES_MAX: Final = 4096
"""Longest pattern: far above any written by hand, and compiled in an instant."""
PROGRAM_BYTES_MAX: Final = 1 << 20
"""Memory of one compiled pattern: thousands may be compiled in each shard."""
LOOKAHEADS_MAX: Final = 8
"""Look-aheads at the start of one pattern: each is matched separately."""


class PatternError(FluxmqError, ValueError):
    """The text is not a pattern that can be matched in linear time; says why."""


class Pattern:
    """A compiled pattern; immutable."""

    __slots__ = ("_conditions", "_search", "text")

    def __init__(self, text: str, *, caseless: bool = False) -> None:
        """Compile; ``caseless``: upper and lower case are the same. Raises PatternError."""
        self.text = text
        options = _CASELESS if caseless else _OPTIONS
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise PatternError("pattern is not text") from None
        if size > PATTERN_BYTES_MAX:
            raise PatternError(f"pattern is longer than {PATTERN_BYTES_MAX} bytes")
        conditions, rest = _split(text)
        self._conditions = tuple(
            (_compile(f"^(?:{inner})", options), wanted) for inner, wanted in conditions
        )
        self._search = _compile(rest, options)

    def search(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in `text`; never in invalid UTF-8."""
        try:
            for condition, wanted in self._conditions:
                if (condition.search(text) is not None) is not wanted:
                    return False
            return self._search.search(text) is not None
        except UnicodeEncodeError:
            return False


def compile_pattern(text: str) -> Pattern:
    """Return the compiled pattern. Raises PatternError."""
    return Pattern(text)


def pattern_problem(text: str) -> str | None:
    """Return why `text` is not a usable pattern, or None when it is."""
    try:
        compile_pattern(text)
    except PatternError as error:
        return str(error)
    return None


def quote(text: str) -> str:
    """Return a pattern that matches just `text`, wherever it is put into another."""
    quoted: str = re2.escape(text)
    return quoted


def _options(*, caseless: bool = False) -> Any:
    options = re2.Options()
    options.case_sensitive = not caseless
    options.log_errors = False
    options.never_capture = True
    options.max_mem = PROGRAM_BYTES_MAX
    return options


_OPTIONS: Final = _options()
_CASELESS: Final = _options(caseless=True)


def _compile(text: str, options: Any = _OPTIONS) -> Any:
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise PatternError(f"pattern cannot be used: {reason}") from None


def _split(text: str) -> tuple[list[tuple[str, bool]], str]:
    """Split the look-aheads off the start of a pattern: each with whether it must match, and the
    rest.

    A pattern that begins so in only one of several alternatives is left whole, and then refused.
    """
    conditions: list[tuple[str, bool]] = []
    if not text.startswith(("^(?!", "^(?=")):
        return conditions, text
    position = 1
    while text.startswith(("(?!", "(?="), position):
        end = _closing(text, position)
        if end < 0 or len(conditions) == LOOKAHEADS_MAX:
            return [], text
        inner = text[position + 3 : end]
        # Compiled alone first: the added context must not turn an invalid pattern into a valid one.
        _compile(inner)
        conditions.append((inner, text[position + 2] == "="))
        position = end + 1
    rest = text[position:]
    if rest[:1] in ("*", "+", "?", "{") or _alternatives(rest):
        return [], text
    return conditions, "^" + rest


def _closing(text: str, opening: int) -> int:
    """Return where the group that opens at `opening` closes, -1 if nowhere."""
    depth = 0
    for position, character in _outside_classes(text, opening) or ():
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                return position
    return -1


def _alternatives(text: str) -> bool:
    """Return whether ``|`` occurs outside every group, or may."""
    depth = 0
    characters = _outside_classes(text, 0)
    if characters is None:
        return True
    for _, character in characters:
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return True
    return False


def _outside_classes(text: str, start: int) -> list[tuple[int, str]] | None:
    """Return characters that are neither escaped nor in a class, with their positions.

    None for a text with ``\\Q``, which would need another parser.
    """
    found: list[tuple[int, str]] = []
    position, inside = start, -1
    while position < len(text):
        character = text[position]
        if character == "\\":
            if text.startswith("\\Q", position):
                return None
            position += 2
            continue
        if inside >= 0:
            first = inside + 1 + text.startswith("^", inside + 1)
            if text.startswith("[:", position) and (end := text.find(":]", position)) > 0:
                position = end + 1
            elif character == "]" and position > first:
                inside = -1
        elif character == "[":
            inside = position
        else:
            found.append((position, character))
        position += 1
    return found
