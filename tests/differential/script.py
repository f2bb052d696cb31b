"""The scripts as data: files of cases, a case of lines, a line of a verb and its settings.

    == a queue declared again with another durability
    queue.declare queue=$q durable=1
    queue.declare queue=$q

A line is ``[@connection] [#channel] verb name=value ...``. Connections are named, channels numbered; both are 1
unless told otherwise and are opened when first used. A verb is a method of AMQP (sent, and its answer awaited) or
one of the runner's own. With ``!`` before a method nothing is opened for it. A value is JSON when it begins with a
brace, bracket or quote, an integer or ``true``/``false`` when it reads as one, else a string; ``{"!l": 5}`` is a
table value whose type is said by its letter. What follows ``rabbitmqctl`` is read as a shell reads it. ``$q``, ``$q2``, ``$x`` ... are names of this case: of queues when they begin
with q, of exchanges when they begin with x; these are deleted at its end. ``#`` at a line's beginning, followed by a
space, is a comment.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.differential.wire import Typed

COMMAND = "rabbitmqctl"
CASES = Path(__file__).parent / "cases"
NAME = re.compile(r"\$([a-z]+[0-9]*)")
SETTING = re.compile(r"([a-z_]+)=")


class ScriptError(ValueError):
    """A line that says nothing; the text names it."""


@dataclass(frozen=True)
class Step:
    """One line. ``words``: what stands after the verb without a name."""

    line: str
    connection: str
    channel: int
    verb: str
    settings: dict[str, Any]
    words: tuple[str, ...]
    bare: bool


@dataclass(frozen=True)
class Case:
    """One script. ``names``: the names of its own, by what stands for them."""

    name: str
    area: str
    steps: tuple[Step, ...]
    names: dict[str, str] = field(default_factory=dict)

    @property
    def identifier(self) -> str:
        """Area and name: the key of recorded outcomes."""
        return f"{self.area}: {self.name}"


def slug(text: str) -> str:
    """A name as part of a queue's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def typed(value: Any) -> Any:
    """A JSON value with ``{"!letter": value}`` made a ``Typed``."""
    if isinstance(value, list):
        return [typed(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (letter := next(iter(value))).startswith("!"):
        return Typed(letter[1:], value[letter])
    return {name: typed(each) for name, each in value.items()}


def plain_value(text: str) -> Any:
    """A value without quotes."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?(0|[1-9]\d*)", text) else text


def parse_line(line: str) -> Step:
    """One line whose names are filled in. Raises ``ScriptError``."""
    at, connection, channel = 0, "1", 1
    settings: dict[str, Any] = {}
    words: list[str] = []
    decoder = json.JSONDecoder()
    while at < len(line):
        if line[at] == " ":
            at += 1
            continue
        if found := SETTING.match(line, at):
            at = found.end()
            if line[at : at + 1] in ("{", "[", '"'):
                try:
                    value, at = decoder.raw_decode(line, at)
                except ValueError as error:
                    raise ScriptError(f"{line}: {error}") from None
                settings[found[1]] = typed(value)
            else:
                end = line.find(" ", at)
                end = len(line) if end < 0 else end
                settings[found[1]] = plain_value(line[at:end])
                at = end
            continue
        if line[at] == '"':
            word, at = decoder.raw_decode(line, at)
            words.append(word)
            continue
        end = line.find(" ", at)
        end = len(line) if end < 0 else end
        word, at = line[at:end], end
        if not words and word == COMMAND:
            return Step(line, connection, channel, word, {}, tuple(shlex.split(line[at:])), False)
        if not words and word.startswith("@"):
            connection = word[1:]
        elif not words and word.startswith("#"):
            channel = int(word[1:])
        else:
            words.append(word)
    if not words:
        raise ScriptError(f"{line}: no verb")
    verb = words[0].removeprefix("!")
    bare = words[0].startswith("!")
    return Step(line, connection, channel, verb, settings, tuple(words[1:]), bare)


def parse(text: str, area: str) -> list[Case]:
    """The cases of a file. Raises ``ScriptError``."""
    found: list[Case] = []
    lines: list[str] = []
    title = ""

    def end() -> None:
        if not title:
            return
        names: dict[str, str] = {}

        def own(match: re.Match[str]) -> str:
            return names.setdefault(match[1], f"{match[1]}-{slug(title)}")

        steps = tuple(parse_line(NAME.sub(own, line)) for line in lines)
        if not steps:
            raise ScriptError(f"{area}: {title} has no steps")
        found.append(Case(title, area, steps, names))

    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("== "):
            end()
            title, lines = line[3:], []
        elif line and not line.startswith("# "):
            if not title:
                raise ScriptError(f"{area}: {line!r} stands before the first case")
            lines.append(line)
    end()
    return found


def load(folder: Path = CASES) -> list[Case]:
    """All cases, in the order of file names. Raises ``ScriptError``."""
    cases = [
        case for path in sorted(folder.glob("*.txt")) for case in parse(path.read_text(), path.stem)
    ]
    seen: set[str] = set()
    for case in cases:
        if case.identifier in seen:
            raise ScriptError(f"two cases are called {case.identifier}")
        seen.add(case.identifier)
    return cases
