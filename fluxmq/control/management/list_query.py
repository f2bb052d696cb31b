"""Sorting, searching, paging and choice of columns of lists, as RabbitMQ's query parameters ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from fluxmq.control.management.requests import Call, bad_request
from fluxmq.model.patterns import Pattern, pattern_problem

PAGE_SIZE_MAX: Final = 500
PAGE_SIZE: Final = 100
COLUMNS_MAX: Final = 64

JsonRow = dict[str, Any]
_NUMBERS: Final = frozenset({int, float, bool})
"""Types of values that are compared as they are."""


class NamedRecord(Protocol):
    """A record that lists show."""

    @property
    def name(self) -> str:
        """Its name."""


Named = TypeVar("Named", bound=NamedRecord)
Item = TypeVar("Item")


class ListQuery:
    """Paging, filter, order and columns of a request for a list. Raises ApiError for parameters that mean nothing."""

    def __init__(self, call: Call) -> None:
        page = call.text("page")
        self.page = _positive(page, "page") if page else 0
        size = call.text("page_size")
        self.size = min(_positive(size, "page_size"), PAGE_SIZE_MAX) if size else PAGE_SIZE
        self.sort = call.text("sort")
        self.reverse = call.flag("sort_reverse")
        self.columns = [each for each in call.text("columns").split(",") if each][:COLUMNS_MAX]
        self._name = call.text("name")
        self._lowered = self._name.lower()
        self._pattern: Pattern | None = None
        if self._name and call.flag("use_regex"):
            problem = pattern_problem(self._name)
            if problem is not None:
                raise bad_request(f"name: {problem}")
            self._pattern = Pattern(self._name, caseless=True)
        # As in RabbitMQ, ``pagination`` means nothing: KEDA says false and reads pages.
        self.paged = self.page > 0

    def wants(self, name: str) -> bool:
        """Return whether a name is searched for."""
        if self._pattern is not None:
            return self._pattern.search(name)
        return self._lowered in name.lower()

    def wanted(self, records: list[Named]) -> list[Named]:
        """Return the records whose names are searched for."""
        return [each for each in records if self.wants(each.name)] if self._name else records

    def sorted(self, rows: list[JsonRow]) -> list[JsonRow]:
        """Return the rows in order."""
        return self.ordered(rows, [value_of(row, self.sort) for row in rows]) if self.sort else rows

    def ordered(self, items: Sequence[Item], values: Sequence[Any]) -> list[Item]:
        """Return items in the order of their values; those of equal ones as they were."""
        keys = values
        if any(type(value) not in _NUMBERS for value in values):
            keys = [_order(value) for value in values]
        order = sorted(range(len(items)), key=keys.__getitem__, reverse=self.reverse)
        return [items[index] for index in order]

    def page_of(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows of the page; all without paging. Raises ApiError beyond the last page."""
        if not self.paged:
            return rows
        begin = (self.page - 1) * self.size
        if begin and begin >= len(rows):
            raise bad_request(
                f"page_out_of_range: page {self.page} of {-(-len(rows) // self.size)}"
            )
        return rows[begin : begin + self.size]

    def content(self, rows: Sequence[JsonRow], filtered: int, total: int) -> object:
        """Return the body: the rows of the page, with numbers about all, or the bare rows."""
        items = [cut(row, self.columns) for row in rows]
        if not self.paged:
            return items
        return {
            "filtered_count": filtered,
            "item_count": len(items),
            "items": items,
            "page": self.page,
            "page_count": max(1, -(-filtered // self.size)),
            "page_size": self.size,
            "total_count": total,
        }

    def whole(self, rows: list[JsonRow]) -> object:
        """Return the body for rows that are all there."""
        found = self.sorted([row for row in rows if self.wants(str(row.get("name", "")))])
        return self.content(self.page_of(found), len(found), len(rows))


def cut(row: JsonRow, columns: Sequence[str]) -> JsonRow:
    """Return the columns of a row, which may lie deeper: ``message_stats.publish``."""
    if not columns:
        return row
    found: JsonRow = {}
    for column in columns:
        *above, last = column.split(".")
        value = value_of(row, column)
        if value is None and last not in row:
            continue
        place = found
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def value_of(row: JsonRow, column: str) -> Any:
    """Return the value of a column, which may lie deeper; None if there is none."""
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Return a key that orders values of several types."""
    if isinstance(value, bool | int | float):
        return 1, value
    return (0, "") if value is None else (2, str(value))


def _positive(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise bad_request(f"{name} is not a number above 0")
    return int(text)
