"""Which hosts a node of a cluster has for its groups."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fluxmq.engine.group_clients import GroupClients
from tests.unit.replication.member import LoneMember


def test_a_replicated_group_whose_name_begins_like_a_local_one_keeps_no_outbox(
    tmp_path: Path,
) -> None:
    """Its members elsewhere know no outbox of this node's."""
    with asyncio.Runner() as runner:
        member = LoneMember(tmp_path / "data", runner, groups=("localities",))
        hosts = member.queues.elsewhere
        assert isinstance(hosts, GroupClients)
        group = member.queues.service.groups["localities"].group
        assert group.replicated
        hosts.leads(group)
        assert hosts.outboxes.append("q", b"", None) is None
        assert hosts.copy_of(group) is not None
        member.kill()
