"""Keys of policies and of classic queues' arguments that mirror queues, with RabbitMQ 3.10's checks and
texts. Pure.

Stricter than there where it breaks on a value: ``ha-mode`` has to be a string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

ALL: Final = "all"
EXACTLY: Final = "exactly"
NODES: Final = "nodes"
MODES: Final = (ALL, EXACTLY, NODES)

MANUAL: Final = "manual"
AUTOMATIC: Final = "automatic"

ALWAYS: Final = "always"
WHEN_SYNCED: Final = "when-synced"

MODE_KEY: Final = "ha-mode"
PARAMS_KEY: Final = "ha-params"
SYNC_MODE_KEY: Final = "ha-sync-mode"
BATCH_KEY: Final = "ha-sync-batch-size"
ON_SHUTDOWN_KEY: Final = "ha-promote-on-shutdown"
ON_FAILURE_KEY: Final = "ha-promote-on-failure"
MIRROR_KEYS: Final = (
    MODE_KEY,
    PARAMS_KEY,
    SYNC_MODE_KEY,
    BATCH_KEY,
    ON_SHUTDOWN_KEY,
    ON_FAILURE_KEY,
)
"""In the order in which RabbitMQ checks them."""


class MirrorProblem(NamedTuple):
    """The key whose value is invalid, and RabbitMQ's text."""

    key: str
    text: str


def term(value: Any) -> str:
    """Return a value as RabbitMQ's tools print it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(term, value))}]"
    if isinstance(value, dict):
        pairs = (f"{term(key)} => {term(each)}" for key, each in value.items())
        return f"#{{{','.join(pairs)}}}"
    return str(value) if isinstance(value, int | float) else f'<<"{value}">>'


def mirror_problem(given: Mapping[str, Any]) -> MirrorProblem | None:
    """Return the first problem of these settings; None if they are valid. Other keys do not count."""
    keys = [key for key in MIRROR_KEYS if key in given]
    if keys and MODE_KEY not in given:
        text = f"{MODE_KEY} must be specified to specify {PARAMS_KEY}, {SYNC_MODE_KEY} or {ON_SHUTDOWN_KEY}"
        return MirrorProblem(keys[0], text)
    if not keys:
        return None
    mode = given[MODE_KEY]
    if mode not in MODES:
        return MirrorProblem(MODE_KEY, f"{term(mode)} is not a valid {MODE_KEY} value")
    text = _problem_of_params(mode, given)
    if text:
        return MirrorProblem(PARAMS_KEY, text)
    for key in keys:
        text = _CHECKS[key](key, given[key]) if key in _CHECKS else ""
        if text:
            return MirrorProblem(key, text)
    return None


def _problem_of_params(mode: str, given: Mapping[str, Any]) -> str:
    params = given.get(PARAMS_KEY)
    told = term(params) if PARAMS_KEY in given else "none"
    if mode == ALL:
        return "" if told == "none" else f'{MODE_KEY}="{ALL}" does not take parameters'
    if mode == EXACTLY:
        return "" if _positive(params) else f'{MODE_KEY}="{EXACTLY}" takes an integer, {told} given'
    if not isinstance(params, list | tuple):
        return f'{MODE_KEY}="{NODES}" takes a list, {told} given'
    if not params:
        return f'{MODE_KEY}="{NODES}" list must be non-empty'
    wrong = [each for each in params if not isinstance(each, str)]
    if wrong:
        return f'{MODE_KEY}="{NODES}" takes a list of strings, {term(wrong)} was not a string'
    return ""


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _problem_of_batch(key: str, value: Any) -> str:
    if _positive(value):
        return ""
    return f"{key} takes an integer greater than 0, {term(value)} given"


def _problem_of_choice(*choices: str) -> Callable[[str, Any], str]:
    def problem(key: str, value: Any) -> str:
        if isinstance(value, str) and value in choices:
            return ""
        quoted = " or ".join(f'"{choice}"' for choice in choices)
        return f"{key} must be {quoted}, got {term(value)}"

    return problem


_CHECKS: Final[dict[str, Callable[[str, Any], str]]] = {
    SYNC_MODE_KEY: _problem_of_choice(MANUAL, AUTOMATIC),
    BATCH_KEY: _problem_of_batch,
    ON_SHUTDOWN_KEY: _problem_of_choice(ALWAYS, WHEN_SYNCED),
    ON_FAILURE_KEY: _problem_of_choice(ALWAYS, WHEN_SYNCED),
}
