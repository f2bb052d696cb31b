"""One node of three without a process or a network around it: its shard's queues, and its part in the cluster.

Everything is the broker's own. Nobody listens and nobody dials; a test steps what a leader elsewhere would say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fluxmq.cluster.shard_endpoint import ShardEndpoint
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.group_clients import share
from fluxmq.engine.wiring import Queues
from fluxmq.net.reactor import Reactor
from fluxmq.queues import commands
from fluxmq.queues.commands import encode_entry
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.raft.types import COMMAND, Entry, Message, MessageKind
from fluxmq.replication.disk import Disk
from fluxmq.replication.open_group import OpenGroup
from fluxmq.replication.placement import placement_of
from fluxmq.replication.replica import Replica
from fluxmq.settings.plans import member_number
from fluxmq.settings.schema import Settings
from fluxmq.shards.steady import Clocks, NodeClock
from fluxmq.storage.directory import DataPaths, check_version, write_placement
from tests.damage.shard import Clock, HandSyncer, Steps, Tracked
from tests.unit.replication.trio import NOW_US, message

GROUP = "default"
LEADER = member_number("node2")
OWN = member_number("node1")
TERM = 3
SEGMENT_BYTES = 16 << 10


def settings_of(
    directory: Path, groups: Sequence[str] = (), ports: tuple[int, int] = (1, 100)
) -> Settings:
    """Those of node1. ``ports``: of the node and of its group, which hardly anybody uses."""

    def peers(port: int) -> dict[str, str]:
        return {"node2": f"127.0.0.2:{port}", "node3": f"127.0.0.3:{port}"}

    settings = Settings.model_validate(
        {
            "storage": {"data_dir": str(directory), "min_free_bytes": 0},
            "cluster": {
                "enabled": True,
                "node_id": "node1",
                "transport": {"bind_addr": f"127.0.0.1:{ports[0]}", "peers": peers(1)},
                "raft": {
                    "enabled": True,
                    "bind_addr": f"127.0.0.1:{ports[1]}",
                    "peers": peers(100),
                    "groups": {
                        group: {"bind_addr": f"127.0.0.1:{port}", "peers": peers(port)}
                        for port, group in enumerate(groups, 101)
                    },
                },
            },
        }
    )
    small = {"wal_file_bytes": 64 << 10, "segment_bytes": SEGMENT_BYTES}
    return settings.model_copy(update={"storage": settings.storage.model_copy(update=small)})


class LoneMember:
    """A life of node1, or of one of its ``workers`` shards. Raises what a start raises."""

    def __init__(
        self,
        directory: Path,
        runner: asyncio.Runner,
        groups: Sequence[str] = (),
        ports: tuple[int, int] = (1, 100),
        shard: int = 0,
        workers: int = 1,
    ) -> None:
        self.runner = runner
        self.files = Tracked()
        self.clock = Clock()
        self.steps = Steps()
        self.syncers: list[HandSyncer] = []
        settings = settings_of(directory, groups, ports)
        self.paths = DataPaths(settings.storage.data_dir)
        directory.mkdir(exist_ok=True)
        check_version(self.files, self.paths, create=True)
        placement = placement_of(settings, workers)
        write_placement(self.files, self.paths, placement)
        self.reactor = Reactor(self, 4096, 1 << 16, 1 << 16, 16)
        self.queues = Queues(
            shard,
            settings,
            placement,
            self.reactor,
            lambda _seconds, _action: None,
            lambda _client, _count: None,
            self.clock,
            Disk(self.files, self._syncer, lambda: self.steps, background=False),
        )
        self.now = 0.0
        clock = NodeClock(
            *(self.files, self.paths, shard, Clocks(self.clock, self.clock, "")),
            self.queues.go_on,
        )
        endpoint = ShardEndpoint.of(settings.cluster, shard, workers, 1)
        self.cluster = share(self.queues, settings, endpoint, clock, lambda: self.now)
        self.queues.join({}, 1)
        try:
            self.within(lambda: self.queues.open(lambda: None))
        except BaseException:
            self.kill()
            raise
        self.index: dict[str, int] = {}

    def _syncer(self, _directory: str) -> HandSyncer:
        self.syncers.append(HandSyncer(self.files))
        return self.syncers[-1]

    def schedule(self) -> None:
        """A tick is wanted."""

    def within(self, action: Callable[[], Any]) -> Any:
        """Do something in the loop."""

        async def act() -> Any:
            found = action()
            await asyncio.sleep(0)
            return found

        return self.runner.run(act())

    @property
    def hosted(self) -> OpenGroup[ReplicationGroup]:
        """The group."""
        return self.queues.service.groups[GROUP]

    @property
    def replica(self) -> Replica:
        """The group as a member of it."""
        return self.cluster.replicas[GROUP]

    def work(self) -> None:
        """The end of a tick, and its sync."""
        self.queues.service.finish()
        for syncer in self.syncers:
            while syncer.waiting:
                syncer.sync()
        for log in self.queues.service.logs.all():
            log.completed()

    def append(self, count: int, group: str = GROUP) -> None:
        """Whoever leads appends so many entries, each with a message, and all is committed."""
        hosted = self.queues.service.groups[group]
        first = hosted.log.last_index() + 1
        entries = []
        for index in range(first, first + count):
            said = [commands.declare(QueueConfig("work", QueueType.STREAM, max_depth=0))]
            if index > 1:
                batch = message(b"%6d" % index + bytes(1000))
                state = hosted.group.machine.queue("work")
                number = 1 if state is None else state.id
                said = [commands.append_header(number, len(batch), 0) + batch]
            entries.append(Entry(TERM, index, COMMAND, encode_entry(NOW_US, said)))
        last = first + count - 1
        before = hosted.log.term(first - 1)
        told = Message(
            MessageKind.APPEND, LEADER, OWN, TERM, first - 1, before, entries, commit=last
        )
        self.within(lambda: hosted.driver.step([told]))
        self.work()
        self.work()
        assert hosted.group.applied_index == last, hosted.group.failed

    def checkpoint(self, group: str = GROUP) -> None:
        """Take a checkpoint."""
        hosted = self.queues.service.groups[group]

        async def take() -> None:
            task = self.queues.service.durable.checkpoints.begin(hosted)
            while task is not None and not task.done():
                self.steps.run()
                await asyncio.sleep(0)

        self.runner.run(take())
        assert hosted.snapshot_index == hosted.group.applied_index
        self.work()

    def kill(self) -> None:
        """The process ends without a word."""
        self.files.close_all()
        for syncer in self.syncers:
            syncer.close()
