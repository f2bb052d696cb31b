"""The compiled modules, as installed and once more from their sources, side by side in one process.

`INSTALLED` is what the program runs: compiled where extensions are there and `FLUXMQ_PURE` is not set.
`uncompiled()` loads the same sources under another package name, so that both can be given the same input.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.arch.compiled import CYTHON_SOURCES

ROOT = Path(__file__).resolve().parents[2]
OTHER_NAME = "uncompiled_fluxmq"
NAMES = [name for name in CYTHON_SOURCES if name.startswith("fluxmq.")]


class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of `uncompiled_fluxmq` by the sources of `fluxmq`; they import each other, and the rest as it is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != OTHER_NAME:
            return None
        place = ROOT / "fluxmq" / Path(*fullname.split(".")[1:])
        source = place.with_suffix(".py")
        if source.exists():
            return ModuleSpec(fullname, self, origin=str(source))
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        origin = module.__spec__.origin if module.__spec__ else None
        if origin is None:
            return
        text = Path(origin).read_text("utf-8")
        for name in NAMES:
            text = re.sub(rf"\b{re.escape(name)}\b", OTHER_NAME + name.removeprefix("fluxmq"), text)
        module.__file__ = origin
        exec(compile(text, origin, "exec"), module.__dict__)  # the project's own source


def from_source(name: str) -> Any:
    """A compiled module of `fluxmq`, by its name below the package, from its source."""
    if not any(isinstance(each, Sources) for each in sys.meta_path):
        sys.meta_path.insert(0, Sources())
    return importlib.import_module(f"{OTHER_NAME}.{name}")


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
    inflight: Any
    window: Any
    delivery: Any
    route: Any
    pending_acks: Any
    reactor: Any
    sockets: Any


PLACES = {
    "scan": "protocols.mqtt.scan",
    "run": "protocols.mqtt.run",
    "batch_format": "model.batch_format",
    "amqp_run": "protocols.amqp091.run",
    "amqp_delivery": "protocols.amqp091.delivery",
    "amqp_confirms": "protocols.amqp091.confirms",
    "amqp_ledger": "protocols.amqp091.ledger",
    "connection": "protocols.connection",
    "amqp_parser": "protocols.amqp091.parser",
    "inflight": "protocols.mqtt.inflight_range",
    "window": "protocols.mqtt.window",
    "delivery": "protocols.mqtt.delivery",
    "route": "net.route",
    "pending_acks": "protocols.mqtt.pending_acks",
    "reactor": "net.reactor",
    "sockets": "net.sockets",
}

INSTALLED = Hot(
    "installed",
    **{field: importlib.import_module(f"fluxmq.{place}") for field, place in PLACES.items()},
)


@cache
def uncompiled() -> Hot:
    """The modules' sources, run as they are."""
    return Hot("uncompiled", **{field: from_source(place) for field, place in PLACES.items()})
