"""Terms of selectors: functions that evaluate one part of a condition on a message.

Each function here returns such a function. `selectors` puts them together, and says what they mean.
What a message does not have is None, and so is what cannot be computed: unknown.

Source: Jakarta Messaging 3.1 section 3.8.1; OASIS AMQP Filter Expressions 1.0 section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

LIKE_STEPS_MAX: Final = 100_000
"""Comparisons that one LIKE may take: a pattern of many wildcards could take hours for one message.
Beyond it, the condition is unknown."""

Scalar = bool | int | float | str | bytes | None
"""A value of a message or an expression; None for null."""
Fields = Mapping[str, Scalar]
"""Values of a message by the names of a `Names`' answers."""


class Moment(NamedTuple):
    """What a selector is evaluated on: a message's fields, and the time in milliseconds."""

    fields: Fields
    now_ms: int


Expression = Callable[[Moment], Scalar]


def constant(value: Scalar) -> Expression:
    return lambda _: value


def named_field(key: str) -> Expression:
    return lambda moment: moment.fields.get(key)


def clock(moment: Moment) -> Scalar:
    return moment.now_ms


def any_of(terms: list[Expression]) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        unknown = False
        for term in terms:
            found = term(moment)
            if found is True:
                return True
            unknown |= found is not False
        return None if unknown else False

    return evaluate


def all_of(terms: list[Expression]) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        unknown = False
        for term in terms:
            found = term(moment)
            if found is False:
                return False
            unknown |= found is not True
        return None if unknown else True

    return evaluate


def negation(term: Expression) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        found = term(moment)
        return not found if isinstance(found, bool) else None

    return evaluate


def is_null(term: Expression, expected: bool) -> Expression:
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


def at_most(left: Scalar, right: Scalar) -> bool:
    return _below(left, right) or (not isinstance(left, bool) and equal(left, right))


def _above(left: Scalar, right: Scalar) -> bool:
    return _below(right, left)


def at_least(left: Scalar, right: Scalar) -> bool:
    return at_most(right, left)


COMPARISONS: Final[dict[str, Callable[[Scalar, Scalar], bool]]] = {
    "=": equal,
    "<>": _unequal,
    "!=": _unequal,
    "<": _below,
    "<=": at_most,
    ">": _above,
    ">=": at_least,
}


def compared(
    compare: Callable[[Scalar, Scalar], bool], left: Expression, right: Expression
) -> Expression:
    def evaluate(moment: Moment) -> Scalar:
        return _known(compare, left(moment), right(moment))

    return evaluate


def _known(compare: Callable[[Scalar, Scalar], bool], left: Scalar, right: Scalar) -> bool | None:
    return None if left is None or right is None else compare(left, right)


def is_between(left: Expression, low: Expression, high: Expression) -> Expression:
    """Return whether a value is within bounds; it is evaluated once, since conditions inside each
    other would take time exponential in their depth."""

    def evaluate(moment: Moment) -> Scalar:
        value = left(moment)
        above = _known(at_least, value, low(moment))
        if above is False:
            return False
        below = _known(at_most, value, high(moment))
        return below if above or below is False else None

    return evaluate


def is_in(left: Expression, listed: list[Expression]) -> Expression:
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


ARITHMETIC: Final[dict[str, Callable[[Number, Number], Number | None]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divided,
    "%": _remainder,
}


def arithmetic(
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


def pattern_pieces(pattern: str, escape: str) -> list[str | None]:
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
        raise ValueError("a pattern that ends in its escape character")
    return found


def is_like(left: Expression, pieces: list[str | None]) -> Expression:
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
