"""Verbs about definitions, and whether the broker runs, named after rabbitmqctl's and
rabbitmq-diagnostics'. They need a running broker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fluxmq.cli.exits import EXIT_REFUSED, ExitError
from fluxmq.cli.formats import said
from fluxmq.cli.node import TargetNode
from fluxmq.ipc.definition_messages import (
    DEFINITIONS_BYTES_MAX,
    EXPORT_DEFINITIONS,
    IMPORT_DEFINITIONS,
    DefinitionsText,
    ImportedDefinitions,
)
from fluxmq.ipc.messages import PING

IMPORT_SECONDS: Final = 120.0
"""Time to wait for an import: users' passwords are hashed, and everything is written."""
STANDARD: Final = "-"


def _export(node: TargetNode, options: argparse.Namespace) -> list[str]:
    with node.require() as caller:
        text = DefinitionsText.from_body(caller.call(EXPORT_DEFINITIONS, {})).text
    if options.file == STANDARD:
        sys.stdout.buffer.write(text + b"\n")
        return []
    try:
        # It contains hashes of passwords.
        descriptor = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(text)
    except OSError as problem:
        raise ExitError(EXIT_REFUSED, f"{options.file}: {problem.strerror}") from None
    return said(options, f"Exporting definitions to {options.file} ...")


def _import(node: TargetNode, options: argparse.Namespace) -> list[str]:
    try:
        text = (
            sys.stdin.buffer.read() if options.file == STANDARD else Path(options.file).read_bytes()
        )
    except OSError as problem:
        raise ExitError(EXIT_REFUSED, f"{options.file}: {problem.strerror}") from None
    if len(text) > DEFINITIONS_BYTES_MAX:
        raise ExitError(
            EXIT_REFUSED,
            f"more than {DEFINITIONS_BYTES_MAX} bytes: import them over HTTP, or in parts",
        )
    node.wait_at_least(IMPORT_SECONDS)
    with node.require() as caller:
        body = caller.call(IMPORT_DEFINITIONS, DefinitionsText(text).to_body())
    imported = ImportedDefinitions.from_body(body)
    if imported.ignored:
        node.complaints.append(f"not supported, and ignored: {', '.join(imported.ignored)}")
    counts = ", ".join(f"{count} {kind}" for kind, count in imported.counts.items() if count)
    return said(options, f"Importing definitions: {counts or 'nothing'}")


def _ping(node: TargetNode, options: argparse.Namespace) -> list[str]:
    with node.require() as caller:
        caller.call(PING, {})
    return said(options, "Ping succeeded")


VERBS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], list[str]]]] = {
    "export_definitions": _export,
    "import_definitions": _import,
    "ping": _ping,
}
