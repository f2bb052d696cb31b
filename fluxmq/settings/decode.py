"""Decodes the text of a settings file into ``Settings``, or all its problems. Opens no file.

Two steps. ``parse`` reads YAML into plain mappings, tuples, texts, numbers and booleans: only what
JSON can express, so that ``yes``, ``1:30`` and dates stay text; duplicate keys, tags and missing
values are problems; ``${NAME}`` and ``${NAME:-default}`` are replaced (``$${`` stands for ``${``).
``decode`` validates the result against the schema and turns its errors into sentences. When some
values are wrong, the checks across values still run on the rest, so that a second attempt finds
nothing that the first could have reported.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fluxmq.model.limits import SETTINGS_NODES_MAX
from fluxmq.settings.checks import check
from fluxmq.settings.problems import SettingsProblem
from fluxmq.settings.schema import Settings
from fluxmq.settings.section import Path, Shape, shape_at, spell
from fluxmq.settings.values import FROM_FILE, Secret, format_duration, format_size

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-([^}]*))?\}|\$\{")
_WHOLE: Final = re.compile(r"[-+]?[0-9]+")
_FRACTION: Final = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    "true": True,
    "false": False,
    "True": True,
    "False": False,
    "TRUE": True,
    "FALSE": False,
}
_NOTHING: Final = {"", "~", "null", "Null", "NULL"}
_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_PLAIN_TAGS: Final = {_TEXT_TAG, "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}


class _Loader(yaml.SafeLoader):
    """Composes nodes without guessing types: any tag other than the plain ones was written by
    hand."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (the base class's attribute)


class _YamlReader:
    """One pass over the nodes of a file that collects problems."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[SettingsProblem] = []
        self.nodes_left = SETTINGS_NODES_MAX

    def problem(self, path: Path, message: str) -> None:
        self.problems.append(SettingsProblem(spell(path), message))

    def value(self, node: yaml.Node, path: Path) -> Any:
        """Return the plain value of a node; None where a problem was recorded instead."""
        self.nodes_left -= 1
        if self.nodes_left == 0:
            self.problem(
                (), f"holds more than {SETTINGS_NODES_MAX} values once its aliases are followed"
            )
        if self.nodes_left <= 0:
            return None
        if node.tag not in _PLAIN_TAGS:
            self.problem(path, f"has the tag {node.tag}; tags are not supported")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            items = (self.value(item, (*path, index)) for index, item in enumerate(node.value))
            return tuple(item for item in items if item is not None)
        assert isinstance(node, yaml.ScalarNode), "YAML has three kinds of node"
        return self.scalar(node.value, plain=node.style is None, path=path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(path, f"has a key on line {line} that is not a string")
                continue
            key = key_node.value
            if key in seen:
                self.problem((*path, key), f"is given twice, on lines {seen[key]} and {line}")
                continue
            seen[key] = line
            value = self.value(value_node, (*path, key))
            if value is not None:
                found[key] = value
        return found

    def scalar(self, text: str, *, plain: bool, path: Path) -> Any:
        replaced = self.interpolate(text, path)
        if replaced is None:
            return None
        if not plain or (replaced != text and _expects_text(path)):
            return replaced
        if replaced in _NOTHING:
            self.problem(path, "has no value; leave the key out to get its default")
            return None
        if replaced in _WORDS:
            return _WORDS[replaced]
        if _WHOLE.fullmatch(replaced) and len(replaced) < 20:
            return int(replaced)
        if _FRACTION.fullmatch(replaced):
            return float(replaced)
        return replaced

    def interpolate(self, text: str, path: Path) -> str | None:
        """Return the text with variables replaced; None, with a problem recorded, when one is not
        set."""
        whole = True

        def replacement(match: re.Match[str]) -> str:
            nonlocal whole
            name, default = match[1], match[3]
            if name is None:
                if match[0] == "$${":
                    return "${"
                self.problem(
                    path,
                    "has a ${ without a name and }; write $${ for a literal ${",
                )
            elif name in self.environ and (self.environ[name] or match[2] is None):
                return self.environ[name]
            elif match[2] is not None:
                return str(default)
            else:
                self.problem(path, f"needs the environment variable {name}, which is not set")
            whole = False
            return ""

        replaced = _VARIABLE.sub(replacement, text)
        return replaced if whole else None


def _expects_text(path: Path) -> bool:
    """Return whether a replaced variable stays text here even when it looks like a number."""
    shape = shape_at(Settings, path)
    if shape is None:
        return True
    return shape.kind != "size" and shape.type not in (int, float, bool)


def parse(text: str, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[SettingsProblem]]:
    """Return the plain values of a file's text, and its problems as YAML. An empty file holds no
    keys."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        complaint = error.problem or error.context or "is not YAML"
        if error.context and complaint.startswith("but "):
            complaint = f"{error.context}, {complaint}"
        return {}, [SettingsProblem("", place + complaint)]
    except (yaml.YAMLError, RecursionError) as error:
        return {}, [SettingsProblem("", f"is not YAML: {error}".replace("\n", " "))]
    if node is None:
        return {}, []
    if not isinstance(node, yaml.MappingNode):
        return {}, [
            SettingsProblem(
                "", "the file must hold a mapping of sections, such as server: and broker:"
            )
        ]
    reader = _YamlReader(environ)
    try:
        return reader.value(node, ()), reader.problems
    except RecursionError:
        return {}, [SettingsProblem("", "is nested too deeply, or an alias contains itself")]


def decode(data: dict[str, Any]) -> tuple[Settings, list[SettingsProblem]]:
    """Return the settings that plain values mean, and their problems.

    With problems, the settings are what remains when every wrong value is left out.
    """
    problems: dict[str, SettingsProblem] = {}
    settings, complaints = _fit(data)
    for detail in complaints:
        problem = SettingsProblem(spell(_place(detail)), _sentence(detail))
        problems.setdefault(problem.path, problem)
    for problem in check(settings):
        if not any(_touches(problem.path, path) for path in problems):
            problems[problem.path] = problem
    return settings, list(problems.values())


def _fit(data: dict[str, Any]) -> tuple[Settings, list[ErrorDetails]]:
    """Return the settings made of the values that the schema accepts, and its errors about the
    others."""
    try:
        return Settings.model_validate(data, context=FROM_FILE), []
    except ValidationError as error:
        complaints = error.errors(include_url=False)
    # A mapping that lacks a required key is removed whole; errors about the resulting gap are no news. Every step
    # removes something, so this ends.
    dead = {_place(detail)[: -1 if detail["type"] == "missing" else None] for detail in complaints}
    return _fit(_without(data, dead))[0], complaints


def _place(detail: ErrorDetails) -> Path:
    """Return the path of an error; pydantic marks an error in a mapping's key with an extra
    element."""
    return tuple(key for key in detail["loc"] if key != "[key]")


def _touches(one: str, other: str) -> bool:
    return one == other or one.startswith((other + ".", other + "[")) or other.startswith(one + ".")


def _without(value: Any, dead: set[Path], path: Path = ()) -> Any:
    """Return a copy without the values at these paths."""
    if isinstance(value, dict):
        pairs = ((key, item) for key, item in value.items() if (*path, key) not in dead)
        return {key: _without(item, dead, (*path, key)) for key, item in pairs}
    if isinstance(value, tuple):
        numbered = ((index, item) for index, item in enumerate(value) if (*path, index) not in dead)
        return tuple(_without(item, dead, (*path, index)) for index, item in numbered)
    return value


def _sentence(detail: ErrorDetails) -> str:
    """Word a schema error for the person who wrote the file."""
    kind, context, path = detail["type"], detail.get("ctx", {}), _place(detail)
    shape = shape_at(Settings, path)
    if kind == "extra_forbidden":
        return "unknown key" + _suggestion(path)
    if kind == "missing":
        return "is required"
    shown = _shown(detail["input"], shape)
    if kind == "value_error":
        message = str(context["error"])
        return f"{shown} {message}" if shown and not message.startswith("must") else message
    if kind in _BOUNDS:
        return (
            f"must be {_BOUNDS[kind][0]} {_amount(context[_BOUNDS[kind][1]], shape)}, not {shown}"
        )
    if kind == "literal_error" and shape is not None:
        choices = ", ".join(str(choice) for choice in get_args(shape.type))
        return f"must be one of {choices}, not {shown}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}" + (f", not {shown}" if shown else "")
    return detail["msg"]


_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
_EXPECTED: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string (put it in quotes)",
    "string_too_short": "a non-empty string",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _suggestion(path: Path) -> str:
    shape = shape_at(Settings, path[:-1])
    if shape is None or shape.section is None:
        return ""
    close = difflib.get_close_matches(str(path[-1]), list(shape.section.model_fields), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _shown(value: object, shape: Shape | None) -> str:
    """Return a wrong value for display; empty when it is secret or long."""
    if shape is not None and shape.type is Secret:
        return ""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and shape is not None and shape.kind == "duration":
        return format_duration(value)
    if isinstance(value, int) and shape is not None and shape.kind == "size":
        return format_size(value)
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _amount(bound: float, shape: Shape | None) -> str:
    if shape is not None and shape.kind == "duration":
        return format_duration(bound)
    if shape is not None and shape.kind == "size":
        return format_size(int(bound))
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"
