"""``python -m tests.differential``: the scripts against FluxMQ and RabbitMQ, and where the two differ.

``--mirrors``: the scripts about mirrored queues instead, on clusters of three nodes, with ``mirror_exceptions.json``.

Exit 0: they differ only where ``exceptions.json`` says so; 1: elsewhere too; 77: RabbitMQ is not installed and nothing
is recorded.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from perf import brokers, rabbitmq, report
from tests.differential import compare, mirrors, runner, targets
from tests.differential.runner import Outcome, Target
from tests.differential.script import Case, load

SKIPPED = 77


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    found.add_argument("--only", default="", help="cases whose area and name have this in them")
    found.add_argument("--workers", type=int, default=1, help="FluxMQ's shards")
    found.add_argument(
        "--record", action="store_true", help="run RabbitMQ alone and keep its outcomes"
    )
    found.add_argument(
        "--recorded", action="store_true", help="against the recorded outcomes of RabbitMQ"
    )
    found.add_argument("--mirrors", action="store_true", help="the scripts about mirrored queues")
    found.add_argument("--logs", type=Path, help="a folder for the logs of clusters")
    found.add_argument("--show", action="store_true", help="print every outcome")
    return found


def run_all(target: Target, cases: Sequence[Case], show: bool) -> dict[str, Outcome]:
    """Every case against one broker."""
    outcomes: dict[str, Outcome] = {}
    for case in cases:
        try:
            outcomes[case.identifier] = runner.run(target, case)
        except (OSError, ValueError, KeyError) as error:
            failed = [f"the script broke off: {type(error).__name__}: {error}"]
            outcomes[case.identifier] = [failed for _ in case.steps]
        if show:
            print(f"== {case.identifier} ({target.name})")
            for step, outcome in zip(case.steps, outcomes[case.identifier], strict=True):
                print(f"    {step.line}")
                for line in outcome:
                    print(f"        {line}")
    return outcomes


def record(outcomes: dict[str, Outcome], cases: Sequence[Case]) -> None:
    """Keep what RabbitMQ did, with the scripts it is of."""
    content = {
        "broker": brokers.version("rabbitmq"),
        "time": report.now(),
        "scripts": {case.identifier: compare.script_of(case) for case in cases},
        "outcomes": outcomes,
    }
    report.write_json(compare.RECORDED, content)


def run_mirrors(options: argparse.Namespace) -> int:
    """The scripts about mirrored queues, as the options say."""
    # As an end in order, so that no node is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cases = [case for case in mirrors.load() if options.only in case.identifier]
    if options.recorded:
        theirs = compare.load_recorded(mirrors.RECORDED)
    elif not rabbitmq.installed():
        print("rabbitmq-server is not installed; --recorded compares with what is kept")
        return SKIPPED
    else:
        theirs = mirrors.run_all(targets.RABBITMQ, cases, options.show, options.logs)
        mirrors.record(theirs, cases)
    if options.record:
        print(f"recorded {len(cases)} cases")
        return 0
    ours = mirrors.run_all(targets.FLUXMQ, cases, options.show, options.logs)
    meant = compare.load_exceptions(mirrors.EXCEPTIONS)
    wrong = [
        each
        for case in cases
        for each in compare.differences(case, theirs[case.identifier], ours[case.identifier], meant)
    ]
    for each in wrong:
        print(each.text())
    if not options.only:
        about = {
            "time": report.now(),
            "rabbitmq": brokers.version("rabbitmq"),
            "steps": str(sum(len(case.steps) for case in cases)),
        }
        shown = compare.page(about, len(cases), wrong, meant, mirrors.TITLE)
        mirrors.PAGE.write_text(shown)
    cases_wrong = len({each.case for each in wrong})
    print(f"cases={len(cases)} differing={cases_wrong} exceptions={len(meant)}")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options say."""
    options = parser().parse_args(arguments)
    if options.mirrors:
        return run_mirrors(options)
    cases = [case for case in load() if options.only in case.identifier]
    if options.recorded:
        theirs = compare.load_recorded()
    else:
        if not rabbitmq.installed():
            print("rabbitmq-server is not installed; --recorded compares with what is kept")
            return SKIPPED
        with targets.rabbit() as target:
            theirs = run_all(target, cases, options.show)
        if not options.only:
            record(theirs, cases)
    if options.record:
        print(f"recorded {len(cases)} cases")
        return 0
    with targets.fluxmq(options.workers) as target:
        ours = run_all(target, cases, options.show)
    meant = compare.load_exceptions()
    wrong = []
    for case in cases:
        name = case.identifier
        if name not in theirs:
            print(f"{name}: not recorded")
            continue
        wrong += compare.differences(case, theirs[name], ours[name], meant)
    for each in wrong:
        print(each.text())
    about = {
        "time": report.now(),
        "rabbitmq": brokers.version("rabbitmq"),
        "steps": str(sum(len(case.steps) for case in cases)),
    }
    if not options.only:
        shown = compare.page(about, len(cases), wrong, meant)
        (compare.FOLDER / "results" / "comparison.md").write_text(shown)
    cases_wrong = len({each.case for each in wrong})
    print(f"cases={len(cases)} differing={cases_wrong} exceptions={len(meant)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
