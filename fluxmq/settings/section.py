"""Base of every section of the settings file: strict, closed to unknown keys, immutable once
decoded.

Sections are pydantic models. The sentence under each field goes into ``docs/configuration.md``; it
is not read at run time, which would add 30 ms to the start of every process. This module also walks
sections: the field at a path, and the values that a decoded section holds.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from fluxmq.settings.values import ScalarKind

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the file."""


class Section(BaseModel):
    """A mapping in the settings file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Shape:
    """The type expected at a place in the file, with its field's metadata."""

    __slots__ = ("field", "type")

    def __init__(self, expected: Any, field: FieldInfo | None = None) -> None:
        metadata: list[Any] = list(field.metadata) if field is not None else []
        self.type, inner = _unwrap(expected)
        self.field = field or FieldInfo()
        self.field.metadata = [*metadata, *(item for item in inner if item not in metadata)]

    @property
    def kind(self) -> str | None:
        """Name of the kind in ``values`` (duration, size, address ...), if any."""
        return next(
            (item.name for item in self.field.metadata if isinstance(item, ScalarKind)), None
        )

    @property
    def section(self) -> type[Section] | None:
        """The section expected here; None for any other type."""
        return self.type if isinstance(self.type, type) and issubclass(self.type, Section) else None

    def below(self, key: str | int) -> Shape | None:
        """Return the shape of the value under a key or position, or None when nothing is known of
        it."""
        if self.section is not None:
            field = self.section.model_fields.get(str(key))
            return None if field is None else Shape(field.annotation, field)
        arguments = typing.get_args(self.type)
        origin = typing.get_origin(self.type)
        if origin is tuple:
            return Shape(arguments[0])
        if origin is dict:
            return Shape(arguments[1])
        return None


def _unwrap(expected: Any) -> tuple[Any, list[Any]]:
    """Return the bare type behind ``X | None`` and ``Annotated[X, ...]``, with the annotations
    found on the way."""
    found: list[Any] = []
    while True:
        if typing.get_origin(expected) is typing.Annotated:
            expected, *more = typing.get_args(expected)
            for item in more:
                found += item.metadata if isinstance(item, FieldInfo) else [item]
        elif typing.get_origin(expected) in (typing.Union, types.UnionType):
            (expected,) = (item for item in typing.get_args(expected) if item is not type(None))
        else:
            return expected, found


def shape_at(section: type[Section], path: Path) -> Shape | None:
    """Return the shape expected at this path below a section, or None when the file may not have
    it."""
    shape: Shape | None = Shape(section)
    for key in path:
        if shape is None:
            return None
        shape = shape.below(key)
    return shape


def leaves(value: object, shape: Shape, path: Path = ()) -> Iterator[tuple[Path, Any, Shape]]:
    """Yield every value that is neither a mapping nor a section, with path and shape; lists of
    sections are entered."""
    if isinstance(value, Section):
        children: Iterator[tuple[str | int, Any]] = (
            (name, getattr(value, name)) for name in type(value).model_fields
        )
    elif isinstance(value, Mapping):
        children = iter(value.items())
    elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
        children = enumerate(value)
    else:
        yield path, value, shape
        return
    for key, child in children:
        below = Shape(type(value)).below(key) if isinstance(value, Section) else shape.below(key)
        assert below is not None, f"a decoded value outside the schema at {path}"
        yield from leaves(child, below, (*path, key))


def spell(path: Path) -> str:
    """Write a path the way people do: ``queues[0].name``."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text
