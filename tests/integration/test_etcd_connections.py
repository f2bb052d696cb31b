"""A member's connections to other members end when nothing is heard on them, with the program that ``make etcd`` builds."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from fluxmq.settings.clustering import ClusterSettings
from fluxmq.supervisor.etcd import BUILT, arguments, version_of
from tests.broker import HOST, free_ports
from tests.etcd import PATIENCE, eventually

PROBED_SECONDS = 2
"""Silence after which the kernel asks the other side whether it is there."""
LOOKS_SECONDS = 10.0
"""Time in which the member has limited a new connection. Otherwise probes begin after thirty seconds."""
ESTABLISHED, KEEP_ALIVE = "01", "02"
"""A state and a timer, as the kernel shows them."""

pytestmark = pytest.mark.once


def probed_in(port: int) -> Iterator[float]:
    """Seconds until the next probe of each connection to a port on which nothing else is due (proc(5))."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, _, timer, *_ = line.split()
        kind, _, ticks = timer.partition(":")
        if remote.endswith(f":{port:04X}") and (state, kind) == (ESTABLISHED, KEEP_ALIVE):
            yield int(ticks, 16) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not BUILT.exists(), reason="make etcd has not been run")
def test_a_member_asks_on_a_silent_connection_whether_the_other_is_there(tmp_path: Path) -> None:
    """Not that of a connection which nobody has limited: so late that the kernel's own back-off counts."""
    peer, client = free_ports(2)
    with socket.create_server((HOST, 0)) as other:
        other.settimeout(PATIENCE)
        port = other.getsockname()[1]
        members = f"node1=http://{HOST}:{peer},node2=http://{HOST}:{port}"
        etcd = {
            "bind_addr": f"{HOST}:{peer}",
            "client_addr": f"{HOST}:{client}",
            "initial_cluster": members,
        }
        cluster = ClusterSettings.model_validate(
            {"enabled": True, "node_id": "node1", "etcd": etcd}
        )
        assert cluster.etcd is not None
        options = arguments(cluster, cluster.etcd, str(tmp_path / "etcd"), version_of(str(BUILT)))
        member = subprocess.Popen([str(BUILT), *options])

        async def limited() -> bool:
            found = list(probed_in(port))
            return bool(found) and min(found) <= PROBED_SECONDS

        async def soon() -> None:
            async with asyncio.timeout(LOOKS_SECONDS):
                await eventually(limited)

        try:
            connection, _ = other.accept()
            with connection:
                uvloop.run(soon())
        finally:
            member.kill()
            member.wait()
