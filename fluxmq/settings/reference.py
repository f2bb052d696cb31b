"""Writes ``docs/configuration.md`` from the schema: ``make docs``. Nothing else in the program uses
this.

The sentence under each field is parsed from the schema's source, so that no process pays for it at
its start. A test checks that page and schema agree.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic_core import PydanticUndefined

from fluxmq.settings.reload import LIVE
from fluxmq.settings.schema import Settings
from fluxmq.settings.section import Path, Section, Shape
from fluxmq.settings.values import Secret, format_duration, format_size

_OPENING: Final = """\
# Configuration

This page is generated from the program's own schema (`make docs`).

`fluxmq-supervisor --config FILE` reads one YAML file; `--check` validates it, prints every value in force with secrets
hidden, and stops. The file is read strictly: unknown keys, wrong types, values out of bounds, clashing addresses and
missing files are all reported at once, each by its path, and stop the start.

* **Durations** carry a unit: `20ms`, `5s`, `1h30m`, `7d`. **Sizes** are bytes or binary units: `512`, `8KiB`, `1MiB`.
* **Addresses** are `"host:port"`, `":port"` (every interface) or `"[ipv6]:port"`. A listener that the file does not name
  is not opened; a file without `server` opens the same ones as a node that is started without a file.
* **Environment**: `${NAME}` stands for a variable, which must be set; `${NAME:-default}` for one that may be unset or
  empty; `$${` for the characters `${`. Inside quotes the result is always a string.
* **Secrets** can be given by file: `key_password_file: /run/secrets/key` sets `key_password`. The file may not be open
  to every user of the machine.
* **Paths** are relative to the working directory. Only `true` and `false` are booleans; `yes` and `off` are strings.
* **Reload**: on SIGHUP the file is read again. Keys marked *live* take effect at once (session limits: for new
  sessions); other changes are named in the log and need a restart. An invalid file changes nothing.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    parts = [_OPENING]
    for path, section, optional in _sections(Settings, ()):
        parts.append(_table(path, section, optional=optional))
    return "\n".join(parts)


def _sections(
    section: type[Section], path: Path, *, optional: bool = False
) -> Iterator[tuple[Path, type[Section], bool]]:
    """Yield every section from this one down, parents first; a placeholder stands for the key in
    lists and mappings."""
    if path:
        yield path, section, optional
    for name, field in section.model_fields.items():
        shape = Shape(field.annotation, field)
        below = shape.below("*") if shape.section is None else shape
        if below is not None and below.section is not None:
            mark: Path = () if below is shape else ("<id>",) if _is_mapping(shape) else (0,)
            nested = (
                shape.section is not None and field.get_default(call_default_factory=True) is None
            )
            yield from _sections(below.section, (*path, name, *mark), optional=nested)


def _is_mapping(shape: Shape) -> bool:
    return getattr(shape.type, "__origin__", None) is dict


def _table(path: Path, section: type[Section], *, optional: bool) -> str:
    rows = []
    sentences = _sentences(section)
    for name, field in section.model_fields.items():
        shape = Shape(field.annotation, field)
        below = shape.below("*") if shape.section is None else shape
        if below is not None and below.section is not None:
            continue
        default = field.get_default(call_default_factory=True)
        mark = " *live*" if any((*path, name)[: len(prefix)] == prefix for prefix in LIVE) else ""
        cells = [f"`{name}`{mark}", _expected(shape), _default(default, shape), sentences[name]]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    heading = ".".join(f"[{key}]" if isinstance(key, int) else key for key in path).replace(
        ".[0]", "[]"
    )
    absent = " Absent unless named." if optional else ""
    about = (section.__doc__ or "").strip().replace("``", "`")
    text = f"## `{heading}`\n\n{about}{absent}\n"
    if rows:
        text += (
            "\n| key | value | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return text


def _sentences(section: type[Section]) -> dict[str, str]:
    """Return the text under each field of a section, inherited fields included."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if not issubclass(base, Section) or base is Section:
            continue
        (definition,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(definition, ast.ClassDef), "a section is a class"
        for field, text in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                sentence = text.value if isinstance(text, ast.Expr) else None
                if isinstance(sentence, ast.Constant) and isinstance(sentence.value, str):
                    found[field.target.id] = " ".join(sentence.value.split())
    return found


def _expected(shape: Shape) -> str:
    """Describe the accepted values, with their bounds."""
    if choices := [str(choice) for choice in get_args(shape.type) if isinstance(choice, str)]:
        return ", ".join(f"`{choice}`" for choice in choices)
    below = shape.below("*")
    if below is not None:
        of = below.kind or ("string" if below.type is str else "list of strings")
        return f"mapping of name to {of}" if _is_mapping(shape) else f"list of {of}s"
    names = {
        int: "whole number",
        float: "number",
        bool: "`true`, `false`",
        str: "string",
        Secret: "secret string",
    }
    bounds = [
        _amount(getattr(item, side), shape) if hasattr(item, side) else None
        for side in ("ge", "gt", "le")
        for item in shape.field.metadata
        if hasattr(item, side)
    ]
    span = f", {bounds[0]} to {bounds[1]}" if len(bounds) == 2 else ""
    return (shape.kind or names[shape.type]) + span


def _default(value: Any, shape: Shape) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | dict):
        inside = ", ".join(f'"{item}"' for item in value)
        return f"`{{{inside}}}`" if isinstance(value, dict) else f"`[{inside}]`"
    if isinstance(value, str):
        return f"`{value}`" if value else '`""`'
    return f"`{_amount(value, shape)}`"


def _amount(value: Any, shape: Shape) -> str:
    if shape.kind == "duration":
        return format_duration(value)
    if shape.kind == "size":
        return format_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.stdout.write(page())
