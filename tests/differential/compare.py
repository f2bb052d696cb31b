"""Two brokers' outcomes side by side, and the differences that are meant.

``results/rabbitmq.json`` is what Debian's RabbitMQ did, recorded; ``exceptions.json`` lists the steps at which FluxMQ
does something else, what it does, and why. A difference that is not listed is a fault; so is a listed one that is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.differential.runner import Outcome
from tests.differential.script import Case

FOLDER = Path(__file__).parent
RECORDED = FOLDER / "results" / "rabbitmq.json"
TITLE = "AMQP 0.9.1: FluxMQ against RabbitMQ"
EXCEPTIONS = FOLDER / "exceptions.json"
NUMBERS = re.compile(r"\b\d+(?:, \d+){2,}\b")
LINES_MAX = 8
"""Lines of an outcome that are shown."""


@dataclass(frozen=True)
class Meant:
    """A difference that is meant: at which step (from 1), what FluxMQ does there, why."""

    case: str
    step: int
    outcome: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Difference:
    """A step at which two brokers differ."""

    case: str
    step: int
    line: str
    expected: tuple[str, ...]
    found: tuple[str, ...]

    def text(self) -> str:
        """For people."""
        lines = [f"{self.case}, step {self.step}: {self.line}"]
        lines += [f"    - {each}" for each in brief(self.expected)]
        lines += [f"    + {each}" for each in brief(self.found)]
        return "\n".join(lines)


def load_exceptions(path: Path = EXCEPTIONS) -> list[Meant]:
    """The list; each has a reason."""
    listed: list[dict[str, Any]] = json.loads(path.read_text())
    return [
        Meant(each["case"], each["step"], tuple(each["outcome"]), each["reason"]) for each in listed
    ]


def load_recorded(path: Path = RECORDED) -> dict[str, Outcome]:
    """What RabbitMQ did, by case."""
    found: dict[str, Outcome] = json.loads(path.read_text())["outcomes"]
    return found


def script_of(case: Case) -> list[str]:
    """The lines of a case, to see whether a recording is of this script."""
    return [step.line for step in case.steps]


def differences(
    case: Case, expected: Outcome, found: Outcome, exceptions: Iterable[Meant]
) -> list[Difference]:
    """Where two outcomes of a case differ and are not meant to. A listed exception that is none is one as well."""
    meant = {each.step: each for each in exceptions if each.case == case.identifier}
    wrong = []
    for number, step in enumerate(case.steps, 1):
        theirs, ours = tuple(expected[number - 1]), tuple(found[number - 1])
        wanted = meant[number].outcome if number in meant else theirs
        if number in meant and theirs == meant[number].outcome:
            line = f"{step.line} (listed as an exception and is none)"
            wrong.append(Difference(case.identifier, number, line, theirs, ours))
        elif ours != wanted:
            wrong.append(Difference(case.identifier, number, step.line, wanted, ours))
    return wrong


def brief(outcome: Sequence[str]) -> list[str]:
    """An outcome for people: runs of numbers by their ends, and of many lines the first and the last."""
    lines = [NUMBERS.sub(_ranges, line) for line in outcome]
    if len(lines) > LINES_MAX:
        lines = [lines[0], f"{len(lines) - 2} more", lines[-1]]
    return lines or ["nothing"]


def _ranges(found: re.Match[str]) -> str:
    runs: list[list[int]] = []
    for number in map(int, found[0].split(", ")):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def unknown(exceptions: Iterable[Meant], cases: Iterable[Case]) -> list[str]:
    """Exceptions that name no case or no step of it."""
    lengths = {case.identifier: len(case.steps) for case in cases}
    return [
        f"{each.case}, step {each.step}"
        for each in exceptions
        if not 1 <= each.step <= lengths.get(each.case, 0)
    ]


def page(
    about: Mapping[str, str],
    cases: int,
    wrong: list[Difference],
    meant: list[Meant],
    title: str = TITLE,
) -> str:
    """The comparison as Markdown."""
    summary = (
        f"{about['time']}; {about['rabbitmq']}; {cases} cases, {about['steps']} steps;"
        f" {len(wrong)} unexplained differences, {len(meant)} exceptions."
    )
    lines = [f"# {title}", "", summary]
    if wrong:
        lines += ["", "## Unexplained", "", "```", *(each.text() for each in wrong), "```"]
    lines += ["", "## Exceptions", "", "| case | step | FluxMQ | why |", "|---|---|---|---|"]
    for each in meant:
        outcome = "<br>".join(brief(each.outcome)).replace("|", "\\|")
        lines.append(f"| {each.case} | {each.step} | {outcome} | {each.reason} |")
    return "\n".join(lines) + "\n"
