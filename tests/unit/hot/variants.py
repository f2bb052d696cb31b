"""The hot path's modules, as installed and once more uncompiled, side by side in one process.

`INSTALLED` is what the program runs: compiled where extensions are there and `FLUXMQ_PURE` is not set.
`uncompiled()` loads the same sources under another package name, so that both can be given the same input.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import fluxmq._hot
from fluxmq._hot import (
    amqp_confirms,
    amqp_delivery,
    amqp_ledger,
    amqp_parser,
    amqp_run,
    batch_format,
    connection,
    delivery,
    portion,
    reactor,
    route,
    run,
    scan,
    tickets,
    window,
)

FOLDER = Path(fluxmq._hot.__file__).parent
OTHER_NAME = "fluxmq_hot_uncompiled"
MODULES = (
    "scan",
    "run",
    "batch_format",
    "amqp_wire",
    "amqp_run",
    "amqp_delivery",
    "amqp_confirms",
    "amqp_ledger",
    "connection",
    "amqp_parser",
    "portion",
    "window",
    "delivery",
    "route",
    "tickets",
    "reactor",
)
"""In the order in which they import each other."""


@dataclass(frozen=True)
class Hot:
    """One set of the modules."""

    name: str
    scan: Any
    run: Any
    batch_format: Any
    amqp_run: Any
    amqp_delivery: Any
    amqp_confirms: Any
    amqp_ledger: Any
    connection: Any
    amqp_parser: Any
    portion: Any
    window: Any
    delivery: Any
    route: Any
    tickets: Any
    reactor: Any


INSTALLED = Hot(
    name="installed",
    scan=scan,
    run=run,
    batch_format=batch_format,
    amqp_run=amqp_run,
    amqp_delivery=amqp_delivery,
    amqp_confirms=amqp_confirms,
    amqp_ledger=amqp_ledger,
    connection=connection,
    amqp_parser=amqp_parser,
    portion=portion,
    window=window,
    delivery=delivery,
    route=route,
    tickets=tickets,
    reactor=reactor,
)


@cache
def uncompiled() -> Hot:
    """The modules' sources, run as they are."""
    package = ModuleType(OTHER_NAME)
    package.__path__ = []
    sys.modules[OTHER_NAME] = package
    loaded = {}
    for name in MODULES:
        path = FOLDER / f"{name}.py"
        text = path.read_text("utf-8").replace("fluxmq._hot", OTHER_NAME)
        module = ModuleType(f"{OTHER_NAME}.{name}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module
        exec(compile(text, str(path), "exec"), module.__dict__)  # the project's own source
        if name in Hot.__dataclass_fields__:
            loaded[name] = module
    return Hot("uncompiled", **loaded)
