"""Micro-benchmarks of single parts: codecs, subscription tree, ring, batches, log, the generator's inner loop.

A benchmark is a function that does a known number of items. It is repeated for a while and the best time
counts: disturbances only ever make it slower. The tests run each once with few items, so they cannot rot.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FIRST = ("codecs", "generator", "ring", "routing")
"""Modules that a message passes, in that order; the others follow by name."""

REPETITIONS_MAX = 10_000_000
"""Bounds a benchmark whose function does next to nothing."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """``step`` does ``items`` things and returns how many it did, which is checked."""

    name: str
    items: int
    step: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Timed:
    """The best time of one benchmark."""

    name: str
    ns_per_item: float

    def cells(self) -> list[str]:
        """As a table row."""
        rate = 1e9 / self.ns_per_item if self.ns_per_item else 0.0
        return [self.name, f"{self.ns_per_item:.1f}", f"{rate:,.0f}"]


def timed(benchmark: Benchmark, seconds: float) -> Timed:
    """Repeat for about ``seconds``, at least once; ``AssertionError`` when a step did not do its items."""
    best = float("inf")
    deadline = time.perf_counter() + seconds
    for _ in range(REPETITIONS_MAX):
        began = time.perf_counter_ns()
        done = benchmark.step()
        took = time.perf_counter_ns() - began
        if done != benchmark.items:
            raise AssertionError(f"{benchmark.name} did {done} of {benchmark.items} items")
        best = min(best, took)
        if time.perf_counter() >= deadline:
            break
    return Timed(benchmark.name, best / benchmark.items)


def all_benchmarks(scale: int) -> Iterator[Benchmark]:
    """Every benchmark of every module here, sized by ``scale`` messages, topics or records."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    for name in [*FIRST, *(name for name in names if name not in FIRST)]:
        module = importlib.import_module(f"{__name__}.{name}")
        yield from module.benchmarks(scale)


def run_all(seconds: float, scale: int = 1000) -> list[Timed]:
    """Time everything, in the order of the modules."""
    return [timed(benchmark, seconds) for benchmark in all_benchmarks(scale)]
