"""Tables and durations for people at a terminal: values in, lines out.

Columns are as wide as their widest cell; numbers are right-aligned. Cells are escaped, because a
user's name or a reason may come from anywhere. The caller decides about colour, since it knows
whether there is a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from fluxmq.logs import escape

CELL_CHARACTERS_MAX = 120

_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
COLOURS = {"green": "\x1b[32m", "yellow": "\x1b[33m", "red": "\x1b[31m"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title, and whether its cells are numbers."""

    title: str
    number: bool = False


def columns(titles: str) -> tuple[Column, ...]:
    """Return columns by their titles, with commas between; those of numbers begin with ``#``."""
    names = (title.strip() for title in titles.split(","))
    return tuple(Column(name.removeprefix("#"), name.startswith("#")) for name in names)


@dataclass(slots=True)
class TextTable:
    """Rows under titles, and optional totals below a rule."""

    columns: Sequence[Column]
    rows: list[Sequence[str]] = field(default_factory=list)
    totals: Sequence[str] | None = None
    # Colour names by (row, column); only the text is coloured, not the padding.
    colours: dict[tuple[int, int], str] = field(default_factory=dict)

    def with_remarks(self, remarks: Sequence[str], *, colour: bool) -> list[str]:
        """Return the table's lines, followed by values that do not fit into it."""
        return [*self.lines(colour=colour), *(["", *remarks] if remarks else [])]

    def lines(self, *, colour: bool) -> list[str]:
        """Return the table's lines."""
        rows = [[escape(cell, CELL_CHARACTERS_MAX) for cell in row] for row in self.rows]
        totals = None if self.totals is None else list(self.totals)
        everything = [
            [column.title for column in self.columns],
            *rows,
            *([totals] if totals else []),
        ]
        widths = [max(len(row[index]) for row in everything) for index in range(len(self.columns))]

        def line(cells: Sequence[str], paint: dict[int, str]) -> str:
            parts: list[str] = []
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True)):
                padding = " " * (width - len(cell))
                if index in paint:
                    cell = f"{paint[index]}{cell}{_RESET}"
                parts.append(padding + cell if self.columns[index].number else cell + padding)
            return "  ".join(parts).rstrip()

        every = range(len(self.columns))
        titles = [column.title for column in self.columns]
        result = [line(titles, dict.fromkeys(every, _BOLD) if colour else {})]
        for number, row in enumerate(rows):
            paint = {
                index: COLOURS[self.colours[number, index]]
                for index in every
                if colour and (number, index) in self.colours
            }
            result.append(line(row, paint))
        if totals is not None:
            rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
            result.append(f"{_DIM}{rule}{_RESET}" if colour else rule)
            result.append(line(totals, dict.fromkeys(every, _BOLD) if colour else {}))
        return result


def colour_allowed() -> bool:
    """Return whether standard output is a terminal whose user has not refused colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``3d 4h``, ``2m 5s``, ``7s``."""
    whole = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, length)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def grouped(number: int) -> str:
    """Return a count with thousands separators: ``1,234,567``."""
    return f"{number:,}"
