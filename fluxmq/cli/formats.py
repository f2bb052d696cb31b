"""Rows as text for people, for scripts written for rabbitmqctl, and for programs. Pure."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from fluxmq.logs import escape

FORMATTERS: Final = ("table", "pretty_table", "json", "csv")
"""Output formats. ``table``, rabbitmqctl's default, is one line per row with tabs between cells."""

_CELL_CHARACTERS_MAX: Final = 65_536


def render(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    formatter: str,
    *,
    titles: bool = True,
) -> list[str]:
    """Return the lines of a list in one of `FORMATTERS`, with or without a header line."""
    if formatter == "json":
        return [orjson.dumps([{name: row.get(name) for name in columns} for row in rows]).decode()]
    cells = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    if formatter == "csv":
        return _csv([list(columns), *cells] if titles else cells)
    safe = [[escape(cell, _CELL_CHARACTERS_MAX) for cell in line] for line in cells]
    if formatter == "pretty_table":
        return _framed(list(columns), safe, titles) if rows else []
    return ["\t".join(line) for line in ([list(columns), *safe] if titles and rows else safe)]


def said(options: argparse.Namespace, text: str) -> list[str]:
    """Return a progress message as lines; nothing when output is quiet or machine-readable."""
    quiet = options.quiet or options.silent
    return [] if quiet or getattr(options, "formatter", "table") in ("json", "csv") else [text]


def table(
    options: argparse.Namespace,
    title: str,
    rows: list[Mapping[str, Any]],
    columns: tuple[str, ...],
) -> list[str]:
    """Return a list under its title."""
    titles = not (options.no_table_headers or options.silent)
    return said(options, title) + render(rows, columns, options.formatter, titles=titles)


def _cell(column: str, value: Any) -> str:
    """Return a value of a column; arguments are shown as rabbitmqctl shows them."""
    if column == "arguments" and isinstance(value, Mapping):
        return _term(value)
    return text(value)


def _term(value: Any) -> str:
    """Return an argument as an Erlang term: a table as a list of pairs."""
    if isinstance(value, Mapping):
        pairs = (f"{{{_term(str(name))},{_term(each)}}}" for name, each in value.items())
        return f"[{','.join(pairs)}]"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_term, value))}]"
    if isinstance(value, str):
        return orjson.dumps(value).decode()
    return text(value)


def text(value: Any) -> str:
    """Return a value as cell text: empty for None, lists in brackets, maps as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(text(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return orjson.dumps(dict(value)).decode() if value else "[]"
    return str(value)


def _csv(lines: Sequence[Sequence[str]]) -> list[str]:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(lines)
    return written.getvalue().splitlines()


def _framed(columns: list[str], cells: list[list[str]], titles: bool) -> list[str]:
    everything = [columns, *cells] if titles else cells
    widths = [max(len(line[index]) for line in everything) for index in range(len(columns))]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    lines = [rule("┌", "┬", "┐")]
    for number, line in enumerate(everything):
        if number:
            lines.append(rule("├", "┼", "┤"))
        padded = (f" {cell:<{width}} " for cell, width in zip(line, widths, strict=True))
        lines.append("│" + "│".join(padded) + "│")
    return [*lines, rule("└", "┴", "┘")]
