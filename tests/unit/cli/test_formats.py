"""Rows as text, in every form."""

import csv
import json
from typing import Any

import pytest

from fluxmq.cli.formats import FORMATTERS, render, text

COLUMNS = ("name", "messages", "arguments")
ROWS: list[dict[str, Any]] = [
    {"name": "a", "messages": 3, "arguments": {}, "other": 1},
    {"name": 'b\t"ü", x', "messages": None, "arguments": {"x-max-length": 5}},
]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        ("a", "a"),
        (3, "3"),
        (True, "true"),
        (False, "false"),
        (1.5, "1.5"),
        ([], "[]"),
        (["administrator", 1, None], "[administrator, 1, ]"),
        ({}, "[]"),
        ({"a": [1]}, '{"a":[1]}'),
    ],
)
def test_values(value, expected):
    assert text(value) == expected


def test_lines_with_tabs():
    assert render(ROWS, COLUMNS, "table") == [
        "name\tmessages\targuments",
        "a\t3\t[]",
        'b\\t"ü", x\t\t[{"x-max-length",5}]',
    ]
    assert render(ROWS[:1], COLUMNS, "table", titles=False) == ["a\t3\t[]"]
    assert render([], COLUMNS, "table") == []


def test_arguments_are_terms():
    given = {"x-dead-letter-exchange": "", "a": [1, "b"], "t": {"u": True}, "n": None}
    expected = '[{"x-dead-letter-exchange",""},{"a",[1,"b"]},{"t",[{"u",true}]},{"n",}]'
    assert render([{"arguments": given}], ("arguments",), "table", titles=False) == [expected]


def test_framed_table():
    assert render(ROWS[:1], ("name", "messages"), "pretty_table") == [
        "┌──────┬──────────┐",
        "│ name │ messages │",
        "├──────┼──────────┤",
        "│ a    │ 3        │",
        "└──────┴──────────┘",
    ]
    assert render(ROWS[:1], ("name",), "pretty_table", titles=False) == ["┌───┐", "│ a │", "└───┘"]
    assert len({len(line) for line in render(ROWS, COLUMNS, "pretty_table")}) == 1
    assert render([], COLUMNS, "pretty_table") == []


def test_json():
    (line,) = render(ROWS, COLUMNS, "json")
    assert json.loads(line) == [{name: row[name] for name in COLUMNS} for row in ROWS]
    assert render([], COLUMNS, "json") == ["[]"]


def test_csv():
    lines = list(csv.reader(render(ROWS, COLUMNS, "csv")))
    assert lines == [
        list(COLUMNS),
        ["a", "3", "[]"],
        ['b\t"ü", x', "", '[{"x-max-length",5}]'],
    ]
    assert render(ROWS[:1], ("name", "messages"), "csv") == ['"name","messages"', '"a","3"']
    assert len(render(ROWS, COLUMNS, "csv", titles=False)) == 2


@pytest.mark.parametrize("formatter", sorted(set(FORMATTERS) - {"csv"}))
def test_names_from_anywhere_do_not_reach_the_terminal(formatter):
    shown = "\n".join(render([{"name": "\x1b[2J\n"}], ("name",), formatter))
    assert "\x1b" not in shown
