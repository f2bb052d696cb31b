"""Selectors: conditions on a message in the SQL of JMS and of AMQP's filter expressions.

``compile_selector`` parses a text into a `Selector`, which says whether it matches a message. One
grammar serves both; only names differ, which a `Names` resolves. In falling order of precedence::

    value       literal | name | UTC() | ( condition )
    sign        [+ -] value
    product     sign * / % sign ...
    sum         product + - product ...
    comparison  sum [ = <> != < > <= >= sum | [NOT] BETWEEN sum AND sum | [NOT] IN ( sum, ... )
                | [NOT] LIKE text [ESCAPE character] | IS [NOT] NULL ]
    condition   comparison | NOT condition | condition AND condition | condition OR condition

Keywords are in any case. Texts are in single or double quotes, doubled inside; a name in brackets
may have any characters. What a message does not have is null, and conditions on null are neither
true nor false: only true matches. Values of different kinds are never equal, nor unequal; text can
be compared for order too. ``/`` of integers is not truncated.

Source: Jakarta Messaging 3.1 section 3.8.1; OASIS AMQP Filter Expressions 1.0 section 6.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from fluxmq.protocols.amqp10.selector_terms import (
    ARITHMETIC,
    COMPARISONS,
    Expression,
    Fields,
    Moment,
    Scalar,
    all_of,
    any_of,
    arithmetic,
    clock,
    compared,
    constant,
    is_between,
    is_in,
    is_like,
    is_null,
    named_field,
    negation,
    pattern_pieces,
)

LENGTH_MAX: Final = 4096
"""Characters of a selector, as in RabbitMQ."""
TOKENS_MAX: Final = 200
"""Words and signs of a selector, as in RabbitMQ: each is evaluated for every message."""
DEPTH_MAX: Final = 32
"""Parentheses and NOTs inside each other: parsing and evaluation are recursive."""
_INTEGER_MAX: Final = (1 << 63) - 1


class SelectorError(ValueError):
    """The text is no selector; the text of the error says where and why."""


Names = Callable[[str], str]
"""Returns the key in `Fields` of a name in a selector. Raises `SelectorError`."""


class Selector(NamedTuple):
    """A parsed selector. ``uses_clock``: its answer for a message may change."""

    text: str
    expression: Expression
    uses_clock: bool

    def matches(self, fields: Fields, now_ms: int) -> bool:
        """Return whether the condition is true, not false or unknown."""
        return self.expression(Moment(fields, now_ms)) is True


def compile_selector(text: str, names: Names) -> Selector:
    """Return the selector of a text. Raises `SelectorError`."""
    if len(text) > LENGTH_MAX:
        raise SelectorError(f"more than {LENGTH_MAX} characters")
    parser = _Parser(_tokens(text), names)
    expression = parser.whole()
    return Selector(text, expression, parser.uses_clock)


# --- words ---


class _Token(NamedTuple):
    """A word or sign. ``kind``: ``word``, ``name`` (in brackets), ``value``, ``sign``, ``end``."""

    kind: str
    text: str
    value: Scalar
    at: int


_PATTERN: Final = re.compile(
    r"""\s*(?:
      (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?|\d+[eE][+-]?\d+[dDfF]?|\d+[dDfF](?!\w))
    | 0[xX](?P<bytes>[0-9a-fA-F]+)(?!\w)
    | (?P<integer>\d+)[lL]?(?!\w)
    | '(?P<single>(?:[^']|'')*)'
    | "(?P<double>(?:[^"]|"")*)"
    | \[(?P<name>(?:[^\[\]]|\[\[|\]\])*)\]
    | (?P<word>(?:application-properties\.)?(?:[^\W\d]|[$])[\w$.]*)
    | (?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])
    )""",
    re.VERBOSE,
)
_RESERVED: Final = frozenset(
    (
        *("AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "ESCAPE", "BETWEEN", "TRUE", "FALSE"),
        *("EXISTS", "NAN", "INF", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "UTC", "DATE"),
    )
)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _PATTERN.match(text, at)
        if match is None:
            raise SelectorError(f"unexpected character at {at + 1}: {text[at : at + 10]!r}")
        if len(found) == TOKENS_MAX:
            raise SelectorError(f"more than {TOKENS_MAX} words and signs")
        found.append(_token(match))
        at = match.end()
    found.append(_Token("end", "the end", None, end))
    return found


def _token(match: re.Match[str]) -> _Token:
    kind = match.lastgroup or ""
    said, at = match[kind], match.start(kind)
    if kind in ("word", "sign"):
        return _Token(kind, said, None, at)
    if kind == "name":
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in said):
            raise SelectorError(f"control character in a name at {at}")
        return _Token("name", said.replace("[[", "[").replace("]]", "]"), None, at)
    value: Scalar
    if kind == "float":
        value = float(said.rstrip("dDfF"))
    elif kind == "integer":
        value = int(said)
        if value > _INTEGER_MAX:
            raise SelectorError(f"a number at {at + 1} that 64 bits cannot hold")
    elif kind == "bytes":
        if len(said) % 2:
            raise SelectorError(f"an odd number of hexadecimal digits at {at + 1}")
        value = bytes.fromhex(said)
    else:
        quote = "'" if kind == "single" else '"'
        value = said.replace(quote * 2, quote)
    return _Token("value", said, value, at)


# --- parsing ---


class _Parser:
    """Turns words into one expression."""

    def __init__(self, tokens: list[_Token], names: Names) -> None:
        self._tokens = tokens
        self._names = names
        self._next = 0
        self._depth = 0
        self.uses_clock = False

    def whole(self) -> Expression:
        """Return the expression that all words make."""
        expression = self._either()
        if self._here().kind != "end":
            raise self._unexpected()
        return expression

    def _here(self) -> _Token:
        return self._tokens[self._next]

    def _unexpected(self) -> SelectorError:
        token = self._here()
        return SelectorError(f"unexpected {token.text[:40]!r} at {token.at + 1}")

    def _word(self, *words: str) -> str:
        """Take one of these keywords, or nothing."""
        token = self._here()
        if token.kind == "word" and token.text.upper() in words:
            self._next += 1
            return token.text.upper()
        return ""

    def _sign(self, *signs: str) -> str:
        token = self._here()
        if token.kind == "sign" and token.text in signs:
            self._next += 1
            return token.text
        return ""

    def _must(self, taken: str) -> None:
        if not taken:
            raise self._unexpected()

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SelectorError(f"more than {DEPTH_MAX} parentheses inside each other")

    def _either(self) -> Expression:
        terms = [self._both()]
        while self._word("OR"):
            terms.append(self._both())
        return terms[0] if len(terms) == 1 else any_of(terms)

    def _both(self) -> Expression:
        terms = [self._negated()]
        while self._word("AND"):
            terms.append(self._negated())
        return terms[0] if len(terms) == 1 else all_of(terms)

    def _negated(self) -> Expression:
        if not self._word("NOT"):
            return self._comparison()
        self._deeper()
        expression = negation(self._negated())
        self._depth -= 1
        return expression

    def _comparison(self) -> Expression:
        left = self._sum()
        sign = self._sign(*COMPARISONS)
        if sign:
            return compared(COMPARISONS[sign], left, self._sum())
        if self._word("IS"):
            negative = self._word("NOT")
            self._must(self._word("NULL"))
            return is_null(left, not negative)
        negative = self._word("NOT")
        if self._word("BETWEEN"):
            low = self._sum()
            self._must(self._word("AND"))
            found = is_between(left, low, self._sum())
        elif self._word("IN"):
            found = is_in(left, self._listed())
        elif self._word("LIKE"):
            found = is_like(left, self._pattern())
        elif negative:
            raise self._unexpected()
        else:
            return left
        return negation(found) if negative else found

    def _listed(self) -> list[Expression]:
        self._must(self._sign("("))
        found = [self._sum()]
        while self._sign(","):
            found.append(self._sum())
        self._must(self._sign(")"))
        return found

    def _pattern(self) -> list[str | None]:
        pattern, escape = self._text(), ""
        if self._word("ESCAPE"):
            escape = self._text()
            if len(escape) != 1:
                raise SelectorError("ESCAPE takes one character")
        try:
            return pattern_pieces(pattern, escape)
        except ValueError as error:
            raise SelectorError(str(error)) from None

    def _text(self) -> str:
        value = self._here().value
        if not isinstance(value, str):
            raise self._unexpected()
        self._next += 1
        return value

    def _sum(self) -> Expression:
        left = self._product()
        while sign := self._sign("+", "-"):
            left = arithmetic(ARITHMETIC[sign], left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._signed()
        while sign := self._sign("*", "/", "%"):
            left = arithmetic(ARITHMETIC[sign], left, self._signed())
        return left

    def _signed(self) -> Expression:
        sign = self._sign("+", "-")
        if not sign:
            return self._value()
        return arithmetic(ARITHMETIC[sign], constant(0), self._value())

    def _value(self) -> Expression:
        if self._sign("("):
            self._deeper()
            inside = self._either()
            self._must(self._sign(")"))
            self._depth -= 1
            return inside
        token = self._here()
        if token.kind == "value":
            self._next += 1
            return constant(token.value)
        if token.kind == "name":
            self._next += 1
            return named_field(self._names(token.text))
        if token.kind != "word":
            raise self._unexpected()
        word = token.text.upper()
        if word not in _RESERVED:
            self._next += 1
            return named_field(self._names(token.text))
        if self._word("TRUE", "FALSE"):
            return constant(word == "TRUE")
        if not self._word("UTC"):
            raise self._unexpected()
        self._must(self._sign("("))
        self._must(self._sign(")"))
        self.uses_clock = True
        return clock
