"""Tables for people: alignment, escaping, colour, durations."""

import pytest

from fluxmq.cli.tables import Column, TextTable, columns, duration, grouped


def test_columns_are_as_wide_as_needed_and_numbers_stand_right():
    table = TextTable([Column("NAME"), Column("COUNT", number=True)])
    table.rows += [["a", "5"], ["longer", "1,000"]]
    table.totals = ["total", "1,005"]
    assert table.lines(colour=False) == [
        "NAME    COUNT",
        "a           5",
        "longer  1,000",
        "─────────────",
        "total   1,005",
    ]


def test_colour_paints_the_text_not_the_padding():
    table = TextTable([Column("STATE"), Column("X")], rows=[["up", "y"]], colours={(0, 0): "green"})
    assert table.lines(colour=True)[1] == "\x1b[32mup\x1b[0m     y"
    assert table.lines(colour=False)[1] == "up     y"


def test_cells_from_anywhere_are_escaped():
    table = TextTable([Column("NAME")], rows=[["a\x1b[2Jb\nc"]])
    assert table.lines(colour=False)[1] == "a\\x1b[2Jb\\nc"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m 0s"),
        (3600, "1h 0m"),
        (90061, "1d 1h"),
        (86400 * 400, "400d 0h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_thousands_are_set_apart():
    assert grouped(1234567) == "1,234,567"


def test_columns_by_their_titles() -> None:
    assert columns("A B, #C D,#E") == (Column("A B"), Column("C D", True), Column("E", True))


def test_remarks_stand_below_a_blank_line() -> None:
    table = TextTable(columns("A"), rows=[["x"]])
    assert table.with_remarks([], colour=False) == ["A", "x"]
    assert table.with_remarks(["but y"], colour=False) == ["A", "x", "", "but y"]
