"""One shard's part of moving a group, in use, from one shard to another.

The control process leads: it records that the group is moving (a shard that starts then does not
open it), asks its shard to *release* it and the new one to *receive* it, and then writes the new
placement. That write decides: before it the group is at its old place, afterwards at the new one,
whatever crashes meanwhile.

A group is released once it accepts, answers and proposes nothing more, everything applied is in a
durable snapshot, later entries are in the file that carries them over, and its own files are
closed. It is received once its hard state, checkpoint and those entries are durable in the new
shard's log: everything it acknowledged, and its vote. Only after the decision does the new shard
open it and the old one remove it from its log (`storage.hand_over` describes how a log tells valid
copies from invalid ones).

A leader first transfers leadership to another member, if one can lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.node_groups import NodeGroups
from fluxmq.engine.service import QueueService
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import ERROR_EXISTS, ERROR_FAILED, ERROR_NOT_FOUND, Body, Failure
from fluxmq.ipc.placements import (
    EXPECT,
    PLACEMENT,
    RECEIVE,
    RELEASE,
    Release,
    ReleasedGroup,
    placement_from_body,
)
from fluxmq.logs import get_logger
from fluxmq.replication.open_group import OpenGroup
from fluxmq.replication.placement import Places
from fluxmq.replication.shared_log import SharedLog
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files
from fluxmq.storage.hand_over import (
    LogPosition,
    append_copy,
    begin_copy,
    in_pieces,
    mark,
    read_tail,
    unmark,
    write_tail,
)
from fluxmq.storage.wal_options import RecoveredEntry

LEAD_SECONDS_MAX = 2.0
"""Maximum time for another member to take over leadership of a group that is about to leave."""
SETTLE_SECONDS = 0.05
"""Time for consumers to settle messages of a leaving group; the rest is redelivered elsewhere."""
DRAIN_SECONDS_MAX = 5.0
"""Time limit for a leaving group to apply what it proposed, before its move is cancelled."""
CHECKPOINT_SECONDS_MAX = 60.0
"""Time limit for a checkpoint in progress, before the move of a group is cancelled."""
STEP_SECONDS = 0.001
ALL = 1 << 62
"""No limit on the bytes of unapplied entries: a leader bounds what it sends uncommitted."""

_log = get_logger("fluxmq.queues")


class HandoverError(Exception):
    """A group cannot leave or arrive; ``code`` is one of ``ipc.messages.ERROR_*``."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Receipt:
    """Waits until what was given to a log is durable."""

    def __init__(self, shared: SharedLog) -> None:
        self._shared = shared
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(self) -> None:
        """Wait until everything given so far is durable. Raises HandoverError if it never will
        be."""
        if self._shared.failed:
            raise HandoverError(ERROR_FAILED, self._shared.failed)
        self._shared.join(self)
        self._shared.wrote(self, 0, 0)
        try:
            why = await self._ended
        finally:
            self._shared.leave(self)
        if why:
            raise HandoverError(ERROR_FAILED, why)

    def persisted(self, index: int, term: int, number: int) -> None:
        """Note that it is durable."""
        self._end("")

    def log_failed(self, why: str) -> None:
        """Note that it never will be durable."""
        self._end(why)

    def _end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)


class Handovers:
    """Groups moving from and to one shard. ``known`` returns the existing groups placed here,
    ``is_elsewhere`` whether a group is assigned to another shard."""

    def __init__(
        self,
        shard: int,
        places: Places,
        service: QueueService,
        node_groups: NodeGroups,
        known: Callable[[], list[str]],
        is_elsewhere: Callable[[str], bool],
        files: Files,
        paths: DataPaths,
    ) -> None:
        self._shard = shard
        self._places = places
        self._service = service
        self._known = known
        self._is_elsewhere = is_elsewhere
        self._durable = service.durable
        self._files = files
        self._paths = paths
        self._node_groups = node_groups
        self._leaving = node_groups.leaving
        self._coming: dict[str, ReleasedGroup] = {}
        """Groups whose entries are being copied into this shard's log."""
        self.moved = 0
        """Number of groups that left this shard."""
        self._tasks: set[asyncio.Task[None]] = set()

    def commands(self) -> dict[str, RequestHandler]:
        """Return the commands of the control process."""
        return {
            PLACEMENT: self._on_placement,
            EXPECT: self._on_expect,
            RELEASE: self._on_release,
            RECEIVE: self._on_receive,
        }

    # Leaving

    def _on_release(self, body: Body, answered: Answered) -> None:
        name = Release.from_body(body).group
        self._run(self._release(name, answered))

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _release(self, name: str, answered: Answered) -> None:
        revision = self._places.placement.revision
        try:
            released = await self._leave(name)
        except HandoverError as problem:
            answered(Failure(problem.code, str(problem)))
            return
        answered(released.to_body())
        if self._places.placement.revision != revision:
            self._settle(name, self._shard)  # the decision came while the group was leaving

    async def _leave(self, name: str) -> ReleasedGroup:
        """Release a group. Raises HandoverError, after which it stays as it was."""
        hosted = self._durable.groups.get(name)
        if hosted is None or name in self._leaving:
            raise HandoverError(ERROR_NOT_FOUND, f"group {name} is not on this shard")
        await self._checkpoint(hosted)  # so that the last one has little to do
        await self._have_another_lead(hosted)
        if self._durable.groups.get(name) is not hosted or name in self._leaving:
            raise HandoverError(ERROR_NOT_FOUND, f"group {name} is no longer on this shard")
        group = hosted.group
        self._leaving[name] = False
        begun = time.monotonic()
        group.leaving = True
        try:
            await self._come_to_rest(hosted, begun)
            position = await self._hand_out(hosted)
        except BaseException:
            self._stay(hosted)
            raise
        self._durable.release(name)
        self._leaving[name] = True
        self.moved += 1
        stopped = time.monotonic() - begun
        _log.info(
            "group released",
            extra={
                "group": name,
                "index": position.index,
                "last": position.last,
                "seconds": stopped,
            },
        )
        return ReleasedGroup(name, *position, stopped)

    async def _have_another_lead(self, hosted: OpenGroup[ReplicationGroup]) -> None:
        """Transfer leadership, if another member can lead, so that the group works while it
        moves."""
        driver = hosted.driver
        if driver.leading and driver.hand_lead():
            deadline = time.monotonic() + LEAD_SECONDS_MAX
            await self._until(hosted.group, lambda: not driver.leading, deadline)

    def _stay(self, hosted: OpenGroup[ReplicationGroup]) -> None:
        """Cancel a group's move."""
        group, name = hosted.group, hosted.group.name
        group.leaving = False
        self._leaving.pop(name, None)
        if self._durable.groups.get(name) is hosted:
            with contextlib.suppress(StorageError):  # then the log accepts nothing else either
                unmark(hosted.shared.wal, name)
            if hosted.driver.halted:
                hosted.driver.resume()
        self._service.mark(group)
        self._node_groups.changed()

    async def _come_to_rest(self, hosted: OpenGroup[ReplicationGroup], begun: float) -> None:
        """Wait until earlier requests are applied, none is accepted, and a snapshot has everything.

        Consumers may settle messages for a moment and are then detached. A follower applies as long
        as it accepts entries, so it stops accepting them first.
        """
        group, driver = hosted.group, hosted.driver
        await self._until(group, lambda: group.idle, begun + SETTLE_SECONDS)
        group.dismiss_consumers()
        if not await self._until(group, lambda: group.idle, begun + DRAIN_SECONDS_MAX):
            raise HandoverError(ERROR_FAILED, f"group {group.name} does not become idle")
        driver.halt()
        if not await self._until(group, driver.at_rest, time.monotonic() + DRAIN_SECONDS_MAX):
            raise HandoverError(ERROR_FAILED, f"the log of group {group.name} takes too long")
        await self._checkpoint(hosted)
        if group.failed or not group.idle or hosted.snapshot_index != group.applied_index:
            raise HandoverError(ERROR_FAILED, f"no checkpoint of group {group.name} could be taken")

    async def _hand_out(self, hosted: OpenGroup[ReplicationGroup]) -> LogPosition:
        """Make entries behind the snapshot durable for the next shard and mark the group as handed
        over."""
        name = hosted.group.name
        position = _position(hosted)
        tail = _tail(hosted, position)
        try:
            if tail:
                await asyncio.get_running_loop().run_in_executor(
                    self._service.executor,
                    write_tail,
                    self._files,
                    self._paths,
                    name,
                    position,
                    tail,
                )
            self._files.reach("handover.tail")
            mark(hosted.shared.wal, name)
        except StorageError as problem:
            raise HandoverError(ERROR_FAILED, str(problem)) from problem
        await Receipt(hosted.shared).wait()
        if hosted.group.failed or self._durable.groups.get(name) is not hosted:
            raise HandoverError(ERROR_FAILED, f"{name}: {hosted.group.failed or 'it has gone'}")
        if position != _position(hosted):
            raise HandoverError(ERROR_FAILED, f"group {name} saw a new term while it moved")
        return position

    async def _checkpoint(self, hosted: OpenGroup[ReplicationGroup]) -> None:
        """Take a checkpoint of everything applied so far."""
        deadline = time.monotonic() + CHECKPOINT_SECONDS_MAX
        if not await self._until(hosted.group, lambda: not hosted.checkpointing, deadline):
            raise HandoverError(ERROR_FAILED, f"a checkpoint of {hosted.group.name} takes too long")
        if hosted.group.failed:
            raise HandoverError(ERROR_FAILED, f"{hosted.group.name}: {hosted.group.failed}")
        task = self._durable.checkpoints.begin(hosted)
        if task is not None:
            await task

    async def _until(
        self, group: ReplicationGroup, condition: Callable[[], bool], deadline: float
    ) -> bool:
        """Wait, while the group works, until a condition holds; return False at the deadline."""
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._service.mark(group)
            await asyncio.sleep(STEP_SECONDS)
        return True

    # Coming

    def _on_expect(self, body: Body, answered: Answered) -> None:
        """Open the log a group will write to while the group still works elsewhere: creation takes
        a moment."""
        try:
            self._durable.logs.of(Release.from_body(body).group)
        except StorageError as problem:
            answered(Failure(ERROR_FAILED, str(problem)))
        else:
            answered({})

    def _on_receive(self, body: Body, answered: Answered) -> None:
        self._run(self._receive(ReleasedGroup.from_body(body), answered))

    async def _receive(self, coming: ReleasedGroup, answered: Answered) -> None:
        name = coming.group
        if name in self._durable.groups or name in self._coming:
            answered(Failure(ERROR_EXISTS, f"group {name} is on this shard already"))
            return
        self._coming[name] = coming
        try:
            await self._take_in(coming)
        except HandoverError as problem:
            answered(Failure(problem.code, str(problem)))
        except StorageError as problem:
            answered(Failure(ERROR_FAILED, str(problem)))
        else:
            answered({})
        finally:
            if self._coming.get(name) is coming:
                del self._coming[name]

    async def _take_in(self, coming: ReleasedGroup) -> None:
        """Make a group's log durable here. Raises HandoverError, StorageError; the copy is then
        invalid."""
        name = coming.group
        position = LogPosition(
            coming.term, coming.vote, coming.commit, coming.index, coming.index_term, coming.last
        )
        shared = self._durable.logs.of(name)
        entries = read_tail(self._files, self._paths, name, position)
        number = begin_copy(shared.wal, name, position)
        for piece in in_pieces(entries):
            append_copy(shared.wal, number, piece)
            await Receipt(shared).wait()
            if self._coming.get(name) is not coming:
                raise HandoverError(ERROR_FAILED, f"the move of {name} was abandoned")
        if not entries:
            await Receipt(shared).wait()

    # The decision

    def _on_placement(self, body: Body, answered: Answered) -> None:
        before = self._places.learn(placement_from_body(body))
        if before is not None:
            # A cancelled move may change nothing but the group's fate here.
            for name, shard in {**dict.fromkeys(self._leaving, self._shard), **before}.items():
                self._settle(name, shard)
        answered({})

    def _settle(self, name: str, before: int) -> None:
        """Act on a decision about a group's place, if there is one; ``before``: its former
        shard."""
        if self._places.is_moving(name) or not self._leaving.get(name, True):
            return
        self._coming.pop(name, None)
        place = self._places.shard_of(name)
        if place == self._shard:
            self._come(name)
        else:
            self._go(name)
        self._leaving.pop(name, None)
        self._node_groups.changed()

    def _come(self, name: str) -> None:
        if name in self._durable.groups or name not in self._known():
            return
        if self._durable.reopen(name):
            _log.info("group taken over", extra={"group": name})

    def _go(self, name: str) -> None:
        hosted = self._durable.groups.get(name)
        if hosted is not None:
            # Two shards must never lead one group: this one gives it up in any case.
            hosted.group.fail("the group is placed on another shard")
            _log.error("group closed: it is placed on another shard", extra={"group": name})
        try:
            self._durable.forget_orphaned_groups(self._is_elsewhere)
        except StorageError as problem:
            # The log keeps the group's entries; the next start tries again.
            _log.error("group not forgotten", extra={"group": name, "problem": str(problem)})


def _position(hosted: OpenGroup[ReplicationGroup]) -> LogPosition:
    """Return the log position of a member at rest, all of it durable. Raises HandoverError."""
    if not hosted.driver.at_rest():
        raise HandoverError(ERROR_FAILED, f"the log of group {hosted.group.name} is not at rest")
    wal, number = hosted.shared.wal, hosted.log.number
    status = hosted.driver.node.status()
    term, vote, _ = wal.hard_state(number)
    assert (term, vote) == (status.term, status.vote), "the vote that was given moves"
    assert status.persisted == status.last_index == wal.last_index(number), (
        "what was acknowledged moves"
    )
    index = hosted.snapshot_index
    return LogPosition(
        term, vote, status.commit, index, hosted.log.term(index), wal.last_index(number)
    )


def _tail(hosted: OpenGroup[ReplicationGroup], position: LogPosition) -> list[RecoveredEntry]:
    """Return the entries behind the snapshot, which are in memory since they are not applied."""
    if position.last == position.index:
        return []
    entries = hosted.log.entries(position.index + 1, position.last + 1, ALL)
    return [RecoveredEntry(each.term, each.index, each.kind, each.data) for each in entries]
