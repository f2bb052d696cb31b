"""Reads the files of byte traces: a value as Python has it, then its bytes, in paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
_TOKEN = re.compile(r'"([^"]*)"|([0-9a-f]+)|\|')


def traces(name: str, words: Mapping[str, object]) -> Iterator[tuple[str, object, bytes]]:
    """Text, value and bytes of every trace in a file; `words` is what its values may name."""
    for paragraph in (HERE / name).read_text("utf-8").split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        first, *rest = lines
        yield first, eval(first, dict(words)), _bytes("\n".join(rest))


def _bytes(text: str) -> bytes:
    left = _TOKEN.sub("", text).strip()
    if left:
        raise ValueError(f"not bytes: {left!r}")
    return b"".join(
        (match[1].encode("ascii") if match[1] is not None else bytes.fromhex(match[2] or ""))
        for match in _TOKEN.finditer(text)
    )
