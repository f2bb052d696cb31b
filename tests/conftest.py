"""What every test run shares: which hot path is being tested, what need not be tested with both, Hypothesis's profile."""

import contextlib
import importlib
import os
import socket
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


def pytest_report_header() -> str:
    """Say in pytest's header whether this run tests the compiled or the uncompiled hot path."""
    return f"hot path: {'compiled' if COMPILED else 'uncompiled'}"


ROOT = Path(__file__).parent
ONCE = (
    "arch",
    "conformance",
    "damage",
    "differential",
    "fuzz/test_mqtt.py",
    "integration/test_acceptor_process.py",
    "integration/test_admin.py",
    "integration/test_admin_verbs.py",
    "integration/test_processes.py",
    "integration/test_queue_placement.py",
    "integration/test_restart_sessions.py",
    "integration/test_shard_links.py",
    "integration/test_shard_users.py",
    "interop/amqp091/test_aio_pika.py",
    "interop/amqp091/test_celery.py",
    "interop/amqp091/test_kombu.py",
    "interop/test_paho.py",
    "mutations",
    "perf",
    "chaos",
    "cluster",
    "integration/test_cluster_transport.py",
    "powercut",
    "props/test_mqtt_codec.py",
    "props/test_raft.py",
    "sim",
    "soak",
    "spark",
    "unit/control",
    "unit/auth",
    "unit/cli",
    "unit/cluster",
    "unit/ipc",
    "unit/logs",
    "unit/metrics",
    "unit/perf",
    "unit/protocols",
    "unit/raft",
    "unit/routing",
    "unit/settings",
    "unit/spark",
)
"""What does not run through the hot path, or is about the program as a whole: one form of the core is enough for it."""


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
        where = item.path.relative_to(ROOT).as_posix()
        if any(where == each or where.startswith(f"{each}/") for each in ONCE):
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
