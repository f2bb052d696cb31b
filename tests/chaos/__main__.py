"""``python -m tests.chaos --config NAME --seconds N``: nodes in network namespaces, loaded, maltreated, and held to their word.

Exit 0: every rule held; 1: not; 77: not permitted or not available here.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.configurations import BY_NAME, CONFIGURATIONS, MIRRORS, SHORT, Configuration
from tests.chaos.operators import NotAvailableError
from tests.chaos.run import run
from tests.powercut.__main__ import SKIPPED
from tests.powercut.image import NotPermittedError
from tests.powercut.node import NodeError


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    found.add_argument("--config", choices=sorted(BY_NAME), default="short")
    found.add_argument("--seconds", type=float, default=60.0, help="of load and faults")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--mode", choices=("forward", "replicate"), default="forward")
    found.add_argument("--undeclared", action="store_true", help="queues of the settings alone")
    found.add_argument(
        "--checkpoint-interval",
        default="200ms",
        help="how often the log behind is released; long: who was away is sent entries, not snapshots",
    )
    found.add_argument("--all", action="store_true", help="all configurations of the campaign")
    found.add_argument("--list", action="store_true", help="name the configurations")
    found.add_argument(
        "--histories",
        type=Path,
        default=Path(tempfile.gettempdir()) / "chaos-histories",
        help="directory of the recorded histories and the nodes' logs",
    )
    return found


def _list() -> None:
    for each in (*CONFIGURATIONS, *MIRRORS, *SHORT):
        kinds = ", ".join(dict.fromkeys(step.fault.kind for step in each.steps)) or "no faults"
        more = [
            word
            for word, holds in (
                (f"{each.nodes} nodes", each.nodes != 3),
                (f"{each.workers} shards", each.workers != 1),
                ("proxies", each.proxied),
                ("TLS", each.tls),
                ("dead letters", each.dead_letters),
                (f"mirrored, {each.mirrors}", bool(each.mirrors)),
                (f"core {each.cores}", bool(each.cores)),
            )
            if holds
        ]
        print(f"{each.name:19} {kinds}{f' ({chr(44).join(more)})' if more else ''}")


def _one(configuration: Configuration, options: argparse.Namespace) -> int:
    name = f"{configuration.name}-{options.mode}-{options.seed}"
    print(f"{name}: {configuration.nodes} nodes, {options.seconds:g} s", flush=True)
    path = options.histories / f"{name}.history"
    configuration = configuration._replace(
        declared=configuration.declared and not options.undeclared,
        checkpoint_interval=options.checkpoint_interval,
    )
    try:
        report = run(
            configuration,
            options.seconds,
            options.seed,
            options.mode,
            path,
            lambda line: print(line, flush=True),
        )
    except NotAvailableError as error:
        print(f"{configuration.name}: not available: {error}")
        return SKIPPED
    except NotPermittedError as error:
        print(f"skipped: {error}")
        return SKIPPED
    except NodeError as error:
        print(f"{configuration.name}: {error}")
        return 1
    print(f"history: {path}")
    print("\n".join(report.lines()), flush=True)
    return 0 if report.clean else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the last line of each run's output is its tally."""
    options = parser().parse_args(arguments)
    if options.list:
        _list()
        return 0
    # Told to stop, it leaves no node, image or namespace behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    options.histories.mkdir(parents=True, exist_ok=True)
    if not options.all:
        return _one(BY_NAME[options.config], options)
    codes = {each.name: _one(each, options) for each in CONFIGURATIONS}
    failed = [name for name, code in codes.items() if code == 1]
    skipped = [name for name, code in codes.items() if code == SKIPPED]
    held = len(codes) - len(failed) - len(skipped)
    print(f"{len(codes)} configurations: {held} held, failed {failed}, not run {skipped}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
