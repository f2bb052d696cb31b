"""A member of etcd whose network was cut without a word serves soon after the cut, with the program that ``make etcd`` builds."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fluxmq.settings.clustering import ClusterSettings
from fluxmq.supervisor.etcd import BUILT, arguments, version_of
from tests.chaos.network import Network, inside, namespace_of, prefix_of
from tests.chaos.settings import ETCD_CLIENTS, node_settings
from tests.powercut.image import NotPermittedError

NODES = (1, 2, 3)
CUT_SECONDS = 14.0
"""The kernel sends again what was lost 12.6 s after it was sent first, and next 25.4 s after that: on connections of
before the cut nothing arrives for more than ten seconds."""
SERVES_SECONDS = 5.0
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.05


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        made = Network(len(NODES))
    except NotPermittedError as error:
        pytest.skip(f"no network namespaces here: {error}")
    with made:
        yield made


def serves(node: int) -> bool:
    """Whether a node's member can read what all agree on."""
    try:
        with inside(namespace_of(node)):
            url = f"http://127.0.0.1:{ETCD_CLIENTS}/health"
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                return bool(answer.status == 200)
    except OSError:
        return False


def seconds_until(node: int, served: bool) -> float:
    """How long it takes until a node's member serves, or does not."""
    began = time.monotonic()
    while serves(node) is not served:
        assert time.monotonic() < began + PATIENCE_SECONDS
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def member(node: int, folder: Path) -> list[str]:
    """The command of a node's member, in the node's namespace."""
    settings = node_settings(
        *(node, len(NODES), folder),
        mode="forward",
        proxied=False,
        certificates=None,
        dead_letters=False,
        checkpoint_interval="1s",
    )
    cluster = ClusterSettings.model_validate(settings["cluster"])
    assert cluster.etcd is not None
    options = arguments(cluster, cluster.etcd, str(folder / f"node{node}"), version_of(str(BUILT)))
    return [*prefix_of(node), str(BUILT), *options]


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.skipif(not BUILT.exists(), reason="make etcd has not been run")
def test_a_member_that_was_cut_off_serves_soon_after(network: Network, tmp_path: Path) -> None:
    with ExitStack() as running:
        for node in NODES:
            process = running.enter_context(subprocess.Popen(member(node, tmp_path)))
            running.callback(process.kill)
        for node in NODES:
            seconds_until(node, True)
        for other in (2, 3):
            network.block(1, other, silently=True)
            network.block(other, 1, silently=True)
        cut = time.monotonic()
        seconds_until(1, False)
        seconds_until(2, True)
        time.sleep(cut + CUT_SECONDS - time.monotonic())
        network.heal()
        assert seconds_until(1, True) < SERVES_SECONDS
