"""The decisions in ``docs/decisions``: the rules for their files, and their index.

    python -m tests.arch.decisions > docs/decisions/README.md

writes the index (part of ``make docs``). ``test_decisions`` applies the rules to the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "decisions"
NOTES: Final = ROOT / "docs" / "performance-notes.md"
SECTIONS: Final = ("Context", "Choice", "Alternatives", "Drawbacks")

_NAME: Final = re.compile(r"(\d{4})-[a-z0-9]+(?:-[a-z0-9]+)*\.md")
_HEAD: Final = re.compile(r"# (\d+)\. (\S.*)\n\nDate: (\S+)\n\nStatus: (\S.*)\n\n(?=## )")
_STATUS: Final = re.compile(r"accepted|(?:replaced|superseded in part) by \d+(?:, \d+)*")
_FORMER: Final = re.compile(r"^Formerly decision (\d+), ", re.MULTILINE)

_OPENING: Final = """\
# Decisions

This page is generated from the files beside it (`make docs`).

Each file records one choice between real alternatives: what made it necessary, the choice, the
alternatives, and its drawbacks. A decision holds until a measurement or a defect proves it wrong; a
new one then replaces it, and the status of the old one names the new. Numbers never change.

Figures without another source were measured with throw-away prototypes on a virtual machine with
two cores (AMD EPYC, Linux 6.18, Python 3.11), peers and prototypes interleaved. They decide between
designs and promise nothing about the product. Missing numbers are tuning steps, which are in the
[performance notes](../performance-notes.md).

To add a decision, take the next number and write `NNNN-kebab-title.md` with the title
`# N. Title`, the lines `Date: YYYY-MM-DD` and `Status: accepted`, and the sections Context, Choice,
Alternatives and Drawbacks. `Status` is `accepted`, `replaced by N` or `superseded in part by N`.

| number | decision | date | status |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Decision:
    """The head of one file."""

    file: str
    number: int
    title: str
    date: str
    status: str

    def successors(self) -> list[int]:
        """Return the numbers of the decisions that the status names."""
        return [int(number) for number in re.findall(r"\d+", self.status)]


def files() -> dict[str, str]:
    """Return the texts of all decisions by file name, in order; the index is not one."""
    paths = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
    return {path.name: path.read_text("utf-8") for path in paths}


def parse(file: str, text: str) -> Decision:
    """Read the head of a file. Raises ValueError, naming the file, if it does not have the form."""
    name, head = _NAME.fullmatch(file), _HEAD.match(text)
    if name is None:
        raise ValueError(f"{file}: the name is not NNNN-kebab-title.md")
    if head is None:
        raise ValueError(f"{file}: does not begin with title, date, status and a section")
    number, title, day, status = int(head[1]), head[2], head[3], head[4]
    if number != int(name[1]):
        raise ValueError(f"{file}: the title has number {number}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
        raise ValueError(f"{file}: the date {day} is not YYYY-MM-DD")
    try:
        date.fromisoformat(day)
    except ValueError:
        raise ValueError(f"{file}: there is no day {day}") from None
    if not _STATUS.fullmatch(status):
        raise ValueError(f"{file}: unknown status {status!r}")
    return Decision(file, number, title, day, status)


def broken_sections(file: str, text: str) -> Iterator[str]:
    """Complain unless a file has the four sections, in order, each with some text."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    if tuple(parts[1::2]) != SECTIONS:
        yield f"{file}: the sections are {', '.join(parts[1::2])}"
    for section, body in zip(parts[1::2], parts[2::2], strict=True):
        if not body.strip():
            yield f"{file}: {section} is empty"


def complaints(texts: Mapping[str, str], notes: str) -> Iterator[str]:
    """Complain of broken files, and of numbers that are used twice, unused, or named but missing.

    ``notes`` is the page of performance notes, which names the numbers of former decisions.
    """
    by_number: dict[int, Decision] = {}
    for file, text in texts.items():
        yield from broken_sections(file, text)
        try:
            decision = parse(file, text)
        except ValueError as error:
            yield str(error)
            continue
        if decision.number in by_number:
            yield f"{file}: {by_number[decision.number].file} has the same number"
        by_number[decision.number] = decision
    former = [int(number) for number in _FORMER.findall(notes)]
    for number in sorted({number for number in former if former.count(number) > 1}):
        yield f"number {number} is used by two performance notes"
    for number in sorted(by_number.keys() & set(former)):
        yield f"{by_number[number].file}: a performance note has the same number"
    used = by_number.keys() | set(former)
    for number in sorted(set(range(1, max(used, default=0) + 1)) - used):
        yield f"number {number} is neither a decision nor a performance note"
    for decision in by_number.values():
        for number in decision.successors():
            if number not in by_number:
                yield f"{decision.file}: there is no decision {number}"
            elif number <= decision.number:
                yield f"{decision.file}: decision {number} is not later"


def index(texts: Mapping[str, str]) -> str:
    """Return the index page. Raises ValueError if a file does not have the form."""
    decisions = sorted((parse(*item) for item in texts.items()), key=lambda each: each.number)
    links = {each.number: each.file for each in decisions}

    def linked(status: str) -> str:
        return re.sub(r"\d+", lambda found: f"[{found[0]}]({links[int(found[0])]})", status)

    rows = (
        f"| {each.number} | [{each.title}]({each.file}) | {each.date} | {linked(each.status)} |\n"
        for each in decisions
    )
    return _OPENING + "".join(rows)


def main() -> None:
    """Print the index."""
    print(index(files()), end="")


if __name__ == "__main__":
    main()
