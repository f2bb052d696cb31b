"""What every test run shares: which hot path is being tested, what need not be tested with both, Hypothesis's profile."""

import contextlib
import gc
import importlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import fluxmq.queues.machine
from fluxmq.protocols.mqtt.scan import COMPILED

# Importing pysyncobj puts calls of Windows in the place of these, on any system.
_address_functions = socket.inet_pton, socket.inet_ntop
with contextlib.suppress(ImportError):
    importlib.import_module("pysyncobj.syncobj")
socket.inet_pton, socket.inet_ntop = _address_functions

# A shared machine is slow at times, which says nothing of the property. Examples are drawn anew each time; a failing
# one is printed as a blob that reproduces it.
settings.register_profile(
    "fluxmq",
    deadline=None,
    max_examples=int(os.environ.get("FLUXMQ_EXAMPLES", "100")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fluxmq")


def pytest_collection_finish() -> None:
    """Keep what thousands of tests are made of out of each later garbage collection, of which many tests ask for one."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """Say in pytest's header whether this run tests the compiled or the uncompiled hot path."""
    return f"hot path: {'compiled' if COMPILED else 'uncompiled'}"


ROOT = Path(__file__).parent
TWICE = (
    "fuzz/test_amqp091.py",
    "fuzz/test_amqp_hot.py",
    "fuzz/test_batches.py",
    "fuzz/test_hot.py",
    "integration/test_amqp.py",
    "integration/test_queues.py",
    "integration/test_two_shards.py",
    "interop/amqp091/test_pika.py",
    "interop/test_mosquitto_clients.py",
    "props/test_amqp091_codec.py",
    "props/test_amqp_hot.py",
    "props/test_batches.py",
    "props/test_batches_properties.py",
    "props/test_hot_reactor.py",
    "props/test_hot_runs.py",
    "props/test_hot_validity.py",
    "props/test_queue_cutting.py",
    "props/test_queue_dispatch.py",
    "props/test_queue_machine.py",
    "props/test_queue_streams.py",
    "props/test_segments.py",
    "props/test_wal.py",
    "unit/model",
    "unit/net",
    "unit/protocols",
    "unit/queues",
    "unit/sessions",
    "unit/storage",
)
"""What is tested in both forms of the program: the parts that are compiled, and some runs of whole brokers. All the rest runs
in one form, and so does what is marked `uncompiled`, in the other."""


def runs_twice(where: str) -> bool:
    """Whether the tests of a module, given by its path, run in both forms."""
    return any(where == each or where.startswith(f"{each}/") for each in TWICE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not read modules of which the second run has no test: there are several hundred."""
    if "not once" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    where = collection_path.relative_to(ROOT).as_posix()
    if runs_twice(where) or b"mark.uncompiled" in collection_path.read_bytes():
        return None
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a second run, with the other form of the core, may leave out: ``-m "not once"``."""
    compiled = not str(fluxmq.queues.machine.__file__).endswith(".py")
    for item in items:
        if item.get_closest_marker("uncompiled"):
            if compiled:
                item.add_marker(
                    pytest.mark.skip("puts in place what compiled code does not look at")
                )
            continue
        if not runs_twice(item.path.relative_to(ROOT).as_posix()):
            item.add_marker("once")


CRASHING = (
    "damage",
    "props/test_segments.py",
    "props/test_wal.py",
    "unit/shards",
    "unit/spark",
    "unit/storage",
)
"""Tests in which processes end without closing anything, several in one process of ours. With 1,024 descriptors open, clients
that call select() could not be tested in it any more."""


def _descriptors() -> set[tuple[str, str]]:
    """The descriptors of this process, and what each stands for: a number may be used again."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@pytest.fixture
def fresh_fonts() -> None:
    """Have Matplotlib open fonts anew: it keeps their files open, and a test that closed a descriptor twice may have
    closed one of these."""
    loaded = sys.modules.get("matplotlib.font_manager")
    if loaded is not None:
        loaded._get_font.cache_clear()


@pytest.fixture(autouse=True)
def descriptors_of_the_dead(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close what a simulated process left open of its data directory: a real one's end would have."""
    where = request.node.path.relative_to(ROOT).as_posix()
    if not where.startswith(CRASHING):
        yield
        return
    before = _descriptors()
    yield
    for number, target in _descriptors() - before:
        # SQLite and sockets close what is theirs when they are collected.
        if target.startswith(tempfile.gettempdir()) and "state.db" not in target:
            with contextlib.suppress(OSError):
                os.close(int(number))
