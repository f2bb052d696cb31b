"""The decisions obey their rules and their index is up to date; each rule finds what it is for."""

import pytest

from tests.arch import decisions

BODY = "## Context\n\na\n\n## Choice\n\nb\n\n## Alternatives\n\nc\n\n## Drawbacks\n\nd\n"


def decision(number: int, status: str = "accepted", day: str = "2026-11-20") -> str:
    """A whole file."""
    return f"# {number}. A title\n\nDate: {day}\n\nStatus: {status}\n\n{BODY}"


def test_the_decisions_obey_their_rules() -> None:
    texts = decisions.files()
    assert len(texts) > 50
    assert list(decisions.complaints(texts, decisions.NOTES.read_text("utf-8"))) == []


def test_the_index_is_up_to_date() -> None:
    written = (decisions.FOLDER / "README.md").read_text("utf-8")
    assert written == decisions.index(decisions.files()), "run `make docs`"


def test_the_index_links_numbers_and_successors() -> None:
    texts = {"0002-b.md": decision(2), "0001-a.md": decision(1, "replaced by 2")}
    assert decisions.index(texts).splitlines()[-2:] == [
        "| 1 | [A title](0001-a.md) | 2026-11-20 | replaced by [2](0002-b.md) |",
        "| 2 | [A title](0002-b.md) | 2026-11-20 | accepted |",
    ]


@pytest.mark.parametrize(
    "status", ["accepted", "replaced by 2", "superseded in part by 2", "superseded in part by 2, 3"]
)
def test_a_whole_file_is_accepted(status: str) -> None:
    texts = {
        "0001-a.md": decision(1, status),
        "0002-b.md": decision(2),
        "0003-c.md": decision(3),
    }
    assert list(decisions.complaints(texts, "")) == []


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("1-a.md", decision(1), "1-a.md: the name is not NNNN-kebab-title.md"),
        ("0001-A_b.md", decision(1), "0001-A_b.md: the name is not NNNN-kebab-title.md"),
        ("0001-a.md", decision(2), "0001-a.md: the title has number 2"),
        (
            "0001-a.md",
            decision(1).replace("Date: 2026-11-20\n\n", ""),
            "0001-a.md: does not begin with title, date, status and a section",
        ),
        (
            "0001-a.md",
            decision(1, day="20.11.2026"),
            "0001-a.md: the date 20.11.2026 is not YYYY-MM-DD",
        ),
        ("0001-a.md", decision(1, day="2026-02-30"), "0001-a.md: there is no day 2026-02-30"),
        ("0001-a.md", decision(1, "rejected"), "0001-a.md: unknown status 'rejected'"),
        ("0001-a.md", decision(1, "replaced by"), "0001-a.md: unknown status 'replaced by'"),
        (
            "0001-a.md",
            decision(1).replace("## Drawbacks\n\nd\n", ""),
            "0001-a.md: the sections are Context, Choice, Alternatives",
        ),
        (
            "0001-a.md",
            decision(1).replace("## Choice\n\nb\n", "## Choice\n"),
            "0001-a.md: Choice is empty",
        ),
    ],
)
def test_a_broken_file_is_found(file: str, text: str, complaint: str) -> None:
    assert list(decisions.complaints({file: text}, "")) == [complaint]


def test_numbers_used_twice_or_not_at_all_are_found() -> None:
    texts = {"0001-a.md": decision(1), "0001-b.md": decision(1), "0004-d.md": decision(4)}
    notes = "Formerly decision 2, today.\n\nFormerly decision 2, today.\n\nFormerly decision 4, today.\n"
    assert list(decisions.complaints(texts, notes)) == [
        "0001-b.md: 0001-a.md has the same number",
        "number 2 is used by two performance notes",
        "0004-d.md: a performance note has the same number",
        "number 3 is neither a decision nor a performance note",
    ]


def test_a_successor_exists_and_is_later() -> None:
    texts = {"0001-a.md": decision(1, "replaced by 3"), "0002-b.md": decision(2, "replaced by 1")}
    assert list(decisions.complaints(texts, "")) == [
        "0001-a.md: there is no decision 3",
        "0002-b.md: decision 1 is not later",
    ]
