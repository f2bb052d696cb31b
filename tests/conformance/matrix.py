"""Makes docs/mqtt-conformance.md: from each numbered statement of the standards to the tests that cover it.

Responsible for the checked-in lists of statements (`statements/`), for finding the `statement` markers
in the test files without running them, and for the document. `python -m tests.conformance.matrix` writes
it; `test_matrix` holds it to what this module would write.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent
DOCUMENT = TESTS.parent / "docs" / "mqtt-conformance.md"
LISTS = {
    "v4": ("MQTT 3.1.1", Path(__file__).parent / "statements" / "mqtt-3.1.1.txt"),
    "v5": ("MQTT 5.0", Path(__file__).parent / "statements" / "mqtt-5.0.txt"),
}
FOLDERS = ("conformance", "integration", "interop")

HEAD = """# MQTT conformance

Every numbered normative statement of MQTT 3.1.1 and MQTT 5.0, with the tests that cover it or the
reason why none is needed. The statements are paraphrased; the standards are at
https://docs.oasis-open.org/mqtt/. The tests connect to a running broker over sockets with their own
client (`tests/conformance/client.py`). For every packet that it receives, the client also checks
the rules for the sender: reserved bits, property tables, reason codes, UTF-8, packet size, topic
aliases.

    python -m pytest tests/conformance                                      # starts a broker of its own
    FLUXMQ_TEST_BROKER=127.0.0.1:1883 python -m pytest tests/conformance    # against any broker

This page is generated from the tests' markers by `python -m tests.conformance.matrix`; do not edit
it.
"""


@dataclass(frozen=True)
class Statement:
    """One numbered statement: what it asks, and why a test is not needed (or what it cannot show)."""

    number: str
    asks: str
    reason: str = ""


def statements(version: str) -> list[Statement]:
    """The statements of a version ("v4", "v5") in the standard's order."""
    _, path = LISTS[version]
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return [Statement(*(part.strip() for part in line.split(" | "))) for line in lines]


def _markers(node: ast.FunctionDef) -> list[str]:
    found = []
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(
            "mark.statement"
        ):
            found += [ast.literal_eval(argument) for argument in decorator.args]
    return found


def covering() -> dict[str, list[str]]:
    """Marker ("v5:3.1.0-1") to the tests that carry it, as `file::test`, in the order of the files."""
    tests: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((TESTS / folder).glob("test_*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef):
                    for marker in _markers(node):
                        tests[marker].append(f"{path.name}::{node.name}")
    return dict(tests)


def document() -> str:
    """The whole page."""
    tests = covering()
    parts = [HEAD]
    for version, (title, _) in LISTS.items():
        listed = statements(version)
        tested = sum(1 for each in listed if f"{version}:{each.number}" in tests)
        parts.append(
            f"\n## {title}\n\n{len(listed)} statements: {tested} covered by tests, "
            f"{len(listed) - tested} explained without a test.\n\n"
            "| Statement | Requirement | Tests, or why none |\n| --- | --- | --- |\n"
        )
        for each in listed:
            names = [f"`{name}`" for name in tests.get(f"{version}:{each.number}", [])]
            cell = "<br>".join(names + ([f"*{each.reason}*"] if each.reason else []))
            parts.append(f"| MQTT-{each.number} | {each.asks} | {cell} |\n")
    return "".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
