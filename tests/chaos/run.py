"""One run from its beginning to its report: start, load, faults, recovery, reading everything, comparing the disks."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from random import Random

from tests.chaos import mirrors
from tests.chaos.board import Board, Host, until
from tests.chaos.check import check_file
from tests.chaos.cluster import READY_DEADLINE_S, Cluster
from tests.chaos.configurations import Configuration, Step
from tests.chaos.consumers import Auditor
from tests.chaos.faults import Fault, Field
from tests.chaos.network import BRIDGE, CLIENTS, Network, address, inside, socket_in
from tests.chaos.operators import available
from tests.chaos.proxy import Link
from tests.chaos.records import (
    FAIL,
    OK,
    Drained,
    Finding,
    Forced,
    History,
    Moved,
    Probe,
    Queue,
    Run,
)
from tests.chaos.records import Fault as FaultRecord
from tests.chaos.report import Report
from tests.chaos.settings import (
    ACK_TIMEOUT_S,
    AMQP,
    ELECTION_S,
    KEPT,
    MQTT,
    PEER_PORTS,
    PROMOTION_S,
    STREAM,
    TICK_S,
    UNDERTAKERS,
    VISIBILITY_S,
    aliases,
    mirrored_queues,
    peer_host,
    queues,
)
from tests.chaos.workload import Workload
from tests.powercut.node import NodeError

QUIET_SHARE, QUIET_MAX_S = 0.15, 20.0
"""Of the time, at the beginning and at the end, nothing is done to the nodes."""
RECOVERY_S = 2 * ELECTION_S + 5.0
BETWEEN_S = 30.0
LEVEL_S = 60.0
"""Time that all members get to have everything."""
LAST_CONFIRMS_S = 20.0
SILENCE_S = VISIBILITY_S + 10.0
"""A group that was given nothing new for so long is given nothing more."""
AUDIT_SILENCE_S = 10.0
DRAIN_S = 120.0
POLL_S = 0.1
SPREAD = re.compile(
    r"(?P<time>\S+ \S+Z) .* transferring leadership to balance leaders  group=(?P<group>\S+) "
)

FORCED = re.compile(
    r"(?P<time>\S+ \S+Z) .* an unsynchronised mirror leads a group: .*  group=(?P<group>\S+) "
)

Say = Callable[[str], None]


class Runner:
    """Runs a configuration on a cluster that is up."""

    def __init__(
        self, configuration: Configuration, place: Field, history: History, mode: str, seed: int
    ) -> None:
        self.configuration = configuration
        self.place = place
        self.cluster = place.cluster
        self.history = history
        self.say: Say = lambda line: None
        self.seed = seed
        hosts = [Host(m.name, m.host, MQTT, AMQP) for m in self.cluster.members]
        wait = TICK_S + PROMOTION_S if configuration.mirrors else ACK_TIMEOUT_S
        self.board = Board(history, hosts, Random(f"{seed}/load"), seed & 0xFFFFFFFF, wait)
        if configuration.mirrors:
            self.queues = mirrored_queues(configuration.mirrors == "when-synced")
        else:
            self.queues = queues(configuration.declared, configuration.dead_letters)
        self.workload = Workload(self.board, configuration)
        nodes = tuple(member.name for member in self.cluster.members)
        run = Run(
            *(configuration.name, seed, nodes, mode, ELECTION_S, wait),
            *(self.workload.window, self.workload.share),
            self.queues,
        )
        history.write(run)

    async def run(self, seconds: float) -> None:
        """All of it; the time counts from the first publish."""
        if self.configuration.mirrors:
            await self._mirror()
        for consumer in self.workload.consumers:
            consumer.start()
        quiet = min(QUIET_MAX_S, seconds * QUIET_SHARE)
        # A group is given what comes after its first consumer: all have to be there.
        groups = {(queue.name, group.name) for queue in self._read() for group in queue.groups}
        await self.probe(
            *("all groups have a consumer", self.board.now(), READY_DEADLINE_S),
            lambda: groups <= self.board.groups,
        )
        for publisher in self.workload.publishers:
            publisher.start()
        try:
            until_s = self.board.now() + seconds
            await asyncio.sleep(quiet)
            last = await self.faults(until_s - quiet)
            await self._recover(last, self.board.now())
            await asyncio.sleep(max(0.0, until_s - self.board.now()))
            await self._finish()
        finally:
            self.board.ending = True
            everybody = [*self.workload.publishers, *self.workload.consumers]
            await asyncio.gather(*(client.stop() for client in everybody))

    async def _mirror(self) -> None:
        """Have the queues mirrored, and faults find their leaders. Raises ``NodeError``, ``OSError``."""
        policy = mirrors.definition(self.configuration.mirrors, self.configuration.pair)
        await asyncio.to_thread(mirrors.set_policy, self.cluster.members[0], policy)
        await mirrors.declare(self.board.hosts)
        wanted = len(self.queues)
        self.place.groups = await asyncio.to_thread(mirrors.led, self.cluster, wanted)
        self.say(f"mirrored groups: {' '.join(self.place.groups)}")

    def _read(self) -> list[Queue]:
        """The queues that are read from the beginning on."""
        return [queue for queue in self.queues if queue.name != KEPT]

    # --- faults ------------------------------------------------------------------------------------------------

    async def faults(self, until_s: float) -> Fault | None:
        """One step after the other, as long as there is time for a whole one; the last fault."""
        last: Fault | None = None
        steps = self.configuration.steps
        number = 0
        while steps:
            step: Step = steps[number % len(steps)]
            lasting = self.place.random.choice(step.lasting)
            if last is not None and self.board.now() + lasting > until_s:
                break
            number += 1
            last = step.fault(self.place)
            await self.fault(last, lasting)
            await asyncio.sleep(min(step.pause, max(0.0, until_s - self.board.now())))
        await asyncio.sleep(max(0.0, until_s - self.board.now()) if not steps else 0.0)
        return last

    async def fault(self, fault: Fault, lasting: float) -> None:
        """Do one, and write it down. It begins when all nodes are ready, or have had the time to be: what follows from
        two faults at once is for faults that are made so."""
        self._look_for_dead()
        with contextlib.suppress(NodeError):
            await asyncio.to_thread(self.cluster.wait_ready, BETWEEN_S)
        begin = self.board.now()
        await asyncio.to_thread(fault.begin)
        self.say(f"{begin:7.2f} s  {fault.kind} {','.join(fault.names)} {fault.note}")
        await asyncio.sleep(lasting)
        await asyncio.to_thread(fault.end)
        record = FaultRecord(
            fault.kind, fault.names, begin, self.board.now(), fault.silent, fault.note
        )
        self.history.write(record)
        for rule, sentence in fault.findings:
            self.history.write(Finding(rule, sentence))

    def _look_for_dead(self) -> None:
        for member in self.cluster.died():
            sentence = f"{member.name} died of itself:\n{member.said()}"
            self.history.write(Finding("I13", sentence))
            self.say(sentence)
            member.kill()
            member.launch()

    # --- afterwards --------------------------------------------------------------------------------------------

    async def _recover(self, last: Fault | None, healed: float) -> None:
        """Everything must be served again: by each node, in time."""
        limit = RECOVERY_S + (last.recovery_s if last else 0.0)
        limit += PROMOTION_S if self.configuration.mirrors else 0.0
        ready = asyncio.create_task(asyncio.to_thread(self.cluster.wait_ready, READY_DEADLINE_S))
        probes = self.workload.probes()
        for probe in probes:
            probe.start()
        taken = [(probe.route.queues[0], (probe.route.number, 0)) for probe in probes]

        def confirmed() -> bool:
            return all(key in self.board.confirmed[queue] for queue, key in taken)

        def delivered() -> bool:
            return all(
                key in self.board.seen[queue.name, group.name]
                for name, key in taken
                for queue in self._read()
                if queue.name == name
                for group in queue.groups
            )

        await self.probe("probes are confirmed", healed, limit, confirmed)
        await asyncio.gather(*(probe.stop() for probe in probes))
        await self.probe("probes are delivered", healed, limit + VISIBILITY_S, delivered)
        await self.probe("all nodes are ready", healed, LEVEL_S, ready.done)
        try:
            await ready
        except NodeError as error:
            self.history.write(Finding("I13", str(error)))
            self.say(str(error))

    async def probe(self, name: str, since: float, limit: float, holds: Callable[[], bool]) -> None:
        """Wait for something, and write down how long it took."""
        came = await until(holds, max(0.0, since + LEVEL_S - self.board.now()), POLL_S)
        now = self.board.now()
        self.history.write(Probe(name, since, now, limit, OK if came else FAIL, ""))
        self.say(f"{now:7.2f} s  {name}: {f'{now - since:.1f} s' if came else 'not'}")

    async def _finish(self) -> None:
        """No more is published; everything is read, and the members come to the same end."""
        self.board.stopping = True
        publishers = self.workload.publishers
        began = self.board.now()
        await self.probe(
            *("publishers come to their end", began, LAST_CONFIRMS_S),
            lambda: all(publisher.finished() for publisher in publishers),
        )
        await asyncio.gather(*(self._drain(q.name, g.name) for q in self.queues for g in q.groups))
        for queue in self.queues:
            if queue.dead_letters:
                await self._dead_letter(queue.dead_letters)
        await asyncio.gather(*(self._audit(auditor) for auditor in self.workload.auditors()))
        self._look_for_dead()
        if len(self.cluster.members) > 1:
            await self._level()

    async def _level(self) -> None:
        """Wait until all members have applied the same."""
        began = self.board.now()
        come, told = False, ""
        while not come and self.board.now() < began + LEVEL_S:
            extents = await asyncio.to_thread(self.cluster.extents)
            come = are_level(extents)
            told = "" if come else str(extents)
            await asyncio.sleep(POLL_S)
        now = self.board.now()
        outcome = OK if come else FAIL
        self.history.write(Probe("replicas are level", began, now, LEVEL_S, outcome, told))
        self.say(f"{now:7.2f} s  replicas are level: {f'{now - began:.1f} s' if come else 'not'}")

    async def _drain(self, queue: str, group: str) -> None:
        """Wait until a group has everything that is confirmed, or is given nothing any more."""
        board = self.board
        began = board.now()
        silence = AUDIT_SILENCE_S if queue == STREAM else SILENCE_S

        def over() -> bool:
            since = max(began, board.news.get((queue, group), began))
            return not board.missing(queue, group) or board.now() - since > silence

        if await until(over, DRAIN_S, POLL_S):
            self.history.write(Drained(queue, group, board.now()))
        if missing := board.missing(queue, group):
            self.say(f"{queue}: {group} misses {len(missing)}: {sorted(missing)[:5]}")

    async def _dead_letter(self, name: str) -> None:
        """Wait for dead letters in the same way."""
        board = self.board
        began = board.now()

        def over() -> bool:
            since = max(began, board.news.get((name, UNDERTAKERS), began))
            there = not board.rejected - board.seen[name, UNDERTAKERS]
            return there or board.now() - since > SILENCE_S

        await until(over, DRAIN_S, POLL_S)

    async def _audit(self, auditor: Auditor) -> None:
        auditor.start()
        node = auditor.host.name
        joined = (STREAM, auditor.group)
        if await until(lambda: joined in self.board.groups, RECOVERY_S, POLL_S):
            await self._drain(STREAM, auditor.group)
        else:
            # Nothing was read there, which is not to say that anything is lost.
            self.history.write(Finding("I13", f"{STREAM} cannot be read over {node}"))
        await auditor.stop()


async def _links(network: Network, random: Random) -> dict[tuple[int, int, int], Link]:
    """A proxy between each node and each other, for every port of peers."""
    links = {}
    for one in network.nodes:
        for other in network.nodes:
            if one == other:
                continue
            host = address(peer_host(one, other, True))
            for port in PEER_PORTS:
                listen, target = (host, port), (address(other), port)
                link = Link(listen, target, random, lambda: socket_in(BRIDGE))
                await link.start()
                links[one, other, port] = link
    return links


def run(
    configuration: Configuration,
    seconds: float,
    seed: int,
    mode: str,
    path: Path,
    say: Say,
    runner: type[Runner] = Runner,
) -> Report:
    """Run a configuration, and hold its history against every rule. Raises ``NotPermittedError`` where this is not
    allowed, ``NotAvailableError`` where the nodes cannot do what it takes, ``NodeError`` when they do not start."""
    hosts = aliases(configuration.nodes) if configuration.proxied else ()
    with (
        Network(configuration.nodes, hosts) as network,
        Cluster(
            configuration.nodes,
            mode=mode,
            proxied=configuration.proxied,
            tls=configuration.tls,
            dead_letters=configuration.dead_letters,
            cores=configuration.cores,
            checkpoint_interval=configuration.checkpoint_interval,
            workers=configuration.workers,
        ) as cluster,
        inside(CLIENTS),
        History(path) as history,
    ):
        place = Field(cluster, network, Random(f"{seed}/faults"), configuration.proxied)

        async def all_of_it() -> None:
            if configuration.proxied:
                place.links.update(await _links(network, Random(f"{seed}/links")))
            try:
                await asyncio.to_thread(cluster.start)
                kinds = [step.fault for step in configuration.steps]
                usable = await asyncio.to_thread(available, kinds, cluster.members[0])
                for kind in set(kinds) - set(usable):
                    say(f"not available: {kind.kind}")
                steps = tuple(step for step in configuration.steps if step.fault in usable)
                made = runner(configuration._replace(steps=steps), place, history, mode, seed)
                made.say = say
                await made.run(seconds)
            finally:
                network.heal()
                for link in place.links.values():
                    await link.stop()

        try:
            asyncio.run(all_of_it())
            cluster.stop()
            for replica in cluster.replicas():
                if configuration.nodes > 1:
                    history.write(replica)
            for member in cluster.members:
                log = member.log.read_text("utf-8", "replace")
                for moved in moves(log, history.epoch, member.wall.right):
                    history.write(moved)
                for forced in forcings(log, member.name, history.epoch, member.wall.right):
                    history.write(forced)
        finally:
            for member in cluster.members:
                if member.log.exists():
                    shutil.copy(member.log, path.with_suffix(f".{member.name}.log"))
    return check_file(path)


def are_level(extents: Sequence[Mapping[str, float]]) -> bool:
    """Whether members have applied the same of every group. A mirrored group is not on all of them."""
    groups = {group for extent in extents for group in extent}
    return bool(groups) and all(
        len(
            {
                extent.get(group)
                for extent in extents
                if group in extent or not group.startswith(mirrors.PREFIX)
            }
        )
        == 1
        for group in groups
    )


def moves(
    log: str, epoch: float, right: Callable[[float], float] = lambda shown: shown
) -> list[Moved]:
    """When a node says in its log that it gave leadership away by itself. ``epoch``: when the run began, seconds since 1970;
    ``right``: what time it was when its wall clock showed one."""
    found = []
    for line in log.splitlines():
        said = SPREAD.match(line)
        if said is not None:
            time = right(datetime.fromisoformat(said["time"]).timestamp()) - epoch
            found.append(Moved(said["group"], round(time, 6)))
    return found


def forcings(
    log: str, node: str, epoch: float, right: Callable[[float], float] = lambda shown: shown
) -> list[Forced]:
    """Moments at which nodes said in their logs that they lead although their copies lack messages; see `moves`."""
    found = []
    for line in log.splitlines():
        said = FORCED.match(line)
        if said is not None:
            time = right(datetime.fromisoformat(said["time"]).timestamp()) - epoch
            found.append(Forced(said["group"], node, round(time, 6)))
    return found
