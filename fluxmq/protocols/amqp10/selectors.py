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
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

LENGTH_MAX: Final = 4096
"""Characters of a selector, as in RabbitMQ."""
TOKENS_MAX: Final = 200
"""Words and signs of a selector, as in RabbitMQ: each is evaluated for every message."""
DEPTH_MAX: Final = 32
"""Parentheses and NOTs inside each other: parsing and evaluation are recursive."""
LIKE_STEPS_MAX: Final = 100_000
"""Comparisons that one LIKE may take: a pattern of many wildcards could take hours for one message.
Beyond it, the condition is unknown."""

_INTEGER_MAX: Final = (1 << 63) - 1

Scalar = bool | int | float | str | bytes | None
"""A value of a message or an expression; None for null."""
Fields = Mapping[str, Scalar]
"""Values of a message by the names of a `Names`' answers."""


class SelectorError(ValueError):
    """The text is no selector; the text of the error says where and why."""


Names = Callable[[str], str]
"""Returns the key in `Fields` of a name in a selector. Raises `SelectorError`."""


class Moment(NamedTuple):
    """What a selector is evaluated on: a message's fields, and the time in milliseconds."""

    fields: Fields
    now_ms: int


Expression = Callable[[Moment], Scalar]


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
        return terms[0] if len(terms) == 1 else _any_of(terms)

    def _both(self) -> Expression:
        terms = [self._negated()]
        while self._word("AND"):
            terms.append(self._negated())
        return terms[0] if len(terms) == 1 else _all_of(terms)

    def _negated(self) -> Expression:
        if not self._word("NOT"):
            return self._comparison()
        self._deeper()
        expression = _negation(self._negated())
        self._depth -= 1
        return expression

    def _comparison(self) -> Expression:
        left = self._sum()
        sign = self._sign(*_COMPARISONS)
        if sign:
            return _compared(_COMPARISONS[sign], left, self._sum())
        if self._word("IS"):
            negative = self._word("NOT")
            self._must(self._word("NULL"))
            return _is_null(left, not negative)
        negative = self._word("NOT")
        if self._word("BETWEEN"):
            low = self._sum()
            self._must(self._word("AND"))
            least = _compared(_at_least, left, low)
            found = _all_of([least, _compared(_at_most, left, self._sum())])
        elif self._word("IN"):
            found = _is_in(left, self._listed())
        elif self._word("LIKE"):
            found = _like(left, self._pattern())
        elif negative:
            raise self._unexpected()
        else:
            return left
        return _negation(found) if negative else found

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
        return _pieces(pattern, escape)

    def _text(self) -> str:
        value = self._here().value
        if not isinstance(value, str):
            raise self._unexpected()
        self._next += 1
        return value

    def _sum(self) -> Expression:
        left = self._product()
        while sign := self._sign("+", "-"):
            left = _arithmetic(_ARITHMETIC[sign], left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._signed()
        while sign := self._sign("*", "/", "%"):
            left = _arithmetic(_ARITHMETIC[sign], left, self._signed())
        return left

    def _signed(self) -> Expression:
        sign = self._sign("+", "-")
        if not sign:
            return self._value()
        return _arithmetic(_ARITHMETIC[sign], _constant(0), self._value())

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
            return _constant(token.value)
        if token.kind == "name":
            self._next += 1
            return _field(self._names(token.text))
        if token.kind != "word":
            raise self._unexpected()
        word = token.text.upper()
        if word not in _RESERVED:
            self._next += 1
            return _field(self._names(token.text))
        if self._word("TRUE", "FALSE"):
            return _constant(word == "TRUE")
        if not self._word("UTC"):
            raise self._unexpected()
        self._must(self._sign("("))
        self._must(self._sign(")"))
        self.uses_clock = True
        return _clock


# --- evaluation ---


def _constant(value: Scalar) -> Expression:
    return lambda _: value


def _field(key: str) -> Expression:
    return lambda moment: moment.fields.get(key)


def _clock(moment: Moment) -> Scalar:
    return moment.now_ms


def _any_of(terms: list[Expression]) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        unknown = False
        for term in terms:
            found = term(moment)
            if found is True:
                return True
            unknown |= found is not False
        return None if unknown else False

    return evaluate


def _all_of(terms: list[Expression]) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        unknown = False
        for term in terms:
            found = term(moment)
            if found is False:
                return False
            unknown |= found is not True
        return None if unknown else True

    return evaluate


def _negation(term: Expression) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        found = term(moment)
        return not found if isinstance(found, bool) else None

    return evaluate


def _is_null(term: Expression, expected: bool) -> Expression:
    return lambda moment: (term(moment) is None) is expected


def _comparable(left: Scalar, right: Scalar) -> bool:
    """Return whether two values are of one kind: numbers, texts, bytes or booleans."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    if isinstance(left, int | float):
        return isinstance(right, int | float)
    return type(left) is type(right)


def equal(left: Scalar, right: Scalar) -> bool:
    """Return whether two values are of one kind and equal."""
    return _comparable(left, right) and left == right


def _unequal(left: Scalar, right: Scalar) -> bool:
    return _comparable(left, right) and left != right


def _below(left: Scalar, right: Scalar) -> bool:
    if isinstance(left, bool) or not _comparable(left, right):
        return False
    return left < right  # type: ignore[operator]  # of one kind


def _at_most(left: Scalar, right: Scalar) -> bool:
    return _below(left, right) or (not isinstance(left, bool) and equal(left, right))


def _above(left: Scalar, right: Scalar) -> bool:
    return _below(right, left)


def _at_least(left: Scalar, right: Scalar) -> bool:
    return _at_most(right, left)


_COMPARISONS: Final[dict[str, Callable[[Scalar, Scalar], bool]]] = {
    "=": equal,
    "<>": _unequal,
    "!=": _unequal,
    "<": _below,
    "<=": _at_most,
    ">": _above,
    ">=": _at_least,
}


def _compared(
    compare: Callable[[Scalar, Scalar], bool], left: Expression, right: Expression
) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        one, other = left(moment), right(moment)
        return None if one is None or other is None else compare(one, other)

    return evaluate


def _is_in(left: Expression, listed: list[Expression]) -> Expression:
    return lambda moment: _found_in(left(moment), [each(moment) for each in listed])


def _found_in(value: Scalar, listed: list[Scalar]) -> bool | None:
    if value is None:
        return None
    if any(equal(value, each) for each in listed):
        return True
    return None if None in listed else False


Number = int | float


def _divided(left: Number, right: Number) -> Number | None:
    return left / right if right else None


def _remainder(left: Number, right: Number) -> Number | None:
    """Return what is left of a division of integers towards zero."""
    if not isinstance(left, int) or not isinstance(right, int) or not right:
        return None
    found = abs(left) % abs(right)
    return -found if left < 0 else found


_ARITHMETIC: Final[dict[str, Callable[[Number, Number], Number | None]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divided,
    "%": _remainder,
}


def _arithmetic(
    operation: Callable[[Number, Number], Number | None], left: Expression, right: Expression
) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        one, other = left(moment), right(moment)
        if not _is_number(one) or not _is_number(other):
            return None
        try:
            return operation(one, other)  # type: ignore[arg-type]  # numbers
        except OverflowError:
            return None

    return evaluate


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- patterns ---

_ANY: Final = None
"""A piece of a pattern that stands for one character, as ``_``."""


def _pieces(pattern: str, escape: str) -> list[str | None]:
    """Return a pattern as characters, None for ``_`` and "" for ``%``."""
    found: list[str | None] = []
    escaped = False
    for character in pattern:
        if escaped:
            found.append(character)
            escaped = False
        elif character == escape:
            escaped = True
        elif character == "_":
            found.append(_ANY)
        elif character != "%":
            found.append(character)
        elif not found or found[-1] != "":
            found.append("")
    if escaped:
        raise SelectorError("a pattern that ends in its escape character")
    return found


def _like(left: Expression, pieces: list[str | None]) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        text = left(moment)
        return like(text, pieces) if isinstance(text, str) else None

    return evaluate


def like(text: str, pieces: list[str | None]) -> bool | None:
    """Return whether a text is of a pattern, None if that takes more than `LIKE_STEPS_MAX`.

    A ``%`` takes as little as possible, and only the last one takes more when the rest does not
    match, so that time is bounded by the product of both lengths.
    """
    at = piece = steps = 0
    wild, again = -1, 0
    while at < len(text):
        steps += 1
        if steps > LIKE_STEPS_MAX:
            return None
        wanted = pieces[piece] if piece < len(pieces) else "\0\0"
        if wanted == "":
            wild, again = piece, at
            piece += 1
        elif wanted is _ANY or wanted == text[at]:
            piece += 1
            at += 1
        elif wild >= 0:
            piece = wild + 1
            again += 1
            at = again
        else:
            return False
    return all(left == "" for left in pieces[piece:])
