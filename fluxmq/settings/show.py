"""Settings for people to read: every value in force, durations and sizes with units, secrets
hidden."""

from __future__ import annotations

from typing import Any

import yaml

from fluxmq.settings.schema import Settings
from fluxmq.settings.section import Section, Shape
from fluxmq.settings.values import REDACTED, Secret, format_duration, format_size


def effective(settings: Settings) -> str:
    """Return the settings as YAML that loads to the same settings again, except for secrets, shown
    as asterisks.

    A secret read from a file is shown as that file's name only.
    """
    document: str = yaml.safe_dump(
        _plain(settings, Shape(Settings)), sort_keys=False, allow_unicode=True, width=100
    )
    return document


def _plain(value: Any, shape: Shape) -> Any:
    if isinstance(value, Section):
        section = Shape(type(value))
        shown = {}
        for name in type(value).model_fields:
            item, below = getattr(value, name), section.below(name)
            assert below is not None, f"{name} has no shape in its own section"
            from_file = isinstance(item, Secret) and getattr(value, f"{name}_file", None)
            if item is not None and not from_file:
                shown[name] = _plain(item, below)
        return shown
    if isinstance(value, dict):
        return {key: _plain(item, shape.below(key) or shape) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, shape.below(index) or shape) for index, item in enumerate(value)]
    if isinstance(value, Secret):
        return REDACTED
    if shape.kind == "duration":
        return format_duration(value)
    if shape.kind == "size":
        return format_size(value)
    if isinstance(value, str):
        return value.replace("${", "$${")
    return value
